"""`rucola standalone`, `rucola namesrv` and `rucola broker`: commands that run servers.

Each prints one line on stdout when the server is ready, logs to stderr, and exits with code 0 after SIGTERM or SIGINT.

Corresponds to `BrokerStartup` and `NamesrvStartup` of Apache RocketMQ 4.9.8. Deliberate differences: servers listen
on 127.0.0.1 unless the file says otherwise (see `rucola.remoting.exposure`); `standalone` enables enablePropertyFilter.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rucola import settings
from rucola.broker import config as broker_config
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.cli import banner, systemd
from rucola.cli.console_options import console_options, console_server, directory_option, refuse_options
from rucola.cli.interpreter import CHECK_INTERVAL_S, tuned_for_serving
from rucola.cli.log_format import log_options
from rucola.cli.option_types import PathType, namesrv_option
from rucola.client.connection_options import ConnectionOptions
from rucola.errors import MQError
from rucola.namesrv import config as namesrv_config
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.remoting.batching_event_loop import BatchingEventLoop
from rucola.remoting.byte_stream import run_until_first_ends
from rucola.remoting.exposure import is_loopback
from rucola.remoting.tls import ClientTls
from rucola.store.config import StoreConfig

if TYPE_CHECKING:
    from rucola.console.server import ConsoleServer

logger = logging.getLogger("rucola")

PORT = click.IntRange(0, 65535)
CONF_FILE = PathType(exists=True, dir_okay=False)

config_option = click.option(
    "-c", "--configFile", "config_file", type=CONF_FILE, help="Configuration file, in Java's properties format."
)
print_option = click.option(
    "-p", "--printConfigItem", "print_config", is_flag=True, help="Print all settings, and exit."
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
"""Settings that Apache's broker marks as important and Rucola has."""


@click.command()
@click.option(
    "--store",
    type=PathType(file_okay=False),
    required=True,
    help="Store directory; created if it does not exist.",
)
@click.option(
    "--namesrv-port", type=PORT, default=9876, show_default=True, help="Port of the name server; 0 picks a free port."
)
@click.option("--broker-port", type=PORT, show_default="10911", help="Port of the broker; 0 picks a free port.")
@click.option(
    "--grpc-port",
    type=PORT,
    show_default="8081, or free with --broker-port",
    help="Port of the broker for clients of RocketMQ 5; 0 picks a free port.",
)
@click.option("--console", "has_console", is_flag=True, help="Also serve the console, in the same process.")
@click.option(
    "--console-port", type=PORT, default=8080, show_default=True, help="Port of the console; 0 picks a free one."
)
@click.option(
    "--console-bind",
    default="127.0.0.1",
    show_default=True,
    help="Address on which the console listens; others need --accounts.",
)
@directory_option("STORE-console")
@console_options
@config_option
@log_options
def standalone(
    store: Path, namesrv_port: int, broker_port: int | None, grpc_port: int | None, has_console: bool,
    config_file: Path | None, **of_console: Any,
) -> None:  # fmt: skip
    """Run a name server and a broker in one process, on one store directory.

    Prints `rucola ready namesrv=HOST:PORT broker=HOST:PORT grpc=HOST:PORT` when both are ready. Listens on 127.0.0.1
    unless the configuration has a bindAddress or a brokerIP1, and filters by SQL92 unless enablePropertyFilter is
    false. Both servers have the configuration's TLS. SIGTERM and SIGINT stop both cleanly.

    \b
    Examples:
      rucola standalone --store data
      rucola standalone --store data --namesrv-port 0 --broker-port 0
      rucola standalone --store data --console             and open http://127.0.0.1:8080/
      rucola standalone --store data --console --lake lake
      rucola standalone --store data -c broker.conf
      rucola standalone --store data -c certificates/server.properties      with TLS, see `rucola tls init`
    """
    console = None
    if has_console:
        console = console_server(
            bind_address=of_console.pop("console_bind"), port=of_console.pop("console_port"),
            # Not in the store, whose check knows every file.
            directory=of_console.pop("directory") or store.absolute().with_name(f"{store.absolute().name}-console"),
            **of_console,
        )  # fmt: skip
    else:
        refuse_options({*of_console, "catalog"})
    properties = read_properties(config_file)
    set_store_directory(properties, store)
    properties.setdefault("enablePropertyFilter", "true")  # for trying things, SQL92 works without a configuration
    properties.setdefault("haListenPort", "0")  # any free port: slaves get it from the name server
    if broker_port is not None:
        # The ports in the file belong to another broker then; the port for replication must not collide, either.
        properties |= {"listenPort": str(broker_port), "haListenPort": "0", "grpcServerPort": "-1"}
    if grpc_port is not None:
        properties["grpcServerPort"] = str(grpc_port)
    config, store_config = broker_settings(properties, config_file)
    config.tls = config.tls.of_own_client()
    broker = Broker(config, store_config, config_file=config_file)
    run_server(_standalone(broker, namesrv_port, console))


