"""A client that waits for replies to its requests, and the replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rucola.domain.client import HeartbeatData, ProducerData
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Connection
from support.peer import Peer, send_header

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


REPLY_PROPERTIES = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000"


class Requester:
    """A client that asked, and what it was told; `answer` is what it says to that."""

    def __init__(self) -> None:
        self.client = RemotingClient({RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.receive})
        self.pushed: list[RemotingCommand] = []
        self.code: int = ResponseCode.SUCCESS

    def receive(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self.pushed.append(command)
        return command.response(self.code, remark=None if self.code == 0 else "no")


@asynccontextmanager
async def requester(peer: Peer, client_id: str = "asker") -> AsyncIterator[Requester]:
    asker = Requester()
    beat = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name="p")])
    command = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_body(beat))
    assert (await asker.client.invoke(peer.broker.address, command)).code == ResponseCode.SUCCESS
    try:
        yield asker
    finally:
        await asker.client.close()


async def send_reply(peer: Peer, body: bytes = b"reply", **fields: Any) -> RemotingCommand:
    header = send_header(**{"topic": REPLY_TOPIC, "properties": REPLY_PROPERTIES} | fields)
    return await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, body)
