"""`rucola standalone`, `rucola namesrv` and `rucola broker`: the commands that start servers.

Each prints one line on stdout when it serves, logs on stderr, and ends with exit code 0 when SIGTERM or SIGINT asks it
to. Configuration files are Apache's `broker.conf` and `namesrv.conf`; what stands on the command line comes before
what stands in the file.

Answers to `BrokerStartup` and `NamesrvStartup` of Apache RocketMQ 4.9.8. Deliberate difference: `standalone` listens on
127.0.0.1 unless the file has a `bindAddress` or a `brokerIP1`, since anybody who reaches it may read and write
everything.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from rucola import settings
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig, from_properties
from rucola.cli.log_lines import begin_logging, log_format_option
from rucola.errors import ConfigError
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.remoting.event_loop import BatchingEventLoop
from rucola.store.config import StoreConfig

logger = logging.getLogger("rucola")

LOOPBACK = "127.0.0.1"
PORT = click.IntRange(0, 65535)
CONF_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

config_option = click.option("-c", "--configFile", "config_file", type=CONF_FILE, help="A properties file.")
print_option = click.option(
    "-p", "--printConfigItem", "print_config", is_flag=True, help="Print all settings and exit."
)
IMPORTANT_SETTINGS = """
    namesrvAddr brokerIP1 brokerName brokerClusterName brokerId autoCreateTopicEnable autoCreateSubscriptionGroup
    msgTraceTopicName traceTopicEnable rejectTransactionMessage fetchNamesrvAddrByAddressServer transactionTimeOut
    transactionCheckMax transactionCheckInterval aclEnable storePathRootDir storePathCommitLog storePathDLedgerCommitLog
    flushIntervalCommitLog commitIntervalCommitLog flushCommitLogTimed deleteWhen fileReservedTime
    maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInMemory maxTransferBytesOnMessageInDisk
    maxTransferCountOnMessageInDisk accessMessageInMemoryMaxRatio messageIndexEnable messageIndexSafe haMasterAddress
    brokerRole flushDiskType cleanFileForciblyEnable transientStorePoolEnable
"""
"""What Apache's broker calls so, as far as it is there."""


@click.command()
@click.option("--store", type=click.Path(file_okay=False, path_type=Path), required=True, help="The store directory.")
@click.option("--namesrv-port", type=PORT, default=9876, show_default=True, help="0 picks a free port.")
@click.option("--broker-port", type=PORT, show_default="10911", help="0 picks a free port.")
@config_option
@log_format_option
def standalone(
    store: Path, namesrv_port: int, broker_port: int | None, config_file: Path | None, log_format: str
) -> None:
    """Name server and broker in one process, on one store directory.

    Prints `rucola ready namesrv=HOST:PORT broker=HOST:PORT` when both serve. Listens on 127.0.0.1 unless the
    configuration has a bindAddress or a brokerIP1. SIGTERM and SIGINT stop it cleanly.

    \b
    Examples:
      rucola standalone --store data
      rucola standalone --store data --namesrv-port 0 --broker-port 0
      rucola standalone --store data -c broker.conf
    """
    begin_logging(log_format)
    properties = read_properties(config_file)
    move_store(properties, store)
    properties.setdefault("bindAddress", properties.get("brokerIP1", LOOPBACK))
    properties.setdefault("haListenPort", "0")  # the name server tells slaves which one it is
    if broker_port is not None:  # what the file says of both is then said of another broker
        properties |= {"listenPort": str(broker_port), "haListenPort": "0"}
    _run(_standalone(properties, namesrv_port, config_file))


async def _standalone(properties: dict[str, str], namesrv_port: int, config_file: Path | None) -> None:
    async with Namesrv(properties["bindAddress"], namesrv_port) as namesrv:
        # The broker reaches its name server where clients do: at the address that it tells them.
        config, store_config = broker_settings(properties, config_file)
        config.namesrv_addr = f"{config.broker_ip1}:{namesrv.port}"
        async with Broker(config, store_config, config_file=config_file) as broker:
            await _serve(f"rucola ready namesrv={config.namesrv_addr} broker={broker.address}")


