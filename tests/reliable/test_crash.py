"""kill -9 of real processes at every step between the sender's begin and the consumer's acknowledgement.

Whatever dies is started once more, without a kill. Then there is one order, one message and one invoice, and nothing
is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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

ROLES = {send_order: SENDER_STEPS, relay_order: RELAY_STEPS, consume_order: CONSUMER_STEPS}
QUICK_RETRIES = " ".join(["1s"] * 18)
IN_PARALLEL = 6


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    with RocketMQ(tmp_path_factory.mktemp("crash"), {"messageDelayLevel": QUICK_RETRIES}) as running:
        yield running


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
def test_kill_at_any_step_has_one_effect(
    database: str,
    broker: RocketMQ,
    redis_server: DatabaseServer,
    tmp_path: Path,
    new_db: Callable[[str, str], OutboxDatabase],
) -> None:
    processes = Processes()
    cases = [(role, step) for role, steps in ROLES.items() for step in steps]

    def scene(number: int) -> Scene:
        db = new_db(database, f"case{number}.db")
        made = Scene(db.url, db.tables.prefix, broker.namesrv, broker.unique("T"), redis_server.url)
        broker.create_topic(made.topic, 1)
        create_business_tables(made)
        return made

    def run(case: tuple[Callable[[Scene, str], None], str], scene: Scene) -> str | None:
        killed, step = case
        try:
            for role in ROLES:
                if role is killed:
                    processes.run(role, scene, step)
                    if role is send_order:  # all or nothing
                        assert scene.count(scene.orders()) == scene.count(scene.tables.stub) == (step == "committed")
                processes.run(role, scene)
            counted = [scene.count(table) for table in (scene.orders(), scene.invoices(), scene.tables.done)]
            assert counted == [1, 1, 1], counted
            assert scene.count(scene.tables.receipt) == 0
            assert scene.status() == "CONFIRMED"
        except AssertionError as error:
            return f"{killed.__name__} {step}: {error}"
        return None

    scenes = [scene(number) for number in range(len(cases))]
    with importable(), ThreadPoolExecutor(IN_PARALLEL) as threads:
        assert list(filter(None, threads.map(run, cases, scenes))) == []
