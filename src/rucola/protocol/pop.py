"""POP of RocketMQ 5: POP_MESSAGE (200050), ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151),
CHANGE_MESSAGE_INVISIBLETIME (200053), POLLING_INFO (200055).

A handle of a received message is a text with eight parts:

    40 1700000000000 60000 0 0 broker-a 3 42
    |  |             |     | | |        | its queue offset
    |  |             |     | | |        its queue id
    |  |             |     | | name of the broker
    |  |             |     | 1 for the retry topic %RETRY%group_topic, else 0
    |  |             |     999 for a receive in order, else 0
    |  |             the time for which no other receive returns it, ms
    |  the time of the receive, ms; greater than that of any earlier one of its queue
    the lowest queue offset of this receive in its queue

The client makes it from a response, in which the parts of several queues are separated by `;`:

    startOffsetInfo   0 3 40;1 0 7                 retry topic or not, queue id, lowest queue offset
    msgOffsetInfo     0 3 40,42;1 0 7              ..., all queue offsets
    orderCountInfo    0 qo3%42 2                   ..., how often it was delivered before; only in order

Records of a retry topic have the requested topic, and the handle as property POP_CK.

Corresponds to `ExtraInfoUtil` and the headers of Apache RocketMQ 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from rucola.errors import RemoteProtocolError
from rucola.message import MessageExt, properties
from rucola.message.message import add_properties
from rucola.message.topics import pop_retry_topic
from rucola.protocol.body import Body
from rucola.protocol.command import Header

ORDER_QUEUE: Final = 999
"""The `revive_qid` of a receive in order."""
BEGIN_AT_END: Final = 1
"""`init_mode`: a group without an offset begins at the end of a queue."""
MAX_BITS: Final = 1 << 16
"""Bytes of the bit sets of one BATCH_ACK_MESSAGE."""
MAX_ACKS: Final = 4096
"""Messages of one BATCH_ACK_MESSAGE."""
_IS_SET: Final = re.compile(rb"[^\0]")
_BITS: Final = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]
"""The bits of each byte."""
_NORMAL, _RETRY = "0", "1"


class PopMessageRequestHeader(Header, kw_only=True):
    """Up to `max_msg_nums` messages for `invisible_time` ms, after a wait of up to `poll_time` ms."""

    consumer_group: str
    topic: str
    # Negative: all queues of the broker.
    queue_id: int
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    born_time: int = 0
    init_mode: int = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool | str | None = None
    attempt_id: str | None = None
    # Rucola's own: the id of a push consumer, which holds the messages only while it is connected.
    client_id: str | None = None


class PopMessageResponseHeader(Header, kw_only=True):
    pop_time: int
    invisible_time: int
    revive_qid: int
    # Messages that the group has not read yet.
    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(Header, kw_only=True):
    """`topic` is the retry topic for a message from there; `extra_info` is the handle."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int


