"""Relays of several outboxes in one process, such as one for each customer's database or schema.

    tenants = [Tenant(name, database, Tables(schema=name)) for name in ("north", "south")]
    async with Relays(tenants, "host:9876"):
        ...

Each tenant has a relay, with a producer and alerts of its own; its alerts, log lines and metrics have its name. A
tenant whose tables are missing or whose database refuses the relay is tried again, with growing pauses, and the others
go on.

Tenants can share a Database. With its option `connections`, it has that many connections and as many threads, so that
a database that does not answer stops only its own tenants. Waits for locks on these connections are limited, so that
tenants whose tables stay locked leave them to the others. On PostgreSQL, one more connection waits for NOTIFY, for all
tenants of a database.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Self

from sqlalchemy import URL

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.producer.options import SendTrace
from rucola.outages import Outages
from rucola.reliable.alerts import Alerts, Sink
from rucola.reliable.database import Database, shown_url
from rucola.reliable.errors import ReliableError
from rucola.reliable.policy import Policy
from rucola.reliable.relay import CLOSE_GRACE_MS, FIRST_PAUSE_S, LONGEST_PAUSE_S, Relay
from rucola.reliable.schema import Tables
from rucola.reliable.wakeup import keep_listening

logger = logging.getLogger(__name__)

CONNECTIONS: Final = 5
"""Connections to each database of several tenants; a relay uses up to 3 at a time."""


class Tenant(NamedTuple):
    """One outbox of several."""

    name: str
    database: Database
    tables: Tables


class Relays:
    """Relays the outboxes of tenants. `async with` starts and stops them, on one event loop.

    Opening does not wait for the databases, and closing closes them. ReliableError if two tenants have the same name or
    the same tables.
    """

    def __init__(
        self,
        tenants: Sequence[Tenant],
        namesrv: str | None = None,
        *,
        policy: Policy | None = None,
        sinks: Sequence[Sink] = (),
        trace: SendTrace | None = None,
    ) -> None:
        _check_distinct(tenants)
        self.tenants = tuple(tenants)
        self._make_relay = partial(Relay, namesrv=namesrv, policy=policy, trace=trace, listens=False)
        self._sinks = sinks
        self._relays: dict[str, Relay] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._outages = Outages(logger)
        self._background = BackgroundTasks()

    @property
    def running(self) -> frozenset[str]:
        """The names of the tenants whose relays are open."""
        return frozenset(self._relays)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Start a task for each tenant, which opens and keeps its relay."""
        self._stopping = asyncio.Event()
        for tenant in self.tenants:
            task = self._background.start(self._keep_open(tenant), f"the relay of {tenant.name}")
            self._tasks[tenant.name] = task
        for database in self._databases():
            if database.dialect_name == "postgresql":
                channels = {
                    tenant.tables.channel: self._waker(tenant.name)
                    for tenant in self.tenants
                    if tenant.database is database
                }
                self._tasks[str(id(database))] = self._background.start(
                    keep_listening(database.url, channels), f"LISTEN for {len(channels)} tenants"
                )

    async def close(self) -> None:
        """Finish the batches of the open relays and close them; give up those that are not open."""
        self._stopping.set()
        for name, task in self._tasks.items():
            if name not in self._relays:
                task.cancel()
        await self._background.close(2 * CLOSE_GRACE_MS)
        async with AsyncExitStack() as closing:
            for database in self._databases():
                closing.push_async_callback(database.close)

    def _databases(self) -> list[Database]:
        return list(dict.fromkeys(tenant.database for tenant in self.tenants))

    def _waker(self, name: str) -> Callable[[], None]:
        def wake() -> None:
            if (relay := self._relays.get(name)) is not None:
                relay.wake()

        return wake

    async def _keep_open(self, tenant: Tenant) -> None:
        alerts = Alerts(self._sinks, tenant=tenant.name)
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                relay = self._make_relay(tenant.database, tables=tenant.tables, alerts=alerts, tenant=tenant.name)
                async with relay:
                    self._relays[tenant.name] = relay
                    self._outages.succeeded(f"the relay of {tenant.name}")
                    await self._stopping.wait()
                    return
            except Exception as error:  # the tables are missing, the database refuses: others must go on
                self._outages.failed(f"the relay of {tenant.name}", getattr(error, "orig", error))
            finally:
                self._relays.pop(tenant.name, None)
            try:
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            except TimeoutError:
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)


def _check_distinct(tenants: Sequence[Tenant]) -> None:
    names = Counter(one.name for one in tenants)
    by_table: dict[tuple[URL, str], list[str]] = {}
    for name, database, tables in tenants:
        if names[name] > 1:
            raise ReliableError(f"two tenants are {name}: each needs a name of its own", subject="tenants")
        by_table.setdefault((database.url.set(password=""), tables.stub.fullname), []).append(name)
    for (url, table), sharing in by_table.items():
        if len(sharing) > 1:
            raise ReliableError(
                f"tenants {', '.join(sharing)} have the same table {table} in {shown_url(url)}: each needs its own",
                subject="tenants",
            )
