"""Forwarder: the methods of the proxy, each of which goes to one broker, or to all with one response.

    QueryRoute, QueryAssignment                  the brokers of the topic; the queues of all, with the proxy's address
    SendMessage                                  a broker of the topic, by turns; a message group's by its hash
    ReceiveMessage                               the broker of the named queue
    AckMessage, ChangeInvisibleDuration,
    ForwardMessageToDeadLetterQueue,
    RecallMessage                                the broker that the handle names
    EndTransaction                               the broker whose name the transaction id has got here
    Heartbeat, NotifyClientTermination           all brokers
    others                                       any broker, which refuses them

A call goes to another broker only if the first one has not processed it for certain. What cannot be decoded or found
goes to any broker, so that refusals are a broker's.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from rucola.broker.grpc.codes import common_status
from rucola.broker.grpc.methods import CLIENT_ID, SERVICE, Encoded, decode, name_of
from rucola.broker.grpc.receive import no_message
from rucola.broker.grpc.service import NOT_IMPLEMENTED
from rucola.client.background_tasks import BackgroundTasks
from rucola.errors import RemoteProtocolError
from rucola.http2.client import ClientCall, NotProcessed
from rucola.http2.grpc import Call, Failed, Method, Status, spawned
from rucola.message.recall import parse_recall_handle
from rucola.protocol.grpc import definition_pb2
from rucola.protocol.grpc.definition_pb2 import Code, Endpoints, MessageType
from rucola.protocol.grpc.service_pb2 import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    EndTransactionRequest,
    EndTransactionResponse,
    ForwardMessageToDeadLetterQueueRequest,
    HeartbeatResponse,
    NotifyClientTerminationResponse,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    RecallMessageRequest,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
)
from rucola.protocol.pop import parse_extra_info
from rucola.proxy.brokers import Brokers, Fields, ProxiedBroker
from rucola.proxy.transaction_ids import with_broker, without_broker

_RECEIVE: Final = f"/{SERVICE}/ReceiveMessage"
_OF_CONNECTION: Final = (b"content-type", b"te")
PAUSES_S: Final = (0.05, 0.5)
"""Before a call is made again that a broker has refused, since responses wait on the connection."""
ALL_TIMEOUT_S: Final = 2.0
"""Time for the responses of several brokers; clients wait for 3 seconds."""

T = TypeVar("T", bound=Encoded)
Handler: TypeAlias = Callable[[Call, bytes], Awaitable[bytes]]
"""Returns the first message of the response."""
_CODES: Final = {value: name for name, value in Code.items()}


def fields_of(call: Call) -> Fields:
    """Return the metadata of a call, to be sent on."""
    return [
        (name, value)
        for name, value in call.headers
        if not name.startswith((b":", b"grpc-")) and name not in _OF_CONNECTION
    ]


class Forwarder:
    """`endpoints` are the proxy's for a client that does not say how it reached it.

    `on_terminated` is called with the id of each client that terminates.
    """

    def __init__(self, brokers: Brokers, endpoints: Endpoints, on_terminated: Callable[[str], None]) -> None:
        self._brokers = brokers
        self._endpoints = endpoints
        self._on_terminated = on_terminated
        self.requests: Counter[tuple[str, str]] = Counter()
        """Calls that have ended, by method and by the code of the response, or the status of gRPC without one."""
        self._turn = 0
        self._receiving: set[asyncio.Task[None] | None] = set()
        """Those receives that wait for the broker."""
        self._giving_back = BackgroundTasks()

    @property
    def held_receives(self) -> int:
        """How many receives wait for a broker's response."""
        return len(self._receiving)

    def methods(self) -> Mapping[str, Method]:
        handlers: dict[str, Handler] = {
            "QueryRoute": self.query_route,
            "QueryAssignment": self.query_assignment,
            "SendMessage": self.send,
            "AckMessage": self.ack,
            "ChangeInvisibleDuration": self.change,
            "ForwardMessageToDeadLetterQueue": self.forward_to_dead_letters,
            "EndTransaction": self.end_transaction,
            "RecallMessage": self.recall,
            "Heartbeat": self.heartbeat,
            "NotifyClientTermination": self.terminate,
        }
        others = {name: self.forward_to_any for name in NOT_IMPLEMENTED if name not in handlers}
        answering = {name: _answering(handler) for name, handler in (handlers | others).items()}
        answering["ReceiveMessage"] = self.receive
        return {f"/{SERVICE}/{name}": spawned(self._counted(name, handler)) for name, handler in answering.items()}

    def _counted(self, name: str, handler: Handler) -> Callable[[Call, bytes], Coroutine[Any, Any, None]]:
        async def handle(call: Call, data: bytes) -> None:
            code = Status.INTERNAL.name
            try:
                code = _code_of(await handler(call, data))
            except Failed as error:
                code = error.status.name
                raise
            except asyncio.CancelledError:
                code = Status.CANCELLED.name
                raise
            finally:
                self.requests[name, code] += 1

        return handle

    # One broker.

    async def receive(self, call: Call, data: bytes) -> bytes:
        task = asyncio.current_task()
        self._receiving.add(task)
        try:
            queue = decode(ReceiveMessageRequest, data).message_queue
            name = queue.broker.name or await self._reader(name_of(queue.topic))
            own, message = await self._begin(call, name, data)
        except asyncio.CancelledError:
            call.reply(no_message().SerializeToString())  # unless it has ended
            raise
        finally:
            self._receiving.discard(task)
        handles: list[str] = []
        call.on_cancelled = lambda: self._abandon(call, name, own, data, handles)
        first = message or b""
        try:
            while message is not None:
                handles += _handles_in([message])
                call.send(message)
                await call.drain()
                message = await own.read()
            call.finish()
        finally:
            own.cancel()
        return first

    def answer_receives(self) -> None:
        """Answer the receives that wait, so that the server can stop."""
        for task in self._receiving:
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """Wait until the messages of cancelled receives are given back."""
        await self._giving_back.close(1000 * ALL_TIMEOUT_S)

    async def change(self, call: Call, data: bytes) -> bytes:
        handle = decode(ChangeInvisibleDurationRequest, data).receipt_handle
        return await self._ask(call, await self._holder(handle), data)

    async def forward_to_dead_letters(self, call: Call, data: bytes) -> bytes:
        request = decode(ForwardMessageToDeadLetterQueueRequest, data)
        return await self._ask(call, await self._holder(request.receipt_handle), data)

    async def end_transaction(self, call: Call, data: bytes) -> bytes:
        request = decode(EndTransactionRequest, data)
        request.transaction_id, name = without_broker(request.transaction_id)
        if not name and request.transaction_id.strip():  # it may be an id of each broker
            text = f"the transaction id {request.transaction_id[:64]!r} names no broker"
            status = definition_pb2.Status(code=Code.INVALID_TRANSACTION_ID, message=text)
            return EndTransactionResponse(status=status).SerializeToString()
        return await self._ask(call, name or await self._brokers.any(), request.SerializeToString())

    async def recall(self, call: Call, data: bytes) -> bytes:
        handle = parse_recall_handle(decode(RecallMessageRequest, data).recall_handle)
        return await self._ask(call, handle.broker_name if handle else await self._brokers.any(), data)

    async def forward_to_any(self, call: Call, data: bytes) -> bytes:
        return await self._ask(call, await self._brokers.any(), data)

    async def send(self, call: Call, data: bytes) -> bytes:
        request = decode(SendMessageRequest, data)
        first = request.messages[0] if request.messages else definition_pb2.Message()
        topic, group = name_of(first.topic), first.system_properties.message_group
        name, answer = await self._send(call, topic, group, data)
        if any(message.system_properties.message_type == MessageType.TRANSACTION for message in request.messages):
            response = decode(SendMessageResponse, answer)
            for entry in response.entries:
                entry.transaction_id = with_broker(entry.transaction_id, name)
            answer = response.SerializeToString()
        return answer

    async def _send(self, call: Call, topic: str, group: str, data: bytes) -> tuple[str, bytes]:
        names = (await self._brokers.of_topic(topic)).writable or [await self._brokers.any()]
        if group:
            # Not Java's hash, by which a broker chooses the queue: half of the queues of two brokers would be empty.
            names = [names[zlib.crc32(group.encode()) % len(names)]]
        else:
            self._turn += 1
            at = self._turn % len(names)
            names = names[at:] + names[:at]
        for name in names:
            try:
                return name, await self._ask(call, name, data)
            except NotProcessed as error:
                failure = error
        self._brokers.forget_topic(topic)
        raise failure

    # Several brokers.

    async def query_route(self, call: Call, data: bytes) -> bytes:
        request = decode(QueryRouteRequest, data)
        response, others = await self._of_topic(call, name_of(request.topic), data, QueryRouteResponse)
        for other in others:
            response.message_queues.extend(other.message_queues)
        for queue in response.message_queues:
            queue.broker.endpoints.CopyFrom(self._endpoints_for(request.endpoints))
        return response.SerializeToString()

    async def query_assignment(self, call: Call, data: bytes) -> bytes:
        request = decode(QueryAssignmentRequest, data)
        response, others = await self._of_topic(call, name_of(request.topic), data, QueryAssignmentResponse)
        for other in others:
            response.assignments.extend(other.assignments)
        for assignment in response.assignments:
            assignment.message_queue.broker.endpoints.CopyFrom(self._endpoints_for(request.endpoints))
        return response.SerializeToString()

    async def heartbeat(self, call: Call, data: bytes) -> bytes:
        response, _ = await self._ask_all(call, self._brokers.connected, data, HeartbeatResponse)
        return response.SerializeToString()

    async def terminate(self, call: Call, data: bytes) -> bytes:
        response, _ = await self._ask_all(call, self._brokers.connected, data, NotifyClientTerminationResponse)
        if response.status.code == Code.OK:
            self._on_terminated(str(call.metadata.get(CLIENT_ID, "")))
        return response.SerializeToString()

    async def ack(self, call: Call, data: bytes) -> bytes:
        request = decode(AckMessageRequest, data)
        parts: dict[str, list[int]] = {}
        for at, entry in enumerate(request.entries):
            parts.setdefault(_broker_of(entry.receipt_handle), []).append(at)
        if len(parts) <= 1:
            return await self._ask(call, next(iter(parts), "") or await self._brokers.any(), data)
        entries: list[Any] = [None] * len(request.entries)
        await asyncio.gather(*(self._ack(call, name, request, places, entries) for name, places in parts.items()))
        status = common_status([entry.status for entry in entries])
        return AckMessageResponse(status=status, entries=entries).SerializeToString()

    async def _ack(
        self, call: Call, name: str, request: AckMessageRequest, places: Sequence[int], entries: list[Any]
    ) -> None:
        part = AckMessageRequest(group=request.group, topic=request.topic)
        part.entries.extend(request.entries[at] for at in places)
        try:
            answer = await self._ask(call, name or await self._brokers.any(), part.SerializeToString())
            response = decode(AckMessageResponse, answer)
        except Failed as error:
            status = definition_pb2.Status(code=Code.INTERNAL_SERVER_ERROR, message=str(error))
            response = AckMessageResponse(status=status)
        results = response.entries if len(response.entries) == len(places) else [None] * len(places)
        for at, result in zip(places, results, strict=True):
            if result is None:
                asked = request.entries[at]
                result = AckMessageResultEntry(message_id=asked.message_id, receipt_handle=asked.receipt_handle)
                result.status.CopyFrom(response.status)
            entries[at] = result

    async def _of_topic(self, call: Call, topic: str, data: bytes, response: type[T]) -> tuple[T, list[T]]:
        names = (await self._brokers.of_topic(topic)).all or self._brokers.connected
        return await self._ask_all(call, names, data, response)

    async def _ask_all(self, call: Call, names: Iterable[str], data: bytes, response: type[T]) -> tuple[T, list[T]]:
        """Return the first response that is OK and the others, else the first refusal. Raises Failed without any."""
        answers = await asyncio.gather(*(self._ask_in_time(call, name, data) for name in names), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        decoded: list[Any] = [decode(response, answer) for answer in answers if isinstance(answer, bytes)]
        found = [answer for answer in decoded if answer.status.code == Code.OK] or decoded[:1]
        if not found:
            raise failures[0] if failures else NotProcessed(Status.UNAVAILABLE, "no broker can be reached")
        return found[0], found[1:]

    # Calls.

    async def _ask(self, call: Call, name: str, data: bytes) -> bytes:
        """Return the only message of a response. Raises Failed."""
        own, answer = await self._begin(call, name, data)
        try:
            if answer is None or await own.read() is not None:
                raise Failed(Status.INTERNAL, f"broker {name} has not sent one message")
            return answer
        finally:
            own.cancel()

    async def _ask_in_time(self, call: Call, name: str, data: bytes) -> bytes:
        try:
            async with asyncio.timeout(ALL_TIMEOUT_S):
                return await self._ask(call, name, data)
        except TimeoutError:
            (await self._brokers.find(name)).failures[Status.DEADLINE_EXCEEDED.name] += 1
            self._brokers.suspect()
            raise Failed(Status.UNAVAILABLE, f"broker {name} has not answered in {ALL_TIMEOUT_S} s") from None

    async def _begin(self, call: Call, name: str, data: bytes) -> tuple[ClientCall, bytes | None]:
        """Return a broker's call and the first message of its response. A call that it refuses is made again."""
        broker = await self._brokers.find(name)
        for pause_s in (*PAUSES_S, None):
            try:
                return await self._attempt(broker, call, data)
            except Failed as error:
                if pause_s is None or not isinstance(error, NotProcessed) or not broker.is_connected:
                    broker.failures[error.status.name] += 1
                    raise
                await asyncio.sleep(pause_s)
        raise AssertionError

    async def _attempt(self, broker: ProxiedBroker, call: Call, data: bytes) -> tuple[ClientCall, bytes | None]:
        left_s = None if call.deadline_s is None else call.deadline_s - asyncio.get_running_loop().time()
        own = await broker.call(call.path, fields_of(call), left_s)
        try:
            own.send(data)
            own.finish()
            return own, await own.read()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):  # by the client, perhaps since its deadline has passed
                self._abandon(call, broker.name, own, data, [])
                self._brokers.suspect()
            else:
                own.cancel()
            raise

    def _abandon(self, call: Call, name: str, own: ClientCall, data: bytes, handles: Sequence[str]) -> None:
        """End a broker's call whose response the client does not take; others may receive its messages."""
        if own.is_open:
            own.cancel()  # the broker takes care of the messages
        elif call.path == _RECEIVE and (handles := [*handles, *_handles_in(own.unread)]):
            self._giving_back.start(self._give_back(call, name, data, handles), f"return of messages to broker {name}")

    async def _give_back(self, call: Call, name: str, data: bytes, handles: Sequence[str]) -> None:
        request = decode(ReceiveMessageRequest, data)
        broker = await self._brokers.find(name)

        async def change(handle: str) -> None:
            change = ChangeInvisibleDurationRequest(
                group=request.group, topic=request.message_queue.topic, receipt_handle=handle
            )
            try:
                # Not within the deadline of the call, which may have passed.
                own = await broker.call(f"/{SERVICE}/ChangeInvisibleDuration", fields_of(call), ALL_TIMEOUT_S)
                own.send(change.SerializeToString())
                own.finish()
                while await own.read() is not None:
                    pass
            except Failed as error:  # they are received again after their invisible time
                broker.failures[error.status.name] += 1

        await asyncio.gather(*map(change, handles))

    async def _reader(self, topic: str) -> str:
        names = (await self._brokers.of_topic(topic)).all or self._brokers.connected
        if not names:
            return await self._brokers.any()
        self._turn += 1
        return names[self._turn % len(names)]

    async def _holder(self, receipt_handle: str) -> str:
        return _broker_of(receipt_handle) or await self._brokers.any()

    def _endpoints_for(self, asked: Endpoints) -> Endpoints:
        """Return the proxy's endpoints: those that a client has, so that it comes back the same way."""
        return asked if asked.addresses else self._endpoints


def _answering(handler: Handler) -> Handler:
    async def handle(call: Call, data: bytes) -> bytes:
        answer = await handler(call, data)
        call.reply(answer)
        return answer

    return handle


def _handles_in(responses: Iterable[bytes]) -> list[str]:
    """Return the handles of the messages in parts of the response to a receive."""
    parts = map(ReceiveMessageResponse.FromString, responses)
    return [part.message.system_properties.receipt_handle for part in parts if part.HasField("message")]


def _code_of(response: bytes) -> str:
    """Return the name of the code in a response of any method: all begin with a status."""
    return _CODES.get(HeartbeatResponse.FromString(response).status.code, "UNRECOGNIZED")


def _broker_of(receipt_handle: str) -> str:
    """Return the name of the broker in a handle; empty if it is none."""
    try:
        return parse_extra_info(receipt_handle).broker_name
    except RemoteProtocolError:
        return ""
