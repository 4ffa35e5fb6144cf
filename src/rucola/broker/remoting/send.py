"""Adapter of SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320).

A batch has code 320, or another with `batch` in its header, as older clients send it. The response has the offsetMsgId
and the queue offset; if the message is stored but not durable in time, the code is never SUCCESS.

Sends of a read that follow each other are put together, and their responses are formatted together. With JSON, for the
broker 127.0.0.1:10911 in the default region, a response is

    {"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"7F00000100002A9F%016X","queueId":"%d",
    "queueOffset":"%d"},"flag":1,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":409}
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Final, TypeAlias, cast

from msgspec import json

from rucola import speed
from rucola.access import Action, Check, Refused, Resource
from rucola.broker.config import BrokerConfig
from rucola.broker.durability import Missing
from rucola.broker.services.publish import UNSLICED_MESSAGES, PublishService, SentMessages
from rucola.broker.services.requests import PublishRequest
from rucola.broker.services.results import Published, StoredSends
from rucola.broker.state import BrokerState
from rucola.domain.version import VERSION
from rucola.errors import InvalidMessage
from rucola.message import sysflag
from rucola.message.batch import decode_part
from rucola.message.host import encode_host
from rucola.message.ids import OFFSET_DIGITS, host_digits, offset_msg_ids
from rucola.message.properties import is_true
from rucola.message.record import LARGE_BODY
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import JSON, RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE
from rucola.protocol.retry import known_limit
from rucola.protocol.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rucola.remoting.access_gate import AccessGate
from rucola.remoting.connection import MAX_RUN, Answer, Connection, Processor, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Handler, Request
from rucola.remoting.refusals import error_response
from rucola.slices import in_slices
from rucola.store.config import PutMessageStatus

SendHeader: TypeAlias = SendMessageRequestHeader | SendMessageRequestHeaderV2

_PREFIX: Final = Struct(">II")
"""Frame length and header length; the serializer byte in the latter is 0 for JSON."""

_ADDING_NOTHING: Final = frozenset({"", "WAIT\x01true", "WAIT\x01true\x02"})
"""Properties of a batch that do not change its messages' properties."""

_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)

_NOT_DURABLE: Final = {
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}


def published_topic(header: SendHeader) -> Resource:
    return Resource(header.topic)


def publish_request(request: Request[SendHeader]) -> PublishRequest:
    command, header = request.command, request.content
    return PublishRequest(
        header.topic,
        header.queue_id,
        command.body,
        header.properties.encode("utf-8", "replace"),
        header.flag,
        header.sys_flag,
        header.born_timestamp,
        header.reconsume_times,
        known_limit(header.max_reconsume_times, command.version),
        header.producer_group,
        header.default_topic,
        header.default_topic_queue_nums,
        is_true(header.unit_mode),
    )


def columns_of(
    sends: Iterable[Request[SendHeader]], max_body_size: int, max_messages: int
) -> tuple[list[int | None], list[int], SentMessages]:
    """Return the first sends, up to one that is unusual, as columns: the counterpart of `speed.read_sends`.

    These are their opaques (None for a one-way send), numbers of messages, and all messages: UNSLICED_MESSAGES, or a
    few more. A batch of one message is unusual: its WAIT would be read as the batch's.
    """
    opaques, counts = list[int | None](), list[int]()
    topics, queue_ids, flags, sys_flags, born_timestamps, reconsume_times, strings, bodies = sent = SentMessages(
        [], [], [], [], [], [], [], []
    )
    for send in sends:
        command, header, is_batch = send.command, send.content, _is_batch(send)
        if (
            len(bodies) >= UNSLICED_MESSAGES
            or command.serialize_type is not JSON
            or len(command.body) > max_body_size
            or header.sys_flag & (sysflag.TRANSACTION_MASK if is_batch else sysflag.TRANSACTION_PREPARED)
        ):
            break
        try:
            if is_batch:
                batch_flags, batch_bodies, batch_strings, end = decode_part(command.body, 0, max_messages)
                count = len(batch_flags)
                if header.properties not in _ADDING_NOTHING or count < 2 or end < len(command.body):
                    break
                flags += batch_flags
                bodies += batch_bodies
                strings += batch_strings
            else:
                count = 1
                strings.append(header.properties.encode())
                flags.append(header.flag)
                bodies.append(command.body)
        except (InvalidMessage, UnicodeError):
            break
        topics += [header.topic] * count
        queue_ids += [header.queue_id] * count
        sys_flags += [header.sys_flag] * count
        born_timestamps += [header.born_timestamp] * count
        reconsume_times += [header.reconsume_times] * count
        counts.append(count)
        opaques.append(None if command.is_oneway else command.opaque)
    return opaques, counts, sent


