"""Consumers of a cluster in simulated time: their queues when a broker, a name server, a member or locks are lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.client import Message, MessageExt, Producer, PushConsumer
from rucola.domain.topic import TopicConfig
from rucola.namesrv.server import Namesrv
from rucola.store.config import StoreConfig
from rucola.store.tools.check import check
from simulation.network import SimulatedLoop, on_machine, simulated_time
from support.cluster import HOST, SMALL_FILES

BROKERS = 3
MEMBERS = 4
QUEUES = 4
ROUTE_INTERVAL_S = 30
TRUST_S = 30
"""How long a member trusts a lock."""


async def start_broker(path: Path, namesrv: str, number: int) -> Broker:
    name = f"broker-{number}"
    config = BrokerConfig(
        broker_name=name, bind_address=HOST, broker_ip1=HOST, listen_port=0, ha_listen_port=0, namesrv_addr=namesrv
    )
    with on_machine(name):
        broker = Broker(config, StoreConfig(store_path_root_dir=path / name, **SMALL_FILES))
        await broker.start()
        async with AdminClient(namesrv) as admin:
            topic = TopicConfig(topic_name="T", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            await admin.topics.create_or_update(broker.address, topic)
    return broker


async def start_member(namesrv: str, number: int, *, orderly: bool = False) -> PushConsumer:
    async def listen(message: MessageExt) -> None:
        """No message is sent."""

    with on_machine(f"member-{number}"):
        consumer = PushConsumer("g", namesrv, orderly=orderly)
        consumer.subscribe("T")
        consumer.listen(listen)
        await consumer.open()
    return consumer


async def seconds_until(condition: Callable[[], bool], most_s: float) -> float:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while not condition():
        assert loop.time() < begin + most_s
        await asyncio.sleep(0.01)
    return loop.time() - begin


async def lose_machines(loop: SimulatedLoop, path: Path) -> None:
    namesrvs = []
    for number in range(2):
        with on_machine(f"namesrv-{number}"):
            namesrvs.append(Namesrv(HOST, 0))
            await namesrvs[-1].start()
    namesrv = ";".join(f"{HOST}:{server.port}" for server in namesrvs)
    brokers = [await start_broker(path, namesrv, number) for number in range(BROKERS)]
    members = [await start_member(namesrv, number) for number in range(MEMBERS)]

    def are_assigned(names: set[str]) -> bool:
        """Tell whether each queue of these brokers has one member, and no other queue has any."""
        counts = Counter(queue for member in members for queue in member.queues)
        return {queue.broker_name for queue in counts} == names and set(counts.values()) == {1} and (
            len(counts) == QUEUES * len(names)
        )  # fmt: skip

    everywhere = {f"broker-{number}" for number in range(BROKERS)}
    await seconds_until(lambda: are_assigned(everywhere), 5)
    # A name server loses its power: nothing changes, for as long as it takes to refresh every route.
    loop.kill("namesrv-0")
    await asyncio.sleep(2 * ROUTE_INTERVAL_S)
    assert are_assigned(everywhere)
    # A broker loses its power: its queues are given up when the routes are refreshed.
    loop.kill("broker-0")
    await seconds_until(lambda: are_assigned(everywhere - {"broker-0"}), ROUTE_INTERVAL_S + 1)
    # A member loses its power: the brokers notice the broken connection, and the others get its queues at once.
    loop.kill("member-0")
    lost = members.pop(0)
    await seconds_until(lambda: are_assigned(everywhere - {"broker-0"}), 5)
    for consumer in (*members, lost):
        await consumer.close()
    for broker in brokers:
        await broker.stop()
    for server in namesrvs:
        await server.stop()


@pytest.mark.slow
def test_queues_are_taken_over_when_machines_lose_their_power(tmp_path: Path) -> None:
    """A minute and a half of a cluster, in the time that its work takes."""
    loop = SimulatedLoop()
    with simulated_time(loop):
        try:
            loop.run_until_complete(lose_machines(loop, tmp_path))
        finally:
            loop.close()
    for number in range(BROKERS):
        assert check(tmp_path / f"broker-{number}") == []


async def lose_broker(loop: SimulatedLoop, path: Path) -> None:
    """Restart a broker on another address, long after its members lost it: others may have locked their queues."""
    namesrv_server = Namesrv(HOST, 0)
    await namesrv_server.start()
    namesrv = f"{HOST}:{namesrv_server.port}"
    broker = await start_broker(path, namesrv, 0)
    member = await start_member(namesrv, 0, orderly=True)

    def is_locked() -> bool:
        return any(info.locked for info in member.operations.process_queues().values())

    await seconds_until(is_locked, 5)
    await broker.stop()
    await asyncio.sleep(2 * TRUST_S)
    (path / "broker-0/config/queueLocks.json").unlink()
    broker = await start_broker(path, namesrv, 0)
    await seconds_until(lambda: bool(member.instance.remoting.open_connection(broker.address)), ROUTE_INTERVAL_S + 1)
    async with Producer("p", namesrv) as producer:
        await producer.send(Message("T", b"its delivery needs the lock"))
    assert await seconds_until(is_locked, TRUST_S + ROUTE_INTERVAL_S) >= TRUST_S - 1
    await member.close()
    await broker.stop()
    await namesrv_server.stop()


@pytest.mark.slow
def test_no_queue_is_taken_whose_lock_expired_before_its_broker_restarted(tmp_path: Path) -> None:
    loop = SimulatedLoop()
    with simulated_time(loop):
        try:
            loop.run_until_complete(lose_broker(loop, tmp_path))
        finally:
            loop.close()
    assert check(tmp_path / "broker-0") == []


async def lose_locks(loop: SimulatedLoop, path: Path) -> None:
    """Restart a broker that forgets locks, as Apache's do, on another address, while their holders are cut off."""
    namesrv_server = Namesrv(HOST, 0)
    await namesrv_server.start()
    namesrv = f"{HOST}:{namesrv_server.port}"
    broker = await start_broker(path, namesrv, 0)
    members = [await start_member(namesrv, number, orderly=True) for number in range(QUEUES + 1)]
    await seconds_until(lambda: sorted(len(member.queues) for member in members) == [0] + QUEUES * [1], 5)
    (idle,) = (member for member in members if not member.queues)
    await broker.stop()
    for number, member in enumerate(members):
        if member is not idle:
            loop.kill(f"member-{number}")
    (path / "broker-0/config/queueLocks.json").unlink()
    broker = await start_broker(path, namesrv, 0)
    # The holders would deliver on, if they were Apache's, for as long as they trust their locks.
    await seconds_until(lambda: bool(idle.instance.remoting.open_connection(broker.address)), ROUTE_INTERVAL_S + 1)
    assert await seconds_until(lambda: bool(idle.queues), TRUST_S + 1) >= TRUST_S
    assert len(idle.queues) == QUEUES
    for member in members:
        await member.close()
    await broker.stop()
    await namesrv_server.stop()


@pytest.mark.slow
def test_no_queue_is_taken_whose_holder_a_restarted_broker_may_have_forgotten(tmp_path: Path) -> None:
    loop = SimulatedLoop()
    with simulated_time(loop):
        try:
            loop.run_until_complete(lose_locks(loop, tmp_path))
        finally:
            loop.close()
    assert check(tmp_path / "broker-0") == []
