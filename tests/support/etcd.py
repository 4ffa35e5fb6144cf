"""A real etcd of one member, on free ports and in a directory of its own, that can be killed and paused."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from pathlib import Path

from support.ports import HOST, free_port
from support.processes import wait_until

MISSING = "the tests of elections need etcd: install etcd-server, or run `.ci/setup etcd` as root, which does"
ATTEMPTS = 3


def etcd_program() -> str:
    """The path of etcd. RuntimeError if it is not installed."""
    found = shutil.which("etcd")
    if found is None:
        raise RuntimeError(MISSING)
    return found


class EtcdServer:
    """A server's process; `start` again keeps its data and its ports."""

    def __init__(self, directory: Path, host: str = HOST) -> None:
        self.directory = directory
        self._host = host
        directory.mkdir(exist_ok=True)
        for attempt in range(ATTEMPTS):  # another process may take a port first
            self.port, self._peer_port = free_port(), free_port()
            try:
                self.start()
                return
            except RuntimeError:
                if attempt == ATTEMPTS - 1:
                    raise
                shutil.rmtree(directory / "data", ignore_errors=True)

    @property
    def endpoint(self) -> str:
        return f"http://{self._host}:{self.port}"

    def start(self) -> None:
        peer = f"http://{HOST}:{self._peer_port}"
        command = [
            etcd_program(), "--name", "one", "--data-dir", str(self.directory / "data"),
            "--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}",
            "--logger", "zap",
        ]  # fmt: skip
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: self.process.poll() is not None or self._is_ready())
        if self.process.poll() is not None:
            raise RuntimeError(f"etcd did not start: {(self.directory / 'log').read_text()[-2000:]}")

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection((self._host, self.port), timeout=1) as probe:
                probe.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                return b'"true"' in probe.recv(4096) + probe.recv(4096)
        except OSError:
            return False

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.kill()