async def _standalone(
    broker: Broker, namesrv_port: int, console: Callable[[ConnectionOptions], ConsoleServer] | None
) -> None:
    # A damaged store is reported before a port that another broker has.
    async with AsyncExitStack() as running:
        await broker.open()
        running.push_async_callback(broker.stop)
        namesrv_config = NamesrvConfig(
            bind_address=broker.config.bind_address,
            listen_port=namesrv_port,
            insecure=broker.config.insecure,
            tls=broker.config.tls,
            # Clients of 4.9 sign no request to a name server of this machine; one that others reach needs accounts.
            acl_enable=broker.config.acl_enable and not is_loopback(broker.config.bind_address),
            rocketmq_home=broker.config.rocketmq_home,
        )
        namesrv = await running.enter_async_context(Namesrv(config=namesrv_config))
        # Register under the address that clients use: the one that the broker advertises.
        broker.config.namesrv_addr = f"{broker.config.broker_ip1}:{namesrv.port}"
        await broker.start()
        running.push_async_callback(broker.stop)  # before the name server, so that the broker unregisters there
        banner.log_broker(broker)
        ready = f"rucola ready namesrv={broker.config.namesrv_addr} broker={broker.address}"
        if broker.grpc_endpoint:
            ready += f" grpc={broker.grpc_endpoint}"
        if console is not None:
            cluster = ConnectionOptions(broker.config.namesrv_addr, ClientTls.of(broker.config.tls))
            ready += f" console={(await running.enter_async_context(console(cluster))).url}"

        async def reload() -> None:
            namesrv.reload_certificates()
            await broker.reload()

        await run_until_first_ends(serve_until_cancelled(ready, reload), broker.wait_failed())


@click.command()
@click.option("-n", "--namesrvAddr", expose_value=False, help="Accepted for compatibility with mqnamesrv, and ignored.")
@config_option
@print_option
@log_options
def namesrv(config_file: Path | None, print_config: bool) -> None:
    """Run a name server with mqnamesrv's flags and the keys of its configuration file.

    Prints `The Name Server boot success` when it is ready. SIGTERM and SIGINT stop it cleanly, SIGHUP reloads the
    configuration file (see docs/operation.md).

    \b
    Examples:
      rucola namesrv
      rucola namesrv -c namesrv.conf
    """
    properties = read_properties(config_file)
    config = namesrv_settings(properties, config_file)
    if print_config:
        click.echo(settings.render(settings.to_properties(config)), nl=False)
        return
    run_server(_namesrv(config, config_file))


async def _namesrv(config: NamesrvConfig, config_file: Path | None) -> None:
    async with Namesrv(config=config, config_file=config_file) as server:
        banner.log_namesrv(server, config)
        ready = f"The Name Server boot success. It listens on {server.host}:{server.port}"
        await serve_until_cancelled(ready, server.reload)


@click.command()
@namesrv_option("namesrv_addr", "Name servers to register at.")
@config_option
@print_option
@click.option(
    "-m", "--printImportantConfig", "print_important", is_flag=True, help="Print the important settings, and exit."
)
@log_options
def broker(namesrv_addr: str | None, config_file: Path | None, print_config: bool, print_important: bool) -> None:
    """Run a broker, with the flags of mqbroker and the keys of Apache's broker.conf.

    Prints `The broker[NAME, HOST:PORT] boot success` when it is ready. SIGTERM and SIGINT stop it cleanly, SIGHUP
    reloads the configuration file (see docs/operation.md). For the name servers, -n counts before the file, and the
    file before the environment; without any, the broker registers nowhere.

    \b
    Examples:
      rucola broker -n localhost:9876
      rucola broker -c broker.conf
      rucola broker -c broker.conf -p
    """
    properties = read_properties(config_file)
    source = click.get_current_context().get_parameter_source("namesrv_addr")
    if namesrv_addr and (source is ParameterSource.COMMANDLINE or not properties.get("namesrvAddr")):
        properties["namesrvAddr"] = namesrv_addr
    config, store_config = broker_settings(properties, config_file)
    if print_config or print_important:
        shown = settings.to_properties(config) | settings.to_properties(store_config)
        if not print_config:
            shown = {name: value for name, value in shown.items() if name in IMPORTANT_SETTINGS.split()}
        click.echo(settings.render(shown), nl=False)
        return
    run_server(_broker(config, store_config, config_file))