class ChangeInvisibleTimeRequestHeader(Header, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_time: int
    # Whether this delivery does not count as an attempt.
    suspend: bool | str | None = None


class ChangeInvisibleTimeResponseHeader(Header, kw_only=True):
    """The parts of the handle that are new."""

    pop_time: int
    invisible_time: int
    revive_qid: int


class PollingInfoRequestHeader(Header, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: int


class PollingInfoResponseHeader(Header, kw_only=True):
    polling_num: int


class BatchAck(Struct, kw_only=True):
    """Messages of one receive and one queue: bit n is the queue offset `start_offset` + n."""

    consumer_group: str = field(name="c")
    topic: str = field(name="t")
    # "1": of the retry topic.
    retry: str = field(name="r", default=_NORMAL)
    start_offset: int = field(name="so")
    queue_id: int = field(name="q")
    revive_queue_id: int = field(name="rq", default=0)
    pop_time: int = field(name="pt")
    invisible_time: int = field(name="it")
    # Lowest bit first.
    bit_set: bytes = field(name="b")

    @property
    def real_topic(self) -> str:
        return _real_topic(self.topic, self.consumer_group, self.retry)

    @property
    def count(self) -> int:
        return int.from_bytes(self.bit_set, "little").bit_count()

    def queue_offsets(self) -> Sequence[int]:
        start, bits = self.start_offset, int.from_bytes(self.bit_set, "little")
        first = (bits & -bits).bit_length() - 1
        if bits and (bits >> first) + 1 & bits >> first == 0:  # all of them from the first to the last
            return range(start + first, start + bits.bit_length())
        return [
            start + 8 * found.start() + bit for found in _IS_SET.finditer(self.bit_set) for bit in _BITS[found[0][0]]
        ]


class BatchAckMessageRequestBody(Body, kw_only=True):
    broker_name: str = ""
    acks: list[BatchAck] = []


class ExtraInfo(NamedTuple):
    """A handle."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_qid: int
    retry: str
    broker_name: str
    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return " ".join(map(str, self))

    def real_topic(self, topic: str, group: str) -> str:
        return _real_topic(topic, group, self.retry)


def parse_extra_info(text: str) -> ExtraInfo:
    """Parse a handle. Raises RemoteProtocolError."""
    parts = text.split(" ")
    try:
        start, pop_time, invisible, revive, retry, broker, queue_id, offset = parts
        return ExtraInfo(
            int(start), int(pop_time), int(invisible), int(revive), retry, broker, int(queue_id), int(offset)
        )
    except ValueError as error:
        raise RemoteProtocolError(f"{text[:200]!r} is no handle of a received message ({error})") from None


def retry_mark(*, is_retry: bool) -> str:
    return _RETRY if is_retry else _NORMAL


def order_counts(mark: str, queue_id: int, queue_offsets: Iterable[int], attempts: Iterable[int]) -> list[str]:
    """Return the parts of orderCountInfo: how often messages of a queue were delivered before."""
    pairs = zip(queue_offsets, attempts, strict=True)
    return [f"{mark} qo{queue_id}%{offset} {attempt - 1}" for offset, attempt in pairs if attempt > 1]


def first_handles(
    messages: Sequence[MessageExt], header: PopMessageResponseHeader, broker_name: str
) -> list[ExtraInfo]:
    """Return for each message the handle of the first one of the same queue and receive.

    Adds to the messages of a receive in order how often each was delivered before. Raises RemoteProtocolError.
    """
    firsts: tuple[dict[int, ExtraInfo], dict[int, ExtraInfo]] = {}, {}
    counts = dict(part.rsplit(" ", 1) for part in (header.order_count_info or "").split(";") if part)
    try:
        for part in (header.start_offset_info or "").split(";") if messages else ():
            mark, queue_id, offset = part.split(" ")
            firsts[mark == _RETRY][int(queue_id)] = ExtraInfo(
                int(offset), header.pop_time, header.invisible_time, header.revive_qid, mark, broker_name,
                int(queue_id), int(offset),
            )  # fmt: skip
        if firsts[True]:  # records of a retry topic have their handles
            found = [firsts[properties.POP_CK in one.properties][one.queue_id] for one in messages]
        else:
            normal = firsts[False]
            found = [normal[one.queue_id] for one in messages]
        for message, first in zip(messages, found, strict=True) if counts else ():
            key = f"{first.retry} qo{message.queue_id}%{message.queue_offset}"
            message.reconsume_times += int(counts.get(key, 0))
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(f"broker {broker_name} sent messages without handles ({error!r})") from None
    return found


def add_handle(message: MessageExt, first: ExtraInfo) -> None:
    """Give a message its handle as property POP_CK; `first` is one of `first_handles`."""
    if first.retry == _NORMAL:
        handle = first._replace(queue_offset=message.queue_offset)
        add_properties(message, f"{properties.POP_CK}\x01{handle}".encode())


def _real_topic(topic: str, group: str, retry: str) -> str:
    # Clients name the retry topic themselves, together with its mark.
    retry_topic = pop_retry_topic(group, topic)
    return retry_topic if retry == _RETRY and not topic.startswith(pop_retry_topic(group, "")) else topic


class PopStatusRequestHeader(Header, kw_only=True):
    """GET_POP_STATUS (20007), Rucola's own; the body of the response is a `PopStatus`."""

    consumer_group: str
    topic: str | None = None
    # Show this message of each queue, if it is outstanding, instead of the first ones.
    offset: int | None = None


class ReleasePopRequestHeader(Header, kw_only=True):
    """RELEASE_POP (20008), Rucola's own: let others receive held messages at once."""

    consumer_group: str
    topic: str
    # None: all queues.
    queue_id: int | None = None
    # None: all held messages of the queue.
    offset: int | None = None


class ReleasePopResponseHeader(Header, kw_only=True):
    count: int
