"""`rucola proxy`: one gRPC port before all brokers of a cluster, in one process or in several workers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from rucola import settings
from rucola.cli.log_format import log_options
from rucola.cli.option_types import ADDRESS, namesrv_option
from rucola.cli.servers import config_option, read_properties, run_server, serve_until_cancelled
from rucola.cli.systemd import NOTIFY_SOCKET
from rucola.client.connection_options import ConnectionOptions
from rucola.cluster.supervisor import next_backoff_s
from rucola.errors import MQError
from rucola.proxy.config import ProxyConfig, from_properties
from rucola.proxy.server import Proxy
from rucola.remoting.addresses import address_of
from rucola.remoting.byte_stream import run_until_first_ends
from rucola.remoting.client import host_and_port
from rucola.remoting.listener import Listener
from rucola.remoting.tls import ClientTls

logger = logging.getLogger("rucola")

MAX_WORKERS: Final = 64
STOP_TIMEOUT_S: Final = 10.0


@click.command()
@namesrv_option("namesrv", "Name servers of the cluster.")
@click.option(
    "--listen", type=ADDRESS, show_default="127.0.0.1:8081", help="Address to listen on; port 0 picks a free one."
)
@click.option(
    "--workers", type=click.IntRange(1, MAX_WORKERS), default=1, show_default=True,
    help="Number of processes that share the port. A process uses one core.",
)  # fmt: skip
@click.option("--listening-socket", type=int, hidden=True)
@click.option("--worker", type=int, default=1, hidden=True)
@config_option
@log_options
def proxy(
    namesrv: str | None,
    listen: str | None,
    workers: int,
    listening_socket: int | None,
    worker: int,
    config_file: Path | None,
) -> None:
    """Serve clients of RocketMQ 5 with all brokers of a cluster on one gRPC port.

    Forwards each call to the broker that it is for; accounts are checked there. Brokers with accounts tell their gRPC
    port only to an account that may read the cluster: give one in conf/tools.yml, or in ROCKETMQ_ACCESS_KEY and
    ROCKETMQ_SECRET_KEY. The file has the keys tls.*, insecure, metrics* and those of connections. Prints `rucola ready
    grpc=HOST:PORT` when it is ready; SIGTERM and SIGINT stop it cleanly, SIGHUP reloads certificates. Workers that end
    are started again.

    \b
    Examples:
      rucola proxy -n localhost:9876
      rucola proxy -n 10.0.0.1:9876;10.0.0.2:9876 --listen 10.0.0.5:8081 --workers 4 -c proxy.conf
    """
    with settings.located(config_file):
        config = from_properties(read_properties(config_file))
    if listen is not None:
        host, port = host_and_port(listen)
        config = replace(config, bind_address=host, grpc_server_port=port)
    if config.metrics_prom_exporter_port:
        config = replace(config, metrics_prom_exporter_port=config.metrics_prom_exporter_port + worker - 1)
    cluster = ConnectionOptions(namesrv, ClientTls.of(config.tls))
    if listening_socket is not None:
        run_server(_serve(Proxy(cluster, config, socket.socket(fileno=listening_socket))))
    elif workers == 1:
        run_server(_serve(Proxy(cluster, config)))
    else:
        run_server(_supervise(config, workers))


async def _serve(proxy: Proxy) -> None:
    async with proxy:
        await serve_until_cancelled(f"rucola ready grpc={proxy.address}", proxy.reload)


async def _supervise(config: ProxyConfig, count: int) -> None:
    listener = Listener(config.bind_address, config.grpc_server_port)
    listening = listener.listen_shared()
    address = address_of((listener.host, listener.port))
    async with AsyncExitStack() as running:
        running.callback(listening.close)
        workers = _Workers([*sys.argv[1:], "--listen", address], listening, count)  # of two options, the last counts
        running.push_async_callback(workers.stop)
        await workers.start()
        serving = serve_until_cancelled(f"rucola ready grpc={address}", workers.reload)
        await run_until_first_ends(serving, workers.wait())


class _Workers:
    """Processes that accept connections from one socket, started again when they end."""

    def __init__(self, command: Sequence[str], listening: socket.socket, count: int) -> None:
        self._command = command
        self._listening = listening
        self._count = count
        self._processes: dict[int, Process] = {}
        self._serving: set[int] = set()
        """The workers that are ready; a signal would end one that starts."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all, and wait until they serve. MQError if one ends before."""
        loop = asyncio.get_running_loop()
        ready: list[asyncio.Future[None]] = [loop.create_future() for _ in range(self._count)]
        self._tasks = [loop.create_task(self._keep_running(number, each)) for number, each in enumerate(ready, 1)]
        await asyncio.gather(*ready)

    async def wait(self) -> None:
        """Wait until cancelled; raise the error that ends the supervision of a worker."""
        await asyncio.gather(*self._tasks)

    async def reload(self) -> None:
        """Let all read their certificates again."""
        for number in self._serving:
            self._signal(self._processes[number], signal.SIGHUP)

    async def stop(self) -> None:
        """Let all end their calls, and kill those that have not stopped after `STOP_TIMEOUT_S`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        processes = list(self._processes.values())
        for process in processes:
            self._signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.gather(*(process.wait() for process in processes))
        except TimeoutError:
            for process in processes:
                self._signal(process, signal.SIGKILL)
            await asyncio.gather(*(process.wait() for process in processes))

    @staticmethod
    def _signal(process: Process, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(number)

    async def _keep_running(self, number: int, ready: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        backoff_s = 0.0
        environment = {name: value for name, value in os.environ.items() if name != NOTIFY_SOCKET}
        descriptor = self._listening.fileno()
        while True:
            begin_s = loop.time()
            # In a separate session: Ctrl-C reaches only this process, which stops the workers.
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rucola.cli.supervised", str(os.getpid()), "rucola", *self._command,
                "--listening-socket", str(descriptor), "--worker", str(number), stdin=DEVNULL, stdout=PIPE,
                env=environment, pass_fds=(descriptor,), start_new_session=True,
            )  # fmt: skip
            self._processes[number] = process
            assert process.stdout is not None
            if await process.stdout.readline():
                self._serving.add(number)
                if not ready.done():
                    ready.set_result(None)
            await process.stdout.read()
            code = await process.wait()
            self._serving.discard(number)
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            if not ready.done():
                ready.set_exception(MQError(f"worker {number} does not start: {how}; its error is above"))
                return
            backoff_s = next_backoff_s(backoff_s, loop.time() - begin_s)
            logger.warning("worker %d: %s, starting it again in %d s", number, how, backoff_s)
            await asyncio.sleep(backoff_s)
