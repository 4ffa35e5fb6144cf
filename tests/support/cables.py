"""Cables of brokers: each has a machine of its own, as far as the network is concerned, and can be cut off from all.

    cables = cables_of(stack, (1, 2, 3))     # before anything starts
    ...                                      # start each broker with `program` and `settings` of its number
    cables.unplug(2, process)                # nothing arrives, in either direction, and no side is told
    cables.plug(2, process)

A cable is a pair of virtual devices between a network namespace and a bridge, so that packets vanish: unlike behind a
proxy, connections are not even made, and TCP sends again what was lost when the cable is back. For a user who may not
make namespaces, the process is stopped instead: for all others, a broker that is not heard either.
"""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack

from support.ports import HOST
from support.servers import RUCOLA, Server


class Cables:
    """The fallback: the processes of unplugged brokers are stopped."""

    host = HOST
    """The address of everything but the brokers."""

    def program(self, number: int) -> list[str]:
        return RUCOLA

    def settings(self, number: int) -> dict[str, str]:
        return {}

    def unplug(self, number: int, broker: Server) -> None:
        broker.process.send_signal(signal.SIGSTOP)

    def plug(self, number: int, broker: Server) -> None:
        broker.process.send_signal(signal.SIGCONT)


class NamespaceCables(Cables):
    """Network namespaces, which end with `stack`. CalledProcessError or FileNotFoundError if they may not be made."""

    def __init__(self, stack: ExitStack, numbers: Iterable[int]) -> None:
        self._name = f"ruc{random.SystemRandom().randrange(16**5):05x}"  # a device has 15 characters
        self._net = f"10.213.{random.SystemRandom().randrange(256)}"
        self.host = f"{self._net}.1"
        bridge = self._name
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "delete", bridge)
        _ip("address", "add", f"{self.host}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for number in numbers:
            namespace, inner = self._namespace(number), f"{self._name}i{number}"
            _ip("netns", "add", namespace)
            stack.callback(_ip, "netns", "delete", namespace)
            _ip("link", "add", self._cable(number), "type", "veth", "peer", "name", inner, "netns", namespace)
            _ip("link", "set", self._cable(number), "master", bridge, "up")
            _ip("-n", namespace, "address", "add", f"{self._address(number)}/24", "dev", inner)
            for device in ("lo", inner):
                _ip("-n", namespace, "link", "set", device, "up")

    def program(self, number: int) -> list[str]:
        return ["ip", "netns", "exec", self._namespace(number), *RUCOLA]

    def settings(self, number: int) -> dict[str, str]:
        address = self._address(number)
        return {"bindAddress": address, "brokerIP1": address, "brokerIP2": address, "insecure": "true"}

    def unplug(self, number: int, broker: Server) -> None:
        _ip("link", "set", self._cable(number), "down")

    def plug(self, number: int, broker: Server) -> None:
        _ip("link", "set", self._cable(number), "up")

    def _namespace(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _cable(self, number: int) -> str:
        return f"{self._name}o{number}"

    def _address(self, number: int) -> str:
        return f"{self._net}.{10 + number}"


def cables_of(stack: ExitStack, numbers: Iterable[int]) -> Cables:
    """Return real cables if this user may make them, else those of stopped processes."""
    with ExitStack() as making:
        try:
            cables = NamespaceCables(making, numbers)
        except (FileNotFoundError, subprocess.CalledProcessError):
            return Cables()
        stack.enter_context(making.pop_all())
        return cables


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
