"""Faults of processes: kill -9 at every step between the sender's begin and the consumer's acknowledgement, a pause
(SIGSTOP) past the lease of a relay or a worker, and clocks that differ.

What the process held is done by another one. Then there is one order, at most one copy too many at the broker, one
invoice, and nothing is left over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest

from rucola.testing.rocketmq import RocketMQ
from support.crash_steps import (
    CONSUMER_STEPS,
    RELAY_STEPS,
    SENDER_STEPS,
    Processes,
    Scene,
    consume_order,
    create_business_tables,
    importable,
    relay_order,
    send_order,
)
from support.databases import DatabaseServer, OutboxDatabase

pytestmark = pytest.mark.slow

HOUR_S = 3600
QUICK_RETRIES = " ".join(["1s"] * 18)
IN_PARALLEL = 6
PROCESSES = Processes()
Role: TypeAlias = Callable[[Scene, str], None]
ROLES: dict[Role, tuple[str, ...]] = {
    send_order: SENDER_STEPS,
    relay_order: RELAY_STEPS,
    consume_order: CONSUMER_STEPS,
}
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


def in_parallel(run: Callable[[Any, Scene], None], cases: Sequence[Any], scenes: Sequence[Scene]) -> None:
    """Run all cases, each on its scene; fail with those that failed."""

    def failure(case: Any, scene: Scene) -> str | None:
        try:
            run(case, scene)
        except AssertionError as error:
            return f"{case}: {error}"
        return None

    with importable(), ThreadPoolExecutor(IN_PARALLEL) as threads:
        assert list(filter(None, threads.map(failure, cases, scenes))) == []


def check(scene: Scene, broker: RocketMQ) -> None:
    counted = [scene.count(table) for table in (scene.orders(), scene.invoices(), scene.tables.done)]
    assert counted == [1, 1, 1], counted
    assert scene.count(scene.tables.receipt) == 0
    assert scene.status() == "CONFIRMED"
    assert len(broker.messages(scene.topic)) <= 2


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
def test_kill_at_any_step_has_one_effect(
    database: str, broker: RocketMQ, make_scene: Callable[[str, int], Scene]
) -> None:
    """What dies is started once more, without a kill."""
    cases = [(role, step) for role, steps in ROLES.items() for step in steps]

    def run(case: tuple[Role, str], scene: Scene) -> None:
        killed, step = case
        for role in ROLES:
            if role is killed:
                PROCESSES.run(role, scene, step)
                if role is send_order:  # all or nothing
                    assert scene.count(scene.orders()) == scene.count(scene.tables.stub) == (step == "committed")
            PROCESSES.run(role, scene)
        check(scene, broker)

    in_parallel(run, cases, [make_scene(database, number) for number in range(len(cases))])


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
def test_paused_process_is_replaced_and_resumes_without_harm(
    database: str, broker: RocketMQ, make_scene: Callable[[str, int], Scene]
) -> None:
    steps = {"sqlite": [STEPS], "postgresql": [STEPS, IN_TRANSACTION], "mariadb": [IN_TRANSACTION]}[database]
    cases = [(role, step) for table in steps for role in table for step in table[role]]

    def run(case: tuple[Role, str], scene: Scene) -> None:
        paused, step = case
        PROCESSES.run(send_order, scene)
        if paused is consume_order:
            PROCESSES.run(relay_order, scene)
        other = scene._replace(copy="b")
        PROCESSES.run_while_paused(paused, scene, step, lambda: PROCESSES.run(paused, other))
        if paused is relay_order:
            PROCESSES.run(consume_order, scene)
        check(scene, broker)

    in_parallel(run, cases, [make_scene(database, number) for number in range(len(cases))])


def test_clocks_of_the_processes_do_not_matter(broker: RocketMQ, make_scene: Callable[[str, int], Scene]) -> None:
    """A relay and a worker crash with a claim. Those that take over have clocks that are hours ahead or behind."""

    def run(skews_h: tuple[int, int], scene: Scene) -> None:
        first, other = (scene._replace(skew_s=hours * HOUR_S) for hours in skews_h)
        PROCESSES.run(send_order, first)
        PROCESSES.run(relay_order, other, "send.before")
        PROCESSES.run(relay_order, first)
        PROCESSES.run(consume_order, first, "business")
        PROCESSES.run(consume_order, other)
        check(scene, broker)
        assert len(broker.messages(scene.topic)) == 1
        assert abs(scene.created_ms() - time.time() * 1000) < HOUR_S * 500

    in_parallel(run, [(5, -7), (-7, 5)], [make_scene("postgresql", number) for number in range(2)])
