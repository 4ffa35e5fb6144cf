"""`rucola proxy` as a process: workers, signals and errors."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.grpc_peer import GrpcPeer, grpc_peer, message
from support.metrics import families_of, samples_of
from support.ports import HOST, free_port, free_ports
from support.processes import ADDRESS, Machines
from support.servers import Server, run, server
from support.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow


def address_of(proxy: Server) -> str:
    match = ADDRESS.search(proxy.first_line)
    assert match, proxy.log.read_text()
    assert proxy.first_line == f"rucola ready grpc={match[0]}\n"
    return match[0]


def send(address: str, count: int = 1) -> None:
    async def call(peer: GrpcPeer) -> None:
        answer = await peer.send(message())
        assert [entry.status.code for entry in answer.entries] == [20000]

    async def connect() -> None:
        async with grpc_peer(address) as peer:
            for _ in range(count):
                await call(peer)

    asyncio.run(connect())


def sends(metrics_port: int) -> float:
    """How many calls of SendMessage a worker has counted."""
    counts = samples_of(asyncio.run(families_of(metrics_port))).get("rocketmq_proxy_requests_total", [])
    return sum(count for labels, count in counts if labels["method"] == "SendMessage")


def workers_of(proxy: Server) -> set[int]:
    return set(map(int, Path(f"/proc/{proxy.process.pid}/task/{proxy.process.pid}/children").read_text().split()))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_proxy_serves_and_stops(tmp_path: Path, workers: str) -> None:
    with ExitStack() as stack:
        machines = Machines(tmp_path, stack)
        machines.broker()
        (metrics_port,) = free_ports(1, 1)
        conf = tmp_path / "proxy.conf"
        conf.write_text(f"metricsExporterType=PROM\nmetricsPromExporterPort={metrics_port}\n")
        options = ("-n", machines.namesrv, "--listen", f"{HOST}:0", "--workers", workers, "-c", conf)
        proxy = stack.enter_context(server("proxy", *options, log=tmp_path / "proxy.log"))
        address = address_of(proxy)
        send(address)
        assert sum(sends(metrics_port + number) for number in range(int(workers))) == 1
        taken = run("proxy", "-n", machines.namesrv, "--listen", address, "--workers", workers)
        assert (taken.returncode, taken.stdout) == (1, "")
        assert address in taken.stderr
        assert "Traceback" not in taken.stderr
        if workers != "1":
            before = workers_of(proxy)
            assert len(before) == 2
            os.kill(min(before), signal.SIGKILL)
            send(address)  # the other one goes on
            wait_until(lambda: len(workers_of(proxy) - before) == 1, DEADLINE_S)
            proxy.process.send_signal(signal.SIGHUP)
            send(address)
        assert proxy.stop() == 0
        assert "Traceback" not in proxy.log.read_text()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_proxy_without_a_name_server_does_not_start(workers: str) -> None:
    away = f"{HOST}:{free_port()}"
    result = run("proxy", "-n", away, "--listen", f"{HOST}:0", "--workers", workers)
    assert (result.returncode, result.stdout) == (1, "")
    assert away in result.stderr
    assert "Traceback" not in result.stderr


def test_settings_of_a_proxy(tmp_path: Path) -> None:
    conf = tmp_path / "proxy.conf"
    conf.write_text("brokerName=x\n")
    result = run("proxy", "-c", conf)
    assert (result.returncode, "brokerName" in result.stderr) == (1, True)
    assert run("proxy", "--listen", "here").returncode == 2
    exposed = run("proxy", "--listen", "0.0.0.0:0")
    assert (exposed.returncode, "0.0.0.0" in exposed.stderr) == (1, True)
