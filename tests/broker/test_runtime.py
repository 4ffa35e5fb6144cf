"""Settings that operators change while a broker runs, and what name servers and clients see of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.client import Producer
from rucola.domain.route import TopicRouteData
from rucola.errors import SendFailed
from rucola.message import Message
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.route import GetRouteInfoRequestHeader
from rucola.store.tools.check import check
from support.broker_peer import broker_peer
from support.cluster import Cluster, cluster
from support.errors import raises
from support.replication import sound_cluster


async def permissions(running: Cluster, topic: str) -> dict[str, int]:
    """The permissions of a topic in its route, by broker."""
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
    answer = await running.remoting.invoke_ok(running.namesrv, request)
    return {data.broker_name: data.perm for data in decode_body(TopicRouteData, answer.body).queue_datas}


async def test_a_broker_that_refuses_messages_leaves_the_routes_at_once(tmp_path: Path) -> None:
    """Producers move to the other broker, one that is open without a failed send, and come back afterwards."""

    async with cluster(tmp_path) as running:
        first, second = await running.start_broker("broker-a"), await running.start_broker("broker-b")
        for broker in (first, second):
            await running.create_topic(broker, "T", queues=1)
        async with AdminClient(running.namesrv) as admin, Producer("p", running.namesrv) as producer:

            async def brokers_of_sends() -> Counter[str]:
                sent = [await producer.send(Message("T", b"x")) for _ in range(8)]
                return Counter(result.queue.broker_name for result in sent)

            assert await brokers_of_sends() == {"broker-a": 4, "broker-b": 4}
            await admin.brokers.update_config(first.address, {"brokerPermission": "4"})
            assert await permissions(running, "T") == {"broker-a": 4, "broker-b": 6}
            assert await brokers_of_sends() == {"broker-b": 8}
            await producer.instance.routes.refresh_all()
            assert [queue.broker_name for queue in await producer.queues("T")] == ["broker-b"]

            await admin.brokers.update_config(first.address, {"brokerPermission": "6"})
            assert await permissions(running, "T") == {"broker-a": 6, "broker-b": 6}
            await producer.instance.routes.refresh_all()
            assert await brokers_of_sends() == {"broker-a": 4, "broker-b": 4}
    for name in ("broker-a", "broker-b"):
        assert check(tmp_path / name) == []


@pytest.mark.parametrize("at_start", [True, False])
async def test_topic_auto_creation_can_be_switched_at_runtime(tmp_path: Path, at_start: bool) -> None:
    """Both ways, whatever the broker was started with; topics that exist take messages in any case."""

    async with sound_cluster(tmp_path) as running:
        broker = await running.start_broker(auto_create_topic_enable=at_start)
        await running.create_topic(broker, "Made")
        async with AdminClient(running.namesrv) as admin:
            for topic, enabled in zip(["A", "B", "C", "D"], [not at_start, at_start] * 2, strict=True):
                await admin.brokers.update_config(broker.address, {"autoCreateTopicEnable": str(enabled).lower()})
                async with Producer("p", running.namesrv, retry_times=0) as producer:
                    await producer.send(Message("Made", b"x"))
                    if enabled:
                        await producer.send(Message(topic, b"x"))
                    else:
                        with raises(SendFailed, subject=topic):
                            await producer.send(Message(topic, b"x"))


async def test_runtime_stats_show_the_offset_of_each_delay_level(tmp_path: Path) -> None:
    """And have the names of Apache's thread pools and buffers, which monitors read."""

    async with broker_peer(tmp_path, store={"message_delay_level": "0s 1h"}) as peer:
        for level in (1, 2, 2):
            await peer.send(properties=f"DELAY\x01{level}\x02")
        async with AdminClient(peer.broker.address) as admin, asyncio.timeout(10):
            found: dict[str, str] = {}
            while found.get("scheduleMessageOffset_1") != "1,1":
                found = await admin.brokers.runtime_stats(peer.broker.address)
        assert "scheduleMessageOffset_2" not in found
        assert found["sendThreadPoolQueueCapacity"] == found["dispatchMaxBuffer"] == "0"
