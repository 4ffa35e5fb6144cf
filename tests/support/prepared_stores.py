"""Brokers on stores that a test fills beforehand, with store times of its choice, and an AdminClient."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rucola.admin import AdminClient, TopicConfig
from rucola.broker.broker import Broker
from rucola.domain.topic import TopicConfigSerializeWrapper
from rucola.protocol.body import encode_body
from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore
from support.cluster import SMALL_FILES, Cluster, cluster
from support.stores import HOST, inner

NOW_MS = 1_800_000_000_000
TOPIC = "Orders"

SearchQuery = Callable[[AdminClient, list[Broker], Cluster], Awaitable[None]]


def fill_store(path: Path, messages: Sequence[tuple[str, str, int]], broker: str = "broker-a", **settings: Any) -> None:
    """Create the store of a broker with messages of topic Orders, given as (keys, unique key, store time)."""
    config = StoreConfig(store_path_root_dir=path / broker, store_host=HOST, **SMALL_FILES | settings)
    with MessageStore(config) as store:
        for keys, unique_key, now_ms in messages:
            store.put(inner(TOPIC, body=unique_key.encode(), keys=keys, unique_key=unique_key), now_ms)
    topics = {TOPIC: TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1)}
    table = path / broker / "config" / "topics.json"
    table.parent.mkdir(exist_ok=True)
    table.write_bytes(encode_body(TopicConfigSerializeWrapper(topic_config_table=topics)))


@asynccontextmanager
async def cluster_of_stores(path: Path, **settings: Any) -> AsyncIterator[tuple[AdminClient, list[Broker], Cluster]]:
    """Put a question to a cluster with one broker for each store in `path`, or with one empty broker."""
    names = sorted(os.listdir(path)) or ["broker-a"]

    async with cluster(path) as running:
        brokers = [await running.start_broker(name, **settings) for name in names]
        async with AdminClient(running.namesrv) as admin:
            yield admin, brokers, running
