"""Every page of a console, with something to show on each."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from math import sin
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from rucola.admin import AdminClient, SubscriptionGroupConfig, TopicConfig
from rucola.client import LocalTransactionState, Message, Producer, PushConsumer, TransactionProducer
from rucola.client.connection_options import ConnectionOptions
from rucola.console.reliable_outbox import ReliableOutbox
from rucola.domain.group import SubscriptionGroupWrapper
from rucola.domain.topic import TopicConfigSerializeWrapper
from rucola.domain.user import PolicyEntryInfo
from rucola.message import MessageExt
from rucola.reliable.outbox import Outbox
from rucola.reliable.schema import Tables
from rucola.settings import Secret
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, sql
from rucola.spark.session import LazySession
from support.access import ADMIN
from support.cluster import Cluster, cluster
from support.console import Visitor, add_dead_letters, field, live_cluster, visitor
from support.database_fixtures import initialized
from support.databases import OutboxDatabase
from support.small_store import SmallStore

PAGES = {
    "cluster": "/",
    "broker": "/broker?address={broker}",
    "topics": "/topics?kind=all",
    "topic": "/topic?name=Orders",
    "groups": "/groups",
    "group": "/group?name=billing",
    "why": "/why?group=billing",
    "clients": "/clients",
    "producers": "/clients?kind=producers",
    "dead-letters": "/dead_letters",
    "dead-letters-of-a-group": "/dead_letters?group=billing",
    "dead-letter": "/dead_letter?group=billing&id={letter}",
    "delayed": "/delayed",
    "search": "/search?q=7&topic=Orders",
    "scan": "/scan?topic=Orders&text=order",
    "message": "/message?id={letter}",
    "tail": "/tail?topic=Orders",
    "tables": "/tables?sql=SELECT+topic,+count(*)+AS+messages+FROM+messages+GROUP+BY+topic",
    "outbox": "/outbox",
    "configuration": "/configuration?all=1",
    "setting": "/configuration?key=maxMessageSize",
    "access": "/access",
    "commands": "/commands",
    "form": "/run/updateTopic",
    "question": "/run/resetOffsetByTime?group=billing&topic=Orders&timestamp_ms=now",
    "result": "/run/clusterList",
    "audit": "/audit",
    "views": "/views?path=/topics",
    "login": "/login",
}
"""The pages by name, with a topic Orders, a group billing, its dead letter, and the address of a broker."""
QUESTION = "main form.fields button"
"""What leads from the form of `question` to the question, which has no address."""
MANY_TOPICS, MANY_GROUPS = 5000, 2000
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


@asynccontextmanager
async def shown_console(
    path: Path, *, has_many: bool = False, **config: Any
) -> AsyncIterator[tuple[Cluster, Visitor, dict[str, str]]]:
    """A console with something on every page, and the paths of the pages by name.

    With `has_many` the brokers have MANY_TOPICS and MANY_GROUPS, and texts of messages and views are HOSTILE.
    """
    store = SmallStore(path / "store")
    for number in range(40):
        topic, at_ms = ("Orders", "Payments", "Invoices")[number % 3], _now_ms() - (40 - number) * 3_600_000
        store.put(topic, at_ms=at_ms, KEYS=f"order-{number}")
    archive.run(LazySession("tests", use_spark=False), store.path, path / "lake")
    lake = Archive(path / "lake")
    db = initialized(OutboxDatabase(f"sqlite:///{path}/business.db", Tables()))
    with Session(db.engine()) as session, session.begin():
        outbox = Outbox(["billing"], tables=db.tables)
        for topic in ("Orders", "Orders", "Payments"):
            outbox.add(session, Message(topic, b"x"))
    if has_many:
        for name in ("broker-a", "broker-b"):
            write_many(path / name / "config")
    settings = {
        "lake": lake, "query_lake": partial(sql.run, lake), "outbox": ReliableOutbox(db.url, db.tables.prefix),
    } | config  # fmt: skip
    async with live_cluster(path) as running, visitor(running.namesrv, **settings) as console:
        cause = HOSTILE if has_many else "no card"
        (letter,) = await add_dead_letters(running, {cause: 1})
        await console.console.collector.wait_first(20)
        await console.console.views.save(cause if has_many else "Slow topics", "/topics?sort=queues", "local")
        given = {"broker": console.console.collector.snapshot.brokers[0].address, "letter": letter.offset_msg_id}
        yield running, console, {name: address.format(**given) for name, address in PAGES.items()}


def write_many(directory: Path) -> None:
    """Write the tables of a broker that has not started yet."""
    directory.mkdir(parents=True)
    topics = [f"shop-{number:04}.events" for number in range(MANY_TOPICS)]
    groups = [f"shop-{number:04}.reader" for number in range(MANY_GROUPS)]
    of_topics = {one: TopicConfig(topic_name=one, read_queue_nums=1, write_queue_nums=1) for one in topics}
    of_groups = {one: SubscriptionGroupConfig(group_name=one) for one in groups}
    tables = {
        "topics.json": TopicConfigSerializeWrapper(topic_config_table=of_topics),
        "subscriptionGroup.json": SubscriptionGroupWrapper(subscription_group_table=of_groups),
    }
    for name, table in tables.items():
        (directory / name).write_bytes(msgspec.json.encode(table))


SHOP = {"Payments": 9, "Shipments": 6, "Invoices": 4, "StockLevels": 12, "Orders": 5}
"""Topics, and messages a second, of `busy`."""


@asynccontextmanager
async def busy(running: Cluster, console: Visitor) -> AsyncIterator[None]:
    """A shop, for pictures: topics with traffic, groups with members, a slave, and two hours of history, made up."""
    namesrv = running.namesrv
    async with AsyncExitStack() as started:
        await running.start_slave()
        admin = await started.enter_async_context(AdminClient(namesrv))
        for address in (await admin.cluster.masters("DefaultCluster")).values():
            for topic in SHOP:
                config = TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4)
                await admin.topics.create_or_update(address, config)
            for group in ("shipping", "invoicing", "stock"):
                await admin.groups.create_or_update(address, SubscriptionGroupConfig(group_name=group))
        await add_dead_letters(running, {"card declined": 14, "no such customer": 5, "the bank timed out": 3})
        producer = await started.enter_async_context(Producer("shop", namesrv))
        for number in range(2500):
            await producer.send(_order(number, "Orders"))
        for properties in ({"DELAY": "15"}, {"DELAY": "17"}, {"TIMER_DELIVER_MS": str(_now_ms() + 7_200_000)}):
            await producer.send(Message("Invoices", b"remind the customer", properties=properties))
        transactions = await started.enter_async_context(TransactionProducer("payments", namesrv, check=_unknown))
        await transactions.send_in_transaction(_order(1, "Payments"), _unknown)
        for group, topic, seconds in (
            ("shipping", "Shipments", 0.01), ("stock", "StockLevels", 0.01), ("billing", "Orders", 1.0)
        ):  # fmt: skip
            consumer = PushConsumer(group, namesrv)
            consumer.subscribe(topic)
            consumer.listen(partial(_work, seconds))
            await started.enter_async_context(consumer)
        await _add_history(console)
        for command, given in (
            ("updateTopic", {"cluster": "DefaultCluster", "topic": "Refunds"}),
            ("updateSubGroup", {"cluster": "DefaultCluster", "group_name": "refunds", "retry_max_times": "5"}),
            ("resetOffsetByTime", {"group": "stock", "topic": "StockLevels", "timestamp_ms": "now"}),
        ):
            asked = await console.post(f"/run/{command}", given)
            await console.http.post(
                console.url(f"/run/{command}"),
                data=given | {name: field(asked, name) for name in ("token", "seen", *given)},
            )
        sending = asyncio.create_task(_send(producer))
        try:
            await console.console.collector.refresh()
            yield
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


def _order(number: int, topic: str) -> Message:
    body = f'{{"order": {4711 + number}, "amount": {number * 7 % 90}.50, "currency": "EUR"}}'.encode()
    return Message(topic, body, keys=f"order-{4711 + number}", tags=("paid", "open", "sent")[number % 3])


async def _send(producer: Producer) -> None:
    for number in itertools.count():
        for topic, per_second in SHOP.items():
            if number * per_second % 20 < per_second:
                await producer.send(_order(number, topic))
        await asyncio.sleep(1 / 20)


async def _work(seconds: float, _: MessageExt) -> None:
    await asyncio.sleep(seconds)


async def _unknown(_: Message) -> LocalTransactionState:
    return LocalTransactionState.UNKNOW


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _add_history(console: Visitor) -> None:
    """Add two hours that lead to what is measured now."""
    random, end_s = Random(7), int(time.time())
    for at_s in range(end_s - 7200, end_s - 30, 20):
        wave = 1 + 0.35 * sin(at_s / 900) + random.uniform(-0.06, 0.06)
        left = (end_s - at_s) / 7200
        values = {f"puts_per_s {name}": 18 * wave for name in ("broker-a", "broker-b")}
        values |= {f"gets_per_s {name}": 14 * wave + random.uniform(0, 2) for name in ("broker-a", "broker-b")}
        values |= {f"disk_ratio {name}": 0.44 - 0.02 * left for name in ("broker-a", "broker-b", "broker-a:1")}
        values |= {"replication_lag broker-a:1": random.choice((0, 0, 0, 240, 480, 1900))}
        values |= {f"topic puts_per_s {name}": rate * wave for name, rate in SHOP.items()}
        values |= {
            "group backlog billing": 2500 * (1 + 1.2 * left * (1 - left)) + random.uniform(-40, 40),
            "group delay_s billing": 300 * (1 + 1.2 * left * (1 - left)),
            "group consumed_per_s billing": 19 + random.uniform(-1.5, 1.5),
        }
        await console.console.history.add(at_s, values)


@asynccontextmanager
async def access_console(path: Path) -> AsyncIterator[Visitor]:
    """A console of two brokers with users and policies, one of which lacks some."""
    settings: dict[str, Any] = {
        "authentication_enabled": True, "authorization_enabled": True,
        "init_authentication_user": Secret(json.dumps({"username": "operator", "password": "secret of the operator"})),
    }  # fmt: skip
    async with cluster(path) as running:
        brokers = [await running.start_broker(name, **settings) for name in ("broker-a", "broker-b")]
        async with AdminClient(running.namesrv, credentials=ADMIN) as admin:
            for number, broker in enumerate(brokers):
                for name, resource, actions in (
                    ("shop", "Topic:Orders", ["Pub"]), ("billing", "Topic:Orders", ["Sub"]), ("audit", "*", ["Sub"])
                )[: 3 - number]:  # fmt: skip
                    await admin.access.create_user(broker.address, name, f"secret of {name}")
                    entry = PolicyEntryInfo(actions=actions, source_ips=["10.0.0.0/8"], decision="Allow")
                    await admin.access.set_policies(broker.address, f"User:{name}", [resource], entry)
        async with visitor(ConnectionOptions(running.namesrv, credentials=ADMIN)) as console:
            await console.console.collector.wait_first(20)
            yield console
