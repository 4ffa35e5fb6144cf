"""Transactional messages: half messages, their commit or rollback, and checks of those that stay open.

A half message (TRAN_MSG=true) is stored in RMQ_SYS_TRANS_HALF_TOPIC; REAL_TOPIC and REAL_QID name its target queue. A
commit puts the message into its target queue (sysFlag COMMIT, preparedTransactionOffset = physical offset of the half
message). Commit and rollback both put an op message into RMQ_SYS_TRANS_OP_HALF_TOPIC, with tag `d` and the queue offset
of the half message as body. A half message without an op message is open.

    half queue    e e e o e o o e        e ended, o open
                        ^ half_begin: everything before is ended, or continues as a copy at the end of the queue
    op queue      0 2 1 4 7              op messages, in the order of the ends

A half message that is open for longer than transactionTimeOut is copied to the end of its queue, with
TRANSACTION_CHECK_TIMES incremented, and a producer of its group receives a check request. After transactionCheckMax
checks it moves to TRANS_CHECK_MAX_TIME_TOPIC, from where `resume` opens it again. After fileReservedTime without a
producer it moves, too.

It waits in its place while no producer of the group is connected, and until CHECK_IMMUNITY_TIME_IN_SECONDS has passed,
which replaces the timeout for one message. `half_begin` waits with it, so those after it are not copied either: they
are checked in their places, with the checks counted in memory, and discarded when they come first. One that waits is
copied without a check, with the queue offset of the first in TRAN_PREPARED_QUEUE_OFFSET, eight times in
fileReservedTime, after many ended ones, and before its log file is deleted (see `broker.delivery.rolling`).

The progress in both queues is stored as consumer offsets of CID_RMQ_SYS_TRANS. After a restart, later op messages show
which half messages after `half_begin` are ended.

A committed message is delivered at least once; one that was rolled back or never ended is not delivered. A power
failure can lose the op message of a commit and keep the message before it: a half message that is older than the start,
or was checked, is looked up in the index before it is committed. So duplicates are possible only without an index, or a
unique key, after such a power failure, a crash during a check, a restart between a check and a late end that refers to
the message before the check, a stop while the op message of a commit cannot be put, or if a broker becomes master with
offsets that lag (see `broker.replication.pending_progress` and `broker.delivery.kinds`).

A half message is refused if it could not be committed: if its delay cannot be parsed, or its properties leave no space
for those that checks and the commit add. A put that fails leaves the transaction open (see
`broker.delivery.internal_puts`); only the op message of a finished commit is remembered and retried.

Corresponds to `TransactionalMessageServiceImpl`, `TransactionalMessageBridge` and `EndTransactionProcessor` of Apache
RocketMQ 4.9.8. Deliberate differences: an end that is repeated, or refers to the message before a check, counts once;
a half message without a producer waits, where Apache copies it at each check and discards it after transactionCheckMax
checks; only discarded messages can be resumed, each once, and not after a late commit; a transactional message with a
delay is delayed after its commit, where Apache loses it; an end of a message that a crash has taken is refused, where
Apache ends another one of its group that has its offsets now.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rucola import refusals, slices
from rucola.access import Refused
from rucola.broker.background.scheduler import in_thread
from rucola.broker.config import BrokerConfig
from rucola.broker.delivery.due_delivery import DELIVERY_BATCH, indexed
from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.delivery.progress import Delivery
from rucola.broker.delivery.timer import redirect_delayed
from rucola.broker.stored_message import is_another, renewed, stored_message
from rucola.broker.tables.offsets import (
    CONSUMER_OFFSET_FILE,
    TRANSACTION_GROUP,
    ConsumerOffsetTable,
    offset_key,
    parse_consumer_offsets,
)
from rucola.broker.tables.topics import TopicConfigTable
from rucola.domain.pending import DueCounts
from rucola.errors import InvalidMessage
from rucola.message import MessageExt, MessageInner, properties, sysflag
from rucola.message.hashing import tags_code
from rucola.message.record import encode, peek
from rucola.message.topics import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from rucola.slices import in_slices
from rucola.store.config import PutMessageStatus, PutResult
from rucola.store.features import LMQ_OFFSET_FILE
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

P = TypeVar("P")

REMOVE_TAG = "d"

_HALF_QUEUE = (TRANS_HALF_TOPIC, 0)
_OP_QUEUE = (TRANS_OP_HALF_TOPIC, 0)
_UNITS_PER_READ = 1000
_HOUR_MS = 3_600_000

_WAITING_COPIES = 8
"""Copies of a half message without a producer to check, in fileReservedTime."""

ENDED_MAX = 10_000
"""Ended half messages after an open one, beyond which the open one is copied so that they can be passed."""

SEGMENT_SIZE = 1024
"""Half messages that a check skips together while all of them wait."""

RESERVED_PROPERTIES_SIZE = 128
"""Bytes that the properties of a half message must leave free: checks and the commit add up to 110."""


class _Segment:
    """The condition that the waiting messages of a segment wait for."""

    def __init__(self) -> None:
        self.groups: set[tuple[str, str]] = set()
        """(group, topic) without a producer."""
        self.until_ms: float = math.inf
        """When the first immunity time passes; 0 if a message does not wait."""


class _Visit(enum.Enum):
    """The outcome of a check of a half message."""

    STOP = "the check ends here"
    STAYS = "it keeps its place"
    MOVED = "it was copied or discarded"


class TransactionEnd(NamedTuple):
    """The end of a transaction, whose half message has these offsets; `outcome` is TRANSACTION_COMMIT or _ROLLBACK."""

    producer_group: str
    half_queue_offset: int
    physical_offset: int
    outcome: int
    unique_key: str | None = None


class TransactionCheckRequest(NamedTuple):
    """A question for a producer group how a transaction ended; `record` is the encoded half message."""

    group: str
    half_queue_offset: int
    physical_offset: int
    unique_key: str | None
    offset_msg_id: str
    record: bytes


class TransactionalMessageService(Delivery["Mapping[str, int]"]):
    """The transactions of one store."""

    name = "transactions"
    file = None
    copied_with = "GET_ALL_CONSUMER_OFFSET"

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        puts: InternalPuts,
        topics: TopicConfigTable,
        offsets: ConsumerOffsetTable,
        delay_level_count: int,
    ) -> None:
        self._store = store
        self._puts = puts
        self._topics = topics
        self._offsets = offsets
        self._store_host = config.store_host
        self._delay_level_count = delay_level_count
        self._timeout_ms = config.transaction_time_out
        self._check_max = config.transaction_check_max
        # Half messages are identified by their queue offsets.
        self._half_begin = 0
        self._loaded_begin = 0
        """`_half_begin` after `load`. How earlier half messages ended is not known."""
        self._op_end = 0
        """End offset of the op messages that were read or put."""
        self._ended: dict[int, int] = {}
        """Ended half messages from `_half_begin`, with the queue offsets of their op messages."""
        self._committed_without_op: set[int] = set()
        """Committed half messages whose op message could not be put yet."""
        self._copies: dict[int, int] = {}
        """Half messages that were replaced by a copy, with the queue offset of the copy."""
        self._checked: dict[int, int] = {}
        """Half messages that were checked in their place, with TRANSACTION_CHECK_TIMES."""
        self._waiting: dict[int, _Segment] = {}
        """Segments of half messages that were visited completely, by queue offset divided by SEGMENT_SIZE."""
        self._segment = _Segment()
        self._discarded: dict[int, int] = {}
        """Half messages in TRANS_CHECK_MAX_TIME_TOPIC, with the physical offset there; a late end still applies."""

    def load(self) -> None:
        """Read from the store which transactions are open."""
        self._half_begin = self._loaded_begin = self._first_needed(*_HALF_QUEUE)
        self._loaded_end = self._store.max_offset(*_HALF_QUEUE)
        self._op_end = self._first_needed(*_OP_QUEUE)
        # Op messages before the committed offset refer only to half messages before `_half_begin`.
        while units := self._store.units(*_OP_QUEUE, self._op_end, _UNITS_PER_READ):
            for queue_offset, (physical_offset, _, _) in enumerate(units, self._op_end):
                try:
                    op = stored_message(self._store, physical_offset)
                except InvalidMessage as error:
                    logger.error(
                        "skipping an op message that cannot be read; its transaction may be checked again: %s", error
                    )
                    continue
                if op.tags == REMOVE_TAG and op.body.isdigit():
                    self._ended[int(op.body)] = queue_offset
            self._op_end += len(units)
        self._advance_half_begin()

    def _first_needed(self, topic: str, queue_id: int) -> int:
        committed = self._offsets.get(TRANSACTION_GROUP, topic, queue_id)
        return max(self._store.min_offset(topic, queue_id), min(committed, self._store.max_offset(topic, queue_id)))

    def progress(self) -> Mapping[str, int]:
        """Return the offsets in the half and op queues, by topic, before which no message is needed."""
        # A restart needs the op message of each half message that ended after `_half_begin`. In the picture above,
        # `_ended` is {4: 3, 7: 4}: the half queue continues at 3, and the op queue at 3, too.
        op = min(self._ended.values(), default=self._op_end)
        return {TRANS_HALF_TOPIC: self._half_begin, TRANS_OP_HALF_TOPIC: op}

    async def persist(self, progress: Mapping[str, int], log_end: int) -> None:
        self._offsets.commit_transactions(progress, log_end)
        await in_thread(await in_slices(self._offsets.snapshot_steps()))

    def parse_copy(self, document: Any) -> Mapping[str, int] | None:
        offsets = parse_consumer_offsets("the master's response", document)
        progress = {
            topic: offsets[key][0]
            for topic, _ in (_HALF_QUEUE, _OP_QUEUE)
            if 0 in offsets.get(key := offset_key(TRANSACTION_GROUP, topic), {})
        }
        return progress or None

    def due_steps(self, now_ms: int) -> Generator[None, None, DueCounts]:
        """Count the open half messages, by the time of their first check, in small steps."""
        begin, end = max(self._half_begin, self._store.min_offset(*_HALF_QUEUE)), self._store.max_offset(*_HALF_QUEUE)
        due = DueCounts()

        def due_ms(queue_offset: int) -> int:
            units = self._store.units(*_HALF_QUEUE, queue_offset, 1)
            record = self._store.record_at(units[0][0]) if units else None
            return (peek(record).store_timestamp if record is not None else now_ms) + self._timeout_ms

        # The queue is ordered by store time.
        due.add_ordered(begin, end, due_ms, now_ms)
        for queue_offset in [one for one in self._ended if begin <= one < end]:
            due.add(due_ms(queue_offset), now_ms, -1)
            yield
        return due

    # -- prepare -------------------------------------------------------------------------------------------------------

    def prepare(self, topic: str, queue_id: int, pairs: dict[str, str], now_ms: int) -> tuple[str, int]:
        """Return the half queue, and add the target queue to `pairs`. InvalidMessage if it could not be committed."""
        redirect_delayed(topic, queue_id, dict(pairs), self._delay_level_count, now_ms)
        pairs[properties.REAL_TOPIC] = topic
        pairs[properties.REAL_QID] = str(queue_id)
        size, limit = len(properties.join(pairs)), properties.MAX_PROPERTIES_SIZE - RESERVED_PROPERTIES_SIZE
        if size > limit:
            raise InvalidMessage(f"a half message with {size} bytes of properties; {limit} are allowed")
        return _HALF_QUEUE

    # -- end -----------------------------------------------------------------------------------------------------------

    def end(
        self,
        request: TransactionEnd,
        now_ms: int,
        check_topic: Callable[[str], None] = lambda topic: None,
    ) -> str | None:
        """Commit or roll back a half message, named by the physical offset of the first or of any copy.

        Returns None, or why it could not be stored. Raises Refused, as `check_topic` may.
        """
        # 1. Validate the request against the half message it refers to.
        try:
            half = self._half_of(request)
        except InvalidMessage as error:
            raise Refused(refusals.HALF_NOT_FOUND, why=error) from None
        if half.topic != TRANS_HALF_TOPIC:
            raise Refused(refusals.HALF_NOT_FOUND, why=f"there is none at {request.physical_offset}")
        if half.properties.get(properties.PGROUP) != request.producer_group:
            raise Refused(refusals.HALF_OF_OTHER_GROUP, group=request.producer_group)
        # 2. Follow the copies of earlier checks: the op message must name the newest one.
        newest = self._newest(half.queue_offset)
        if newest != self._newest(request.half_queue_offset):
            raise Refused(refusals.HALF_OFFSET_WRONG, offset=half.queue_offset)
        check_topic(half.properties.get(properties.REAL_TOPIC, ""))
        # 3. Ignore a repeated end. Before `_half_begin`, everything is ended, except what was discarded.
        if newest in self._ended or newest in self._committed_without_op:
            return None
        if self._loaded_begin <= newest < self._half_begin and newest not in self._discarded:
            return None
        # 4. Commit: first the message, then the op message. Between the two, the message counts as committed, so that
        #    a repeated end does not deliver it twice.
        if request.outcome == sysflag.TRANSACTION_COMMIT:
            if not self._was_committed(half):
                try:
                    put = self._put_committed(half, now_ms)
                except (KeyError, ValueError) as error:
                    return f"the message cannot be committed: {error!r}"
                if put.status is not PutMessageStatus.PUT_OK:
                    return self._puts.reason(put)
            self._committed_without_op.add(newest)
            self._put_missing_ops(now_ms)
            return None
        # 5. Roll back: only the op message.
        put = self._put_op(newest, now_ms)
        return None if put.status is PutMessageStatus.PUT_OK else self._puts.reason(put)

    def _half_of(self, request: TransactionEnd) -> MessageExt:
        """Return the half message of an end, or its newest copy if retention has deleted it. Raises InvalidMessage."""
        copy, physical_offset = self._newest(request.half_queue_offset), request.physical_offset
        if physical_offset < self._store.min_physical_offset and copy != request.half_queue_offset:
            units = self._store.units(*_HALF_QUEUE, copy, 1)
            physical_offset = units[0][0] if units else -1
        half = stored_message(self._store, physical_offset)
        # The offsets can be those of a message that a crash has taken, and of which the producer has a SEND_OK.
        if is_another(half, request.unique_key):
            raise InvalidMessage(f"offset {request.half_queue_offset} belongs to another transaction")
        return half

    def _newest(self, half_queue_offset: int) -> int:
        while half_queue_offset in self._copies:
            half_queue_offset = self._copies[half_queue_offset]
        return half_queue_offset

    def _was_committed(self, half: MessageExt) -> bool:
        """Whether a half message was committed before a crash that has lost its op message, according to the index."""
        if half.queue_offset >= self._loaded_end and properties.TRANSACTION_CHECK_TIMES not in half.properties:
            return False
        is_copy = properties.TRANSACTION_CHECK_TIMES in half.properties  # the message before it may be committed
        begin_ms = max(0, min(half.born_timestamp, half.store_timestamp) - _HOUR_MS)
        committed = self._continued(half, 0 if is_copy else half.physical_offset, begin_ms=begin_ms)
        return any(sysflag.transaction_state(found.sys_flag) == sysflag.TRANSACTION_COMMIT for found in committed)

    def _put_committed(self, half: MessageExt, now_ms: int) -> PutResult:
        pairs = half.properties
        own_queue = (pairs[properties.REAL_TOPIC], int(pairs[properties.REAL_QID]))
        try:
            half.topic, half.queue_id = redirect_delayed(*own_queue, pairs, self._delay_level_count, now_ms)
        except InvalidMessage as error:  # admitted by another broker, which did not validate the delay
            logger.error("committing message %s without its delay: %s", half.msg_id, error)
            half.topic, half.queue_id = own_queue
        if half.topic == TIMER_TOPIC:
            self._topics.ensure_timer_topic(now_ms)
        half.sys_flag = sysflag.with_transaction_state(half.sys_flag, sysflag.TRANSACTION_COMMIT)
        half.prepared_transaction_offset = half.physical_offset
        return self._puts.put_again("commit", half, now_ms)

    def _put_missing_ops(self, now_ms: int, *, is_roll: bool = False) -> bool:
        for half_queue_offset in sorted(self._committed_without_op):
            if self._put_op(half_queue_offset, now_ms, is_roll=is_roll).status is not PutMessageStatus.PUT_OK:
                return False
            self._committed_without_op.discard(half_queue_offset)
        return True

    def _put_op(self, half_queue_offset: int, now_ms: int, *, is_roll: bool = False) -> PutResult:
        op = MessageInner(
            *_OP_QUEUE,
            body=b"%d" % half_queue_offset,
            properties=properties.join({properties.TAGS: REMOVE_TAG, properties.WAIT: "true"}),
            flag=0,
            sys_flag=0,
            born_timestamp=now_ms,
            born_host=self._store_host,
            tags_code=tags_code(REMOVE_TAG),
        )
        put = self._puts.put("op message", op, now_ms, is_roll=is_roll)
        if put.status is PutMessageStatus.PUT_OK:
            self._ended[half_queue_offset] = put.queue_offset
            self._op_end = put.queue_offset + 1
            self._discarded.pop(half_queue_offset, None)
            self._advance_half_begin()
        return put

    def _advance_half_begin(self) -> None:
        # Ends come in any order: the end of half message 3 moves the begin over 3 and all that follow without a gap.
        while self._ended.pop(self._half_begin, None) is not None:
            self._half_begin += 1

    # -- check ---------------------------------------------------------------------------------------------------------

    def check(
        self, now_ms: int, find_producer: Callable[[str, str], P | None]
    ) -> Iterator[tuple[P, TransactionCheckRequest] | None]:
        """Yield a producer, by `find_producer(group, topic)`, and a check request for each half message that timed out.

        Visits the half messages that exist at the first step, but skips segments in which all wait, and yields None for
        those without a request. Other methods may be called between two steps. Ends early at a message that is too
        young, since all later ones are younger, and at a failed put.
        """
        if not self._put_missing_ops(now_ms):
            return
        end = self._store.max_offset(*_HALF_QUEUE)  # copies of this check come later, and wait for the next
        offset = self._half_begin = max(self._half_begin, self._store.min_offset(*_HALF_QUEUE))
        self._checked = {half: times for half, times in self._checked.items() if half >= offset}
        self._waiting = {number: one for number, one in self._waiting.items() if number * SEGMENT_SIZE > offset}
        is_whole = False
        while True:
            self._advance_half_begin()
            offset = max(offset, self._half_begin)
            if offset >= end:
                break
            number, position = divmod(offset, SEGMENT_SIZE)
            if not position:
                waiting = self._waiting.pop(number, None)
                if waiting is not None and offset > self._half_begin and _waits(waiting, now_ms, find_producer):
                    self._waiting[number] = waiting
                    offset += SEGMENT_SIZE
                    yield None
                    continue
                is_whole, self._segment = True, _Segment()
            if offset in self._committed_without_op:
                return
            half = self._half_at(offset) if offset not in self._ended else None
            visit, request = _Visit.MOVED, None
            if half is not None:
                visit, request = self._check_one(half, now_ms, find_producer)
            if visit is _Visit.STOP:
                return
            if visit is _Visit.MOVED and offset == self._half_begin:
                self._half_begin += 1  # before the yield: the producer's end may arrive during it
            if request is not None:
                self._segment.until_ms = 0
            if position == SEGMENT_SIZE - 1 and is_whole:
                self._waiting[number] = self._segment
            offset += 1
            yield request
        self._forget_ended()

    def _check_one(
        self, half: MessageExt, now_ms: int, find_producer: Callable[[str, str], P | None]
    ) -> tuple[_Visit, tuple[P, TransactionCheckRequest] | None]:
        """Return what was done with a half message, and the request to send. The first case that applies decides:

        its original was ended before a restart                   put its op message
        transactionCheckMax checks were made                      move it to TRANS_CHECK_MAX_TIME_TOPIC
        its own immunity time has not passed                      let it wait
        no immunity time, and younger than transactionTimeOut     stop here
        no producer is connected, for fileReservedTime now        move it to TRANS_CHECK_MAX_TIME_TOPIC
        no producer is connected                                  let it wait
        otherwise                                                 copy it, and ask a producer of its group

        After one that waits, messages keep their places: they are checked there, and discarded later.
        """
        if self._is_ended_by_first(half):
            return self._moved(self._put_op(half.queue_offset, now_ms).status is PutMessageStatus.PUT_OK)
        pairs = half.properties
        is_first = half.queue_offset == self._half_begin
        checked = _number(pairs.get(properties.TRANSACTION_CHECK_TIMES))
        if checked >= self._check_max:
            return self._moved(self._discard(half, now_ms)) if is_first else (_Visit.STAYS, None)
        age_ms = now_ms - half.born_timestamp
        immune_ms = self._immunity_ms(pairs)
        if immune_ms is not None and age_ms < immune_ms:
            self._segment.until_ms = min(self._segment.until_ms, half.born_timestamp + immune_ms)
            return self._wait(half, now_ms)
        if immune_ms is None and 0 <= age_ms < self._timeout_ms:
            return _Visit.STOP, None
        group, topic = pairs.get(properties.PGROUP, ""), pairs.get(properties.REAL_TOPIC, "")
        producer = find_producer(group, topic)
        if producer is None:
            self._segment.groups.add((group, topic))
            # The clock of the producer may be wrong: the broker's must agree, by the first copy without a check.
            first = _number(pairs.get(properties.TRAN_PREPARED_QUEUE_OFFSET), half.queue_offset)
            since_ms = max(half.born_timestamp, self._store.store_time(*_HALF_QUEUE, first))
            if is_first and now_ms - since_ms >= self._reserved_ms:
                return self._moved(self._discard(half, now_ms))
            return self._wait(half, now_ms)
        pairs[properties.TRANSACTION_CHECK_TIMES] = str(checked + 1)
        if not is_first:
            try:
                request = self._check_request(half, half.queue_offset, half.physical_offset)
            except InvalidMessage:  # no space for the property: discarded when it is the first
                return _Visit.STAYS, None
            self._checked[half.queue_offset] = checked + 1
            return _Visit.STAYS, (producer, request)
        copied = self._copy(half, now_ms)
        if copied is None or copied.status is not PutMessageStatus.PUT_OK:
            return self._moved(copied is not None)
        return _Visit.MOVED, (producer, self._check_request(half, copied.queue_offset, copied.physical_offset))

    def _wait(self, half: MessageExt, now_ms: int) -> tuple[_Visit, None]:
        """Leave a half message in its place, or copy it so that what comes after it can be passed."""
        stored_ms = now_ms - half.store_timestamp
        is_due = stored_ms >= self._reserved_ms // _WAITING_COPIES or len(self._ended) > ENDED_MAX
        if is_due and half.queue_offset == self._half_begin:
            return self._moved(self._copy_unchecked(half, now_ms))
        return _Visit.STAYS, None

    @staticmethod
    def _moved(succeeded: bool) -> tuple[_Visit, None]:
        return _Visit.MOVED if succeeded else _Visit.STOP, None

    def _copy_unchecked(self, half: MessageExt, now_ms: int, *, is_roll: bool = False) -> bool:
        half.properties.setdefault(properties.TRAN_PREPARED_QUEUE_OFFSET, str(half.queue_offset))
        return self._copy(half, now_ms, is_roll=is_roll) is not None

    def roll_some(self, file_end: int, now_ms: int) -> bool | None:
        if not self._put_missing_ops(now_ms, is_roll=True):
            return False
        self._half_begin = max(self._half_begin, self._store.min_offset(*_HALF_QUEUE))
        for _ in range(DELIVERY_BATCH):
            self._advance_half_begin()
            units = self._store.units(*_HALF_QUEUE, self._half_begin, 1)
            if not units or units[0][0] >= file_end:
                return True
            half = self._half_at(self._half_begin)
            # Once the message that it was committed to is deleted, too, a check could not find that.
            is_ended = half is None or self._is_ended_by_first(half) or self._was_committed(half)
            if half is not None and not (is_ended or self._copy_unchecked(half, now_ms, is_roll=True)):
                return False
            self._half_begin += 1
        return None

    @property
    def _reserved_ms(self) -> int:
        return self._store.config.file_reserved_time * _HOUR_MS

    def _half_at(self, queue_offset: int) -> MessageExt | None:
        units = self._store.units(*_HALF_QUEUE, queue_offset, 1)
        try:
            half = stored_message(self._store, units[0][0] if units else -1)
        except InvalidMessage as error:
            logger.error("the half message at offset %d of %s is skipped: %s", queue_offset, TRANS_HALF_TOPIC, error)
            return None
        if queue_offset in self._checked:
            half.properties[properties.TRANSACTION_CHECK_TIMES] = str(self._checked[queue_offset])
        return half

    def _is_ended_by_first(self, half: MessageExt) -> bool:
        """Whether the original of this copy was ended before a restart."""
        first = half.properties.get(properties.TRAN_PREPARED_QUEUE_OFFSET)
        return first is not None and _number(first, -1) in self._ended

    def _copy(self, half: MessageExt, now_ms: int, *, is_roll: bool = False) -> PutResult | None:
        """Put a copy at the end of the half queue; None if that failed. Discards a message without space for it."""
        try:
            renewed(half)
        except InvalidMessage:
            unchanged = stored_message(self._store, half.physical_offset)
            is_discarded = self._discard(unchanged, now_ms, is_roll=is_roll)
            return PutResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED) if is_discarded else None
        kind = "transaction roll" if is_roll else "transaction check"
        result = self._puts.put_again(kind, half, now_ms, is_roll=is_roll)
        if result.status is not PutMessageStatus.PUT_OK:
            return None
        self._copies[half.queue_offset] = result.queue_offset
        return result

    def _discard(self, half: MessageExt, now_ms: int, *, is_roll: bool = False) -> bool:
        self._topics.ensure(TRANS_CHECK_MAX_TIME_TOPIC, 1, now_ms)
        half.topic, half.queue_id = TRANS_CHECK_MAX_TIME_TOPIC, 0
        put = self._puts.put_again("transaction check", half, now_ms, is_roll=is_roll)
        if put.status is not PutMessageStatus.PUT_OK:
            return False
        logger.error(
            "the transaction of message %s for %s was not ended by group %s; moving it to %s",
            half.msg_id, half.properties.get(properties.REAL_TOPIC), half.properties.get(properties.PGROUP),
            TRANS_CHECK_MAX_TIME_TOPIC,
        )  # fmt: skip
        self._discarded[half.queue_offset] = put.physical_offset
        return True

    def resume(self, physical_offset: int, now_ms: int) -> str | None:
        """Reopen the discarded transaction at `physical_offset`; return None, or the remark of a refusal."""
        try:
            half = stored_message(self._store, physical_offset)
        except InvalidMessage as error:
            return str(error)
        if half.topic != TRANS_CHECK_MAX_TIME_TOPIC:
            return (
                f"message {half.msg_id} is in {half.topic}; only messages in {TRANS_CHECK_MAX_TIME_TOPIC} are resumed"
            )
        later = next(self._continued(half, physical_offset, TRANS_HALF_TOPIC), None)
        if later is not None:
            what = "resumed" if later.topic == TRANS_HALF_TOPIC else "committed"
            return f"message {half.msg_id} was {what} before: it is in {later.topic} at {later.physical_offset}"
        half.topic, half.queue_id = _HALF_QUEUE
        half.properties[properties.TRANSACTION_CHECK_TIMES] = "0"
        half.properties.pop(properties.TRAN_PREPARED_QUEUE_OFFSET, None)
        put = self._puts.put_again("transaction resume", half, now_ms)
        if put.status is not PutMessageStatus.PUT_OK:
            return self._puts.reason(put)
        for first, discarded in list(self._discarded.items()):
            if discarded == physical_offset:  # an end that refers to the discarded message applies to this one
                self._copies[first] = put.queue_offset
                del self._discarded[first]
        return None

    def _continued(self, half: MessageExt, since: int, *topics: str, begin_ms: int = 0) -> Iterator[MessageExt]:
        """Yield the messages that a half message became after a physical offset, according to the index."""
        for topic in (*topics, half.properties.get(properties.REAL_TOPIC, ""), SCHEDULE_TOPIC, TIMER_TOPIC):
            for found in indexed(self._store, topic, half.unique_key, since, begin_ms):
                if _identity(found) == _identity(half):
                    yield found

    def _immunity_ms(self, pairs: Mapping[str, str]) -> int | None:
        """CHECK_IMMUNITY_TIME_IN_SECONDS, fileReservedTime at most; None unless it has 64 bits, as in Apache."""
        seconds = _number(pairs.get(properties.CHECK_IMMUNITY_TIME_IN_SECONDS), -1)
        return None if seconds == -1 or abs(seconds) >= 1 << 63 else min(seconds * 1000, self._reserved_ms)

    def _check_request(self, half: MessageExt, queue_offset: int, physical_offset: int) -> TransactionCheckRequest:
        pairs = half.properties
        half.topic = pairs.get(properties.REAL_TOPIC, half.topic)
        half.queue_id = _number(pairs.get(properties.REAL_QID))
        position = (queue_offset, physical_offset, half.store_timestamp, self._store_host)
        half.physical_offset = physical_offset
        return TransactionCheckRequest(
            pairs.get(properties.PGROUP, ""),
            queue_offset,
            physical_offset,
            half.unique_key,
            half.offset_msg_id,
            encode(renewed(half), *position),
        )

    def _forget_ended(self) -> None:
        # Entries before `_half_begin` serve to recognize the copies of ended messages (`_is_ended_by_first`). All
        # copies were visited now; keeping the entries would hold back the offset of the op queue.
        self._ended = {half: op for half, op in self._ended.items() if half >= self._half_begin}
        open_copies: dict[int, int] = {}
        for half, copy in sorted(self._copies.items(), reverse=True):  # descending: a copy comes after its original
            if copy >= self._half_begin or copy in open_copies or copy in self._discarded:
                open_copies[half] = copy
        self._copies = open_copies


def _waits(segment: _Segment, now_ms: int, find_producer: Callable[[str, str], object]) -> bool:
    return now_ms < segment.until_ms and not any(find_producer(*pair) for pair in segment.groups)


def reset_transactions(config_directory: Path) -> None:
    """Remove the progress of a stopped broker. Raises OSError and StoreCorrupt."""
    for name in (CONSUMER_OFFSET_FILE, LMQ_OFFSET_FILE):
        offsets = ConsumerOffsetTable(config_directory / name)
        offsets.load(None)
        offsets.reset_transactions()
        slices.run(offsets.snapshot_steps())()


def _identity(message: MessageExt) -> tuple[object, ...]:
    return message.unique_key, message.born_timestamp, message.body_crc


def _number(text: str | None, default: int = 0) -> int:
    try:
        return int(text) if text is not None else default
    except ValueError:
        return default
