"""A broker and a name server with access control, and real clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rucola.acl.credentials import Credentials
from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.client import BrokerError, Message, Producer, PullConsumer, PushConsumer, SendFailed, TransactionProducer
from rucola.client.producer.transaction import LocalTransactionState
from rucola.errors import MQError
from rucola.protocol.codes import NAME_SERVER_REQUESTS, RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.query import ViewMessageRequestHeader
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.protocol.topic import TopicConfig
from rucola.remoting.client import RemotingClient
from support.access import ADMIN, READER, STRANGER, WRITER, GuardedCluster, guarded_cluster
from support.compatibility import rows
from support.interceptors import requests_of_every_field

NOBODY = Credentials("nobody1", "secret of nobody")
WITH_NOBODY = """
accounts:
  - accessKey: operator
    secretKey: secret of the operator
    admin: true
  - accessKey: nobody1
    secretKey: secret of nobody
"""
AUTHENTICATION_SUFFICES = {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.END_TRANSACTION, RequestCode.VIEW_MESSAGE_BY_ID}
"""Requests that name nothing to check, or a route. The topic of the last two is checked when the message is read."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[GuardedCluster]:
    async with guarded_cluster(tmp_path) as cluster:
        yield cluster


async def started(cluster: GuardedCluster, *topics: str) -> Broker:
    broker = await cluster.start_broker()
    async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:
        for topic in topics or ("Orders",):
            await admin.topics.create_or_update(broker.address, TopicConfig(topic_name=topic))
    return broker


async def test_a_message_goes_from_a_writer_to_a_reader(cluster: GuardedCluster) -> None:
    await started(cluster)
    async with Producer("writers", cluster.namesrv, credentials=WRITER) as producer:
        await producer.send(Message("Orders", b"one", keys="k"))
        await producer.send_batch([Message("Orders", b"two"), Message("Orders", b"three")])
    consumer = PushConsumer("readers", cluster.namesrv, credentials=READER)
    consumer.subscribe("Orders")
    found = []
    async with consumer:
        async for message in consumer:
            found.append(message.body)
            if len(found) == 3:
                break
    assert sorted(found) == [b"one", b"three", b"two"]


async def test_a_reader_cannot_send_and_a_writer_cannot_read(cluster: GuardedCluster) -> None:
    await started(cluster)
    async with Producer("writers", cluster.namesrv, credentials=READER, retry_times=0) as producer:
        with pytest.raises(SendFailed, match="account reader1 has no permission PUB for topic Orders"):
            await producer.send(Message("Orders", b"forged"))
    async with PullConsumer("readers", cluster.namesrv, credentials=WRITER) as consumer:
        queue = (await consumer.queues("Orders"))[0]
        with pytest.raises(BrokerError, match="account writer1 has no permission SUB for topic Orders"):
            await consumer.pull(queue, 0)


@pytest.mark.parametrize(
    ("credentials", "reason"),
    [
        (None, "has no access key"),
        (STRANGER, "No acl config for stranger"),
        (Credentials("operator", "not the secret"), "Check signature failed for accessKey=operator"),
    ],
)
async def test_every_request_code_needs_an_account(
    cluster: GuardedCluster, credentials: Credentials | None, reason: str
) -> None:
    broker = await cluster.start_broker()
    client = RemotingClient(credentials=credentials)
    for row in rows():
        for server, address in (("broker", broker.address), ("name server", cluster.namesrv)):
            if row.is_answered_by(server):
                for request in (requests_of_every_field(row.code), RemotingCommand.request(row.code)):
                    answer = await client.invoke(address, request)
                    assert (answer.code, reason in str(answer.remark)) == (ResponseCode.NO_PERMISSION, True), row
    await client.close()


async def test_every_request_code_needs_a_permission(tmp_path: Path) -> None:
    """An account without any permission is denied, except for the requests listed here."""
    async with guarded_cluster(tmp_path, WITH_NOBODY) as cluster:
        broker = await cluster.start_broker()
        client = RemotingClient(credentials=NOBODY)
        for row in rows():
            for server, address in (("broker", broker.address), ("name server", cluster.namesrv)):
                if row.is_answered_by(server) and row.code not in AUTHENTICATION_SUFFICES:
                    answer = await client.invoke(address, requests_of_every_field(row.code))
                    assert answer.code == ResponseCode.NO_PERMISSION, (row, answer)
                    assert "nobody1" in str(answer.remark), row
        await client.close()


async def test_an_admin_may_send_every_request(cluster: GuardedCluster) -> None:
    broker = await cluster.start_broker()
    client = RemotingClient(credentials=ADMIN)
    for row in rows():
        # Requests that the broker passes on to a client, or answers later, or not at all, have tests of their own.
        if row.is_answered_by("broker") and row.code not in (RequestCode.PULL_MESSAGE, RequestCode.END_TRANSACTION):
            answer = await client.invoke(broker.address, requests_of_every_field(row.code))
            assert "account" not in str(answer.remark), (row, answer)
    await client.close()


