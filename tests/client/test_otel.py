"""OpenTelemetry: contexts in properties, spans and metrics, of all ways to send and to consume."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from typing import Any

import pytest

from rucola import client
from rucola.client import ConsumeFromWhere, Message, MessageExt, sync
from rucola.errors import InvalidMessage, MQError
from rucola.testing.rocketmq import RocketMQ
from support.errors import raises

pytest.importorskip("opentelemetry.sdk.trace")
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from support.telemetry import Recorded

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def consumer_of(rocketmq: RocketMQ, recorded: Recorded, **options: Any) -> client.PushConsumer[Any]:
    consumer = client.PushConsumer("kitchen", rocketmq.namesrv, consume_from=FIRST, trace=recorded.telemetry, **options)
    consumer.subscribe("Orders")
    return consumer


async def test_a_send_a_delivery_and_what_the_listener_does_are_one_trace(
    rocketmq: RocketMQ, recorded: Recorded
) -> None:
    done = asyncio.Event()

    async def cook(message: MessageExt) -> None:
        with recorded.tracer.start_as_current_span("cook"):
            done.set()

    async with client.Producer("shop", rocketmq.namesrv, trace=recorded.telemetry) as producer:
        message = Message("Orders", b"pizza", tags="food", keys="order-1")
        with recorded.tracer.start_as_current_span("request"):
            result = await producer.send(message)
    assert "traceparent" not in message.properties, "it may be sent again, in another trace"
    consumer = consumer_of(rocketmq, recorded)
    consumer.listen(cook)
    async with consumer:
        await done.wait()
    request, send, process, cooked = map(recorded.span, ("request", "send Orders", "process Orders", "cook"))
    assert [one.parent.span_id for one in (send, process, cooked)] == [
        one.context.span_id for one in (request, send, process)
    ]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(send.attributes) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "Orders",
        "messaging.destination.partition.id": str(result.queue.queue_id),
        "messaging.message.body.size": 5,
        "messaging.message.id": result.msg_id,
        "messaging.rocketmq.message.tag": "food",
        "messaging.rocketmq.message.keys": ("order-1",),
    }
    assert process.attributes["messaging.consumer.group.name"] == "kitchen"
    assert process.attributes["messaging.message.id"] == result.msg_id
    assert recorded.counts("messaging.client.sent.messages") == {None: 1}
    assert recorded.counts("messaging.process.duration") == {None: 1}


def test_the_blocking_face_has_the_callers_span_and_that_of_the_delivery_in_its_thread(
    rocketmq: RocketMQ, recorded: Recorded
) -> None:
    done = threading.Event()
    seen: list[int] = []

    def cook(message: MessageExt) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        done.set()

    producer = sync.Producer("shop", rocketmq.namesrv, trace=recorded.telemetry)
    with producer, recorded.tracer.start_as_current_span("request"):
        producer.send(Message("Orders", b"pizza"))
    consumer = sync.PushConsumer("kitchen", rocketmq.namesrv, consume_from=FIRST, trace=recorded.telemetry)
    consumer.subscribe("Orders")
    consumer.listen(cook)
    with consumer:
        assert done.wait(30)
    assert recorded.span("send Orders").parent.span_id == recorded.span("request").context.span_id
    assert seen == [recorded.span("process Orders").context.span_id]


async def test_a_batch_has_one_span_which_each_message_carries_and_a_delivery_links_to(
    rocketmq: RocketMQ, recorded: Recorded
) -> None:
    received: list[MessageExt] = []
    done = asyncio.Event()

    async def cook(messages: list[MessageExt]) -> None:
        received.extend(messages)
        done.set()

    rocketmq.create_topic("Orders", queues=1)
    async with client.Producer("shop", rocketmq.namesrv, trace=recorded.telemetry) as producer:
        with recorded.tracer.start_as_current_span("earlier"):
            added = recorded.telemetry.inject(Message("Orders", b"0"))
        await producer.send_batch([added, Message("Orders", b"1")])
    consumer = consumer_of(rocketmq, recorded)
    consumer.listen_to_batches(cook, 10)
    async with consumer:
        await done.wait()
    earlier, send, process = map(recorded.span, ("earlier", "send Orders", "process Orders"))
    assert send.attributes["messaging.batch.message_count"] == len(received) == 2
    assert send.kind is SpanKind.CLIENT
    assert send.parent is None
    assert [link.context.span_id for link in send.links] == [earlier.context.span_id]
    assert [link.context.span_id for link in process.links] == [earlier.context.span_id, send.context.span_id]


async def test_a_message_that_waited_in_an_outbox_keeps_the_context_of_its_transaction(
    rocketmq: RocketMQ, recorded: Recorded
) -> None:
    with recorded.tracer.start_as_current_span("order"):
        message = recorded.telemetry.inject(Message("Orders", b"pizza"))
    before = message.properties["traceparent"]
    async with client.Producer("relay", rocketmq.namesrv, trace=recorded.telemetry) as producer:
        await producer.send(message)
    assert recorded.span("send Orders").parent.span_id == recorded.span("order").context.span_id
    assert rocketmq.messages("Orders")[0].properties["traceparent"] == before == message.properties["traceparent"]


@pytest.mark.parametrize("linger_ms", [None, 0])
async def test_each_message_of_a_stream_has_a_span_of_its_own(
    rocketmq: RocketMQ, recorded: Recorded, linger_ms: float | None
) -> None:
    rocketmq.create_topic("Orders", queues=1)
    options = {} if linger_ms is None else {"linger_ms": linger_ms}
    async with client.Producer("shop", rocketmq.namesrv, trace=recorded.telemetry, **options) as producer:
        results = await producer.send_many(Message("Orders", b"%d" % number) for number in range(5))
    spans = recorded.spans("send Orders")
    assert [span.attributes["messaging.message.id"] for span in spans] == [result.msg_id for result in results]
    carried = [one.properties["traceparent"].split("-")[2] for one in rocketmq.messages("Orders")]
    assert carried == [f"{span.context.span_id:016x}" for span in spans]
    assert recorded.counts("messaging.client.sent.messages") == {None: 5}


async def test_failures_end_their_spans_and_are_counted(
    rocketmq: RocketMQ, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    failed = asyncio.Event()

    async def cook(message: MessageExt) -> None:
        failed.set()
        raise ValueError("no flour")

    async with client.Producer("shop", rocketmq.namesrv, trace=recorded.telemetry) as producer:
        with raises(InvalidMessage):
            await producer.send(Message("Orders", b""))
        with raises(InvalidMessage):
            await producer.send_many([Message("Orders", b"x"), Message("Orders", b"")])
        with raises(InvalidMessage):
            await producer.send("Orders")  # type: ignore[arg-type]
    consumer = consumer_of(rocketmq, recorded)
    consumer.listen(cook)
    with caplog.at_level(logging.CRITICAL, "rucola.client"):
        async with consumer:
            await failed.wait()
    sends, process = recorded.spans("send Orders"), recorded.span("process Orders")
    assert [span.attributes.get("error.type") for span in sends].count("InvalidMessage") == len(sends)
    assert all(span.status.status_code is StatusCode.ERROR for span in [*sends, process])
    assert process.events[0].attributes["exception.message"] == "no flour"
    assert recorded.counts("messaging.client.consumed.messages") == {"ValueError": 1}
    assert recorded.counts("messaging.client.sent.messages")["InvalidMessage"] == len(sends)


async def test_oneway_requests_and_transactions_have_spans(rocketmq: RocketMQ, recorded: Recorded) -> None:
    async def execute(message: Message) -> client.LocalTransactionState:
        return client.LocalTransactionState.COMMIT_MESSAGE

    async def check(message: MessageExt) -> client.LocalTransactionState:
        raise MQError("not asked")

    rocketmq.create_topic("Orders", queues=1)
    producer = client.TransactionProducer("shop", rocketmq.namesrv, check=check, trace=recorded.telemetry)
    async with producer:
        await producer.send_oneway(Message("Oneway", b"x"))
        await producer.send_in_transaction(Message("Orders", b"x"), execute)
    assert recorded.span("send Oneway").status.status_code is StatusCode.UNSET
    (event,) = recorded.span("send Orders").events
    assert event.attributes["messaging.rocketmq.transaction_state"] == "COMMIT_MESSAGE"
    (committed,) = rocketmq.wait_for_messages("Orders")
    assert committed.properties["traceparent"].split("-")[2] == f"{recorded.span('send Orders').context.span_id:016x}"


async def test_a_router_passes_the_trace_to_its_producer_and_consumers(rocketmq: RocketMQ, recorded: Recorded) -> None:
    done = asyncio.Event()
    router = client.Router("shop", rocketmq.namesrv, trace=recorded.telemetry)
    bills = router.publisher("Bills", value=str)

    @router.subscriber("Orders", group="kitchen", consume_from=FIRST, trace=recorded.telemetry)
    async def cook(order: str) -> None:
        await bills.send(f"bill for {order}")
        done.set()

    rocketmq.send("Orders", b"pizza")
    async with router:
        await done.wait()
    assert recorded.span("send Bills").parent.span_id == recorded.span("process Orders").context.span_id


def test_without_telemetry_nothing_of_it_is_imported() -> None:
    code = "import sys, rucola.client, rucola.client.sync; print([m for m in sys.modules if 'opentelemetry' in m])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout == "[]\n"


async def test_a_traced_producer_takes_and_refuses_what_others_do(rocketmq: RocketMQ, recorded: Recorded) -> None:
    async with client.Producer("shop", rocketmq.namesrv, trace=recorded.telemetry) as producer:
        await producer.send(message=Message("Orders", b"1"))
        assert len(await producer.send_batch(messages=(Message("Orders", b"%d" % n) for n in range(3)))) == 3
        wrong: Any = "no message"
        with raises(InvalidMessage):
            await producer.send(wrong)
        with raises(InvalidMessage):
            await producer.send_batch(one for one in [wrong])
        assert len(await asyncio.to_thread(rocketmq.messages, "Orders")) == 4
    assert len(recorded.spans("send Orders")) == 2
