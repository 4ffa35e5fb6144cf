"""TransactionProducer against real brokers: work that succeeds, fails, says nothing, or ends with its process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rucola.broker.broker import Broker
from rucola.client import (
    ClientInstance,
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SendStatus,
    TransactionProducer,
)
from rucola.client import sync as blocking
from rucola.errors import InvalidMessage
from rucola.message.host import encode_host
from rucola.message.ids import offset_msg_id
from rucola.message.topics import TRANS_HALF_TOPIC
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.send import SendMessageResponseHeader
from rucola.protocol.transaction import EndTransactionRequestHeader
from rucola.remoting.connection import Connection
from support.broker_thread import servers
from support.cluster import HOST, Cluster, Tally, cluster

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOW = LocalTransactionState.UNKNOW
EAGER = {"transaction_time_out": 0, "transaction_check_interval": 1, "transaction_check_max": 1_000_000}
"""A broker that asks at once, and does not give up."""


def never(message: MessageExt) -> LocalTransactionState:
    raise AssertionError(f"nobody should ask about {message}")


@asynccontextmanager
async def consumed(running: Cluster, topic: str = "T") -> AsyncIterator[Tally[MessageExt]]:
    """The messages of the topic as they become visible."""
    seen: Tally[MessageExt] = Tally()
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer = PushConsumer("c", running.namesrv, consume_from=first)
    consumer.subscribe(topic)

    async def listen(message: MessageExt) -> None:
        seen.add(message)

    consumer.listen(listen)
    async with consumer:
        yield seen


async def start(running: Cluster, **settings: Any) -> Broker:
    broker = await running.start_broker(**settings)
    await running.create_topic(broker, "T", queues=1)
    return broker


async def test_a_message_is_visible_after_its_commit(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await start(running)
        async with (
            TransactionProducer("p", running.namesrv, check=never) as producer,
            PullConsumer("r", running.namesrv) as reader,
        ):
            (queue,) = await producer.queues("T")
            seen_in_work: list[tuple[str | None, int]] = []

            async def work(message: Message) -> LocalTransactionState:
                seen_in_work.append((message.unique_key, await reader.max_offset(queue)))
                return COMMIT

            sent = await producer.send_in_transaction(Message("T", b"body" * 2000, tags="A", keys="k"), work)
            assert (sent.status, sent.state, sent.queue) == (SendStatus.SEND_OK, COMMIT, queue)
            assert seen_in_work == [(sent.msg_id, 0)], "nobody sees it before"
            # The commit is a one-way request, and may be processed after the pull.
            (message,) = (await reader.pull(queue, 0, suspend_ms=20_000)).messages
            assert (message.body, message.tags, message.keys) == (b"body" * 2000, "A", "k")
            assert message.msg_id == sent.msg_id
            dropped = await producer.send_in_transaction(Message("T", b"never"), lambda message: ROLLBACK)
            assert dropped.state is ROLLBACK
            assert await reader.max_offset(queue) == 1
            plain = await producer.send(Message("T", b"plain"))
            assert plain.queue_offset == 1


async def test_a_check_settles_an_open_transaction(tmp_path: Path) -> None:
    asked: Tally[tuple[str, str | None, bytes]] = Tally()

    def check(message: MessageExt) -> LocalTransactionState:
        asked.items.append((message.topic, message.keys, message.body))
        times = len(asked.items)
        if times == 1:
            raise OSError("the database is away")
        return UNKNOW if times == 2 else COMMIT

    async with cluster(tmp_path) as running:
        await start(running, **EAGER)
        async with (
            consumed(running) as seen,
            TransactionProducer("p", running.namesrv, check=check) as producer,
        ):
            sent = await producer.send_in_transaction(Message("T", b"body", keys="k"), lambda message: UNKNOW)
            assert sent.state is UNKNOW
            (message,) = await seen.reach(1)
            assert message.body == b"body"
            assert asked.items[:3] == [("T", "k", b"body")] * 3


async def test_a_failed_local_transaction_is_left_to_the_check(tmp_path: Path) -> None:
    asked: Tally[bytes] = Tally()

    async def check(message: MessageExt) -> LocalTransactionState:
        asked.add(message.body)
        return ROLLBACK

    def fail(message: Message) -> LocalTransactionState:
        raise KeyError("no such account")

    def say_nonsense(message: Message) -> Any:
        return "ok"

    async with cluster(tmp_path) as running:
        await start(running, **EAGER)
        async with (
            TransactionProducer("p", running.namesrv, check=check) as producer,
            PullConsumer("r", running.namesrv) as reader,
        ):
            with pytest.raises(KeyError, match="no such account"):
                await producer.send_in_transaction(Message("T", b"0"), fail)
            with pytest.raises(TypeError, match="must return a LocalTransactionState, not 'ok'"):
                await producer.send_in_transaction(Message("T", b"1"), say_nonsense)
            await asked.reach(lambda bodies: {b"0", b"1"} <= set(bodies))
            (queue,) = await producer.queues("T")
            assert await reader.max_offset(queue) == 0


async def test_a_restarted_producer_is_checked(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await start(running, **EAGER)
        async with Producer("other", running.namesrv) as producer:  # as one of group p did that is gone
            await producer.send(Message("T", b"left open", properties={"TRAN_MSG": "true", "PGROUP": "p"}))
        async with (
            consumed(running) as seen,
            TransactionProducer("p", running.namesrv, check=lambda message: COMMIT, topics=["T", "Unknown"]),
        ):
            (message,) = await seen.reach(1)
            assert message.body == b"left open"


async def test_a_check_of_a_plain_producer_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(tmp_path) as running:
        broker = await start(running, **EAGER)
        async with (
            ClientInstance(running.namesrv) as instance,
            Producer("p", instance=instance) as producer,
            PullConsumer("r", instance=instance) as reader,
        ):
            await producer.queues("T")
            await instance.send_heartbeats()
            await producer.send(Message("T", b"body", properties={"TRAN_MSG": "true", "PGROUP": "p"}))
            halves = MessageQueue(TRANS_HALF_TOPIC, broker.config.broker_name, 0)
            copied = await reader.pull(halves, 1, suspend_ms=15_000)  # on the connection on which it was asked
            assert copied.messages[0].body == b"body"
    assert "group 'p', which has no TransactionProducer here" in caplog.text


async def test_a_half_message_without_send_ok_is_rolled_back(tmp_path: Path) -> None:
    ended: Tally[EndTransactionRequestHeader] = Tally()
    msg_id = offset_msg_id(encode_host(f"{HOST}:10911"), 4711)

    def send(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = SendMessageResponseHeader(msg_id=msg_id, queue_id=0, queue_offset=42)
        return command.response(ResponseCode.FLUSH_DISK_TIMEOUT, header)

    def end(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        ended.add(command.decode_header(EndTransactionRequestHeader))
        return command.response(ResponseCode.SYSTEM_ERROR, remark="as told")

    async with cluster(tmp_path) as running:
        processors = {RequestCode.SEND_MESSAGE_V2: send, RequestCode.END_TRANSACTION: end}
        await running.scripted_broker("broker-s", "T", processors)
        async with TransactionProducer("p", running.namesrv, check=never) as producer:
            sent = await producer.send_in_transaction(Message("T", b"body"), pytest.fail)
            assert (sent.status, sent.state) == (SendStatus.FLUSH_DISK_TIMEOUT, ROLLBACK)
            assert ended.items == [
                EndTransactionRequestHeader(
                    producer_group="p",
                    tran_state_table_offset=42,
                    commit_log_offset=4711,
                    commit_or_rollback=12,
                    msg_id=sent.msg_id,
                )
            ]


async def test_a_transaction_cannot_be_delayed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await start(running)
        async with TransactionProducer("p", running.namesrv, check=never) as producer:
            message = Message("T", b"body")
            message.delay_level = 3
            with pytest.raises(InvalidMessage):
                await producer.send_in_transaction(message, pytest.fail)


def test_blocking_transactions_commit_and_roll_back(tmp_path: Path) -> None:
    with servers(tmp_path) as namesrv, blocking.TransactionProducer("p", namesrv, check=never) as producer:
        result = producer.send_in_transaction(Message("T", b"body"), lambda message: COMMIT)
        assert result.state is COMMIT
        with blocking.PullConsumer("r", namesrv) as reader:
            (message,) = reader.pull(result.queue, 0).messages
            assert message.msg_id == result.msg_id
