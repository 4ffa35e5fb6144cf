"""Recorded requests against a live broker: its answers have the codes, fields and body shapes of Apache's.

Before each request the broker is brought into the state that the recorded answer tells of: a queue that then ended at
16 is filled to 16, a key that was found is stored, a group that had members gets them. The requests themselves go out
as they were recorded, in their order; only an address of a message is replaced by one that exists here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.domain.client import ConsumerConnection, ConsumerData, HeartbeatData, ProducerData
from rucola.domain.queue import MessageQueue
from rucola.domain.subscription import SubscriptionData, subscription
from rucola.message import properties
from rucola.namesrv.server import Namesrv
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.group import decode_consume_stats_list
from rucola.protocol.heartbeat import GetConsumerListByGroupResponseBody, UnregisterClientRequestHeader
from rucola.protocol.offset import OffsetResponseHeader, QueueRequestHeader, UpdateConsumerOffsetRequestHeader
from rucola.protocol.send import SendMessageRequestHeader
from rucola.protocol.topic import CreateTopicRequestHeader, decode_consume_stats, decode_topic_stats
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Connection, Processor
from rucola.store.config import StoreConfig
from support.compatibility import rows
from support.recorded_frames import Exchange, decode, exchanges, shape

RECORDED_PORT = 10921
SERVER_PORTS = (RECORDED_PORT, 9877)
ASKED_OF_CLIENTS = {
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}
RECORDED_MS = 1795217560000  # when the recording began; time windows in the requests lie about it
EQUAL_FIELDS = {
    RequestCode.PULL_MESSAGE: {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"},
    RequestCode.GET_MAX_OFFSET: {"offset"},
    RequestCode.GET_MIN_OFFSET: {"offset"},
    RequestCode.SEND_MESSAGE: {"queueId", "MSG_REGION", "TRACE_ON"},
    RequestCode.SEND_MESSAGE_V2: {"queueId", "MSG_REGION", "TRACE_ON"},
    RequestCode.SEND_BATCH_MESSAGE: {"queueId", "MSG_REGION", "TRACE_ON"},
}


class RecordedState:
    """A broker under test, and what brings it into a recorded state."""

    def __init__(self, address: str, client: RemotingClient) -> None:
        self.address = address
        self._client = client

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        return await self._client.invoke(self.address, command)

    async def tell(self, command: RemotingCommand) -> None:
        (await self._client.connect(self.address)).send(command)

    async def prepare(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        """Bring the broker where the recorded answer is the right one."""
        fields = request.ext_fields
        match request.code:
            case RequestCode.PULL_MESSAGE if "maxOffset" in answer.ext_fields or answer.code == 25:
                end = int(answer.ext_fields.get("maxOffset", 0))
                await self.fill(fields["topic"], int(fields["queueId"]), end)
                if not int(fields["sysFlag"]) & 4:
                    await self.subscribe(fields, answer.code)
            case RequestCode.GET_MAX_OFFSET if answer.code == ResponseCode.SUCCESS:
                await self.fill(fields["topic"], int(fields["queueId"]), int(answer.ext_fields["offset"]))
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP | RequestCode.GET_EARLIEST_MSG_STORETIME:
                await self.fill(fields["topic"], int(fields["queueId"]), 1)
            case RequestCode.QUERY_MESSAGE if answer.code == ResponseCode.SUCCESS:
                await self.send(fields["topic"], 0, f"KEYS\x01{fields['key']}")
            case RequestCode.CONSUMER_SEND_MSG_BACK if answer.code == ResponseCode.SUCCESS:
                sent = await self.send("WB", 0, "")
                fields["offset"] = str(int(sent.ext_fields["msgId"][16:], 16))
            case RequestCode.VIEW_MESSAGE_BY_ID if answer.code == ResponseCode.SUCCESS:
                sent = await self.send("WB", 0, "")
                fields["offset"] = str(int(sent.ext_fields["msgId"][16:], 16))
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP if answer.code == ResponseCode.SUCCESS:
                for client_id in decode_body(GetConsumerListByGroupResponseBody, answer.body).consumer_id_list:
                    await self.join(client_id, fields["consumerGroup"], [])
            case RequestCode.QUERY_TOPIC_CONSUME_BY_WHO:
                await self.join("someone", "W_g_tag", [subscription(fields["topic"], "*")])
            case RequestCode.GET_TOPIC_STATS_INFO:
                for queue, offsets in decode_topic_stats(answer.body).items():
                    await self.create(queue.topic, queue.queue_id + 1)
                    await self.fill(queue.topic, queue.queue_id, offsets.max_offset)
            case RequestCode.GET_CONSUMER_CONNECTION_LIST if answer.code == ResponseCode.SUCCESS:
                table = decode_body(ConsumerConnection, answer.body).subscription_table
                await self.join("connected", fields["consumerGroup"], list(table.values()))
            case RequestCode.GET_PRODUCER_CONNECTION_LIST if answer.code != ResponseCode.SUCCESS:
                header = UnregisterClientRequestHeader(client_id="any", producer_group=fields["producerGroup"])
                await self.ask(RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header))
            case RequestCode.INVOKE_BROKER_TO_RESET_OFFSET if answer.code == ResponseCode.SUCCESS:
                await self.join("someone", fields["group"], [subscription(fields["topic"], "*")])
                await self.commit(fields["group"], MessageQueue(fields["topic"], "broker-a", 0))
            case RequestCode.GET_CONSUMER_RUNNING_INFO | RequestCode.CONSUME_MESSAGE_DIRECTLY:
                await self.join(fields["clientId"], fields["consumerGroup"], [])
                if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
                    fields["msgId"] = (await self.send("WB", 0, "")).ext_fields["msgId"]
            case RequestCode.SEND_REPLY_MESSAGE_V2:
                await self.beat(properties.parse(fields["i"])[properties.REPLY_TO_CLIENT], producers=["asker"])
            case RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS:
                await self.join(fields["clientAddr"], fields["group"], [])
            case RequestCode.GET_BROKER_CONSUME_STATS:
                for group, topics in decode_consume_stats_list(answer.body).groups.items():
                    for queue in (queue for stats in topics for queue in stats.offset_table):
                        await self.create(queue.topic, queue.queue_id + 1)
                        await self.commit(group, queue)
            case RequestCode.VIEW_BROKER_STATS_DATA | RequestCode.QUERY_CONSUME_TIME_SPAN:
                await self.fill(fields.get("topic") or fields["statsKey"], 0, 1)
            case RequestCode.QUERY_CONSUME_QUEUE:
                await self.fill(fields["topic"], int(fields["queueId"]), 5)
            case RequestCode.GET_CONSUME_STATS:
                for queue in decode_consume_stats(answer.body).offset_table:
                    await self.create(queue.topic, queue.queue_id + 1)
                    await self.join("someone", fields["consumerGroup"], [subscription(queue.topic, "*")])
                    await self.commit(fields["consumerGroup"], queue)

    async def fill(self, topic: str, queue_id: int, end: int) -> None:
        """Send messages that match no recorded tag until the queue has `end` of them."""
        await self.create(topic, queue_id + 1)
        header = QueueRequestHeader(topic=topic, queue_id=queue_id)
        there = await self.ask(RemotingCommand.request(RequestCode.GET_MAX_OFFSET, header))
        for _ in range(there.decode_header(OffsetResponseHeader).offset, end):
            await self.send(topic, queue_id, "TAGS\x01filling")

    async def create(self, topic: str, queues: int) -> None:
        """Have at least so many queues of a topic."""
        self._queues[topic] = queues = max(queues, self._queues.get(topic, 0))
        header = CreateTopicRequestHeader(topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=6)
        answer = await self.ask(RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))
        assert answer.code == ResponseCode.SUCCESS, (topic, answer.remark)

    _queues: dict[str, int] = {"WA": 4, "WB": 2}

    async def send(self, topic: str, queue_id: int, pairs: str) -> RemotingCommand:
        header = SendMessageRequestHeader(
            producer_group="state", topic=topic, queue_id=queue_id, sys_flag=0, born_timestamp=1, flag=0,
            properties=pairs,
        )  # fmt: skip
        answer = await self.ask(RemotingCommand.request(RequestCode.SEND_MESSAGE, header, b"filling"))
        assert answer.code == ResponseCode.SUCCESS, (topic, queue_id, answer.remark)
        return answer

    async def subscribe(self, fields: dict[str, str], code: int) -> None:
        """A member of the pulling group whose subscription explains how the pull was answered."""
        version = int(fields["subVersion"]) - (code == ResponseCode.SUBSCRIPTION_NOT_LATEST)
        expression = "nothing-has-this-tag" if code == ResponseCode.PULL_RETRY_IMMEDIATELY else "*"
        data = subscription(fields["topic"], expression, version=version)
        await self.join("puller", fields["consumerGroup"], [data])

    async def commit(self, group: str, queue: MessageQueue) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=0
        )
        answer = await self.ask(RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header))
        assert answer.code == ResponseCode.SUCCESS

    async def join(self, client_id: str, group: str, subscriptions: list[SubscriptionData]) -> None:
        consumer = ConsumerData(group_name=group, subscription_data_set=subscriptions)
        await self.beat(client_id, consumers=[consumer])

    async def beat(
        self, client_id: str, *, consumers: Sequence[ConsumerData] = (), producers: Sequence[str] = ()
    ) -> None:
        beat = HeartbeatData(
            client_id=client_id,
            consumer_data_set=list(consumers),
            producer_data_set=[ProducerData(group_name=group) for group in producers],
        )
        answer = await self.ask(RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_body(beat)))
        assert answer.code == ResponseCode.SUCCESS


def recorded_clients(golden: Path) -> dict[int, Processor]:
    """Answers to what a broker asks of a client, as Apache's client gave them."""

    def answering(frame: bytes) -> Processor:
        def answer(connection: Connection, command: RemotingCommand) -> RemotingCommand:
            recorded = decode(frame)
            return command.response(recorded.code, body=recorded.body, remark=recorded.remark)

        return answer

    return {
        exchange.code: answering(exchange.answer)
        for exchange in exchanges(golden)
        if exchange.answer is not None and exchange.code in ASKED_OF_CLIENTS and exchange.port not in SERVER_PORTS
    }


