"""Transactions: messages that nobody sees until their producer says so.

A half message (TRAN_MSG=true) is kept in RMQ_SYS_TRANS_HALF_TOPIC, its own place in REAL_TOPIC and REAL_QID. When its
producer ends it, a commit puts it into its own queue (sysFlag COMMIT, preparedTransactionOffset = the half message's
address), and a commit as well as a rollback leave a mark in RMQ_SYS_TRANS_OP_HALF_TOPIC: tag `d`, the half message's
queue offset as body. A half message without a mark is open.

    half queue    e e e o e o o e        e ended, o open
                        ^ half_begin: everything before is ended, or went on as a copy at the end of the queue
    op queue      0 2 1 4 7              marks, in the order of the ends

Open for longer than transactionTimeOut, a half message is copied to the end of its queue with
TRANSACTION_CHECK_TIMES one higher, and its producer group is asked about it. After transactionCheckMax such checks
it goes to TRANS_CHECK_MAX_TIME_TOPIC instead. CHECK_IMMUNITY_TIME_IN_SECONDS takes the place of the timeout for one
message; until then it is copied along, with the queue offset of the first in TRAN_PREPARED_QUEUE_OFFSET.

How far both queues are done with stands in the consumer offsets of CID_RMQ_SYS_TRANS, so everything survives a restart:
the marks from there on say which half messages after `half_begin` are ended.

Promise: a committed message is delivered at least once, and one that was rolled back, or never ended, never. It is
delivered once, whatever is repeated, unless the broker crashes during a check, is started again between a check and a
late end that the producer sends for the message before it, or ends while an op message waits for room on the disk.

What is acknowledged must be able to commit: a half message is refused if its delay cannot be read, or if its properties
leave no room for what checks and the commit add. A put that fails leaves the transaction open (see
`broker.internal_puts`); only an op message, whose commit is done, is kept in memory and retried.

Answers to `TransactionalMessageServiceImpl`, `TransactionalMessageBridge` and `EndTransactionProcessor` of Apache
RocketMQ 4.9.8. Deliberate differences: an end that comes twice, or late, after a check, counts once; copies for
the sake of CHECK_IMMUNITY_TIME do not count as checks; a transactional message with a delay is delayed after its
commit, where Apache loses it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from rucola.broker.config import BrokerConfig
from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.delivery.timer import redirect_delayed
from rucola.broker.stored_message import renewed, stored_message
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.broker.tables.topics import TopicConfigTable
from rucola.errors import InvalidMessage
from rucola.message import MessageExt, MessageInner, properties, sysflag
from rucola.message.hashing import tags_code
from rucola.message.record import encode
from rucola.message.topics import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rucola.protocol.transaction import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rucola.store.config import PutMessageStatus, PutResult
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
REMOVE_TAG = "d"

_HALF_QUEUE = (TRANS_HALF_TOPIC, 0)
_OP_QUEUE = (TRANS_OP_HALF_TOPIC, 0)
_READ_AT_ONCE = 1000

RESERVED_PROPERTIES_SIZE = 128
"""Bytes that the properties of a half message must leave free: TRANSACTION_CHECK_TIMES and TRAN_PREPARED_QUEUE_OFFSET,
which checks add, and TIMER_OUT_MS, which the commit may add, take 110 at most."""


class TransactionCheckRequest(NamedTuple):
    """A question to a producer group: how did this transaction end?"""

    group: str
    header: CheckTransactionStateRequestHeader
    record: bytes


class TransactionOffsets(NamedTuple):
    """The queue offsets before which nothing is needed any more."""

    half: int
    op: int


class TransactionalMessageService:
    """The transactions of one store."""

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
        self._half_begin = 0
        self._known_from = 0  # of half messages before this one it is not known whether they were ended or copied
        self._op_end = 0
        self._ended: dict[int, int] = {}  # queue offset of the half message -> that of its mark
        self._unmarked: set[int] = set()  # queue offsets of half messages that are committed without a mark as yet
        self._copies: dict[int, int] = {}  # queue offset of a half message -> that of the copy that took its place
        self._discarded: set[int] = set()  # queue offsets of half messages that were laid aside and may yet be ended

    def load(self) -> None:
        """Read from the store which transactions are open."""
        self._half_begin = self._known_from = self._first(*_HALF_QUEUE)
        self._op_end = self._first(*_OP_QUEUE)
        while units := self._store.units(*_OP_QUEUE, self._op_end, _READ_AT_ONCE):
            for queue_offset, (physical_offset, _, _) in enumerate(units, self._op_end):
                try:
                    mark = stored_message(self._store, physical_offset)
                except InvalidMessage as error:
                    logger.error("an op message cannot be read; its transaction may be checked again: %s", error)
                    continue
                if mark.tags == REMOVE_TAG and mark.body.isdigit():
                    self._ended[int(mark.body)] = queue_offset
            self._op_end += len(units)
        self._pass_ended()

    def _first(self, topic: str, queue_id: int) -> int:
        noted = self._offsets.get(TRANSACTION_GROUP, topic, queue_id)
        return max(self._store.min_offset(topic, queue_id), min(noted, self._store.max_offset(topic, queue_id)))

    def offsets(self) -> TransactionOffsets:
        """How far both queues are done with now."""
        return TransactionOffsets(self._half_begin, min(self._ended.values(), default=self._op_end))

    def commit_offsets(self, progress: TransactionOffsets) -> None:
        """Note progress, once everything that was put before it was taken is on disk."""
        self._offsets.commit(TRANSACTION_GROUP, *_HALF_QUEUE, progress.half)
        self._offsets.commit(TRANSACTION_GROUP, *_OP_QUEUE, progress.op)

    # A half message comes.

    def prepare(self, topic: str, queue_id: int, pairs: dict[str, str], now_ms: int) -> tuple[str, int]:
        """Return where a half message for this queue goes. Notes its own place in `pairs`.

        Raises InvalidMessage for a message that could not be committed.
        """
        redirect_delayed(topic, queue_id, dict(pairs), self._delay_level_count, now_ms)
        pairs[properties.REAL_TOPIC] = topic
        pairs[properties.REAL_QID] = str(queue_id)
        size, most = len(properties.join(pairs)), properties.MAX_PROPERTIES_SIZE - RESERVED_PROPERTIES_SIZE
        if size > most:
            raise InvalidMessage(f"half of a transaction with {size} bytes of properties; {most} are allowed")
        self._topics.ensure(TRANS_HALF_TOPIC, 1, now_ms)
        return _HALF_QUEUE

    # It is ended.

    def end(self, header: EndTransactionRequestHeader, now_ms: int) -> str | None:
        """Commit or roll back. Returns why that cannot be, or None when it is done."""
        try:
            half = stored_message(self._store, header.commit_log_offset)
        except InvalidMessage as error:
            return f"Find prepared transaction message failed: {error}"
        if half.topic != TRANS_HALF_TOPIC:
            return f"Find prepared transaction message failed: there is none at {header.commit_log_offset}"
        if half.properties.get(properties.PGROUP) != header.producer_group:
            return f"The producer group wrong: {header.producer_group} did not send this message"
        if half.queue_offset != header.tran_state_table_offset:
            return f"The transaction state table offset wrong: it is {half.queue_offset}"
        newest = half.queue_offset
        while newest in self._copies:
            newest = self._copies[newest]
        if newest in self._ended or newest in self._unmarked:
            return None
        if self._known_from <= newest < self._half_begin and newest not in self._discarded:
            return None
        if header.commit_or_rollback == sysflag.TRANSACTION_COMMIT:
            try:
                put = self._put_committed(half, now_ms)
            except (KeyError, ValueError) as error:
                return f"the message cannot be committed: {error!r}"
            if put.status is not PutMessageStatus.PUT_OK:
                return self._puts.reason(put)
            self._unmarked.add(newest)
            self._mark_committed(now_ms)
            return None
        marked = self._mark(newest, now_ms)
        return None if marked.status is PutMessageStatus.PUT_OK else self._puts.reason(marked)

    def _put_committed(self, half: MessageExt, now_ms: int) -> PutResult:
        pairs = half.properties
        place = (pairs[properties.REAL_TOPIC], int(pairs[properties.REAL_QID]))
        try:
            half.topic, half.queue_id = redirect_delayed(*place, pairs, self._delay_level_count, now_ms)
        except InvalidMessage as error:  # from a broker that took it all the same
            logger.error("the transaction of message %s is committed without a delay: %s", half.msg_id, error)
            half.topic, half.queue_id = place
        half.sys_flag = sysflag.with_transaction_state(half.sys_flag, sysflag.TRANSACTION_COMMIT)
        half.prepared_transaction_offset = half.physical_offset
        return self._puts.put_again("commit", half, now_ms)

    def _mark_committed(self, now_ms: int) -> bool:
        """Put the op messages of commits that have none as yet; False if one could not be put."""
        for half_queue_offset in sorted(self._unmarked):
            if self._mark(half_queue_offset, now_ms).status is not PutMessageStatus.PUT_OK:
                return False
            self._unmarked.discard(half_queue_offset)
        return True

    def _mark(self, half_queue_offset: int, now_ms: int) -> PutResult:
        """Put the op message that ends a half message, and take the transaction for ended if that succeeds."""
        marked = self._put_mark(half_queue_offset, now_ms)
        if marked.status is PutMessageStatus.PUT_OK:
            self._ended[half_queue_offset] = marked.queue_offset
            self._op_end = marked.queue_offset + 1
            self._discarded.discard(half_queue_offset)
            self._pass_ended()
        return marked

    def _put_mark(self, half_queue_offset: int, now_ms: int) -> PutResult:
        mark = MessageInner(
            *_OP_QUEUE,
            body=b"%d" % half_queue_offset,
            properties=properties.join({properties.TAGS: REMOVE_TAG, properties.WAIT: "true"}),
            flag=0,
            sys_flag=0,
            born_timestamp=now_ms,
            born_host=self._store_host,
            tags_code=tags_code(REMOVE_TAG),
        )
        return self._puts.put("op message", mark, now_ms)

    def _pass_ended(self) -> None:
        while self._ended.pop(self._half_begin, None) is not None:
            self._half_begin += 1

    # It is not ended.

    def check(self, now_ms: int) -> Iterator[TransactionCheckRequest]:
        """Look at the half messages that were there when this began, and ask about those that are open for too long.

        Other methods may be called between two questions. It ends early at a message that is too young, since those
        after it are younger, and when a put fails.
        """
        if not self._mark_committed(now_ms):
            return
        end = self._store.max_offset(*_HALF_QUEUE)
        self._half_begin = max(self._half_begin, self._store.min_offset(*_HALF_QUEUE))
        while True:
            self._pass_ended()
            at = self._half_begin
            if at >= end:
                break
            if at in self._unmarked:
                return
            half = self._half_at(at)
            if half is not None and not self._is_ended_by_first(half):
                pairs = half.properties
                if (checked := _number(pairs.get(properties.TRANSACTION_CHECK_TIMES))) >= self._check_max:
                    if not self._discard(half, now_ms):
                        return
                else:
                    age_ms = now_ms - half.born_timestamp
                    immune_s = pairs.get(properties.CHECK_IMMUNITY_TIME_IN_SECONDS)
                    if immune_s is not None and age_ms < self._immunity_ms(immune_s):
                        pairs.setdefault(properties.TRAN_PREPARED_QUEUE_OFFSET, str(at))
                        if self._copy(half, now_ms) is None:
                            return
                    elif immune_s is None and 0 <= age_ms < self._timeout_ms:
                        return
                    else:
                        pairs[properties.TRANSACTION_CHECK_TIMES] = str(checked + 1)
                        if (copied := self._copy(half, now_ms)) is None:
                            return
                        if copied.status is PutMessageStatus.PUT_OK:
                            self._half_begin = at + 1
                            yield self._question(half, copied)
                            continue
            self._half_begin = at + 1
        self._forget_what_is_done()

    def _half_at(self, queue_offset: int) -> MessageExt | None:
        units = self._store.units(*_HALF_QUEUE, queue_offset, 1)
        try:
            return stored_message(self._store, units[0][0] if units else -1)
        except InvalidMessage as error:
            logger.error("the half message at offset %d of %s is skipped: %s", queue_offset, TRANS_HALF_TOPIC, error)
            return None

    def _is_ended_by_first(self, half: MessageExt) -> bool:
        """Whether the message of which this is a copy was ended, as a broker before this one noted it."""
        first = half.properties.get(properties.TRAN_PREPARED_QUEUE_OFFSET)
        return first is not None and _number(first, -1) in self._ended

    def _immunity_ms(self, seconds: str) -> int:
        value = _number(seconds, -1)
        return self._timeout_ms if value == -1 else value * 1000

    def _copy(self, half: MessageExt, now_ms: int) -> PutResult | None:
        """Put the half message at the end of its queue; None if that must be tried again.

        One whose properties leave no room for what a check adds (another broker took it) is laid aside as it was, and
        the result says so.
        """
        try:
            renewed(half)
        except InvalidMessage:
            before = stored_message(self._store, half.physical_offset)
            return PutResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED) if self._discard(before, now_ms) else None
        result = self._puts.put_again("transaction check", half, now_ms)
        if result.status is not PutMessageStatus.PUT_OK:
            return None
        self._copies[half.queue_offset] = result.queue_offset
        return result

    def _discard(self, half: MessageExt, now_ms: int) -> bool:
        """Put a half message that nobody ends where operators find it; False if the put failed."""
        self._topics.ensure(TRANS_CHECK_MAX_TIME_TOPIC, 1, now_ms)
        half.topic, half.queue_id = TRANS_CHECK_MAX_TIME_TOPIC, 0
        if self._puts.put_again("transaction check", half, now_ms).status is not PutMessageStatus.PUT_OK:
            return False
        logger.error(
            "the transaction of message %s for %s was never ended by group %s; it goes to %s",
            half.msg_id, half.properties.get(properties.REAL_TOPIC), half.properties.get(properties.PGROUP),
            TRANS_CHECK_MAX_TIME_TOPIC,
        )  # fmt: skip
        self._discarded.add(half.queue_offset)
        return True

    def _question(self, half: MessageExt, copied: PutResult) -> TransactionCheckRequest:
        pairs = half.properties
        half.topic = pairs.get(properties.REAL_TOPIC, half.topic)
        half.queue_id = _number(pairs.get(properties.REAL_QID))
        place = (copied.queue_offset, copied.physical_offset, half.store_timestamp, self._store_host)
        half.physical_offset = copied.physical_offset
        return TransactionCheckRequest(
            pairs.get(properties.PGROUP, ""),
            CheckTransactionStateRequestHeader(
                tran_state_table_offset=copied.queue_offset,
                commit_log_offset=copied.physical_offset,
                msg_id=half.unique_key,
                transaction_id=half.unique_key,
                offset_msg_id=half.offset_msg_id,
            ),
            encode(renewed(half), *place),
        )

    def _forget_what_is_done(self) -> None:
        """Every half message was looked at, so what was kept to recognize earlier ones is needed no more."""
        self._ended = {half: op for half, op in self._ended.items() if half >= self._half_begin}
        open_copies: dict[int, int] = {}
        for half, copy in sorted(self._copies.items(), reverse=True):  # a copy comes after what it copies
            if copy >= self._half_begin or copy in open_copies:
                open_copies[half] = copy
        self._copies = open_copies


def _number(text: str | None, otherwise: int = 0) -> int:
    try:
        return int(text) if text is not None else otherwise
    except ValueError:
        return otherwise
