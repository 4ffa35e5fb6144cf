"""`rucola reliable init`, `migrate`, `relay` and `purge`: tables, relay service and retention."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

import click
from sqlalchemy import Connection

from rucola.cli.extras import otel_option, require_extra
from rucola.cli.log_format import log_options
from rucola.cli.option_types import DurationRange, namesrv_option
from rucola.cli.output import print_json
from rucola.cli.reliable.command import (
    Where,
    check_file,
    database_options,
    dry_run_option,
    json_option,
    tenant_options,
    yes_option,
)
from rucola.name_server_addresses import DEFAULT_NAMESRV
from rucola.reliable import (
    Alerts,
    KeyedResend,
    Policy,
    Relay,
    Relays,
    ReliableError,
    Tables,
    Tenant,
    email_sink,
    migration,
    operations,
    webhook_sink,
)
from rucola.reliable.alerts import Sink
from rucola.reliable.database import Database, named_errors
from rucola.reliable.operations import PURGE_AFTER_MS
from rucola.reliable.policy import LEAST_PURGE_AFTER_MS
from rucola.reliable.tenants import CONNECTIONS
from rucola.remoting.exposure import LOOPBACK

logger = logging.getLogger("rucola")

T = TypeVar("T")

HOUR_MS = 3_600_000
SECOND_MS = 1000


@click.command()
@click.option("--sql", is_flag=True, help="Print the statements, without a connection, for someone else to run.")
@database_options
def init(where: Where, sql: bool) -> None:
    """Create the tables in a database.

    \b
    Examples:
      rucola reliable init --database sqlite:///shop.db
      rucola reliable init --database postgresql+psycopg://shop@localhost/shop --schema messaging
      rucola reliable init --database postgresql+psycopg:// --sql > outbox.sql
    """
    if sql:
        tables, database = where.open()
        lines = migration.statements(database.dialect_name, tables)
        click.echo(f"-- Tables {where.prefix}*, version {migration.VERSION}, for one database.")
        click.echo("\n".join(f"{line};" for line in lines))
        return

    def create(connection: Connection, tables: Tables) -> None:
        if connection.dialect.name == "sqlite":
            # With a write-ahead log, readers and the writer do not block each other. SQLite keeps the mode in the file.
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        migration.init(connection, tables)

    where.run(create)
    click.echo(f"created tables {where.prefix}*, version {migration.VERSION}")


@click.command()
@database_options
def migrate(where: Where) -> None:
    """Migrate the tables to the version of this program. They must exist: `init` creates them.

    Run it before you upgrade the programs that use the tables.

    \b
    Examples:
      rucola reliable migrate --database postgresql+psycopg://shop@localhost/shop
    """
    check_file(where.url)

    def upgrade(connection: Connection, tables: Tables) -> tuple[str | None, str]:
        # A mistyped URL or prefix would otherwise get tables, and those in use would not be migrated.
        if migration.version_of(connection, tables) is None:
            migration.check(connection, tables)
        return migration.migrate(connection, tables)

    before, after = where.run(upgrade)
    click.echo(
        f"tables {where.prefix}*: {before} -> {after}" if before != after else f"tables {where.prefix}*: {after}"
    )


@click.command()
@namesrv_option("namesrv_addr", "Name servers.", default=DEFAULT_NAMESRV)
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=Policy().batch, show_default=True, help="Messages per claim."
)
@click.option(
    "--max-sends",
    type=click.IntRange(1, 1_000_000),
    default=16,
    show_default=True,
    help="Sends after which an unconfirmed message becomes MANUAL.",
)
@click.option(
    "--confirm-timeout", type=DurationRange(0.001), default=60, show_default=True, metavar="SECONDS",
    help="Time from a send to the first check of its confirmation.",
)  # fmt: skip
@click.option(
    "--lease", type=DurationRange(1), default=30, show_default=True, metavar="SECONDS",
    help="Time after which the claims of a dead relay expire.",
)  # fmt: skip
@click.option(
    "--keyed-resend", type=click.Choice([kind.value for kind in KeyedResend]), default="manual", show_default=True,
    help="Handling of a lost message that has a sharding key.",
)  # fmt: skip
@click.option(
    "--purge-older-than", type=DurationRange(LEAST_PURGE_AFTER_MS / HOUR_MS), metavar="HOURS",
    help="Delete settled rows of this age, as `purge` does, a thousand of each table a second.  [default: none]",
)  # fmt: skip
@click.option("--webhook", metavar="URL", help="URL to which alerts are posted as JSON.")
@click.option("--smtp", metavar="HOST:PORT", help="Mail server for alerts.")
@click.option("--mail-from", metavar="ADDRESS", default="rucola@localhost", show_default=True, help="Sender of alerts.")
@click.option("--mail-to", metavar="ADDRESS", multiple=True, help="Recipient of alerts. Can be repeated.")
@click.option(
    "--metricsPort", "metrics_port", type=click.IntRange(0, 65535), metavar="PORT",
    help="Port of 127.0.0.1 for metrics of the outbox, for Prometheus; 0 picks a free port.",
)  # fmt: skip
@otel_option
@log_options
@tenant_options
def relay(
    places: Mapping[str, Where], namesrv_addr: str, batch: int, max_sends: int,
    confirm_timeout: float, lease: float, keyed_resend: str, purge_older_than: float | None, webhook: str | None,
    smtp: str | None, mail_from: str, mail_to: tuple[str, ...], metrics_port: int | None, otel: bool,
) -> None:  # fmt: skip
    """Run a relay: send the messages of an outbox, and check their confirmation.

    Several relays share the work. Prints `rucola ready relay=NAME` when it is ready. SIGTERM and SIGINT stop it
    cleanly.

    With several databases or schemas, it relays for each of them: a tenant that fails is tried again, and does not stop
    the others. `rucola ready tenants=NUMBER` is printed before their databases answer. Logs, alerts and metrics name
    the tenant.

    \b
    Examples:
      rucola reliable relay -n localhost:9876 --database postgresql+psycopg://shop@localhost/shop
      rucola reliable relay -n localhost:9876 --webhook https://example.org/alerts
      rucola reliable relay -n localhost:9876 --schema north --schema south
      rucola reliable relay -n localhost:9876 --smtp localhost:25 --mail-to ops@example.org
    """
    for where in places.values():
        check_file(where.url)
    policy = Policy(
        batch=batch, max_sends=max_sends, confirm_timeout_ms=int(confirm_timeout * SECOND_MS),
        lease_ms=int(lease * SECOND_MS), keyed_resend=KeyedResend(keyed_resend),
        purge_after_ms=None if purge_older_than is None else int(purge_older_than * HOUR_MS),
    )  # fmt: skip
    sinks = _sinks(webhook, smtp, mail_from, mail_to)
    trace = None
    if otel:
        from rucola.client.otel import Telemetry

        trace = Telemetry()
    with ExitStack() as running:
        if len(places) == 1:
            (where,) = places.values()
            tables, database = where.open()
            running.enter_context(named_errors(database))
            ready = _serve_metrics(metrics_port, running, engine=database.engine, tables=tables)
            alerts = Alerts(sinks)
            relay = Relay(database, namesrv_addr, tables=tables, policy=policy, alerts=alerts, trace=trace)
            asyncio.run(_run(relay, f"relay={relay.owner}{ready}", database.close))
            return
        databases = {where.url: Database(where.url, connections=CONNECTIONS) for where in places.values()}
        tenants = [Tenant(name, databases[where.url], where.open()[0]) for name, where in places.items()]
        ready = _serve_metrics(metrics_port, running, tenants=tenants)
        relays = Relays(tenants, namesrv_addr, policy=policy, sinks=sinks, trace=trace)
        asyncio.run(_run(relays, f"tenants={len(tenants)}{ready}"))


def _serve_metrics(port: int | None, running: ExitStack, **outboxes: Any) -> str:
    """Serve /metrics in a thread until `running` is closed; return what the ready line says of it."""
    if port is None:
        return ""
    with require_extra("metrics"):
        from prometheus_client import CollectorRegistry, start_http_server

        from rucola.reliable.metrics import ReliableCollector
    registry = CollectorRegistry()
    registry.register(ReliableCollector(**outboxes))
    try:
        server, thread = start_http_server(port, LOOPBACK, registry)
    except OSError as error:
        raise ReliableError(f"--metricsPort {port}: {error.strerror}") from None
    running.callback(thread.join)
    running.callback(server.server_close)
    running.callback(server.shutdown)
    return f" metrics={LOOPBACK}:{server.server_port}"


async def _run(relays: Relay | Relays, ready: str, close: Callable[[], Awaitable[None]] | None = None) -> None:
    try:
        async with relays:
            # From here on; while a relay waits for its database, a signal ends it at once.
            stopped = asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stopped.set)
            # Collections that scanned SQLAlchemy's modules delayed a message by 45 ms, most of the latency at p99.
            gc.freeze()
            print(f"rucola ready {ready}", flush=True)
            await stopped.wait()
            logger.info("stopping")
    finally:
        if close is not None:
            await close()


def _sinks(webhook: str | None, smtp: str | None, mail_from: str, mail_to: tuple[str, ...]) -> list[Sink]:
    sinks: list[Sink] = []
    if webhook is not None:
        try:
            sinks.append(webhook_sink(webhook))
        except ReliableError as error:
            raise click.UsageError(f"--webhook: {error}") from None
    if smtp is not None or mail_to:
        host, _, port = (smtp or "").rpartition(":")
        if not host or not port.isdigit() or not mail_to:
            raise click.UsageError("alerts by mail need --smtp HOST:PORT and at least one --mail-to ADDRESS")
        sinks.append(email_sink(host, int(port), mail_from, mail_to))
    return sinks


@click.command()
@click.option(
    "--older-than", type=DurationRange(), default=PURGE_AFTER_MS / HOUR_MS, show_default=True, metavar="HOURS",
    help="Minimum time since a message was completed.",
)  # fmt: skip
@click.option(
    "--ledger", "ledgers", multiple=True, metavar="URL",
    help="Database with the stubs, if consumers of this database use another one (`ledger=`). Can be repeated.",
)  # fmt: skip
@dry_run_option
@yes_option
@json_option
@database_options
def purge(where: Where, older_than: float, ledgers: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete old confirmed and void messages, receipts and done rows.

    Receipts and done rows are deleted when no duplicate can arrive any more: after their message, which an operator
    could send again. An incomplete message is never deleted. A thousand messages are deleted in a transaction. The age
    must be at least 77 hours, because brokers may deliver a message again for that long.

    \b
    Examples:
      rucola reliable purge --dry-run
      rucola reliable purge --older-than 240 --yes
      rucola reliable purge --database sqlite:///billing.db --ledger sqlite:///shop.db --yes
    """
    age_ms = int(older_than * HOUR_MS)
    if age_ms < LEAST_PURGE_AFTER_MS:
        raise click.UsageError(
            f"--older-than {older_than:g}: not below {LEAST_PURGE_AFTER_MS // HOUR_MS} hours, since brokers keep and "
            "retry messages as long as that, and a duplicate of a purged one would count as new"
        )

    def with_ledgers(work: Callable[..., T]) -> T:
        with ExitStack() as connected:
            connections = []
            for url in ledgers:
                check_file(url)
                tables, opened = where._replace(url=url).open()
                connected.enter_context(named_errors(opened))
                connections.append(connected.enter_context(opened.connect_sync()))
                migration.check(connections[-1], tables)
            return where.run_checked(work, age_ms, connections)

    if dry_run or not yes:
        # Counting reads all old rows, which takes longer than removing the first thousand.
        rows = with_ledgers(operations.purgeable)
    if dry_run:
        if as_json:
            print_json(rows)
        else:
            click.echo("\n".join(f"would remove {count} rows of {table}" for table, count in rows.items()))
        return
    if not yes and any(rows.values()):
        click.confirm(f"remove {sum(rows.values())} rows?", abort=True, err=True)
    # Short transactions keep locks and the undo log small, and an interrupted purge keeps what it has done.
    removed = 0
    while count := with_ledgers(operations.purge):
        removed += count
    if as_json:
        print_json({"removed": removed})
    else:
        click.echo(f"removed {removed} rows")
