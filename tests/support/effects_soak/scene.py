"""The scene of an effects soak: addresses, tables, groups, and the body of an order's message.

`billing` consumes concurrently, on an async engine of the database with the stubs. `stock` consumes in order, on a
blocking engine of a database of its own, so that its confirmations follow in a second transaction.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rucola.reliable import Policy, Tables
from support.databases import ASYNC_DRIVERS

TOPIC = "Orders"
BILLING, STOCK = GROUPS = ("billing", "stock")
QUEUES = 4
POOL: dict[str, int] = {"pool_size": 10, "max_overflow": 20}

TABLES = Tables()
metadata = MetaData()
orders = Table(
    "soak_order",
    metadata,
    Column("id", String(60), primary_key=True),
    Column("hash", String(64), nullable=False),
    Column("shard_key", String(60)),
)
effects = Table(
    "soak_effect",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("order_id", String(60), nullable=False),  # not unique: an effect that happens twice is to be seen
    Column("consumer_group", String(20), nullable=False),
    Column("hash", String(64), nullable=False),
)


class Options(NamedTuple):
    """What one run is asked for."""

    database: str = "postgresql"
    in_order: bool = True
    lease_ms: int = 3000
    stuck_after_ms: int = 90_000


class Scene(NamedTuple):
    """What every process of a run is told. `stock_url` is the business database of the group `stock`."""

    url: str
    stock_url: str
    namesrv: str
    redis_url: str
    directory: Path
    options: Options

    @property
    def ledgers(self) -> Path:
        return self.directory / "ledgers"

    @property
    def healed(self) -> Path:
        """A file that exists once the consumers are repaired: until then they fail on poisoned orders."""
        return self.directory / "healed"

    @property
    def policy(self) -> Policy:
        """Short times, so that a run of minutes sees what otherwise takes hours."""
        stuck_after_ms = self.options.stuck_after_ms
        return Policy(
            lease_ms=self.options.lease_ms, poll_ms=500, retry_ms=200, max_retry_ms=5000, confirm_timeout_ms=3000,
            max_check_ms=5000, stuck_after_ms=stuck_after_ms, overdue_after_ms=4 * stuck_after_ms,
        )  # fmt: skip


def engine_of(url: str) -> Engine:
    engine = create_engine(url, **POOL)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _use_wal)
    return engine


def async_engine_of(url: str) -> AsyncEngine:
    scheme, rest = url.split("://", 1)
    engine = create_async_engine(f"{ASYNC_DRIVERS[scheme]}://{rest}", **POOL)
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _use_wal)
    return engine


def _use_wal(connection: Any, record: Any) -> None:
    """Let SQLite append to a log: ten processes that each wait for fsync and for readers would starve each other."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


class OrderBody(msgspec.Struct):
    """The body of an order's message."""

    order_id: str
    fails_once: bool
    is_poisoned: bool
    content: bytes


def hash_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
