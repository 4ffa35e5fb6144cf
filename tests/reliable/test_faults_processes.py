"""Faults of processes: a relay or a worker that is paused (SIGSTOP) past its lease and resumes, and clocks that differ.

What the paused process held is done by another one meanwhile. Then there is one order, at most one copy too many at the
broker, one invoice, and nothing is left over.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine

from rucola.client import Message
from rucola.reliable import Outbox, Tables
from rucola.testing.rocketmq import RocketMQ
from support.crash_steps import (
    Processes,
    Scene,
    consume_order,
    create_business_tables,
    importable,
    relay_order,
    send_order,
)
from support.databases import DatabaseServer, OutboxDatabase
from support.outbox import stubs

pytestmark = pytest.mark.slow

HOUR_S = 3600
QUICK_RETRIES = " ".join(["1s"] * 18)
IN_PARALLEL = 6
STEPS = {
    relay_order: ["claim_batch.after", "send.before", "send.after", "record.before"],
    consume_order: ["received", "claim.before", "claim.after"],
}
IDLE_LIMIT = "&init_command=SET+SESSION+idle_transaction_timeout=1"
"""What docs/reliable.md recommends for engines on MariaDB, with a shorter time."""
IN_TRANSACTION = {relay_order: ["renew.during", "claim_batch.during"], consume_order: ["business", "committing"]}
"""On SQLite, a process that is paused in a transaction keeps the only write lock: nothing can work until it resumes."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    with RocketMQ(tmp_path_factory.mktemp("paused"), {"messageDelayLevel": QUICK_RETRIES}) as running:
        yield running


@pytest.fixture
def make_scene(
    broker: RocketMQ, redis_server: DatabaseServer, new_db: Callable[[str, str], OutboxDatabase]
) -> Callable[[str, int], Scene]:
    def make(database: str, number: int) -> Scene:
        db = new_db(database, f"case{number}.db")
        url = db.url + IDLE_LIMIT if database == "mariadb" else db.url
        made = Scene(url, db.tables.prefix, broker.namesrv, broker.unique("T"), redis_server.url)
        broker.create_topic(made.topic, 1)
        create_business_tables(made)
        return made

    return make


def check(scene: Scene, broker: RocketMQ) -> None:
    counted = [scene.count(table) for table in (scene.orders(), scene.invoices(), scene.tables.done)]
    assert counted == [1, 1, 1], counted
    assert scene.count(scene.tables.receipt) == 0
    assert scene.status() == "CONFIRMED"
    assert len(broker.messages(scene.topic)) <= 2


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
def test_paused_process_is_replaced_and_resumes_without_harm(
    database: str, broker: RocketMQ, make_scene: Callable[[str, int], Scene]
) -> None:
    processes = Processes()
    steps = {"sqlite": [STEPS], "postgresql": [STEPS, IN_TRANSACTION], "mariadb": [IN_TRANSACTION]}[database]
    cases = [(role, step) for table in steps for role in table for step in table[role]]

    def run(case: tuple[Callable[[Scene, str], None], str], scene: Scene) -> str | None:
        paused, step = case
        try:
            processes.run(send_order, scene)
            if paused is consume_order:
                processes.run(relay_order, scene)
            other = scene._replace(copy="b")
            processes.run_while_paused(paused, scene, step, lambda: processes.run(paused, other))
            if paused is relay_order:
                processes.run(consume_order, scene)
            check(scene, broker)
        except AssertionError as error:
            return f"{paused.__name__} {step}: {error}"
        return None

    scenes = [make_scene(database, number) for number in range(len(cases))]
    with importable(), ThreadPoolExecutor(IN_PARALLEL) as threads:
        assert list(filter(None, threads.map(run, cases, scenes))) == []


def test_clocks_of_the_processes_do_not_matter(broker: RocketMQ, make_scene: Callable[[str, int], Scene]) -> None:
    """A relay and a worker crash with a claim. Those that take over have clocks that are hours ahead or behind."""
    processes = Processes()

    def run(skews_h: tuple[int, int], scene: Scene) -> str | None:
        first, other = (scene._replace(skew_s=hours * HOUR_S) for hours in skews_h)
        try:
            processes.run(send_order, first)
            processes.run(relay_order, other, "send.before")
            processes.run(relay_order, first)
            processes.run(consume_order, first, "business")
            processes.run(consume_order, other)
            check(scene, broker)
            assert len(broker.messages(scene.topic)) == 1
            assert abs(scene.created_ms() - time.time() * 1000) < HOUR_S * 500
        except AssertionError as error:
            return f"{skews_h}: {error}"
        return None

    cases = [(5, -7), (-7, 5)]
    scenes = [make_scene("postgresql", number) for number in range(len(cases))]
    with importable(), ThreadPoolExecutor(IN_PARALLEL) as threads:
        assert list(filter(None, threads.map(run, cases, scenes))) == []


def add_many(url: str, prefix: str, count: int) -> None:
    outbox = Outbox(tables=Tables(prefix))
    with create_engine(url).begin() as connection:
        for number in range(count):
            outbox.add(connection, Message("T", b"%d %d" % (os.getpid(), number)))


def test_forked_processes_never_generate_the_same_id(postgresql_db: OutboxDatabase) -> None:
    """The parent has generated ids before, so that its state is copied. Equal ids would fail a transaction."""
    count, processes = 500, 8
    add_many(postgresql_db.url, postgresql_db.tables.prefix, count)
    context = multiprocessing.get_context("fork")
    arguments = postgresql_db.url, postgresql_db.tables.prefix, count
    forked = [context.Process(target=add_many, args=arguments) for _ in range(processes)]
    for process in forked:
        process.start()
    for process in forked:
        process.join(60)
    assert [process.exitcode for process in forked] == [0] * processes
    ids = [stub.message_id for stub in stubs(postgresql_db)]
    assert len(set(ids)) == len(ids) == count * (processes + 1)
