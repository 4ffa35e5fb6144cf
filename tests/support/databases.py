"""Real servers for tests: PostgreSQL, MariaDB and Redis, on free loopback ports, in directories of their own.

PostgreSQL and MariaDB refuse to run as root: then they run as the users that Debian's packages made. Durability is
switched off as far as a server's own crash loses nothing: no test cuts the power of its machine.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from rucola.reliable.schema import Tables
from support.ports import HOST, free_port

ATTEMPTS = 3
START_TIMEOUT_S = 60
ASYNC_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql+psycopg": "postgresql+psycopg",
    "mysql+pymysql": "mysql+asyncmy",
}
MISSING = "the tests need {}: install it, or run `.ci/setup databases` as root, which does"


def program(name: str) -> str:
    """The path of a server's program. RuntimeError if it is not installed."""
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/sbin")]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if found is None:
        raise RuntimeError(MISSING.format(name))
    return found


class DatabaseServer:
    """A server's process: it can be killed, paused, continued and started again on the same data and port."""

    def __init__(self, directory: Path, port: int, user: str | None, command: list[str], url: str) -> None:
        self.directory = directory
        self.port = port
        self.url = url
        self._user = user
        self._command = command
        self.start()

    def start(self) -> None:
        """Start the server and wait until its port accepts connections."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                as_user(self._user, self._command), stdout=log, stderr=log, start_new_session=True
            )
        deadline = START_TIMEOUT_S * 100
        while self.process.poll() is None and deadline:
            deadline -= 1
            if self._is_ready():
                return
            try:
                self.process.wait(0.01)
            except subprocess.TimeoutExpired:
                pass
        raise RuntimeError(f"{self._command[0]} did not start: {(self.directory / 'log').read_text()[-2000:]}")

    def _is_ready(self) -> bool:
        if "postgres" in self._command[0]:  # listens before its recovery has ended
            asked = [program("pg_isready"), "-q", "-h", HOST, "-p", str(self.port)]
            return subprocess.run(asked, check=False).returncode == 0
        if "mariadbd" in self._command[0]:  # listens on its port before it does on its socket
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(str(self.directory / "socket")) == 0
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    def kill(self) -> None:
        """End it at once, as a crash does. PostgreSQL's other processes notice by themselves."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def crash(self) -> None:
        """End it so that it can be started at once: PostgreSQL by an immediate shutdown, others as `kill` does."""
        if "postgres" in self._command[0]:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(START_TIMEOUT_S)
        else:
            self.kill()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT if "postgres" in self._command[0] else signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


@dataclass
class OutboxDatabase:
    """A database with reliability tables that no other test has."""

    url: str
    tables: Tables
    server: DatabaseServer | None = None

    @property
    def async_url(self) -> str:
        scheme, rest = self.url.split("://", 1)
        return f"{ASYNC_DRIVERS[scheme]}://{rest}"

    @property
    def name(self) -> str:
        return self.url.split("+")[0].split(":")[0]

    @cached_property
    def _engine(self) -> Engine:
        return create_engine(self.url, max_overflow=60)

    def engine(self) -> Engine:
        """One engine for the whole test; its pool gives as many connections as are asked for."""
        return self._engine

    def close(self) -> None:
        if "_engine" in self.__dict__:
            self._engine.dispose()

    def async_engine(self) -> AsyncEngine:
        return create_async_engine(self.async_url, poolclass=NullPool)


_database_numbers = itertools.count(1)


def create_database(server: DatabaseServer) -> str:
    """Create an empty database on a server, for programs whose tables have fixed names; its URL."""
    name = f"db{next(_database_numbers)}"
    engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return engine.url.set(database=name).render_as_string(hide_password=False)


def as_user(user: str | None, command: list[str]) -> list[str]:
    if user is None:
        return command
    group = str(pwd.getpwnam(user).pw_gid)
    return [program("setpriv"), f"--reuid={user}", f"--regid={group}", "--clear-groups", *command]