@asynccontextmanager
async def recorded_state(path: Path, clients: dict[int, Processor] | None = None) -> AsyncIterator[RecordedState]:
    async with Namesrv("127.0.0.1", 0) as namesrv:
        config = BrokerConfig(
            broker_name="broker-a",
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=0,
            namesrv_addr=f"127.0.0.1:{namesrv.port}",
            enable_property_filter=True,
        )
        store = StoreConfig(
            store_path_root_dir=str(path),
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=20_000,
            max_hash_slot_num=1000,
            max_index_num=4000,
            max_message_size=100_000,
            message_delay_level="0s",
        )
        async with Broker(config, store, clock=lambda: RECORDED_MS) as broker:
            ignored = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.RESET_CONSUMER_CLIENT_OFFSET}
            client = RemotingClient({**dict.fromkeys(ignored, _ignore), **(clients or {})})
            yield RecordedState(broker.address, client)
            await client.close()


def _ignore(connection: Connection, command: RemotingCommand) -> None:
    """What a broker tells a client, and no test looks at."""


def differences(exchange: Exchange, request: RemotingCommand, answer: RemotingCommand) -> list[str]:
    """How an answer differs from the recorded one."""
    assert exchange.answer is not None
    expected = decode(exchange.answer)
    found: list[str] = []

    def compare(what: str, got: object, wanted: object) -> None:
        if got != wanted:
            found.append(f"{exchange} {request.ext_fields}: {what} {got!r}, Apache {wanted!r} ({answer.remark})")

    compare("code", answer.code, expected.code)
    compare("opaque", answer.opaque, expected.opaque)
    compare("serialization", answer.serialize_type, expected.serialize_type)
    compare("fields", sorted(answer.ext_fields), sorted(expected.ext_fields))
    for name in EQUAL_FIELDS.get(RequestCode(exchange.code), ()) if exchange.code != 9999 else ():
        compare(name, answer.ext_fields.get(name), expected.ext_fields.get(name))
    compare("body", shape(answer.body), shape(expected.body))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("serializer", ["JSON", "ROCKETMQ"])
async def test_recorded_requests_get_apaches_answers(golden: Path, tmp_path: Path, serializer: str) -> None:
    recorded = [
        exchange
        for exchange in exchanges(golden)
        if exchange.port == RECORDED_PORT and exchange.serializer == serializer
    ]
    not_answered = {row.code for row in rows() if not row.is_answered_by("broker")}
    found: list[str] = []

    async with recorded_state(tmp_path, recorded_clients(golden)) as state:
        for exchange in recorded:
            request = decode(exchange.request)
            if exchange.code in not_answered:
                refusal = await state.ask(request)
                assert refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, exchange
                continue
            if exchange.answer is None:
                await state.tell(request)
                continue
            await state.prepare(request, decode(exchange.answer))
            found.extend(differences(exchange, request, await state.ask(request)))
    assert found == [], "\n".join(found)