class SendAnswers:
    """The responses of one broker to stored sends, in both serializations."""

    def __init__(self, config: BrokerConfig) -> None:
        self._region = config.region_fields
        self._store_host = config.store_host
        self._host_digits = host_digits(config.store_host)
        before = b'{"code":0,"extFields":' + json.encode(self._region)[:-1] + b',"msgId":"'
        after = (
            b'","queueId":"%d","queueOffset":"%d"},"flag":1,"language":"PYTHON","opaque":%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":' + b"%d}" % VERSION
        )
        self._parts: Final = (before, self._host_digits, *after.split(b"%d"))
        """Parts of a response: before the ids, in each before its offset, and around the three numbers."""
        self._form = before.replace(b"%", b"%%") + b"%b" + after
        self._id = self._host_digits + OFFSET_DIGITS

    def formatted(self, opaques: list[int | None], stored: StoredSends) -> bytes:
        """Return the frames of the JSON responses: the same bytes as `encoded(...).encode()`."""
        counts, queue_ids, queue_offsets, physical_offsets, _, _ = stored
        if speed.format_sends is not None:
            frames = speed.format_sends(self._parts, opaques, counts, queue_ids, queue_offsets, physical_offsets)
            if frames is not None:
                return frames
        responses, first = list[bytes](), 0
        for opaque, count in zip(opaques, counts, strict=True):
            if opaque is not None:
                ids = b",".join([self._id % offset for offset in physical_offsets[first : first + count]])
                header = self._form % (ids, queue_ids[first], queue_offsets[first], opaque)
                # The length field counts the 4 bytes of the header's own length as well.
                responses += _PREFIX.pack(4 + len(header), len(header)), header
            first += count
        return b"".join(responses)

    def answer(self, command: RemotingCommand, published: Published) -> Answer:
        if command.serialize_type is not JSON or published.recall_handle:
            return self.encoded(command, published)
        ids = list(published.physical_offsets) or [published.physical_offset]
        place = [published.queue_id], [published.queue_offset]
        return self.formatted([command.opaque], StoredSends([len(ids)], *place, ids, published.end, ()))

    def encoded(self, command: RemotingCommand, published: Published) -> RemotingCommand:
        answer = command.response(ResponseCode.SUCCESS)
        offsets = published.physical_offsets or [published.physical_offset]
        answer.ext = {
            **self._region,
            "msgId": offset_msg_ids(self._store_host, offsets),
            "queueId": str(published.queue_id),
            "queueOffset": str(published.queue_offset),
        }
        if published.recall_handle:
            answer.ext["recallHandle"] = published.recall_handle
        return answer

    def not_durable(self, command: RemotingCommand, published: Published, missing: Missing) -> RemotingCommand:
        answer = self.encoded(command, published)
        status, answer.remark = missing
        answer.code = _NOT_DURABLE[status]
        return answer


