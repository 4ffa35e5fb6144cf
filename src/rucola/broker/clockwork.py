"""Clockwork: all the work of a broker that no request asks for, each step bounded and never on the way of a message.

    at once       dispatch what was put: ConsumeQueues, index, held pulls (see `Reput`)
    every 100 ms  answer the held pulls whose time is up; touch the pages that the next messages will take
    every 500 ms  flush the log (flushIntervalCommitLog)
    every second  flush what was dispatched, and write the checkpoint that vouches for it
    every 5 s     write the consumer offsets (flushConsumerOffsetInterval)
    every 10 s    close the connections of clients that have fallen silent
    every 30 s    register with the name servers (registerNameServerPeriod)

Answers to the scheduled services of `BrokerController` and `DefaultMessageStore` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rucola.broker.pull_hold import PullRequestHold
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

DISPATCH_DELAY_S = 0.005


class Reput:
    """Dispatches soon after a put: at the end of this turn of the loop where a pull waits, else within 5 ms.

    The wait makes batches: dispatched a hundred at a time, a message costs a fifth of what it costs alone. Nobody can
    notice it, since every read of the store dispatches first what is pending; much longer, and a batch would keep the
    loop for a time that senders notice.
    """

    def __init__(self, store: MessageStore, hold: PullRequestHold) -> None:
        self._store = store
        self._hold = hold
        self._is_next = False
        self._later: asyncio.TimerHandle | None = None

    def on_put(self) -> None:
        if self._hold:
            if not self._is_next:
                self._is_next = True
                asyncio.get_running_loop().call_soon(self._dispatch)
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(DISPATCH_DELAY_S, self._dispatch)

    def _dispatch(self) -> None:
        self._is_next = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._store.reput()


class Clockwork:
    """Runs steps at intervals until it is stopped. A step that fails is logged and tried again at its next turn."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(self, interval_ms: int, name: str, step: Callable[[], Awaitable[None] | None]) -> None:
        self._tasks.append(asyncio.create_task(self._run(interval_ms / 1000, name, step), name=name))

    async def stop(self) -> None:
        """Stop all steps; one that is under way is cancelled where it waits."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run(self, interval_s: float, name: str, step: Callable[[], Awaitable[None] | None]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                outcome = step()
                if outcome is not None:
                    await outcome
            except Exception:
                logger.exception("clockwork: %s failed", name)
