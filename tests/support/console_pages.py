"""Every page of a console in Chromium, with something to show on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from rucola.admin import AdminClient, SubscriptionGroupConfig, TopicConfig
from rucola.client import Message, Producer, PushConsumer
from rucola.console.reliable_outbox import ReliableOutbox
from rucola.message import MessageExt
from rucola.reliable.outbox import Outbox
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, sql
from rucola.spark.session import LazySession
from support.browser import BrowserPage, browser
from support.console import Visitor, add_dead_letters, live_cluster, visitor
from support.databases import OutboxDatabase
from support.small_store import SmallStore

PATHS = (
    "/", "/topics?kind=all", "/topic?name=Orders", "/groups", "/group?name=billing", "/why?group=billing",
    "/clients", "/clients?kind=producers", "/delayed", "/configuration?all=1", "/configuration?key=maxMessageSize",
    "/access", "/commands",
    "/run/updateTopic",
    "/run/clusterList", "/search?q=7&topic=Orders", "/scan?topic=Orders&text=order", "/tail?topic=Orders",
    "/dead_letters", "/dead_letters?group=billing", "/audit",
    "/tables?sql=SELECT+topic,+count(*)+AS+messages+FROM+messages+GROUP+BY+topic",
    "/outbox", "/views?path=/topics", "/login",
)  # fmt: skip
"""With a topic Orders and a group billing that has dead letters."""


@asynccontextmanager
async def pages(path: Path, db: OutboxDatabase, **config: Any) -> AsyncIterator[tuple[Visitor, BrowserPage, list[str]]]:
    """A console with something on every page, a tab of Chromium, and the paths."""
    store = SmallStore(path / "store")
    store.put("Orders", KEYS="k")
    archive.run(LazySession("tests", use_spark=False), store.path, path / "lake")
    lake = Archive(path / "lake")
    with Session(db.engine()) as session, session.begin():
        Outbox(["billing"], tables=db.tables).add(session, Message("Orders", b"x"))
    settings = {
        "lake": lake, "query_lake": partial(sql.run, lake), "outbox": ReliableOutbox(db.url, db.tables.prefix),
    } | config  # fmt: skip
    async with (
        live_cluster(path) as running,
        visitor(running.namesrv, **settings) as console,
        browser(path / "profile") as chromium,
    ):
        (letter,) = await add_dead_letters(running, {"no card": 1})
        ids = f"/message?id={letter.offset_msg_id}", f"/dead_letter?group=billing&id={letter.offset_msg_id}"
        await console.console.collector.wait_first()
        broker = f"/broker?address={console.console.collector.snapshot.brokers[0].address}"
        await console.console.views.save("Slow topics", "/topics?sort=queues", "local")
        yield console, await chromium.page(), [*ids, broker, *PATHS]


@asynccontextmanager
async def busy(console: Visitor) -> AsyncIterator[None]:
    """Topics of a shop and their groups, with messages, members and traces, for pictures."""
    namesrv = console.console.client.namesrv
    async with AsyncExitStack() as running:
        admin = await running.enter_async_context(AdminClient(namesrv))
        for address in (await admin.cluster.masters("DefaultCluster")).values():
            for topic in ("Payments", "Shipments", "Invoices", "StockLevels"):
                await admin.topics.create_or_update(
                    address, TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4)
                )
            for group in ("shipping", "invoicing", "stock", "audit"):
                await admin.groups.create_or_update(address, SubscriptionGroupConfig(group_name=group))
        producer = await running.enter_async_context(Producer("shop", namesrv))
        for group, topic in (("shipping", "Shipments"), ("stock", "StockLevels")):
            consumer = PushConsumer(group, namesrv)
            consumer.subscribe(topic)

            async def listen(message: MessageExt) -> None:
                pass

            consumer.listen(listen)
            await running.enter_async_context(consumer)
        for number in range(400):
            topic = ("Payments", "Shipments", "Invoices", "StockLevels")[number % 4]
            body = f'{{"order": {4711 + number}, "amount": {number * 7 % 90}.50, "currency": "EUR"}}'.encode()
            await producer.send(Message(topic, body, keys=f"order-{4711 + number}", tags="paid"))
        await console.console.collector.refresh()
        yield
