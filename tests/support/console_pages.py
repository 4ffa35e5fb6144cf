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
from rucola.broker.services.configuration import default_properties
from rucola.client import LocalTransactionState, Message, Producer, PushConsumer, SendResult, TransactionProducer
from rucola.client.connection_options import ConnectionOptions
from rucola.client.trace import MessageTrace
from rucola.console.collector import ARCHIVE_AGE
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
    "scan": "/scan?topic=Orders&text=order+3",
    "message": "/message?id={message}",
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
    store.put("Orders", KEYS="k")
    archive.run(LazySession("tests", use_spark=False), store.path, path / "lake")
    if has_many:
        for name in ("broker-a", "broker-b"):
            write_many(path / name / "config")
    async with live_cluster(path) as running:
        cause = HOSTILE if has_many else "no card"
        (letter,) = await add_dead_letters(running, {cause: 1})
        async with _console(path, running, **config) as console:
            await console.console.views.save(cause if has_many else "Slow topics", "/topics?sort=queues", "local")
            yield running, console, paths_of(console, letter, letter)


@asynccontextmanager
async def _console(path: Path, running: Cluster, **config: Any) -> AsyncIterator[Visitor]:
    """A console with a lake, and an outbox that is not empty."""
    lake = Archive(path / "lake")
    db = initialized(OutboxDatabase(f"sqlite:///{path}/business.db", Tables()))
    with Session(db.engine()) as session, session.begin():
        outbox = Outbox(["billing"], tables=db.tables)
        for topic in ("Orders", "Orders", "Payments"):
            outbox.add(session, Message(topic, b"x"))
    settings = {
        "lake": lake, "query_lake": partial(sql.run, lake), "outbox": ReliableOutbox(db.url, db.tables.prefix),
        "default_settings": default_properties(),
    } | config  # fmt: skip
    async with visitor(running.namesrv, **settings) as console:
        await console.console.collector.wait_first(20)
        yield console


def paths_of(console: Visitor, letter: SendResult, message: SendResult) -> dict[str, str]:
    """Return the paths of PAGES."""
    broker = console.console.collector.snapshot.brokers[0].address
    given = {"broker": broker, "letter": letter.offset_msg_id, "message": message.offset_msg_id}
    return {name: address.format(**given) for name, address in PAGES.items()}


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
"""Topics of `busy_console`, and messages a second."""


@asynccontextmanager
async def busy_console(path: Path, warm_up_s: float) -> AsyncIterator[tuple[Visitor, dict[str, str]]]:
    """A console of a shop, for pictures, which has had traffic for so long; the history before that is made up."""
    async with live_cluster(path) as running, AsyncExitStack() as started:
        await running.start_slave()
        admin = await started.enter_async_context(AdminClient(running.namesrv))
        for address in (await admin.cluster.masters("DefaultCluster")).values():
            for topic in SHOP:
                config = TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4)
                await admin.topics.create_or_update(address, config)
            for group in ("shipping", "invoicing", "stock"):
                await admin.groups.create_or_update(address, SubscriptionGroupConfig(group_name=group))
        causes = {"card declined": 14, "no such customer": 5, "the bank timed out": 3}
        letters = await add_dead_letters(running, causes, _order(0, "Orders").body)
        trace = await started.enter_async_context(MessageTrace(running.namesrv))
        producer = await started.enter_async_context(Producer("shop", running.namesrv, trace=trace))
        orders = [await producer.send(_order(number, "Orders")) for number in range(2500)]
        for properties in ({"DELAY": "15"}, {"DELAY": "17"}, {"TIMER_DELIVER_MS": str(_now_ms() + 7_200_000)}):
            await producer.send(Message("Invoices", b"remind the customer", properties=properties))
        transactions = TransactionProducer("payments", running.namesrv, check=_unknown)
        await started.enter_async_context(transactions)
        await transactions.send_in_transaction(_order(1, "Payments"), _unknown)
        for group, topic, seconds in (
            ("shipping", "Shipments", 0.01), ("stock", "StockLevels", 0.01), ("billing", "Orders", 1.5)
        ):  # fmt: skip
            consumer = PushConsumer(group, running.namesrv, trace=trace)
            consumer.subscribe(topic)
            consumer.listen(partial(_work, seconds))
            await started.enter_async_context(consumer)
        sending = asyncio.create_task(_send(producer))
        started.callback(sending.cancel)
        for _ in range(2):
            await asyncio.sleep(warm_up_s / 2)
            archiving = partial(archive.run_live, LazySession("tests", use_spark=False), running.namesrv, path / "lake")
            await asyncio.to_thread(archiving)
        console = await started.enter_async_context(_console(path, running, interval_s=5.0))
        for command, given in (
            ("updateTopic", {"cluster": "DefaultCluster", "topic": "Refunds"}),
            ("updateSubGroup", {"cluster": "DefaultCluster", "group_name": "refunds", "retry_max_times": "5"}),
            ("resetOffsetByTime", {"group": "stock", "topic": "StockLevels", "timestamp_ms": "now"}),
        ):
            asked = await console.post(f"/run/{command}", given)
            kept = {name: field(asked, name) for name in ("token", "seen", *given)}
            await console.http.post(console.url(f"/run/{command}"), data=kept)
        await _add_history(console)
        await console.console.views.save("Topics with most queues", "/topics?sort=queues", "local")
        yield console, paths_of(console, letters[0], orders[0])


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
    collector, random, end_s = console.console.collector, Random(7), int(time.time())
    measured = await collector.group_progress.get_one("billing", 20)
    assert measured is not None
    assert measured.value is not None
    progress, snapshot = measured.value, collector.snapshot
    for at_s in range(end_s - 7200, end_s, 20):
        left = (end_s - at_s) / 7200
        wave = 1 + 0.35 * sin(left * 8) + min(left, 0.1) * random.uniform(-0.6, 0.6)
        hump = 1 + 2.5 * left * (1 - left)
        values: dict[str, float | None] = {f"topic puts_per_s {name}": rate * wave for name, rate in SHOP.items()}
        archive_age_s = values[ARCHIVE_AGE] = (at_s - end_s) % 600
        for one in snapshot.brokers:
            values[f"disk_ratio {one.label}"] = (one.disk_ratio or 0) - 0.02 * left
            values[f"gets_per_s {one.label}"] = (one.gets_per_s or 0) * wave
            if one.is_master:
                puts_per_s = values[f"puts_per_s {one.label}"] = (one.puts_per_s or 0) * wave
                values[f"archive_lag_messages {one.name}"] = puts_per_s * archive_age_s
            else:
                values[f"replication_lag {one.label}"] = random.choice((0, 0, 0, 240, 480, 1900))
        values["group backlog billing"] = progress.backlog * hump
        values["group delay_s billing"] = (progress.delay_ms(_now_ms()) or 0) / 1000 * hump
        values["group consumed_per_s billing"] = progress.consume_tps * (1 + 0.1 * sin(left * 50) * min(1, left * 5))
        await console.console.history.add(at_s, {name: value for name, value in values.items() if value is not None})


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