async def test_a_changed_request_is_denied(cluster: GuardedCluster) -> None:
    """The signature covers ext fields and body."""
    broker = await started(cluster)
    client = RemotingClient()
    for change in ("body", "field", "nothing"):
        request = requests_of_every_field(RequestCode.SEND_MESSAGE_V2)
        request.ext = {"a": "writers", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        request.body = b"body"
        WRITER.sign(request.ext, request.body)
        if change == "body":
            request.body = b"Body"
        elif change == "field":
            request.ext["e"] = "1"
        answer = await client.invoke(broker.address, request)
        expected = ResponseCode.SUCCESS if change == "nothing" else ResponseCode.NO_PERMISSION
        assert answer.code == expected, (change, answer)
    await client.close()


async def test_messages_of_other_topics_cannot_be_read_by_id_or_sent_back(cluster: GuardedCluster) -> None:
    """Requests that name an offset of the log, and no topic."""
    broker = await started(cluster, "Orders", "Salaries")
    async with Producer("p", cluster.namesrv, credentials=ADMIN) as producer:
        sent = await producer.send(Message("Salaries", b"1,000,000"))
    offset = int(sent.offset_msg_id[16:], 16)
    client = RemotingClient(credentials=READER)
    view = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))
    answer = await client.invoke(broker.address, view)
    assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
    header = ConsumerSendMsgBackRequestHeader(offset=offset, group="readers", delay_level=1)
    back = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    answer = await client.invoke(broker.address, back)
    assert answer.code == ResponseCode.NO_PERMISSION
    await client.close()


async def test_a_query_finds_no_messages_of_other_topics_with_the_same_hash(cluster: GuardedCluster) -> None:
    """Java's hash of strings has easy collisions: "Aa" and "BB"."""
    await started(cluster, "Orders", "OrderT")  # s#Aa... and T#...: 's' * 31 + '#' = 'T' * 31 + chr(1) + ...
    broker_topic, key = "Orders", "Aa"
    async with Producer("p", cluster.namesrv, credentials=ADMIN) as producer:
        await producer.send(Message(broker_topic, b"for readers", keys=key))
        await producer.send(Message(broker_topic, b"for readers, too", keys="BB"))
    async with AdminClient(cluster.namesrv, credentials=READER) as admin:
        found = await admin.messages.query_by_key("Orders", "Aa")
    assert [message.body for message in found.messages] == [b"for readers"]


async def test_a_transaction_is_ended_by_users_with_the_permission_to_send(cluster: GuardedCluster) -> None:
    await started(cluster)
    ended: list[str] = []

    async def check(message: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    async def execute(message: Message) -> LocalTransactionState:
        ended.append(message.topic)
        return LocalTransactionState.COMMIT_MESSAGE

    async with TransactionProducer("t", cluster.namesrv, check=check, credentials=WRITER) as producer:
        await producer.send_in_transaction(Message("Orders", b"paid"), execute)
    async with PullConsumer("readers", cluster.namesrv, credentials=READER) as consumer:
        bodies = []
        for queue in await consumer.queues("Orders"):
            bodies += [message.body for message in (await consumer.pull(queue, 0)).messages]
    assert (bodies, ended) == ([b"paid"], ["Orders"])


async def test_a_held_pull_ends_if_its_account_loses_the_permission(cluster: GuardedCluster) -> None:
    broker = await started(cluster)
    async with (
        PullConsumer("readers", cluster.namesrv, credentials=READER) as consumer,
        Producer("p", cluster.namesrv, credentials=ADMIN) as producer,
        AdminClient(cluster.namesrv, credentials=ADMIN) as admin,
    ):
        queue = (await consumer.queues("Orders"))[0]
        pull = asyncio.create_task(consumer.pull(queue, 0, suspend_ms=15_000))
        while not await _is_pull_held(admin, broker):
            await asyncio.sleep(0.01)
        await admin.access.delete_account(broker.address, "reader1")
        await producer.send(Message("Orders", b"secret"), queue)
        with pytest.raises(BrokerError, match="No acl config|reader1"):
            await pull


async def _is_pull_held(admin: AdminClient, broker: Broker) -> bool:
    figures = await admin.brokers.runtime_info(broker.address)
    return int(figures.get("pullHoldNums", figures.get("holdPullRequests", "1"))) > 0


async def test_no_secret_is_in_the_configuration_or_in_a_repr(cluster: GuardedCluster) -> None:
    broker = await cluster.start_broker()
    async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:
        config = await admin.brokers.config(broker.address)
    assert "secret of" not in json.dumps(config)
    assert repr(ADMIN) == "Credentials('operator')"
    with pytest.raises(MQError) as raised:
        Credentials("", "hidden-secret")
    assert "hidden-secret" not in str(raised.value)


async def test_the_name_server_registers_only_brokers_with_an_admin_account(cluster: GuardedCluster) -> None:
    tools = cluster.path / "writer.yml"
    tools.write_text("accessKey: writer1\nsecretKey: secret of the writer\n")
    await cluster.start_broker("intruder", broker_name="broker-x", credentials_file=tools)
    await cluster.start_broker()
    async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:
        assert [*(await admin.cluster.info()).broker_addr_table] == ["broker-a"]


async def test_a_second_address_of_a_broker_is_refused_until_the_first_is_gone(cluster: GuardedCluster) -> None:
    first = await cluster.start_broker("one")
    second = await cluster.start_broker("two")
    async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:

        async def registered() -> dict[int, str]:
            table = (await admin.cluster.info()).broker_addr_table
            return table["broker-a"].broker_addrs if "broker-a" in table else {}

        assert await registered() == {0: first.address}
        await first.stop()
        await second.reregister() if hasattr(second, "reregister") else None
        assert NAME_SERVER_REQUESTS
