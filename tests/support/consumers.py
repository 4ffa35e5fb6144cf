"""What tests of consumers have in common: a filled topic, a consumer of it, a broker that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rucola.broker.broker import Broker
from rucola.client import ConsumeFromWhere, MessageQueue, Producer, PullConsumer, PushConsumer
from rucola.domain.client import HeartbeatData
from rucola.domain.queue import LockedQueues
from rucola.message import Message, MessageInner, properties
from rucola.message.record import encode
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import GetConsumerListByGroupResponseBody, UnregisterClientRequestHeader
from rucola.protocol.lock import LockBatchResponseBody
from rucola.protocol.offset import OffsetResponseHeader, UpdateConsumerOffsetRequestHeader
from rucola.protocol.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.remoting.connection import Connection, Processor, Reply
from rucola.remoting.server import RemotingServer
from support.cluster import Cluster, Tally, cluster

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])


@asynccontextmanager
async def cluster_with_topic(
    path: Path, bodies: Iterable[int] = (), queues: int = 4
) -> AsyncIterator[tuple[Cluster, Broker]]:
    """A cluster with one broker and a topic T that holds `bodies`."""
    async with cluster(path) as running:
        broker = await running.start_broker()
        await running.create_topic(broker, "T", queues)
        await send(running, bodies)
        yield running, broker


async def send(running: Cluster, bodies: Iterable[int], **fields: Any) -> None:
    async with Producer("g", running.namesrv) as producer:
        await producer.send_many(Message("T", b"%d" % body, **fields) for body in bodies)


def consumer_of(running: Cluster, group: str = "c", expression: str = "*", **options: Any) -> PushConsumer:
    consumer = PushConsumer(group, running.namesrv, **{"consume_from": FIRST, **options})
    consumer.subscribe("T", expression)
    return consumer


async def take(consumer: PushConsumer, count: int) -> list[int]:
    """The bodies of the next messages, all of them done."""
    bodies: list[int] = []
    async with asyncio.timeout(20):
        async for message in consumer:
            bodies.append(int(message.body))
            if len(bodies) == count:
                consumer.ack(message)
                break
    return bodies


async def committed(running: Cluster, group: str = "c") -> int:
    """The sum of what the group has committed."""
    async with PullConsumer(group, running.namesrv) as reader:
        return sum([await reader.committed(queue) or 0 for queue in await reader.queues("T")])


class ScriptedBroker:
    """A peer that serves one queue from a list of records and writes down what it is asked."""

    def __init__(self, records: list[bytes] | None = None, committed: int | None = 0, max_offset: int = 0) -> None:
        self.records = records or []
        self.committed = committed
        self.max_offset = max_offset
        self.pulled: Tally[PullMessageRequestHeader] = Tally()
        self.given_back: Tally[ConsumerSendMsgBackRequestHeader] = Tally()
        self.send_back_code = ResponseCode.SUCCESS
        self.left: list[str | None] = []
        self.updates: list[int] = []
        self.members: dict[Connection, str] = {}
        self.server: RemotingServer
        self.processors: dict[int, Processor] = {
            RequestCode.HEART_BEAT: self.heart_beat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
            RequestCode.GET_MAX_OFFSET: lambda _, c: c.response(0, OffsetResponseHeader(offset=self.max_offset)),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda _, c: c.response(0, OffsetResponseHeader(offset=33)),
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back,
        }

    async def start(self, running: Cluster) -> None:
        """Serve a queue of T. What is put into `processors` later counts as well."""
        self.server = await running.scripted_broker("broker-a", "T", self.processors)

    def heart_beat(self, connection: Connection, command: RemotingCommand) -> Reply:
        self.members[connection] = decode_body(HeartbeatData, command.body).client_id
        return command.response(ResponseCode.SUCCESS)

    def unregister(self, connection: Connection, command: RemotingCommand) -> Reply:
        self.left.append(command.decode_header(UnregisterClientRequestHeader).consumer_group)
        self.members.pop(connection, None)  # not a member, if it has reconnected since its last heartbeat
        return command.response(ResponseCode.SUCCESS)

    def consumer_list(self, connection: Connection, command: RemotingCommand) -> Reply:
        body = GetConsumerListByGroupResponseBody(consumer_id_list=sorted(set(self.members.values())))
        return command.response(ResponseCode.SUCCESS, body=encode_body(body))

    def query_offset(self, connection: Connection, command: RemotingCommand) -> Reply:
        if self.committed is None:
            return command.response(ResponseCode.QUERY_NOT_FOUND)
        return command.response(ResponseCode.SUCCESS, OffsetResponseHeader(offset=self.committed))

    def update_offset(self, connection: Connection, command: RemotingCommand) -> Reply:
        self.committed = command.decode_header(UpdateConsumerOffsetRequestHeader).commit_offset
        self.updates.append(self.committed)
        return command.response(ResponseCode.SUCCESS)

    def pull(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(PullMessageRequestHeader)
        self.pulled.add(header)
        end = len(self.records)
        places = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=end, min_offset=0, max_offset=end
        )
        if header.queue_offset > end > 0:
            places.next_begin_offset = 0
            return command.response(ResponseCode.PULL_OFFSET_MOVED, places)
        body = b"".join(self.records[header.queue_offset :])
        return command.response(ResponseCode.SUCCESS, places, body) if body else None  # held for ever

    def send_back(self, connection: Connection, command: RemotingCommand) -> Reply:
        self.given_back.add(command.decode_header(ConsumerSendMsgBackRequestHeader))
        return command.response(self.send_back_code, remark="as told")


def record_of(queue_offset: int, body: bytes, topic: str = "T", reconsume_times: int = 0, **texts: str) -> bytes:
    inner = MessageInner(
        topic, 0, body, properties.join(texts), 0, 0, 0, HOST, reconsume_times=reconsume_times
    )  # fmt: skip
    return encode(inner, queue_offset, 1000 + queue_offset, 0, HOST)


async def other_locks(running: Cluster, address: str, client_id: str, code: RequestCode) -> list[MessageQueue]:
    """Somebody else locks, or unlocks, the four queues of T for group c; those that it has then."""
    queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
    body = LockedQueues(client_id=client_id, consumer_group="c", mq_set=queues)
    answer = await running.remoting.invoke_ok(address, RemotingCommand.request(code, body=encode_body(body)))
    return decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set if code == RequestCode.LOCK_BATCH_MQ else []


class LockingBroker(ScriptedBroker):
    """A broker that gives locks, or not."""

    def __init__(self, records: list[bytes]) -> None:
        super().__init__(records)
        self.gives = True
        self.unlocked = False
        self.asked: Tally[list[MessageQueue]] = Tally()
        self.connections: list[Connection] = []
        self.processors |= {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, connection: Connection, command: RemotingCommand) -> Reply:
        wanted = decode_body(LockedQueues, command.body).mq_set
        self.asked.add(wanted)
        self.connections.append(connection)
        body = encode_body(LockBatchResponseBody(lock_ok_mq_set=wanted if self.gives else []))
        return command.response(ResponseCode.SUCCESS, body=body)

    def unlock(self, connection: Connection, command: RemotingCommand) -> Reply:
        self.unlocked = True
        return command.response(ResponseCode.SUCCESS)