async def _broker(config: BrokerConfig, store_config: StoreConfig, config_file: Path | None) -> None:
    async with Broker(config, store_config, config_file=config_file) as server:
        registered = f" and name server is {config.namesrv_addr}" if config.namesrv_addr else ""
        banner.log_broker(server)
        ready = f"The broker[{config.broker_name}, {server.address}] boot success.{registered}"
        await run_until_first_ends(serve_until_cancelled(ready, server.reload), server.wait_failed())


def read_properties(config_file: Path | None) -> dict[str, str]:
    """Return the keys and values of a configuration file, if any; ConfigError if it is not text."""
    return {} if config_file is None else settings.read(config_file)


def broker_settings(properties: dict[str, str], config_file: Path | None) -> tuple[BrokerConfig, StoreConfig]:
    """Parse properties into broker and store settings; ConfigError names file, line and key."""
    with settings.located(config_file):
        config, store_config, unused = broker_config.from_properties(properties)
    _log_unused(unused, config_file)
    return config, store_config


def namesrv_settings(properties: dict[str, str], config_file: Path | None) -> NamesrvConfig:
    """Parse properties into settings of a name server; ConfigError names file, line and key."""
    with settings.located(config_file):
        config, unused = namesrv_config.from_properties(properties)
    _log_unused(unused, config_file)
    return config


def _log_unused(keys: list[str], config_file: Path | None) -> None:
    if keys:
        logger.warning("%s: keys of Apache's that have no effect here: %s", config_file, ", ".join(sorted(keys)))


def set_store_directory(properties: dict[str, str], store: Path) -> None:
    """Set the store directory; a CommitLog directory below the old root moves along."""
    # A broker.conf of Apache has absolute paths: for the root /data and the log /data/commitlog, the store /new gets
    # the log /new/commitlog; a log outside the root stays where it is.
    old_root = Path(properties.get("storePathRootDir", store))
    log = properties.get("storePathCommitLog")
    if log is not None and Path(log).is_relative_to(old_root):
        properties["storePathCommitLog"] = str(store / Path(log).relative_to(old_root))
    properties["storePathRootDir"] = str(store)


def run_server(server: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=BatchingEventLoop) as runner:
        runner.run(_run_until_signal(server))


async def _run_until_signal(server: Coroutine[Any, Any, None]) -> None:
    """Run a server; cancel it on the first SIGTERM or SIGINT. Some supervisors send each twice: ignore the others."""
    task = asyncio.ensure_future(server)
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not received:
            logger.info("%s: stopping", number.name)
            systemd.stopping()
            task.cancel()
        received.append(number)

    # If the terminal of a server is closed, SIGHUP stops it; a service has no terminal and reloads.
    if sys.stdin is not None and sys.stdin.isatty():
        loop.add_signal_handler(signal.SIGHUP, stop, signal.SIGHUP)
    else:
        loop.add_signal_handler(signal.SIGHUP, logger.info, "SIGHUP: nothing to reload during the start")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise


async def _reload_nothing() -> None:
    """Answer SIGHUP."""


async def serve_until_cancelled(ready: str, reload: Callable[[], Awaitable[None]] = _reload_nothing) -> None:
    """Print the line that announces readiness, then reload at every SIGHUP until cancelled."""
    hung_up = asyncio.Event()
    if sys.stdin is None or not sys.stdin.isatty():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up.set)
    loop = asyncio.get_running_loop()
    with tuned_for_serving() as frozen:

        def collect() -> None:
            frozen.collect_if_doubled()
            loop.call_later(CHECK_INTERVAL_S, collect)

        loop.call_later(CHECK_INTERVAL_S, collect)
        print(ready, flush=True)
        systemd.ready(ready)
        while True:
            await hung_up.wait()
            hung_up.clear()
            systemd.reloading()
            try:
                await reload()
            except MQError as error:
                logger.error("SIGHUP: nothing is reloaded: %s", error)
            systemd.ready(ready)
