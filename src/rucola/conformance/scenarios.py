"""The scenarios: what clients of RocketMQ 5 do, and need a server to answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from rucola.acl.credentials import Credentials
from rucola.conformance.client import Mismatch, ScenarioClient, Skipped, expect, expect_code
from rucola.errors import MQError
from rucola.http2.client import GrpcChannel
from rucola.http2.grpc import Failed
from rucola.protocol.grpc.definition_pb2 import ClientType, Code, FilterExpression, MessageType, TransactionResolution
from rucola.protocol.grpc.service_pb2 import (
    ChangeInvisibleDurationRequest,
    EndTransactionRequest,
    ForwardMessageToDeadLetterQueueRequest,
    HeartbeatRequest,
    NotifyClientTerminationRequest,
    QueryAssignmentRequest,
    QueryRouteRequest,
    RecallMessageRequest,
    SendMessageRequest,
)

DELAY_S: Final = 3
RECALL_S: Final = 10
"""Delay of messages that are recalled in time."""

Scenario = Callable[[ScenarioClient], Awaitable[None]]


class Outcome(NamedTuple):
    scenario: str
    result: str
    """"passed", "failed" or "skipped"."""
    why: str


async def run(channel: GrpcChannel, topic: str, credentials: Credentials | None = None) -> list[Outcome]:
    """Run all scenarios at a time. Raises RemotingConnectError if the server is not there."""
    await channel.connect()
    clients = {name: ScenarioClient(channel, topic, name, credentials) for name in SCENARIOS}
    return await asyncio.gather(*(_outcome(client, name) for name, client in clients.items()))


async def _outcome(client: ScenarioClient, name: str) -> Outcome:
    try:
        await SCENARIOS[name](client)
    except Skipped as skipped:
        return Outcome(name, "skipped", str(skipped))
    except TimeoutError:
        return Outcome(name, "failed", "the server did not answer in time")
    except (MQError, Failed) as error:
        return Outcome(name, "failed", str(error))
    return Outcome(name, "passed", "")


async def _route(client: ScenarioClient) -> None:
    response = await client.call("QueryRoute", QueryRouteRequest(topic=client.topic))
    expect_code("the status", response.status.code, Code.OK)
    queues = response.message_queues
    if not any(queue.id == 0 for queue in queues):
        raise Mismatch("the route has no queue with id 0, which the client for Node needs")
    for queue in queues:
        expect("the topic of a queue", queue.topic.name, client.topic.name)
        if not queue.broker.name or not queue.broker.endpoints.addresses or not queue.broker.endpoints.scheme:
            raise Mismatch("a queue has no broker with a name, a scheme and addresses")
        if not queue.accept_message_types:
            raise Mismatch("a queue accepts no type of messages")
    illegal = await client.call("QueryRoute", QueryRouteRequest(topic={"name": "a/b"}))
    expect_code("the code for an illegal topic", illegal.status.code, Code.ILLEGAL_TOPIC)


async def _client_id(client: ScenarioClient) -> None:
    client.client_id = ""
    response = await client.call("QueryRoute", QueryRouteRequest(topic=client.topic))
    expect_code("the code of a call without client id", response.status.code, Code.CLIENT_ID_REQUIRED)


async def _settings(client: ScenarioClient) -> None:
    async with client.telemetry(client.producer_settings()) as (_, settings):
        expect("the strategy of a producer", settings.backoff_policy.WhichOneof("strategy"), "exponential_backoff")
        if settings.publishing.max_body_size <= 0 or settings.backoff_policy.max_attempts <= 0:
            raise Mismatch("the settings of a producer have no max_body_size or no max_attempts")
    async with client.telemetry(client.consumer_settings()) as (_, settings):
        if settings.backoff_policy.max_attempts <= 0 or settings.backoff_policy.WhichOneof("strategy") is None:
            raise Mismatch("the settings of a consumer have no backoff policy")
        heartbeat = HeartbeatRequest(group=client.group, client_type=ClientType.SIMPLE_CONSUMER)
        expect_code("the code of a heartbeat", (await client.call("Heartbeat", heartbeat)).status.code, Code.OK)
        goodbye = NotifyClientTerminationRequest(group=client.group)
        response = await client.call("NotifyClientTermination", goodbye)
        expect_code("the code of a termination", response.status.code, Code.OK)


async def _wrong_messages(client: ScenarioClient) -> None:
    for message, code in (
        (client.message(b""), Code.MESSAGE_BODY_EMPTY),
        (client.message(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
        (client.message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (client.message(kind=MessageType.NORMAL, message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ):
        response = await client.call("SendMessage", SendMessageRequest(messages=[message]))
        expect("the code for a wrong message", response.status.code, code)


async def _normal(client: ScenarioClient) -> None:
    await client.need(MessageType.NORMAL)
    await client.receive()  # a new group may begin at the end
    sent = client.message("größer".encode(), keys=["k1", "k2"])
    sent.user_properties["colour"] = "grün"
    await client.send(sent)
    found = await client.received()
    system = found.system_properties
    expect("the body", found.body, sent.body)
    expect("the message id", system.message_id, sent.system_properties.message_id)
    expect("the tag", system.tag, client.tag)
    expect("the keys", sorted(system.keys), ["k1", "k2"])
    expect("the user property", found.user_properties.get("colour"), "grün")
    expect("the delivery attempt", system.delivery_attempt, 1)
    await client.nothing()
    expect_code("the code of an acknowledgement", await client.ack(found), Code.OK)
    expect_code("the code of no handle", await client.ack(found, "no handle"), Code.INVALID_RECEIPT_HANDLE)


async def _long_polling(client: ScenarioClient) -> None:
    await client.need(MessageType.NORMAL)
    await client.receive()
    waiting = asyncio.create_task(client.received(20))
    try:
        await client.nothing()
        await client.send(client.message())
        expect_code("the code of an acknowledgement", await client.ack(await waiting), Code.OK)
    finally:
        waiting.cancel()


async def _invisible_duration(client: ScenarioClient) -> None:
    await client.need(MessageType.NORMAL)
    await client.receive()
    await client.send(client.message())
    found = await client.received()
    request = ChangeInvisibleDurationRequest(**client.held(found))
    request.invisible_duration.FromMilliseconds(1000)
    response = await client.call("ChangeInvisibleDuration", request)
    expect_code("the code of a change", response.status.code, Code.OK)
    expect("whether a change has a new handle", response.receipt_handle not in ("", request.receipt_handle), True)
    again = await client.received()
    expect("the delivery attempt", again.system_properties.delivery_attempt, 2)
    expect_code("the code of an acknowledgement", await client.ack(again), Code.OK)


async def _sql92(client: ScenarioClient) -> None:
    await client.need(MessageType.NORMAL)
    await client.receive()
    for number in range(3):
        message = client.message(b"%d" % number)
        message.user_properties["number"] = str(number)
        await client.send(message)
    expression = FilterExpression(type="SQL", expression=f"number = 1 AND TAGS = '{client.tag}'")
    code, found = await client.receive(5, filter_expression=expression)
    expect_code("the code of a receive by SQL92", code, Code.OK)
    expect("the bodies", [message.body for message in found], [b"1"])
    wrong = FilterExpression(type="SQL", expression="number = =")
    code, _ = await client.receive(filter_expression=wrong)
    expect_code("the code of a wrong expression", code, Code.ILLEGAL_FILTER_EXPRESSION)


def _due_ms(delay_s: float) -> int:
    return int((time.time() + delay_s) * 1000)


async def _delay(client: ScenarioClient) -> None:
    await client.need(MessageType.DELAY)
    await client.receive()
    due_ms = _due_ms(DELAY_S)
    await client.send(client.message(kind=MessageType.DELAY, due_ms=due_ms))
    found = await client.received()
    if found.system_properties.store_timestamp.ToMilliseconds() // 1000 < due_ms // 1000:
        raise Mismatch("a delayed message came before its time")
    expect_code("the code of an acknowledgement", await client.ack(found), Code.OK)


async def _recall(client: ScenarioClient) -> None:
    await client.need(MessageType.DELAY)
    await client.receive()
    due_ms = _due_ms(RECALL_S)
    recalled, kept = [client.message(body, MessageType.DELAY, due_ms) for body in (b"recalled", b"kept")]
    entry = await client.send(recalled)
    await client.send(kept)
    if not entry.recall_handle:
        raise Mismatch("the entry of a delayed message has no recall handle")
    request = RecallMessageRequest(topic=client.topic, recall_handle=entry.recall_handle)
    response = await client.call("RecallMessage", request)
    expect_code("the code of a recall", response.status.code, Code.OK)
    expect("the message id of a recall", response.message_id, entry.message_id)
    found = await client.received()
    expect("the body", found.body, b"kept")
    expect_code("the code of an acknowledgement", await client.ack(found), Code.OK)
    request.recall_handle = "no handle"
    late = await client.call("RecallMessage", request)
    expect("whether a recall without handle is an error", late.status.code not in (Code.OK, 0), True)


async def _transactions(client: ScenarioClient) -> None:
    await client.need(MessageType.TRANSACTION)
    await client.receive()
    async with client.telemetry(client.producer_settings()):
        for body, resolution in ((b"no", TransactionResolution.ROLLBACK), (b"yes", TransactionResolution.COMMIT)):
            entry = await client.send(client.message(body, MessageType.TRANSACTION))
            await client.nothing()
            request = EndTransactionRequest(
                topic=client.topic,
                message_id=entry.message_id,
                transaction_id=entry.transaction_id,
                resolution=resolution,
            )
            response = await client.call("EndTransaction", request)
            expect_code("the code of the end of a transaction", response.status.code, Code.OK)
        found = await client.received()
        expect("the body", found.body, b"yes")
        expect_code("the code of an acknowledgement", await client.ack(found), Code.OK)


async def _order(client: ScenarioClient) -> None:
    await client.need(MessageType.FIFO)
    async with client.telemetry(client.consumer_settings()) as (_, settings):
        if not settings.subscription.fifo:
            raise Skipped(f"topic {client.topic.name} is not consumed in order")
        await client.receive()
        bodies = [b"%d" % number for number in range(4)]
        for body in bodies:
            await client.send(client.message(body, MessageType.FIFO, message_group="group"))
        _, found = await client.receive(5, batch_size=2, attempt_id="first")
        expect("the bodies", [message.body for message in found], bodies[:2])
        _, same = await client.receive(batch_size=2, attempt_id="first")
        expect("the bodies of the same attempt", [message.body for message in same], bodies[:2])
        await client.nothing()
        for message in same:
            expect_code("the code of an acknowledgement", await client.ack(message), Code.OK)
        _, rest = await client.receive(5)
        expect("the bodies that follow", [message.body for message in rest], bodies[2:])


async def _dead_letters(client: ScenarioClient) -> None:
    await client.need(MessageType.NORMAL)
    await client.receive()
    await client.send(client.message())
    found = await client.received()
    request = ForwardMessageToDeadLetterQueueRequest(**client.held(found), delivery_attempt=1, max_delivery_attempts=1)
    response = await client.call("ForwardMessageToDeadLetterQueue", request)
    expect_code("the code of forwarding", response.status.code, Code.OK)


async def _assignment(client: ScenarioClient) -> None:
    request: Any = QueryAssignmentRequest(topic=client.topic, group=client.group)
    response = await client.call("QueryAssignment", request)
    expect_code("the code of an assignment", response.status.code, Code.OK)
    if not response.assignments:
        raise Mismatch("the assignment has no queue")


SCENARIOS: Final[dict[str, Scenario]] = {
    "route": _route,
    "client_id": _client_id,
    "settings": _settings,
    "assignment": _assignment,
    "wrong_messages": _wrong_messages,
    "normal": _normal,
    "long_polling": _long_polling,
    "invisible_duration": _invisible_duration,
    "sql92": _sql92,
    "delay": _delay,
    "recall": _recall,
    "transactions": _transactions,
    "order": _order,
    "dead_letters": _dead_letters,
}
