"""Master, slave and name server as processes, for tests that kill them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from support.ports import HOST, free_port
from support.servers import RUCOLA, Server, server
from support.waiting import DEADLINE_S, wait_until

ADDRESS = re.compile(r"(?:127|10)\.\d+\.\d+\.\d+:[1-9]\d*")


class Machines:
    """One name server and brokers, each with a directory, a configuration and a log of its own, below `path`."""

    def __init__(
        self, path: Path, stack: ExitStack, host: str = HOST, *, namesrv_program: Sequence[str] = RUCOLA
    ) -> None:
        self.path = path
        self._stack = stack
        self._host = host
        self._namesrv_program = namesrv_program
        self.namesrv = ""
        """The address of the name server."""
        self.start_name_server()
        self.addresses: dict[str, str] = {}

    def start_name_server(self) -> None:
        """Start the name server, and again at the same address after it was killed."""
        reachable = {} if self._host == HOST else {"insecure": "true"}
        self.name_server = self._start(
            "namesrv",
            program=self._namesrv_program,
            bindAddress=self._host,
            listenPort=self.namesrv.rpartition(":")[2] or str(free_port()),
            **reachable,
        )
        self.namesrv = ADDRESS.search(self.name_server.first_line)[0]  # type: ignore[index]

    def broker(
        self,
        directory: str = "master",
        role: str = "ASYNC_MASTER",
        *,
        program: Sequence[str] = RUCOLA,
        **settings: str,
    ) -> Server:
        """Start a broker; under a directory used before, with what is there."""
        slave = {"brokerId": "1"} if role == "SLAVE" else {}
        small = {"mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "100", "maxIndexNum": "400"}
        small |= {"cleanFileForciblyEnable": "false"}  # else they vanish on a machine whose disk is nearly full
        running = self._start(
            directory,
            "broker",
            program=program,
            **{"mappedFileSizeCommitLog": "65536", "brokerName": "broker-a", "listenPort": "0"}
            | {"brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1", "namesrvAddr": self.namesrv}
            | {"haListenPort": "0", "storePathRootDir": str(self.path / directory), "brokerRole": role}
            | slave | small | settings,
        )  # fmt: skip
        address = ADDRESS.search(running.first_line)
        assert address, running.log.read_text()
        self.addresses[directory] = address[0]
        return running

    def log(self, directory: str) -> str:
        """What the broker of a directory has said since it was started last."""
        return (self.path / f"{directory}.log").read_text()

    def _start(self, name: str, command: str = "", *, program: Sequence[str] = RUCOLA, **settings: str) -> Server:
        conf = self.path / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return self._stack.enter_context(
            server(command or name, "-c", conf, log=self.path / f"{name}.log", program=program)
        )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], timeout_s: float = DEADLINE_S) -> None:
    """Wait until something is so, while a process lives."""

    def is_so() -> bool:
        is_over = process.poll() is not None
        met = condition()
        assert met or not is_over, "it ended before"
        return met

    wait_until(is_so, timeout_s)
