"""Rucola's client beside other asyncio clients, each with its own server: CPU time per message at both ends.

redis-py and Redis Streams, nats-py and NATS JetStream, aio-pika and RabbitMQ. Servers are durable as Rucola's by
default: a message is acknowledged when the system has it, and on disk within a second or so. The clients are installed
into `bench-output/clients`; a server that is not installed is left out, with the package that has it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from figures import Aim, Figure, median
from floors import Options
from processes import below
from servers import FOLDER, standalone

COUNT = 30_000
PATIENCE_S = 60.0
ENVIRONMENT = FOLDER.parent / "bench-output" / "clients"
PEERS = {
    "redis": ("redis-server", "redis[hiredis]"),
    "nats": ("nats-server", "nats-py"),
    "rabbitmq": ("rabbitmq-server", "aio-pika"),
}
"""By name: its server, which is Debian's package, too, and its client."""
AIMS = {
    "one_by_one": 50, "64_tasks": 20, "stream": 10, "batches": 4, "iterate": 5, "listener": 6, "plain_listener": 10,
}  # fmt: skip
"""µs in the client."""
LINGERING = ("64_tasks", "stream")

Ends = tuple[float, float]
"""CPU time per message in client and server, in µs."""


def measure(options: Options) -> list[Figure]:
    """Measure each way with all clients in turns, each run with an empty server."""
    peers = [name for name, (server, _) in PEERS.items() if shutil.which(server)]
    for name in PEERS.keys() - peers:
        print(f"clients: without {name}, since {PEERS[name][0]} is missing: apt-get install {PEERS[name][0]}")
    python = _environment([PEERS[name][1] for name in peers])
    figures = []
    for way, aim in AIMS.items():
        clients = ["rucola", *(["rucola_linger"] if way in LINGERING else []), *peers]
        runs: dict[str, list[Ends]] = {client: [] for client in clients}
        for _ in range(max(1, options.rounds - 4)):
            for client in clients:
                ends = _run(python, client, way, options.count(COUNT))
                if ends is not None:
                    runs[client].append(ends)
        figures += _figures(way, aim, {client: ends for client, ends in runs.items() if ends})
    return figures


def _figures(way: str, aim: float, runs: dict[str, list[Ends]]) -> list[Figure]:
    """Return a figure for each way to use Rucola's client, beside the cheapest peer."""
    at_client = {client: median(lambda ends: ends[0], ends) for client, ends in runs.items()}
    at_server = {client: median(lambda ends: ends[1], ends) for client, ends in runs.items()}
    ours = [client for client in runs if client.startswith("rucola")]
    peers = {client: cpu_us for client, cpu_us in at_client.items() if client not in ours}
    best = min(peers, key=lambda client: peers[client]) if peers else None
    return [
        Figure(
            f"client_{way}{client.removeprefix('rucola')}",
            at_client[client],
            "µs CPU/message",
            floor=None if best is None else peers[best],
            floor_is="" if best is None else f"the cheapest peer: {PEERS[best][1]}",
            aims=[Aim("value", aim), *([Aim("ratio", 1)] if best else [])],
            more={"server": at_server[client]}
            | {
                f"{peer}_{end}": table[peer]
                for peer in peers
                for end, table in (("client", at_client), ("server", at_server))
            },
        )
        for client in ours
    ]


def _run(python: str, client: str, way: str, count: int) -> Ends | None:
    """Run `client_loads.py` with an empty server; None if the client has no such way."""
    with TemporaryDirectory(prefix="rucola-bench-") as name:
        folder = Path(name)
        if client in PEERS:
            with _peer(client, folder) as (address, pid):
                return _measured([python, client, address, way, str(count), *map(str, (pid, *below(pid)))])
        with standalone(folder) as broker:
            return _measured([sys.executable, client, broker.namesrv, way, str(count), str(broker.pid)])


def _measured(arguments: list[str]) -> Ends | None:
    python, *rest = arguments
    command = [python, str(FOLDER / "client_loads.py"), *rest]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout.split()
    return (float(printed[0]), float(printed[1])) if printed else None


@contextmanager
def _peer(name: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Start a peer's server on a free port; yield its address and process id."""
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
        port, second_port = free.getsockname()[1], other.getsockname()[1]
    command, env = _command(name, port, second_port, folder)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | env)
    try:
        end = time.monotonic() + PATIENCE_S
        while not _accepts(port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{command[0]} did not start: {(folder / 'log').read_text(errors='replace')}")
            time.sleep(0.1)
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _command(name: str, port: int, second_port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command of a peer's server, and its variables."""
    if name == "redis":
        return ["redis-server", "--port", str(port), "--dir", str(folder), "--save", "", "--appendonly", "yes"], {}
    if name == "nats":
        return ["nats-server", "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)], {}
    # Without Erlang's port mapper, a daemon that would outlive the server.
    script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return [str(script) if script.exists() else "rabbitmq-server"], {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(second_port),
        "RABBITMQ_MNESIA_BASE": str(folder),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-start_epmd false -erl_epmd_port {second_port}",
    }


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _environment(packages: list[str]) -> str:
    """Return the Python of an environment with the peers' clients, made if missing."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    if packages:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)
