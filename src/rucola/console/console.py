"""The parts of a console, as every page and the API use them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Self

from rucola.admin import AdminClient
from rucola.client.connection_options import ConnectionOptions
from rucola.console import accounts, audit, views
from rucola.console.accounts import Accounts
from rucola.console.actions import Actions
from rucola.console.audit import Audit
from rucola.console.body_policy import BodyPolicy
from rucola.console.collector import Collector
from rucola.console.config import ConsoleConfig
from rucola.console.database import Database
from rucola.console.history import History
from rucola.console.lake import ConsoleLake
from rucola.console.scans import Scans
from rucola.console.tails import Tails
from rucola.console.views import SavedViews

REQUEST_TIMEOUT_MS = 3000


class Console:
    """`async with Console(namesrv, config) as console` observes a cluster until the block ends."""

    def __init__(self, namesrv: str | ConnectionOptions | None, config: ConsoleConfig) -> None:
        self.config = config
        directory = config.directory
        self.database = Database(directory and directory / "console.db", audit.SCHEMA + accounts.SCHEMA + views.SCHEMA)
        self.client = AdminClient(namesrv, timeout_ms=REQUEST_TIMEOUT_MS)
        self.client.restrict(())  # until the collector knows the brokers: visitors name any address
        self.history = History(directory and directory / "history.db")
        self.audit = Audit(self.database)
        self.views = SavedViews(self.database)
        self.accounts = Accounts(config.accounts, self.database)
        self.collector = Collector(
            self.client, self.history, config.interval_s, config.requests_per_second, config.lake
        )
        self.body_policy = BodyPolicy(config.body_roles)
        self.actions = Actions(self.client, self.audit, self.body_policy, self.collector)
        self.scans = Scans(self.client, config.lake)
        self.lake = ConsoleLake(config.lake, config.query_lake) if config.lake and config.query_lake else None
        self.tails = Tails(self.client, self.collector)
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as started:
            started.push_async_callback(self.client.close)
            for database in (self.database, self.history):
                await database.open()
                started.push_async_callback(database.close)
            await self.collector.start()
            started.push_async_callback(self.collector.close)
            started.push_async_callback(self.scans.close)
            if self.config.outbox is not None:
                started.push_async_callback(self.config.outbox.close)
            started.push_async_callback(self.tails.close)
            self._running = started.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()