class SendAdapter:
    """Serves sends. Those of one read that follow each other are put together, see `PublishService.put_usual`."""

    def __init__(self, publish: PublishService, state: BrokerState) -> None:
        self._publish = publish
        self._config, self._store_config = state.config, state.store.config
        self._answers = SendAnswers(state.config)

    def endpoints(self) -> Endpoints:
        """Return the endpoints of sends that come alone."""
        return _endpoints(self.send)

    def run_endpoints(self) -> Endpoints:
        """Return endpoints that decode and check sends, and return them, for `serve`."""
        return _endpoints(lambda request: cast("Reply", request))

    def read(
        self, gate: AccessGate | None, checks: Sequence[Check], connection: Connection, data: memoryview
    ) -> tuple[bytes, int]:
        """Serve the sends at the start of a read from its bytes, see `ReadHooks`."""
        if speed.read_sends is None:
            return b"", 0
        columns = speed.read_sends(data, MAX_FRAME_SIZE, MAX_HEADER_SIZE, MAX_RUN, *self._limits())
        if columns is None:
            return b"", 0
        opaques, counts, ends, credentials = columns[:4]
        sent, caller = SentMessages._make(columns[4:]), connection.caller
        if gate is not None:
            caller, admitted = gate.admit(connection, data, credentials, ends)
            if admitted < len(opaques):
                opaques, counts = opaques[:admitted], counts[:admitted]
                sent = SentMessages._make(column[: sum(counts)] for column in sent)
        try:
            for topic in set(sent.topics):
                resource = Resource(topic)
                for check in checks:
                    check(caller, resource)
        except Refused:  # `serve` meets it again, and answers it
            return b"", 0
        if not opaques:
            return b"", 0
        responses, count = self._put(connection, opaques, counts, sent)
        return responses, ends[count - 1] if count else 0

    def serve(
        self, processors: Mapping[int, Processor], connection: Connection, commands: list[RemotingCommand]
    ) -> list[bytes]:
        """Serve sends that follow each other, see `ReadHooks`: all that their processors admit are put together."""
        frames: list[bytes | None] = []
        admitted: list[Request[SendHeader]] = []
        for command in commands:
            try:
                admitted.append(cast("Request[SendHeader]", processors[command.code](connection, command)))
            except Exception as error:
                frames.append(connection.encode_reply(command, error_response(connection.peer, command, error)))
        while admitted:
            opaques, counts, sent = columns_of(admitted, *self._limits())
            while opaques:
                responses, served = self._put(connection, opaques, counts, sent)
                frames.append(responses)
                if served < len(opaques):
                    frames.append(self._serve_alone(admitted[served]))
                    served += 1
                messages = sum(counts[:served])
                opaques, counts, admitted = opaques[served:], counts[served:], admitted[served:]
                sent = SentMessages._make(column[messages:] for column in sent)
            if admitted:
                frames.append(self._serve_alone(admitted[0]))
                admitted = admitted[1:]
        return list(filter(None, frames))

    def _limits(self) -> tuple[int, int]:
        """Return the limits of a usual body, and of messages in a usual batch. They can be changed at runtime."""
        size, count = self._store_config.max_message_size, self._config.max_messages_per_batch
        return size if size < LARGE_BODY else LARGE_BODY - 1, count if count < UNSLICED_MESSAGES else UNSLICED_MESSAGES

    def _put(
        self, connection: Connection, opaques: list[int | None], counts: list[int], sent: SentMessages
    ) -> tuple[bytes, int]:
        """Put the messages of the first requests; return the responses that need not wait, and their number."""
        try:
            stored = self._publish.put_usual(counts, sent, encode_host(connection.peer))
        except Exception as error:  # a bug, and the messages may be stored or not
            return b"".join(self._failures(connection, opaques, error)), len(opaques)
        if stored is None:
            return b"", 0
        count, waiting = len(stored.counts), stored.waiting
        opaques = opaques[:count]
        if waiting:
            later = [opaque if waits else None for opaque, waits in zip(opaques, waiting, strict=True)]
            self._answer_when_durable(connection, later, stored)
            if all(waiting):
                return b"", count
            opaques = [None if waits else opaque for opaque, waits in zip(opaques, waiting, strict=True)]
        return self._answers.formatted(opaques, stored), count

    def _answer_when_durable(self, connection: Connection, opaques: list[int | None], stored: StoredSends) -> None:
        def done(missing: Missing | None) -> None:
            if missing is None:
                connection.send_at_iteration_end(self._answers.formatted(opaques, stored))
                return
            for opaque, published in zip(opaques, stored.each(), strict=True):
                if opaque is not None:
                    answer = self._answers.not_durable(_request(opaque), published, missing)
                    connection.send_at_iteration_end(answer.encode())

        self._publish.when_durable(stored.end, done, stored.waiting.count(True))

    def _failures(self, connection: Connection, opaques: list[int | None], error: Exception) -> Iterator[bytes]:
        for opaque in opaques:
            if opaque is not None:
                yield error_response(connection.peer, _request(opaque), error).encode()

    # Sends alone, of any kind.

    def send(self, request: Request[SendHeader]) -> Reply:
        is_batch = _is_batch(request)
        if is_batch:
            columns = columns_of([request], *self._limits())
            responses, served = self._put(request.connection, *columns) if columns[0] else (b"", 0)
            if served:
                return responses or None
        publish = publish_request(request)
        if not self._publish.has_topic(publish.topic):
            return self._send_to_new_topic(request, publish, is_batch)
        if not is_batch:
            return self._answer(request, self._publish.publish(request.caller, publish))
        steps = self._publish.publish_batch(request.caller, publish)
        try:
            next(steps)
        except StopIteration as stop:
            return self._answer(request, stop.value)
        return self._send_in_slices(request, steps)

    def _serve_alone(self, send: Request[SendHeader]) -> bytes | None:
        connection, command = send.connection, send.command
        try:
            return connection.encode_reply(command, self.send(send))
        except Exception as error:
            return connection.encode_reply(command, error_response(connection.peer, command, error))

    async def _send_to_new_topic(self, request: Request[SendHeader], publish: PublishRequest, is_batch: bool) -> Answer:
        await self._publish.ensure_topic(request.caller, publish)
        if is_batch:
            return await self._send_in_slices(request, self._publish.publish_batch(request.caller, publish))
        return self._answer(request, self._publish.publish(request.caller, publish))

    async def _send_in_slices(self, request: Request[SendHeader], steps: Generator[None, None, Published]) -> Answer:
        return self._answer(request, await in_slices(steps))

    def _answer(self, request: Request[SendHeader], published: Published) -> Answer:
        connection, command = request.connection, request.command
        if not published.must_wait:
            return self._answers.answer(command, published)

        def done(missing: Missing | None) -> None:
            if missing is None:
                connection.answer(command, self._answers.answer(command, published))
            else:
                connection.answer(command, self._answers.not_durable(command, published, missing))

        self._publish.when_durable(published.end, done)
        return None


def _endpoints(handler: Handler[SendHeader]) -> Endpoints:
    v1, v2 = SendMessageRequestHeader, SendMessageRequestHeaderV2
    return (
        Endpoint(RequestCode.SEND_MESSAGE, Action.PUBLISH, handler, v1, published_topic),
        Endpoint(RequestCode.SEND_MESSAGE_V2, Action.PUBLISH, handler, v2, published_topic),
        Endpoint(RequestCode.SEND_BATCH_MESSAGE, Action.PUBLISH, handler, v2, published_topic),
    )


def _is_batch(send: Request[SendHeader]) -> bool:
    batch = send.content.batch
    return send.command.code == _SEND_BATCH or (batch != "false" and (is_true(batch) or batch == "1"))


def _request(opaque: int) -> RemotingCommand:
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, {}, opaque=opaque)
