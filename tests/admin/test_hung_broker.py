"""An AdminClient while one server hangs: it uses the other servers, within its timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.client import Message, Producer
from rucola.errors import RemotingConnectError, RemotingError, RemotingTimeout
from support.cluster import Cluster, cluster
from support.consumers import committed, consumer_of, take
from support.proxy import Proxy


@asynccontextmanager
async def two_brokers(path: Path) -> AsyncIterator[tuple[Cluster, Proxy, AdminClient]]:
    """broker-a behind a proxy, and broker-b; both have T with one queue and a message in it."""
    async with cluster(path) as running:
        first, proxy = await running.start_broker_behind_proxy("broker-a")
        for broker in (first, await running.start_broker("broker-b")):
            await running.create_topic(broker, "T", queues=1)
        async with Producer("p", running.namesrv) as producer:
            for queue in await producer.queues("T"):
                await producer.send(Message("T", b"1"), queue)
        async with AdminClient(running.namesrv, timeout_ms=5000) as admin:
            yield running, proxy, admin


async def test_a_query_that_any_broker_can_answer_goes_to_the_next_broker(tmp_path: Path) -> None:
    """Before, the broker that hung was asked first, and its timeout was the answer."""

    async with (
        two_brokers(tmp_path) as (running, proxy, admin),
        Producer("p", running.namesrv) as producer,
        consumer_of(running) as consumer,
    ):
        await take(consumer, 2)
        await producer.queues("T")
        await producer.instance.send_heartbeats()
        proxy.freeze()
        client_id = consumer.instance.client_id
        connection = await admin.groups.consumer_connection("c")
        assert [client.client_id for client in connection.connection_set] == [client_id]
        assert (await admin.groups.running_info("c", client_id)).subscription_set
        assert (await admin.groups.producer_connection("p", "T")).connection_set
        proxy.thaw()


@pytest.mark.slow
async def test_a_query_fails_instead_of_denying_what_a_hung_broker_may_have(tmp_path: Path) -> None:
    """The healthy broker knows no client of the group; whether the other does cannot be told."""

    async with two_brokers(tmp_path) as (_, proxy, admin):
        proxy.freeze()
        with pytest.raises((RemotingTimeout, RemotingConnectError)):
            await admin.groups.find_consumer_connection("unknown")
        proxy.thaw()
        assert await admin.groups.find_consumer_connection("unknown") is None


@pytest.mark.slow
async def test_a_change_reaches_the_healthy_broker_if_another_fails(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (running, proxy, admin):
        async with consumer_of(running) as consumer:
            await take(consumer, 2)
        assert await committed(running) == 2
        proxy.freeze()
        with pytest.raises(RemotingError):
            await admin.offsets.reset_by_time("T", "c", 0)
        proxy.thaw()
        assert await committed(running) < 2


async def test_a_change_reaches_every_name_server_if_the_first_hangs(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Proxy(running.namesrv) as proxy:
        await running.add_namesrv()
        second = running.namesrv.split(";")[1]
        proxy.freeze()
        async with AdminClient(f"{proxy.address};{second}", timeout_ms=3000) as admin:
            with pytest.raises(RemotingError):
                await admin.name_servers.put_kv("space", "key", "value")
        async with AdminClient(second) as admin:
            assert await admin.name_servers.get_kv("space", "key") == "value"
