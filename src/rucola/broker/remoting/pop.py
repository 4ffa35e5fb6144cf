"""Adapter of POP_MESSAGE (200050), with long polling, and of ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151),
CHANGE_MESSAGE_INVISIBLETIME (200053) and POLLING_INFO (200055).

    outcome                                     code
    messages                                    SUCCESS, records as body
    none in pollTime                            POLLING_TIMEOUT
    as many receives are held as may be         POLLING_FULL
    acknowledged, and durable                   SUCCESS
    not held by this handle any more            NO_MESSAGE; the other messages of a batch are acknowledged
    acknowledged, and not durable in time       FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE

NOTIFICATION (200054) and POP_ROLLBACK (200056) are not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from rucola import refusals
from rucola.access import Action, Check, Refused, Resource
from rucola.broker.delivery.pop_state import Handle
from rucola.broker.durability import Missing
from rucola.broker.pop_hold import HeldPop, PopHold
from rucola.broker.services.pop import Ack, PopService
from rucola.broker.services.requests import PopRequest
from rucola.broker.services.results import NothingPopped, Popped
from rucola.domain.pop import PopStatus
from rucola.domain.subscription import SUB_ALL, TAG
from rucola.domain.version import VERSION
from rucola.message.properties import POP_CK, is_true
from rucola.message.record import split, with_topic
from rucola.message.topics import pop_retry_topic
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import JSON, RemotingCommand
from rucola.protocol.pop import (
    BEGIN_AT_END,
    MAX_ACKS,
    MAX_BITS,
    ORDER_QUEUE,
    AckMessageRequestHeader,
    BatchAckMessageRequestBody,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    ExtraInfo,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    PopStatusRequestHeader,
    ReleasePopRequestHeader,
    ReleasePopResponseHeader,
    order_counts,
    parse_extra_info,
    retry_mark,
)
from rucola.remoting.connection import Answer, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request

_PREFIX: Final = Struct(">II")
"""Frame length and header length; the serializer byte in the latter is 0 for JSON."""
_NOT_DURABLE = "acknowledged, but {why}; acknowledge again"


def popped_topic(header: PopMessageRequestHeader | PollingInfoRequestHeader) -> Resource:
    return Resource(header.topic, header.consumer_group)


def pop_request(header: PopMessageRequestHeader) -> PopRequest:
    return PopRequest(
        header.consumer_group,
        header.topic,
        header.max_msg_nums,
        header.invisible_time,
        header.queue_id,
        header.poll_time,
        header.init_mode == BEGIN_AT_END,
        is_true(header.order),
        header.attempt_id,
        header.exp or SUB_ALL,
        header.exp_type or TAG,
        header.client_id or "",
        header.client_id is not None,
    )


def _held_topic(header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader) -> Resource:
    # The rights to a retry topic are those to its topic.
    topic = header.topic.removeprefix(pop_retry_topic(header.consumer_group, ""))
    return Resource(topic, header.consumer_group)


def _group(header: PopStatusRequestHeader) -> Resource:
    return Resource(header.topic or "", header.consumer_group)


def _released_topic(header: ReleasePopRequestHeader) -> Resource:
    return Resource(header.topic, header.consumer_group)


def _held_topics(body: BatchAckMessageRequestBody) -> Iterator[Resource]:
    names = {(ack.topic.removeprefix(pop_retry_topic(ack.consumer_group, "")), ack.consumer_group) for ack in body.acks}
    for topic, group in names or {("", "")}:
        yield Resource(topic, group)


class PopAdapter:
    def __init__(self, service: PopService, hold: PopHold, check_permission: Check, broker_name: str) -> None:
        self._service = service
        self._hold = hold
        self._check_permission = check_permission
        self._broker_name = broker_name

    def endpoints(self) -> Endpoints:
        receive, acknowledge = Action.RECEIVE, Action.ACKNOWLEDGE
        pop, ack, batch = PopMessageRequestHeader, AckMessageRequestHeader, BatchAckMessageRequestBody
        change, polling = ChangeInvisibleTimeRequestHeader, PollingInfoRequestHeader
        return (
            Endpoint(RequestCode.POP_MESSAGE, receive, self.pop, pop, popped_topic),
            Endpoint(RequestCode.ACK_MESSAGE, acknowledge, self.ack, ack, _held_topic),
            Endpoint(RequestCode.BATCH_ACK_MESSAGE, acknowledge, self.batch_ack, batch, _held_topics),
            Endpoint(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, acknowledge, self.change, change, _held_topic),
            Endpoint(RequestCode.POLLING_INFO, Action.QUERY, self.polling, polling, popped_topic),
            Endpoint(RequestCode.GET_POP_STATUS, Action.QUERY, self.status, PopStatusRequestHeader, _group),
            Endpoint(
                RequestCode.RELEASE_POP, Action.RESET_OFFSET, self.release, ReleasePopRequestHeader, _released_topic
            ),
        )

    # Receive.

    def pop(self, request: Request[PopMessageRequestHeader]) -> Reply:
        content = pop_request(request.content)
        return self.receive(Request(request.connection, request.caller, request.command, content))

    def receive(self, request: Request[PopRequest]) -> Reply:
        pop = request.content
        pop.client = pop.client or request.caller.address
        result = self._service.receive(request.caller, pop)
        if isinstance(result, Popped):
            return self._found(request.command, pop, result)
        if (wait_ms := self._service.wait_ms(pop, result)) <= 0:
            return _nothing(request.command, pop, result)
        self._hold_receive(request, result, wait_ms)
        return None

    def _hold_receive(self, request: Request[PopRequest], nothing: NothingPopped, wait_ms: int) -> None:
        connection, caller, command = request.connection, request.caller, request.command.without_content()
        pop = request.content

        def retry(is_last: bool) -> NothingPopped | None:
            try:
                self._check_permission(caller, Resource(pop.topic, pop.group))
                again = self._service.receive(caller, pop)
            except Exception as error:
                connection.send_error(command, error)
                return None
            if isinstance(again, Popped):
                connection.answer(command, self._found(command, pop, again))
            elif is_last:
                connection.answer(command, _nothing(command, pop, again))
            else:
                return again
            return None

        self._hold.hold(HeldPop(connection, pop.group, pop.topic, pop.queue_id, retry), wait_ms, nothing)

    def _found(self, command: RemotingCommand, pop: PopRequest, popped: Popped) -> RemotingCommand | bytes:
        revive_qid = ORDER_QUEUE if pop.is_ordered else 0
        body: list[bytes] = []
        starts: list[str] = []
        offsets: list[str] = []
        counts: list[str] = []
        for queue in popped.queues:
            is_retry, first = queue.topic != pop.topic, queue.queue_offsets[0]
            mark = retry_mark(is_retry=is_retry)
            starts.append(f"{mark} {queue.queue_id} {first}")
            offsets.append(f"{mark} {queue.queue_id} {','.join(map(str, queue.queue_offsets))}")
            if is_retry:
                for offset, record in split(queue.records).items():
                    handle = ExtraInfo(
                        first, popped.pop_time_ms, popped.invisible_ms, revive_qid, mark, self._broker_name,
                        queue.queue_id, offset,
                    )  # fmt: skip
                    body.append(with_topic(record, pop.topic, f"{POP_CK}\x01{handle}".encode()))
            else:
                body.append(queue.records)
            if pop.is_ordered:
                counts += order_counts(mark, queue.queue_id, queue.queue_offsets, queue.attempts)
        records = body[0] if len(body) == 1 else b"".join(body)
        header = PopMessageResponseHeader(
            pop_time=popped.pop_time_ms,
            invisible_time=popped.invisible_ms,
            revive_qid=revive_qid,
            rest_num=popped.rest,
            start_offset_info=";".join(starts),
            msg_offset_info=";".join(offsets),
            order_count_info=";".join(counts) if counts else None,
        )
        return (formatted if command.serialize_type is JSON else encoded)(command, header, records)

    # What follows.

    def ack(self, request: Request[AckMessageRequestHeader]) -> Reply:
        header = request.content
        handle = _handle(header)
        topic = parse_extra_info(header.extra_info).real_topic(header.topic, header.consumer_group)
        ack = Ack(topic, header.queue_id, handle.pop_time_ms, handle.invisible_ms, (handle.queue_offset,))
        return self._acknowledge(request, header.consumer_group, [ack])

    def batch_ack(self, request: Request[BatchAckMessageRequestBody]) -> Reply:
        received, groups, size, count = list[Ack](), set[str](), 0, 0
        for ack in request.content.acks:
            groups.add(ack.consumer_group)
            size += len(ack.bit_set)
            if size > MAX_BITS:
                raise Refused(refusals.HANDLE_ILLEGAL, handle="the batch", why="its queue offsets are too far apart")
            count += ack.count
            if count > MAX_ACKS:
                why = f"{count} messages and more; {MAX_ACKS} are allowed"
                raise Refused(refusals.HANDLE_ILLEGAL, handle="the batch", why=why)
            offsets = ack.queue_offsets()
            received.append(Ack(ack.real_topic, ack.queue_id, ack.pop_time, ack.invisible_time, offsets))
        if len(groups) != 1:
            raise Refused(refusals.HANDLE_ILLEGAL, handle="the batch", why=f"it is of {len(groups)} groups")
        return self._acknowledge(request, groups.pop(), received)

    def _acknowledge(self, request: Request[object], group: str, acks: list[Ack]) -> Reply:
        done = self._service.acknowledge(group, acks)
        stale = sum(map(len, done.stale))

        def answer() -> RemotingCommand:
            if stale:
                raise Refused(refusals.HANDLE_STALE, count=stale, total=done.accepted + stale, group=group)
            return request.success()

        return self._when_durable(request, done.end, answer) if done.accepted else answer()

    def change(self, request: Request[ChangeInvisibleTimeRequestHeader]) -> Reply:
        header = request.content
        extra = parse_extra_info(header.extra_info)
        handle, end = self._service.change_invisible(
            header.consumer_group,
            extra.real_topic(header.topic, header.consumer_group),
            header.queue_id,
            _handle(header),
            header.invisible_time,
            is_suspended=is_true(header.suspend),
        )
        changed = ChangeInvisibleTimeResponseHeader(
            pop_time=handle.pop_time_ms, invisible_time=handle.invisible_ms, revive_qid=extra.revive_qid
        )
        return self._when_durable(request, end, lambda: request.success(changed))

    def polling(self, request: Request[PollingInfoRequestHeader]) -> Reply:
        header = request.content
        count = self._hold.count(header.consumer_group, header.topic, header.queue_id)
        return request.success(PollingInfoResponseHeader(polling_num=count))

    async def status(self, request: Request[PopStatusRequestHeader]) -> Answer:
        group, topic = request.content.consumer_group, request.content.topic
        queues = await self._service.status(group, topic, request.content.offset)
        receives = self._hold.count_of(group, topic)
        return request.success(body=PopStatus(broker_name=self._broker_name, receives=receives, queues=queues))

    def release(self, request: Request[ReleasePopRequestHeader]) -> Reply:
        header = request.content
        count = self._service.release(header.consumer_group, header.topic, header.queue_id, header.offset)
        return request.success(ReleasePopResponseHeader(count=count))

    def _when_durable(self, request: Request[object], end: int, answer: Callable[[], RemotingCommand]) -> Reply:
        if not self._service.must_wait:
            return answer()
        connection, command = request.connection, request.command.without_content()

        def done(missing: Missing | None) -> None:
            try:
                if missing is None:
                    connection.answer(command, answer())
                else:
                    status, why = missing
                    code = ResponseCode[status.name]
                    connection.answer(command, command.response(code, remark=_NOT_DURABLE.format(why=why)))
            except Exception as error:
                connection.send_error(command, error)

        self._service.when_durable(end, done)
        return None


def formatted(command: RemotingCommand, header: PopMessageResponseHeader, records: bytes) -> bytes:
    """The frame of a JSON response: the same bytes as `encoded(...).encode()`."""
    counts = "" if header.order_count_info is None else f',"orderCountInfo":"{header.order_count_info}"'
    text = (
        f'{{"code":0,"extFields":{{"popTime":"{header.pop_time}","invisibleTime":"{header.invisible_time}",'
        f'"reviveQid":"{header.revive_qid}","restNum":"{header.rest_num}","startOffsetInfo":'
        f'"{header.start_offset_info}","msgOffsetInfo":"{header.msg_offset_info}"{counts}}},"flag":1,'
        f'"language":"PYTHON","opaque":{command.opaque},"remark":"FOUND","serializeTypeCurrentRPC":"JSON",'
        f'"version":{VERSION}}}'
    ).encode("ascii")
    size = len(text)
    return b"".join((_PREFIX.pack(4 + size + len(records), size), text, records))


def encoded(command: RemotingCommand, header: PopMessageResponseHeader, records: bytes) -> RemotingCommand:
    return command.response(ResponseCode.SUCCESS, header, records, "FOUND")


def _handle(header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader) -> Handle:
    extra = parse_extra_info(header.extra_info)
    if (extra.queue_id, extra.queue_offset) != (header.queue_id, header.offset):
        why = f"the request names queue {header.queue_id} and offset {header.offset}"
        raise Refused(refusals.HANDLE_ILLEGAL, handle=header.extra_info[:200], why=why)
    return Handle(header.offset, extra.pop_time, extra.invisible_time)


def _nothing(command: RemotingCommand, pop: PopRequest, nothing: NothingPopped) -> RemotingCommand:
    header = PopMessageResponseHeader(pop_time=0, invisible_time=pop.invisible_ms, revive_qid=0, rest_num=nothing.rest)
    return command.response(ResponseCode.POLLING_TIMEOUT, header, remark="NO_MESSAGE_IN_QUEUE")
