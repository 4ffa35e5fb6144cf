"""What is wrong with a cluster is found, the most urgent first; nothing, if nothing is."""

from __future__ import annotations

from pathlib import Path

from rucola.admin import AdminClient
from rucola.admin.health import NOTICES
from rucola.broker.broker import wall_clock_ms
from rucola.client import Message, MessageQueue, Producer
from rucola.domain.group import SubscriptionGroupConfig
from rucola.store.config import BrokerRole
from support.cluster import cluster
from support.replication import caught_up
from support.waiting import until


async def reasons(admin: AdminClient) -> list[str]:
    return [one.reason for one in await admin.health.check()]


async def test_a_sound_pair_has_no_findings_and_a_lost_slave_is_one(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        master = await running.start_broker(store={"broker_role": BrokerRole.SYNC_MASTER})
        async with AdminClient(running.namesrv) as admin:
            assert await reasons(admin) == ["NO_SLAVE_IN_SYNC"]
            slave = await running.start_slave()
            await caught_up(running, master, slave)

            async def is_sound() -> bool:
                return await reasons(admin) == []

            await until(is_sound)
            await slave.stop()

            async def is_lost() -> bool:
                return {"NO_SLAVE_IN_SYNC", "NOT_IN_SYNC"} <= set(await reasons(admin))

            await until(is_lost)


async def test_problems_are_in_the_order_of_their_urgency(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker(clock=lambda: wall_clock_ms() - 60_000)
        for topic in ("T", "Unread", "%DLQ%g"):
            await running.create_topic(broker, topic, queues=1)
        async with AdminClient(running.namesrv) as admin:
            await admin.groups.create_or_update(broker.address, SubscriptionGroupConfig(group_name="g"))
            async with Producer("p", running.namesrv) as producer:
                for topic in ("T", "Unread", "%DLQ%g"):
                    await producer.send(Message(topic, b"x"))
            await admin.offsets.commit(broker.address, "g", MessageQueue("T", "broker-a", 0), 0)
            await running.register("broker-gone", "Other", "127.0.0.1:1")
            found = await admin.health.check()
        assert [one.reason for one in found] == ["BROKER_SILENT", "CLOCK_DIFFERS", "DEAD_LETTERS", "NO_GROUP"]
        assert [one.reason for one in found if one.reason in NOTICES] == ["NO_GROUP"]
        assert found[1].fields["seconds"] == 60


async def test_the_load_is_compared_with_what_a_broker_can_bear(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker(max_topic_nums=10)
        await running.create_topic(broker, "T", queues=1)
        async with AdminClient(running.namesrv) as admin:
            async with Producer("p", running.namesrv) as producer:
                await producer.send(Message("T", bytes(1000)))
            found = {one.resource: one for one in await admin.capacity.of_broker(broker.address)}
            topics = len(await admin.topics.configs(broker.address))
        assert (found["topics"].used, found["topics"].limit) == (topics, 10)
        assert 0 < found["disk"].share < 2
        assert 0 < found["mappings"].share < 1
        assert found["recovery"].used < 1  # a log file of 1 MiB has a thousand such messages
