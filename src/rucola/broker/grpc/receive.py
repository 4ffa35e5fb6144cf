"""Adapter of ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue and QueryAssignment.

A receive returns messages of any queue of its topic, not only the one it names, as with Apache's proxy. A receipt
handle has the format of remoting (`rucola.protocol.pop.ExtraInfo`), so that any later call finds the message. Consumers
that let the server renew handles (`auto_renew`) hold a message for RENEWED_MS, unless they leave or are lost before.

Topics with `order` are received in order of their message groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from rucola.access import Action, Check, Refused, Resource
from rucola.broker.config import BrokerConfig
from rucola.broker.delivery.pop_state import Handle
from rucola.broker.grpc.codes import OK, IllegalCall, common_status, status_of, when_durable
from rucola.broker.grpc.encoding import Delivery
from rucola.broker.grpc.messages import expression_type, milliseconds
from rucola.broker.grpc.methods import GrpcMethod, GrpcRequest, Response, checked, name_of
from rucola.broker.grpc.routes import RouteAdapter
from rucola.broker.pop_hold import HeldPop, PopHold
from rucola.broker.services.pop import MAX_MESSAGES, Ack, PopService
from rucola.broker.services.requests import PopRequest, RetryRequest
from rucola.broker.services.results import NothingPopped, Popped
from rucola.broker.services.retry import RetryService
from rucola.broker.state import BrokerState
from rucola.domain.subscription import SUB_ALL
from rucola.errors import RemoteProtocolError
from rucola.http2.grpc import Call
from rucola.message import sysflag
from rucola.message.compression import read_body
from rucola.message.record import decode_many, peek
from rucola.message.topics import check_group, check_topic
from rucola.protocol.grpc.definition_pb2 import Assignment, Code, Status
from rucola.protocol.grpc.service_pb2 import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
)
from rucola.protocol.pop import ORDER_QUEUE, ExtraInfo, parse_extra_info, retry_mark

RENEWED_MS: Final = 15 * 60_000
"""The time that 4.x clients give a listener."""
MIN_INVISIBLE_MS: Final = 10_000
MAX_INVISIBLE_MS: Final = 12 * 3_600_000
LONG_POLLING_MS: Final = 20_000
_FOUND: Final = ReceiveMessageResponse(status=OK).SerializeToString()
_MARGIN_MS: Final = 500
"""Before the deadline of a call, by which a held receive is answered."""


class _CallChannel:
    """The channel of a held receive: its call."""

    def __init__(self, call: Call) -> None:
        self.call = call

    @property
    def peer(self) -> str:
        return self.call.caller.address

    @property
    def is_open(self) -> bool:
        return self.call.is_open

    @property
    def is_congested(self) -> bool:
        return False

    def close(self) -> None:
        self.call.finish()


class ReceiveAdapter:
    def __init__(
        self,
        service: PopService,
        retry: RetryService,
        routes: RouteAdapter,
        state: BrokerState,
        hold: PopHold,
        check_permission: Check,
    ) -> None:
        self._service = service
        self._retry = retry
        self._routes = routes
        self._state = state
        self._config: BrokerConfig = state.config
        self._hold = hold
        self._check_permission = check_permission

    def methods(self) -> Iterable[GrpcMethod[Any]]:
        def received(request: ReceiveMessageRequest) -> list[Resource]:
            return [Resource(name_of(request.message_queue.topic), name_of(request.group))]

        def held(request: Any) -> list[Resource]:
            return [Resource(name_of(request.topic), name_of(request.group))]

        return (
            GrpcMethod(
                "ReceiveMessage", Action.RECEIVE, ReceiveMessageRequest, received,
                lambda status: ReceiveMessageResponse(status=status), self.receive,
            ),
            GrpcMethod(
                "AckMessage", Action.ACKNOWLEDGE, AckMessageRequest, held,
                lambda status: AckMessageResponse(status=status), self.ack,
            ),
            GrpcMethod(
                "ChangeInvisibleDuration", Action.ACKNOWLEDGE, ChangeInvisibleDurationRequest, held,
                lambda status: ChangeInvisibleDurationResponse(status=status), self.change,
            ),
            GrpcMethod(
                "ForwardMessageToDeadLetterQueue", Action.RETRY, ForwardMessageToDeadLetterQueueRequest, held,
                lambda status: ForwardMessageToDeadLetterQueueResponse(status=status), self.forward,
            ),
            GrpcMethod(
                "QueryAssignment", Action.QUERY, QueryAssignmentRequest, held,
                lambda status: QueryAssignmentResponse(status=status), self.assignment,
            ),
        )  # fmt: skip

    # Receive.

    def receive(self, request: GrpcRequest[ReceiveMessageRequest]) -> Response | None:
        call, caller, pop = request.call, request.caller, self._pop_request(request)
        result = self._service.receive(caller, pop)
        if isinstance(result, Popped):
            self._send(request, pop, result)
            return None
        wait_ms = self._service.wait_ms(pop, result)
        if call.deadline_s is not None:
            left_ms = int((call.deadline_s - asyncio.get_running_loop().time()) * 1000)
            wait_ms = min(wait_ms, left_ms - _MARGIN_MS)
        if wait_ms <= 0:
            return no_message()

        def retry(is_last: bool) -> NothingPopped | None:
            try:
                self._check_permission(caller, Resource(pop.topic, pop.group))
                again = self._service.receive(caller, pop)
            except Refused as error:
                call.reply(ReceiveMessageResponse(status=status_of(error)).SerializeToString())
                return None
            if isinstance(again, Popped):
                self._send(request, pop, again)
            elif is_last:
                call.reply(no_message().SerializeToString())
            else:
                return again
            return None

        channel = _CallChannel(call)
        call.on_cancelled = lambda: self._hold.closed(channel)
        self._hold.hold(HeldPop(channel, pop.group, pop.topic, pop.queue_id, retry), wait_ms, result)
        return None

    def _pop_request(self, request: GrpcRequest[ReceiveMessageRequest]) -> PopRequest:
        content = request.content
        topic = checked(check_topic, name_of(content.message_queue.topic), Code.ILLEGAL_TOPIC)
        group = checked(check_group, name_of(content.group), Code.ILLEGAL_CONSUMER_GROUP)
        invisible_ms = RENEWED_MS
        if content.HasField("invisible_duration") and not content.auto_renew:
            invisible_ms = milliseconds(content.invisible_duration)
            if not MIN_INVISIBLE_MS <= invisible_ms <= MAX_INVISIBLE_MS:
                text = f"the invisible duration is {invisible_ms} ms; 10 seconds to 12 hours are allowed"
                raise IllegalCall(Code.ILLEGAL_INVISIBLE_TIME, text)
        wait_ms = LONG_POLLING_MS
        if content.HasField("long_polling_timeout"):
            wait_ms = milliseconds(content.long_polling_timeout)
        expression = content.filter_expression
        return PopRequest(
            group,
            topic,
            min(max(content.batch_size, 1), MAX_MESSAGES),
            invisible_ms,
            wait_ms=min(wait_ms, LONG_POLLING_MS),
            is_ordered=self._is_ordered(topic),
            attempt_id=content.attempt_id if content.HasField("attempt_id") else None,
            expression=expression.expression or SUB_ALL,
            expression_type=expression_type(expression),
            client=request.client_id,
            is_renewed=content.auto_renew,
        )

    def _is_ordered(self, topic: str) -> bool:
        config = self._state.topics.get(topic)
        return config is not None and config.order

    def _send(self, request: GrpcRequest[ReceiveMessageRequest], pop: PopRequest, popped: Popped) -> None:
        call = request.call
        held = [(queue.topic, queue.queue_id, queue.queue_offsets) for queue in popped.queues]
        call.on_cancelled = lambda: self._give_back(pop.group, held, popped.pop_time_ms, popped.invisible_ms)
        responses = [_FOUND]
        for queue in popped.queues:
            handle = ExtraInfo(
                queue.queue_offsets[0], popped.pop_time_ms, popped.invisible_ms,
                ORDER_QUEUE if pop.is_ordered else 0, retry_mark(is_retry=queue.topic != pop.topic),
                self._config.broker_name, queue.queue_id, 0,
            )  # fmt: skip
            delivery = Delivery(str(handle).removesuffix("0"), popped.invisible_ms)
            records = decode_many(queue.records, decompress=False)
            for offset, record, attempt in zip(queue.queue_offsets, records, queue.attempts, strict=True):
                if record.sys_flag & sysflag.COMPRESSED:
                    record.body, record.body_error = read_body(record.body, record.sys_flag)
                responses.append(delivery.encode(record, pop.topic, offset, attempt + record.reconsume_times))
        last = ReceiveMessageResponse()
        last.delivery_timestamp.FromMilliseconds(popped.pop_time_ms)
        call.reply(*responses, last.SerializeToString())

    def _give_back(
        self, group: str, held: Iterable[tuple[str, int, Sequence[int]]], pop_time_ms: int, invisible_ms: int
    ) -> None:
        for topic, queue_id, queue_offsets in held:
            for offset in queue_offsets:
                with suppress(Refused):  # acknowledged, or delivered again
                    handle = Handle(offset, pop_time_ms, invisible_ms)
                    self._service.change_invisible(group, topic, queue_id, handle, 0)

    # What follows.

    async def ack(self, request: GrpcRequest[AckMessageRequest]) -> AckMessageResponse:
        content = request.content
        topic, group = _names(content)
        if not 0 < len(content.entries) <= MAX_MESSAGES:
            raise IllegalCall(Code.BAD_REQUEST, f"{len(content.entries)} entries; 1 to {MAX_MESSAGES} are allowed")
        handles = [entry.receipt_handle for entry in content.entries]
        statuses = [OK] * len(handles)
        # By queue and receive, the offsets and the places of their entries.
        acks: dict[tuple[str, int, int, int], tuple[list[int], list[int]]] = {}
        known: dict[str, tuple[list[int], list[int]]] = {}  # by the handle without its offset
        for number, receipt_handle in enumerate(handles):
            begin, _, offset = receipt_handle.rpartition(" ")
            if begin not in known or not offset.isdecimal() or len(offset) > 19:
                try:
                    extra, queue = _handle(topic, group, receipt_handle)
                except IllegalCall as error:
                    statuses[number] = status_of(error)
                    continue
                known[begin] = acks.setdefault((*queue, extra.pop_time, extra.invisible_time), ([], []))
            offsets, numbers = known[begin]
            offsets.append(int(offset))
            numbers.append(number)
        try:
            received = [Ack(*receive, tuple(dict.fromkeys(offsets))) for receive, (offsets, _) in acks.items()]
            done = self._service.acknowledge(group, received)
        except Refused as error:
            missing: Status | None = status_of(error)
        else:
            for (offsets, numbers), stale in zip(acks.values(), done.stale, strict=True):
                for queue_offset, number in zip(offsets, numbers, strict=True) if stale else ():
                    if queue_offset in stale:
                        statuses[number] = status_of(_stale())
            missing = await self._durable(done.end if done.accepted else 0)
        if missing is not None:
            statuses = [missing if status is OK else status for status in statuses]
        entries = [
            AckMessageResultEntry(message_id=entry.message_id, receipt_handle=receipt_handle, status=status)
            for entry, receipt_handle, status in zip(content.entries, handles, statuses, strict=True)
        ]
        return AckMessageResponse(status=common_status(statuses), entries=entries)

    def _acknowledge(self, topic: str, group: str, receipt_handle: str) -> int:
        done = self._service.acknowledge(group, [_ack(topic, group, receipt_handle)])
        if done.stale[0]:
            raise _stale()
        return done.end

    async def change(self, request: GrpcRequest[ChangeInvisibleDurationRequest]) -> ChangeInvisibleDurationResponse:
        content = request.content
        topic, group = _names(content)
        extra, (real_topic, queue_id) = _handle(topic, group, content.receipt_handle)
        invisible_ms = milliseconds(content.invisible_duration)
        if not 0 <= invisible_ms <= MAX_INVISIBLE_MS:
            raise IllegalCall(Code.ILLEGAL_INVISIBLE_TIME, f"the invisible duration is {invisible_ms} ms")
        changed, end = self._service.change_invisible(
            group, real_topic, queue_id, _delivery(extra), invisible_ms, is_suspended=content.suspend
        )
        missing = await self._durable(end)
        handle = extra._replace(pop_time=changed.pop_time_ms, invisible_time=changed.invisible_ms)
        return ChangeInvisibleDurationResponse(status=missing or OK, receipt_handle=str(handle))

    async def forward(
        self, request: GrpcRequest[ForwardMessageToDeadLetterQueueRequest]
    ) -> ForwardMessageToDeadLetterQueueResponse:
        content = request.content
        topic, group = _names(content)
        extra, (real_topic, queue_id) = _handle(topic, group, content.receipt_handle)
        delivery = group, real_topic, queue_id, _delivery(extra)
        if self._service.holds(*delivery):
            record = await self._state.tiered.read_record(real_topic, queue_id, extra.queue_offset)
            if record is None:
                raise IllegalCall(Code.MESSAGE_NOT_FOUND, "the store has deleted the message")
            put = await self._retry.retry(request.caller, RetryRequest(group, peek(record).physical_offset, -1))
            await self._state.persistence.wait_persisted()
            if self._service.holds(*delivery):  # no other receive was faster
                put()
        missing = await self._durable(self._acknowledge(topic, group, content.receipt_handle))
        return ForwardMessageToDeadLetterQueueResponse(status=missing or OK)

    async def _durable(self, end: int) -> Status | None:
        """Wait until everything before `end` is durable; return why it is not, or None."""
        if not end or not self._service.must_wait:
            return None
        return await when_durable(self._service.when_durable, end)

    def assignment(self, request: GrpcRequest[QueryAssignmentRequest]) -> QueryAssignmentResponse:
        _names(request.content)
        queues = self._routes.queues(request.content.topic)
        if not self._is_ordered(name_of(request.content.topic)):
            del queues[1:]
            for queue in queues:
                queue.id = -1  # of all queues
        return QueryAssignmentResponse(status=OK, assignments=[Assignment(message_queue=queue) for queue in queues])


def no_message() -> ReceiveMessageResponse:
    return ReceiveMessageResponse(status=Status(code=Code.MESSAGE_NOT_FOUND, message="no message has come"))


def _names(content: Any) -> tuple[str, str]:
    topic = checked(check_topic, name_of(content.topic), Code.ILLEGAL_TOPIC)
    return topic, checked(check_group, name_of(content.group), Code.ILLEGAL_CONSUMER_GROUP)


def _handle(topic: str, group: str, receipt_handle: str) -> tuple[ExtraInfo, tuple[str, int]]:
    """Return a parsed handle, and its queue."""
    try:
        extra = parse_extra_info(receipt_handle)
    except RemoteProtocolError as error:
        raise IllegalCall(Code.INVALID_RECEIPT_HANDLE, str(error)) from None
    return extra, (extra.real_topic(topic, group), extra.queue_id)


def _delivery(extra: ExtraInfo) -> Handle:
    return Handle(extra.queue_offset, extra.pop_time, extra.invisible_time)


def _ack(topic: str, group: str, receipt_handle: str) -> Ack:
    extra, queue = _handle(topic, group, receipt_handle)
    return Ack(*queue, extra.pop_time, extra.invisible_time, (extra.queue_offset,))


def _stale() -> IllegalCall:
    return IllegalCall(Code.INVALID_RECEIPT_HANDLE, "the message is held by another delivery now")