def server_user(name: str) -> str | None:
    """The user to run a server as: its own if this is root, else the present one."""
    return name if os.getuid() == 0 else None


@contextmanager
def serving(
    name: str, user: str | None, start: Callable[[Path, int, str | None], DatabaseServer]
) -> Iterator[DatabaseServer]:
    """A server that is gone afterwards. Another program may take the port first: then another port is tried."""
    # Directories of pytest are closed to other users.
    directory = Path(tempfile.mkdtemp(prefix=f"rucola-{name}-"))
    if user is not None:
        shutil.chown(directory, user)
    try:
        for attempt in range(ATTEMPTS):
            try:
                server = start(directory, free_port(), user)
                break
            except RuntimeError:
                if attempt == ATTEMPTS - 1:
                    raise
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def start_postgresql(
    directory: Path, port: int, user: str | None, settings: Mapping[str, str] | None = None
) -> DatabaseServer:
    """Start PostgreSQL, with `settings` in addition to or in place of those of the tests."""
    data = directory / "data"
    if not data.exists():
        initdb = [
            program("initdb"),
            "-D",
            str(data),
            "-U",
            "rucola",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
            "--locale=C",
        ]
        done = subprocess.run(as_user(user, initdb), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr}")
    all_settings = {
        "listen_addresses": HOST, "unix_socket_directories": "", "fsync": "off",
        "full_page_writes": "off", "max_connections": "150", "shared_buffers": "128MB", "max_wal_size": "2GB",
        **(settings or {}),
    }  # fmt: skip
    options = [word for name, value in all_settings.items() for word in ("-c", f"{name}={value}")]
    command = [program("postgres"), "-D", str(data), "-p", str(port), *options]
    return DatabaseServer(directory, port, user, command, f"postgresql+psycopg://rucola@{HOST}:{port}/postgres")


def start_mariadb(
    directory: Path, port: int, user: str | None, settings: Mapping[str, str] | None = None
) -> DatabaseServer:
    """Start MariaDB, with `settings` in addition to or in place of those of the tests."""
    data, socket_path = directory / "data", directory / "socket"
    if not data.exists():
        install = [
            program("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--skip-test-db",
            "--auth-root-authentication-method=normal",
            f"--tmpdir={directory}",  # as below: another one that starts would remove files that this one needs
        ]  # fmt: skip
        done = subprocess.run(as_user(user, install), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"mariadb-install-db failed: {done.stderr or done.stdout}")
    command = [
        program("mariadbd"), "--no-defaults", f"--datadir={data}", f"--port={port}", f"--bind-address={HOST}",
        f"--tmpdir={directory}",  # at its start a server removes temporary files, those of others included
        f"--socket={socket_path}", "--innodb-flush-log-at-trx-commit=2", "--innodb-log-file-size=256M",
        "--innodb-buffer-pool-size=256M", "--max-allowed-packet=64M", "--skip-name-resolve",
        *(f"--{name}={value}" for name, value in (settings or {}).items()),
    ]  # fmt: skip
    server = DatabaseServer(
        directory, port, user, command, f"mysql+pymysql://root@{HOST}:{port}/rucola?charset=utf8mb4"
    )
    client = [program("mariadb"), "--no-defaults", "-uroot", f"--socket={socket_path}"]
    done = subprocess.run([*client, "-e", "CREATE DATABASE IF NOT EXISTS rucola"], capture_output=True, text=True)
    if done.returncode:
        server.stop()  # else the next attempt waits for its lock on the data
        raise RuntimeError(f"mariadb failed: {done.stderr}")
    return server


def start_redis(directory: Path, port: int, user: str | None) -> DatabaseServer:
    command = [
        program("redis-server"), "--port", str(port), "--bind", HOST, "--dir", str(directory), "--save", "",
        "--appendonly", "no",
    ]  # fmt: skip
    return DatabaseServer(directory, port, user, command, f"redis://{HOST}:{port}/0")
