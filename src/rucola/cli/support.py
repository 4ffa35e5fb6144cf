"""`rucola support`: one archive with what somebody needs who is to explain a fault.

    about.json                 versions, platform, time
    cluster.json health.json   registered brokers; as of `rucola admin health`
    name_servers.json          settings of each
    brokers/ADDRESS/           config.properties runtime.json ha.json pending.json diagnosis.json
                               capacity.json process.txt and, with an endpoint,
                               metrics.txt
    stores/N.json              `rucola store stat`
    logs/N-NAME                the end of each log
    errors.txt                 what could not be read, and why

Secrets are left out: brokers do not return them, and no message is read.
"""

from __future__ import annotations

import asyncio
import io
import os
import platform
import sys
import tarfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import click
import msgspec

import rucola
from rucola import settings, speed
from rucola.admin import AdminClient
from rucola.cli.admin.command import credentials_option
from rucola.cli.option_types import PathType, namesrv_option
from rucola.errors import MQError
from rucola.name_server_addresses import DEFAULT_NAMESRV
from rucola.presentation import to_json
from rucola.remoting.client import host_and_port
from rucola.remoting.exposure import is_loopback
from rucola.store.tools.stat import stat as stat_store

MAX_LOG_SIZE: Final = 2 << 20
MAX_METRICS_SIZE: Final = 8 << 20
METRICS_TIMEOUT_S: Final = 10


class SupportArchive:
    """A .tar.gz that only its owner may read. What cannot be read becomes a line of errors.txt."""

    def __init__(self, path: Path) -> None:
        self.errors: list[str] = []
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(file, "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz")  # noqa: SIM115 - `close` closes it

    def close(self) -> None:
        self.add("errors.txt", "".join(f"{line}\n" for line in self.errors).encode())
        self._tar.close()
        self._file.close()

    def add(self, name: str, content: bytes) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
        self._tar.addfile(entry, io.BytesIO(content))

    def add_json(self, name: str, value: Any) -> None:
        self.add(name, msgspec.json.format(msgspec.json.encode(to_json(value)), indent=2) + b"\n")

    async def ask(self, name: str, request: Callable[[], Awaitable[Any]]) -> Any:
        """Add what a request returns; return it, or None if it failed."""
        try:
            value = await request()
        except (MQError, OSError) as error:
            self.errors.append(f"{name}: {error}")
            return None
        if isinstance(value, str):
            self.add(name, value.encode("utf-8", "replace"))
        else:
            self.add_json(name, value)
        return value


@click.command()
@namesrv_option("namesrv_addr", "Name servers.", default=DEFAULT_NAMESRV)
@click.option(
    "-o", "--output", type=PathType(dir_okay=False), required=True, help="Archive to write, such as support.tar.gz."
)
@click.option(
    "--store", "stores", type=PathType(exists=True, file_okay=False), multiple=True,
    help="Store directory to describe as `rucola store stat` does. Can be repeated.",
)  # fmt: skip
@click.option(
    "--log", "logs", type=PathType(exists=True, dir_okay=False), multiple=True,
    help="Log file of a server, whose end is added. Can be repeated.",
)  # fmt: skip
@credentials_option
def support(namesrv_addr: str, output: Path, stores: tuple[Path, ...], logs: tuple[Path, ...]) -> None:
    """Write one archive with what somebody needs who is to explain a fault.

    It has versions, settings without secrets, health, roles, pending messages, metrics, and stacks of threads and
    tasks of each broker that answers. It has no messages, but names of topics, groups, clients and addresses: look at
    it before you pass it on. The log of a service: `journalctl -u rucola-broker@broker-a > broker.log`.

    \b
    Examples:
      rucola support -o support.tar.gz
      rucola support -n 10.0.0.1:9876 -o support.tar.gz --store /var/lib/rucola/broker-a --log broker.log
    """
    if output.exists():
        raise click.UsageError(f"{output} exists already")
    archive = SupportArchive(output)
    try:
        asyncio.run(_collect(archive, namesrv_addr))
        for number, store in enumerate(stores, 1):
            try:
                archive.add_json(f"stores/{number}.json", stat_store(store))
            except (MQError, OSError) as error:
                archive.errors.append(f"stores/{number}.json: {store}: {error}")
        for number, log in enumerate(logs, 1):
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - MAX_LOG_SIZE))
                archive.add(f"logs/{number}-{log.name}", file.read(MAX_LOG_SIZE))
    finally:
        archive.close()
    for line in archive.errors:
        click.echo(f"not in the archive: {line}", err=True)
    click.echo(f"{output}: {output.stat().st_size} bytes")


async def _collect(archive: SupportArchive, namesrv_addr: str) -> None:
    archive.add_json(
        "about.json",
        {
            "rucola": rucola.__version__, "accelerator": speed.description(), "python": sys.version,
            "platform": platform.platform(), "timeMs": time.time_ns() // 1_000_000, "nameServers": namesrv_addr,
        },
    )  # fmt: skip
    async with AdminClient(namesrv_addr) as client:
        info = await archive.ask("cluster.json", client.cluster.info)
        await archive.ask("name_servers.json", client.name_servers.configs)
        if info is None:
            return
        await archive.ask("health.json", client.health.check)
        for data in info.broker_addr_table.values():
            for address in data.broker_addrs.values():
                await _broker(archive, client, address)


async def _broker(archive: SupportArchive, client: AdminClient, address: str) -> None:
    at = f"brokers/{address.replace(':', '_')}"

    async def config() -> str:
        return settings.render(dict(sorted((await client.brokers.config(address)).items())))

    async def metrics() -> str:
        return await asyncio.to_thread(_metrics, settings.parse(given), address)

    given = await archive.ask(f"{at}/config.properties", config)
    if given is None:
        return  # it does not answer, and errors.txt has the reason
    await archive.ask(f"{at}/runtime.json", lambda: client.brokers.runtime_stats(address))
    await archive.ask(f"{at}/ha.json", lambda: client.roles.status(address))
    await archive.ask(f"{at}/pending.json", lambda: client.brokers.pending(address))
    await archive.ask(f"{at}/diagnosis.json", lambda: client.doctor.diagnosis(address))
    await archive.ask(f"{at}/capacity.json", lambda: client.capacity.of_broker(address))
    await archive.ask(f"{at}/process.txt", lambda: client.brokers.process_report(address))
    if "metricsExporterType=PROM" in given:
        await archive.ask(f"{at}/metrics.txt", metrics)


def _metrics(config: dict[str, str], address: str) -> str:
    """Return the metrics of the broker at an address. OSError if this machine does not reach its endpoint."""
    host, port = config["metricsPromExporterHost"], config["metricsPromExporterPort"]
    own = host_and_port(address)[0]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - it listens there
        host = own
    if is_loopback(host) and not is_loopback(own):
        raise OSError(f"the endpoint of {address} listens on {host}, which only its own machine reaches")
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_S) as response:
            content: bytes = response.read(MAX_METRICS_SIZE)
    except HTTPException as error:
        raise OSError(f"{url} sent no metrics: {error!r}") from None
    return content.decode("utf-8", "replace")
