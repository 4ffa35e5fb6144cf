"""Faults of Redis other than its end: it evicts keys, is full, is slow, or is still loading. Nothing depends on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import redis
from sqlalchemy import Column, Integer, MetaData, Table, insert
from sqlalchemy.orm import Session

from rucola.client import MessageExt, ReconsumeLater
from rucola.reliable.database import complete
from rucola.reliable.idempotent import idempotent
from rucola.reliable.receipts import GroupDelivery
from rucola.reliable.redis_claims import RedisClaims
from support.databases import DatabaseServer, OutboxDatabase
from support.outbox import add, count, delivery, statuses
from support.ports import HOST
from support.proxy import Proxy

GROUP = "billing"


@pytest.fixture
def client(redis_server: DatabaseServer) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url) as connected:
        yield connected


def evicting(client: Any) -> None:
    """Each write evicts keys, the claims among them."""
    client.config_set("maxmemory-policy", "allkeys-random")
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 1_000_000)
    # A write is refused if nothing is left to evict: the buffers of other connections count, and may be all of it.
    with suppress(redis.exceptions.OutOfMemoryError):
        for number in range(300):
            client.set(f"filler {number}", "x" * 10_000)
    assert client.info("stats")["evicted_keys"] > 0


def full(client: Any) -> None:
    """Writes are refused."""
    client.config_set("maxmemory", 1)


def slow(client: Any) -> None:
    """Longer than the timeout of a claim: responses arrive when they are no longer awaited."""
    client.client_pause(3000)


@pytest.mark.parametrize("harm", [evicting, full, slow], ids=lambda harm: harm.__name__)
def test_harmed_redis_allows_no_second_effect(
    harm: Callable[[Any], None], postgresql_db: OutboxDatabase, redis_server: DatabaseServer, client: Any
) -> None:
    """It is harmed while workers hold keys, and each message has five deliveries at once."""
    effects = Table(f"{postgresql_db.tables.prefix}effect", MetaData(), Column("id", Integer, primary_key=True))
    effects.create(postgresql_db.engine())
    ids = add(postgresql_db, "T", [b"x"] * 20, groups=[GROUP])

    def apply(message: MessageExt, session: Session) -> None:
        if message.msg_id == ids[3]:
            harm(client)
        session.execute(insert(effects))

    claims = RedisClaims(redis_server.url, backoff_s=0)
    listener = idempotent(postgresql_db.engine(), GROUP, tables=postgresql_db.tables, redis=claims)(apply)

    def deliver(message_id: str) -> None:
        for _ in range(100_000):  # Redis answers fast that another worker has it
            try:
                return listener(delivery(message_id))
            except ReconsumeLater:
                continue
        raise AssertionError("never acknowledged")

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(deliver, [message_id for message_id in ids for _ in range(5)]))
    assert (count(postgresql_db, effects), count(postgresql_db, postgresql_db.tables.receipt)) == (20, 0)
    assert statuses(postgresql_db) == {"CONFIRMED": 20}
    assert listener.counts.done == 20


async def test_slow_network_to_redis_costs_one_timeout_and_one_line(
    redis_server: DatabaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with Proxy(f"{HOST}:{redis_server.port}") as proxy:
        proxy.delay_ms = 5000
        claims = RedisClaims(f"redis://{proxy.address}/0")
        claims.bind(False)
        with caplog.at_level(logging.INFO, "rucola.reliable"):
            deliveries = [GroupDelivery(f"m{number}", GROUP, "token") for number in range(500)]
            answers = [await asyncio.to_thread(complete, claims.take(each, 1000)) for each in deliveries]
        assert answers == [None] * 500
        assert proxy.accepted == 1, "while it backs off, Redis is not asked"
    assert len(caplog.records) == 1
