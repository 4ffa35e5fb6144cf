"""What is meant for one user's clients reaches no client of another user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.acl.credentials import Credentials
from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.domain.client import HeartbeatData, ProducerData
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.protocol.heartbeat import UnregisterClientRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Connection
from support.access import ADMIN, GuardedCluster, guarded_cluster
from support.cluster import Tally
from support.peer import send_header
from support.requester import REPLY_PROPERTIES, REPLY_TOPIC
from support.waiting import until

NAMES = ("victim1", "rival12", "mallory")
ACCOUNTS = """
accounts:
  - accessKey: operator
    secretKey: secret of the operator
    admin: true
  - accessKey: victim1
    secretKey: secret of victim1
    topicPerms: [Orders=PUB]
  - accessKey: rival12
    secretKey: secret of rival12
    topicPerms: [Orders=PUB]
  - accessKey: mallory
    secretKey: secret of mallory
"""
LEAVE = UnregisterClientRequestHeader(client_id="victim's", producer_group="p")
OFTEN = {"transaction_time_out": 0, "transaction_check_interval": 20, "transaction_check_max": 1_000_000}


class Client:
    """A client of one user, in the producer group p, which every user says to be; and what it is sent."""

    def __init__(self, broker: Broker, name: str, client_id: str = "victim's") -> None:
        self.broker = broker
        self.received: Tally[tuple[int, bytes]] = Tally()
        keys = Credentials(name, f"secret of {name}")
        codes = (RequestCode.CHECK_TRANSACTION_STATE, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
        self.remoting = RemotingClient(dict.fromkeys(codes, self._receive), credentials=keys)
        self._beat = encode_body(HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name="p")]))

    def _receive(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self.received.add((command.code, bytes(command.body)))
        return command.response(ResponseCode.SUCCESS)

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        return await self.remoting.invoke(self.broker.address, RemotingCommand.request(code, header, body), 20_000)

    async def beat(self) -> None:
        assert (await self.ask(RequestCode.HEART_BEAT, body=self._beat)).code == ResponseCode.SUCCESS

    async def prepare(self, body: bytes) -> None:
        header = send_header(topic="Orders", properties="TRAN_MSG\x01true\x02PGROUP\x01p", sys_flag=4)
        assert (await self.ask(RequestCode.SEND_MESSAGE_V2, header, body)).code == ResponseCode.SUCCESS


@asynccontextmanager
async def clients(cluster: GuardedCluster, **settings: int) -> AsyncIterator[tuple[Client, Client, Client]]:
    """The clients of victim, rival and mallory, in this order, none of which has sent a heartbeat."""
    broker = await cluster.start_broker(**settings)
    victim, rival, mallory = (Client(broker, name) for name in NAMES)
    yield victim, rival, mallory
    for client in (victim, rival, mallory):
        await client.remoting.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[GuardedCluster]:
    async with guarded_cluster(tmp_path, ACCOUNTS) as cluster:
        yield cluster


async def test_a_half_message_is_sent_to_the_first_user_who_may_send_to_its_topic(cluster: GuardedCluster) -> None:
    async with clients(cluster, **OFTEN) as (victim, rival, mallory):
        await mallory.beat()  # the first in the group, but without a permission
        await victim.beat()
        await rival.beat()
        await victim.prepare(b"half")
        for code, record in await victim.received.reach(3):
            assert (code, b"half" in record) == (RequestCode.CHECK_TRANSACTION_STATE, True)
        assert (rival.received.items, mallory.received.items) == ([], [])
        await victim.remoting.close()
        await rival.received.reach(3)
        assert mallory.received.items == []


async def test_no_reply_reaches_another_user_with_the_same_client_id(cluster: GuardedCluster) -> None:
    async with (
        clients(cluster) as (victim, rival, mallory),
        AdminClient(cluster.namesrv, credentials=ADMIN) as admin,
    ):
        replier = RemotingClient(credentials=ADMIN)

        async def reply() -> int:
            properties = REPLY_PROPERTIES.replace("asker", "victim's")
            header = send_header(topic=REPLY_TOPIC, properties=properties)
            request = RemotingCommand.request(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"salary")
            return (await replier.invoke(victim.broker.address, request, 20_000)).code

        async def is_alone() -> bool:
            return len((await admin.groups.producers(victim.broker.address))["p"]) == 1

        await victim.beat()
        assert await reply() == ResponseCode.SUCCESS
        assert victim.received.items == [(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"salary")]
        # Who of the two sent the request is not known.
        await mallory.beat()
        assert await reply() == ResponseCode.SYSTEM_ERROR
        # The victim's connection breaks, and it may still wait for replies.
        await victim.remoting.close()
        await until(is_alone)
        await mallory.beat()
        assert await reply() == ResponseCode.SYSTEM_ERROR
        victim.remoting.open()
        await victim.beat()
        assert await reply() == ResponseCode.SYSTEM_ERROR
        assert (len(victim.received.items), mallory.received.items) == (1, [])
        await mallory.ask(RequestCode.UNREGISTER_CLIENT, LEAVE)
        assert await reply() == ResponseCode.SUCCESS
        assert (len(victim.received.items), mallory.received.items) == (2, [])
        # The id is free when its client has left, and an account that is deleted receives nothing more.
        await victim.ask(RequestCode.UNREGISTER_CLIENT, LEAVE)
        await rival.beat()
        assert await reply() == ResponseCode.SUCCESS
        assert len(rival.received.items) == 1
        await admin.access.delete_account(rival.broker.address, "rival12")
        assert await reply() == ResponseCode.SYSTEM_ERROR
        assert (len(rival.received.items), mallory.received.items) == (1, [])
        await replier.close()


async def test_a_client_is_unregistered_by_its_own_user_only(cluster: GuardedCluster) -> None:
    async with clients(cluster) as (victim, _, mallory):
        await victim.beat()
        await mallory.beat()
        assert (await mallory.ask(RequestCode.UNREGISTER_CLIENT, LEAVE)).code == ResponseCode.SUCCESS
        async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:
            (left,) = (await admin.groups.producers(victim.broker.address))["p"]
            assert left.client_id == "victim's"
            assert (await victim.ask(RequestCode.UNREGISTER_CLIENT, LEAVE)).code == ResponseCode.SUCCESS
            assert await admin.groups.producers(victim.broker.address) == {}
