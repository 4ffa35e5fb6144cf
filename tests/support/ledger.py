"""A ledger of messages that are sent all the time in a thread, for tests of whole processes."""

from __future__ import annotations

import threading

from rucola.client import Message
from rucola.client.sync import Producer
from rucola.errors import MQError
from support.waiting import wait_until


class Ledger:
    """Sends numbers to topic T, with keys k1, k2, ..., also while no broker takes them. `stop` ends it."""

    def __init__(self, namesrv: str, size: int = 0) -> None:
        self.acknowledged: list[bytes] = []
        """The numbers that were acknowledged; bodies are filled up with blanks to `size` bytes."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[namesrv, size])
        self._thread.start()

    def _run(self, namesrv: str, size: int) -> None:
        number = 0
        with Producer("g", namesrv) as producer:
            while not self._stopped.wait(0.002):
                number += 1
                body = b"%d" % number
                try:
                    if producer.send(Message("T", body.ljust(size), keys=f"k{number}"), timeout_ms=500).is_ok:
                        self.acknowledged.append(body)
                except MQError:
                    pass

    def grows(self, count: int = 20) -> None:
        """Wait for messages that are acknowledged from now on."""
        reached = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= reached, 60)

    def stop(self) -> set[bytes]:
        """Stop, and return what was acknowledged."""
        self._stopped.set()
        self._thread.join()
        return set(self.acknowledged)