@click.command()
@click.option(
    "-n", "--namesrvAddr", expose_value=False, help="Taken, as by mqnamesrv, and of no use: it asks no other."
)
@config_option
@print_option
@log_format_option
def namesrv(config_file: Path | None, print_config: bool, log_format: str) -> None:
    """A name server, with mqnamesrv's flags and the keys of its configuration file.

    \b
    Examples:
      rucola namesrv
      rucola namesrv -c namesrv.conf
    """
    begin_logging(log_format)
    properties = read_properties(config_file)
    config = settings.fill(NamesrvConfig, properties)
    _warn_unused(settings.unknown([NamesrvConfig], properties), config_file)
    if print_config:
        click.echo(settings.render(settings.to_properties(config)), nl=False)
        return
    _run(_namesrv(config))


async def _namesrv(config: NamesrvConfig) -> None:
    async with Namesrv(config=config) as server:
        await _serve(f"The Name Server boot success. It listens on {server.host}:{server.port}")


@click.command()
@click.option("-n", "--namesrvAddr", "namesrv_addr", envvar="NAMESRV_ADDR", help="Name servers, host:port;host:port.")
@config_option
@print_option
@click.option(
    "-m", "--printImportantConfig", "print_important", is_flag=True, help="Print the important settings and exit."
)
@log_format_option
def broker(
    namesrv_addr: str | None, config_file: Path | None, print_config: bool, print_important: bool, log_format: str
) -> None:
    """A broker, with mqbroker's flags and the keys of Apache's broker.conf.

    \b
    Examples:
      rucola broker -n localhost:9876
      rucola broker -c broker.conf
      rucola broker -c broker.conf -p
    """
    begin_logging(log_format)
    properties = read_properties(config_file)
    if namesrv_addr:
        properties["namesrvAddr"] = namesrv_addr
    config, store_config = broker_settings(properties, config_file)
    if print_config or print_important:
        shown = settings.to_properties(config) | settings.to_properties(store_config)
        if not print_config:
            shown = {name: value for name, value in shown.items() if name in IMPORTANT_SETTINGS.split()}
        click.echo(settings.render(shown), nl=False)
        return
    _run(_broker(config, store_config, config_file))


async def _broker(config: BrokerConfig, store_config: StoreConfig, config_file: Path | None) -> None:
    async with Broker(config, store_config, config_file=config_file) as server:
        registered = f" and name server is {config.namesrv_addr}" if config.namesrv_addr else ""
        await _serve(f"The broker[{config.broker_name}, {server.address}] boot success.{registered}")


def read_properties(config_file: Path | None) -> dict[str, str]:
    """The keys and values of a configuration file; none where no file is named. ConfigError where it is no text."""
    return {} if config_file is None else settings.read(config_file)


def broker_settings(properties: dict[str, str], config_file: Path | None) -> tuple[BrokerConfig, StoreConfig]:
    """What the properties say to the broker and to its store. ConfigError names the file and the key."""
    try:
        config, store_config, unused = from_properties(properties)
    except ConfigError as error:
        raise ConfigError(f"{config_file}: {error}" if config_file else str(error)) from None
    _warn_unused(unused, config_file)
    return config, store_config


def move_store(properties: dict[str, str], store: Path) -> None:
    """Let the properties speak of the directory `store`: what lay below their own root lies below it now."""
    old_root = Path(properties.get("storePathRootDir", store))
    log = properties.get("storePathCommitLog")
    if log is not None and Path(log).is_relative_to(old_root):
        properties["storePathCommitLog"] = str(store / Path(log).relative_to(old_root))
    properties["storePathRootDir"] = str(store)


def _warn_unused(keys: list[str], config_file: Path | None) -> None:
    if keys:
        logger.warning("%s: no use for %s", config_file, ", ".join(sorted(keys)))


def _run(server: Coroutine[Any, Any, None]) -> None:
    """Run a server until it fails or a signal asks it to stop."""
    with asyncio.Runner(loop_factory=BatchingEventLoop) as runner:
        runner.run(_until_signal(server))


async def _until_signal(server: Coroutine[Any, Any, None]) -> None:
    """The first SIGTERM or SIGINT cancels the server, also while it starts; what it holds is then released in order.

    Later ones change nothing: `timeout` and some supervisors send each signal twice.
    """
    task = asyncio.ensure_future(server)
    loop = asyncio.get_running_loop()
    asked: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not asked:
            logger.info("%s: stopping", number.name)
            task.cancel()
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not asked:
            raise


async def _serve(ready: str) -> None:
    """Say that the server is ready, then wait to be cancelled.

    What is in memory now stays. The garbage collector need not look at it again and again, which would keep all
    messages waiting for 10 ms, and for several times that with ten thousand queues.
    """
    gc.freeze()
    print(ready, flush=True)
    await asyncio.Event().wait()
