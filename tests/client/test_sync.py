"""The blocking face: the same clients from a plain thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rucola.client import (
    ClientInstance,
    ConsumeFromWhere,
    LocalTransactionState,
    MessageExt,
    MessageModel,
    select_by_hash,
)
from rucola.client.sync import Message, Producer, PullConsumer, PushConsumer, TransactionProducer
from rucola.errors import InvalidMessage, MQError, RemotingConnectError, RemotingTimeout
from support.broker_thread import servers
from support.ports import free_port
from support.waiting import wait_until

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def test_send_pull_and_consume_without_a_loop(tmp_path: Path) -> None:
    with servers(tmp_path) as namesrv:
        with Producer("g", namesrv) as producer:
            queue = producer.queues("T")[0]
            assert producer.send(Message("T", b"0"), queue).queue_offset == 0
            producer.send_oneway(Message("T", b"1"), queue)
            assert len(producer.send_batch([Message("T", b"2"), Message("T", b"3")], queue)) == 2
            assert len(producer.send_many(Message("T", b"%d" % i) for i in range(4, 104))) == 100
            with pytest.raises(InvalidMessage):
                producer.send(Message("T", b""))
        with PullConsumer("g", namesrv) as reader:
            assert sum(reader.max_offset(queue) - reader.min_offset(queue) for queue in reader.queues("T")) == 104
            first = reader.pull(queue, 0, 2).messages
            assert [message.body for message in first] == [b"0", b"1"]
            assert reader.search_offset(queue, first[0].store_timestamp - 1) == 0
            reader.commit(queue, 2)
            assert reader.committed(queue) == 2
        consumer = PushConsumer("h", namesrv, consume_from=FIRST)
        consumer.subscribe("T")
        bodies = set()
        with consumer:
            for message in consumer:
                bodies.add(int(message.body))
                if len(bodies) == 104:
                    consumer.ack(message)
                    break
        assert bodies == set(range(104))
        with PushConsumer("h", namesrv) as again:
            again.subscribe("T")
            assert list(again.messages(idle_timeout_ms=100)) == []


def test_an_ordered_listener_replies_and_pauses_while_suspended(tmp_path: Path) -> None:
    with servers(tmp_path) as namesrv, Producer("g", namesrv) as asker, Producer("h", namesrv) as replier:
        consumer = PushConsumer("c", namesrv, consume_from=FIRST, orderly=True)
        consumer.subscribe("T")

        def listen(request: MessageExt) -> None:
            replier.reply(request, b"yes, " + request.body)

        consumer.listen(listen)
        with consumer:
            for number in range(3):
                question = Message("T", b"%d" % number)
                reply = asker.request(question, select_by_hash("key"), timeout_ms=20_000)
                assert reply.body == b"yes, " + question.body
            consumer.suspend()
            with pytest.raises(RemotingTimeout):
                asker.request(Message("T", b"4"), timeout_ms=100)
            consumer.resume()
            assert asker.request(Message("T", b"5"), timeout_ms=20_000).body == b"yes, 5"


def test_misuse_raises_instead_of_hanging(tmp_path: Path) -> None:
    producer = Producer("g", "127.0.0.1:1")
    with pytest.raises(MQError):
        producer.send(Message("T", b"x"))
    with producer:
        with pytest.raises(RemotingConnectError):
            producer.send(Message("T", b"x"))

        async def blocking_call_on_its_own_loop() -> None:
            producer.send(Message("T", b"x"))

        with pytest.raises(MQError):
            producer._run(blocking_call_on_its_own_loop())
    producer.close()
    with PullConsumer("g", "127.0.0.1:1") as consumer, pytest.raises(RemotingConnectError):
        consumer.queues("T")
    with pytest.raises(RemotingConnectError):
        PushConsumer("g", "127.0.0.1:1").open()


def produces(producer: Producer) -> None:
    assert producer.send(Message("T", b"x")).is_ok
    assert len(producer.send_many([Message("T", b"x")] * 3)) == 3


def produces_a_transaction(producer: TransactionProducer) -> None:
    result = producer.send_in_transaction(Message("T", b"x"), lambda _: LocalTransactionState.COMMIT_MESSAGE)
    assert result.is_ok


def pulls(consumer: PullConsumer) -> None:
    assert sum(consumer.max_offset(queue) for queue in consumer.queues("T")) > 0


def consumes(consumer: PushConsumer) -> None:
    """Takes a message by iteration, if necessary after a pause of the consumer."""
    consumer.suspend()
    send_one(consumer)
    consumer.resume()
    message = next(iter(consumer))
    consumer.ack(message)


def listens(consumer: PushConsumer) -> None:
    before = sum(one.consumed for one in consumer.stats().values())
    send_one(consumer)
    wait_until(lambda: sum(one.consumed for one in consumer.stats().values()) > before)


def send_one(consumer: PushConsumer) -> None:
    with Producer("g", consumer.asyncio_client.instance.connection) as producer:
        producer.send(Message("T", b"x"))


def subscribed(consumer: PushConsumer) -> PushConsumer:
    consumer.subscribe("T")
    return consumer


def listening(consumer: PushConsumer) -> PushConsumer:
    consumer.listen(lambda message: None)
    return subscribed(consumer)


REOPENED: dict[str, tuple[Callable[[str, Path], Any], Callable[[Any], None]]] = {
    "Producer": (lambda namesrv, _: Producer("g", namesrv), produces),
    "of a shared instance": (lambda namesrv, _: Producer("g", instance=ClientInstance(namesrv)), produces),
    "TransactionProducer": (
        lambda namesrv, _: TransactionProducer(
            "t", namesrv, check=lambda _: LocalTransactionState.UNKNOW, topics=["T"]
        ),
        produces_a_transaction,
    ),
    "PullConsumer": (lambda namesrv, _: PullConsumer("r", namesrv), pulls),
    "PushConsumer": (lambda namesrv, _: subscribed(PushConsumer("c", namesrv, consume_from=FIRST)), consumes),
    "listening": (lambda namesrv, _: listening(PushConsumer("l", namesrv, consume_from=FIRST)), listens),
    "in order": (lambda namesrv, _: listening(PushConsumer("o", namesrv, consume_from=FIRST, orderly=True)), listens),
    "broadcasting": (
        lambda namesrv, path: listening(
            PushConsumer("b", namesrv, message_model=MessageModel.BROADCASTING, offsets_root=path)
        ),
        listens,
    ),
}


@pytest.mark.parametrize("kind", REOPENED)
def test_a_client_is_opened_after_a_failure_and_again_after_each_close(tmp_path: Path, kind: str) -> None:
    make, use = REOPENED[kind]
    port = free_port()
    client = make(f"127.0.0.1:{port}", tmp_path / "offsets")
    for _ in range(2):
        try:  # the clients that ask a name server first fail
            client.open()
            client.close()
        except RemotingConnectError:
            assert isinstance(client, (PushConsumer, TransactionProducer))
    with servers(tmp_path, port=port):
        with Producer("g", f"127.0.0.1:{port}") as producer:
            producer.send(Message("T", b"first"))
        for _ in range(2):
            with client:
                use(client)


def test_blocking_clients_work_inside_a_running_loop(tmp_path: Path) -> None:
    async def notebook(namesrv: str) -> int:
        with Producer("g", namesrv) as producer:
            return producer.send(Message("T", b"x")).queue_offset

    with servers(tmp_path) as namesrv:
        assert asyncio.run(notebook(namesrv)) == 0
