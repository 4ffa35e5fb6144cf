"""POP: the states of all queues and groups, and the revival of messages that were not acked in time.

A message whose invisible time is over is put into `%RETRY%group_topic`, queue 0, with reconsumeTimes one higher; after
retryMaxTimes into `%DLQ%group`. One of a message group stays in its queue and blocks the later ones until it was
delivered as often. A heap has the messages by time, so nothing is scanned. With tieredReads, one that has left the log
is read from the lake first; while the lake is away, it stays outstanding.

Every change of a state is a record in the log of POP (`broker.delivery.pop_log`) before it applies. A copy precedes the
record that the original is done. After a crash between the two, which can only be at the end of the log, the copies are
found at the ends of the retry topics and dead letter topics, so that no message is delivered by both.

The states are rebuilt from the CommitLog when a master starts, so slaves need to copy nothing. A state has a snapshot
among the last SNAPSHOT_INTERVAL messages of the log of POP, and none in a log file that is deleted.

The group's offset on a queue is the lowest one that is not done. If another offset is committed, POP continues there;
without receives by POP it is not touched.

Corresponds to `PopReviveService`, `PopBufferMergeService` and `PopConsumerService` of Apache RocketMQ 5; 4.9.8 has no
POP. Deliberate differences: no topic rmq_sys_REVIVE_LOG; acks and checkpoints meet in memory, not by scanning a topic.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from rucola.access import Reason, Refused
from rucola.broker.delivery.internal_puts import FIRST_RETRY_MS, InternalPuts
from rucola.broker.delivery.pop_log import Entry, PopLog, PopQueue
from rucola.broker.delivery.pop_state import (
    Begin,
    Change,
    Done,
    Outstanding,
    Pop,
    PopRecord,
    PopState,
    Removed,
    Snapshot,
)
from rucola.broker.delivery.progress import Delivery
from rucola.broker.retry_policy import dead_letter_queue, next_attempt
from rucola.broker.stored_message import stored_message
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.broker.tables.topics import TopicConfigTable
from rucola.broker.tiered_store import NotRead, TieredStore
from rucola.errors import InvalidMessage
from rucola.message import MessageExt, properties
from rucola.message.record import decode
from rucola.message.topics import RETRY_PREFIX, dlq_topic, pop_retry_topic
from rucola.store.config import PutMessageStatus
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

SNAPSHOT_INTERVAL: Final = 1 << 16
"""Messages of the log after which a state is written again; a start reads about as many."""
MAX_OUTSTANDING: Final = 1 << 20
"""Outstanding messages of all queues and groups."""
REVIVAL_BATCH: Final = 32
REVIVAL_BYTES: Final = 1 << 20
"""Messages, and bytes of their bodies, that are revived in one iteration of the event loop."""
_SNAPSHOT_PART: Final = 128
_ROLLED: Final = 16
"""States that are written again in one iteration of the event loop."""
_MAX_OUTDATED: Final = 1024

_Due = tuple[int, PopQueue, int, tuple[int, ...]]
"""(visible_ms, queue, pop time, queue offsets)."""


class PopConsumerService(Delivery[None]):
    """States of POP of one store. `on_visible` gets a queue of which more messages can be received, at any time."""

    name = "POP"
    file = None

    def __init__(
        self,
        store: MessageStore,
        tiered: TieredStore,
        puts: InternalPuts,
        topics: TopicConfigTable,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsetTable,
    ) -> None:
        tiered.listeners.append(self._on_lake_read)
        self.states: OrderedDict[PopQueue, PopState] = OrderedDict()
        """The state whose snapshot is the oldest comes first."""
        self.count = 0
        """Outstanding messages."""
        self.on_due: Callable[[int], None] = lambda due_ms: None
        """Gets the time at which `revive` is due."""
        self.on_visible: Callable[[PopQueue], None] = lambda queue: None
        self._store = store
        self._tiered = tiered
        self._puts = puts
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._log = PopLog(store, puts, topics)
        self._snapshots: dict[PopQueue, int] = {}
        """Queue offset in the log at which each state's snapshot starts; -1 if it is not in the log."""
        self._due: list[_Due] = []
        """A heap; an item is outdated if its messages are done or have another pop time."""
        self._unread: dict[tuple[str, int], list[_Due]] = {}
        """What is due and waits for the lake, by topic and queue id."""
        self._unrecorded: list[Entry] = []
        """What a record must say before any other: messages that are copied, and what is recorded together."""
        self._together: int | None = None
        """Queue offset in the log of what is recorded together."""
        self._copies: dict[str, Counter[tuple[object, ...]]] = {}
        """Copies of messages that no record says are done, by topic: of those that are in the lake."""

    # Delivery.

    def load(self) -> None:
        last_record = self._replay()
        for queue, state in self.states.items():
            name = queue.topic, queue.queue_id
            begin = 0 if self._tiered.reader is not None else self._store.min_offset(*name)
            if (fitting := state.fit(begin, self._store.max_offset(*name))) is not None:
                state.apply(fitting)
        self._drop_copied(last_record)
        for queue, state in self.states.items():
            # The table may be older than the log, or newer than a log whose end was cut off.
            self._offsets.commit(queue.group, queue.topic, queue.queue_id, state.committed_offset)
            state.committed = state.committed_offset
            self.count += len(state.outstanding)
        for queue, state in self.states.items():
            deliveries: dict[tuple[int, int], list[int]] = {}
            for offset, held in state.outstanding.items():
                if held.attempt:
                    deliveries.setdefault((held.visible_ms, held.pop_time_ms), []).append(offset)
            for (visible_ms, pop_time_ms), offsets in deliveries.items():
                self._schedule((visible_ms, queue, pop_time_ms, tuple(offsets)))

    def _replay(self) -> int:
        """Rebuild the states from the log; return the physical offset of its last record, -1 without one."""
        parts: dict[PopQueue, tuple[int, list[tuple[int, Outstanding]]]] = {}
        last_record = -1
        for logged in self._log.read():
            if logged is None:
                self._snapshots = dict.fromkeys(self.states, -1)
                break
            last_record = logged.physical_offset
            for topic, group, queue_id, record in logged.entries:
                queue = PopQueue(topic, group, queue_id)
                if isinstance(record, Snapshot):
                    self._replay_snapshot(queue, record, logged.log_offset, parts)
                elif queue not in self.states:
                    continue  # its snapshot follows
                elif isinstance(record, Removed):
                    del self.states[queue], self._snapshots[queue]
                else:
                    self.states[queue].apply(record)
        return last_record

    def _replay_snapshot(
        self,
        queue: PopQueue,
        record: Snapshot,
        log_offset: int,
        parts: dict[PopQueue, tuple[int, list[tuple[int, Outstanding]]]],
    ) -> None:
        if record.part == 0:
            parts[queue] = log_offset, []
        if queue not in parts:  # the log begins amid the snapshot
            return
        begin, held = parts[queue]
        held += record.outstanding
        if record.is_last:
            del parts[queue]
            state = self.states[queue] = PopState()
            state.apply(Snapshot(record.pop_time_ms, record.next_offset, tuple(held)))
            self.states.move_to_end(queue)
            self._snapshots[queue] = begin

    def progress(self) -> None:
        return None

    async def persist(self, progress: None, log_end: int) -> None:
        """Do nothing: all progress is in the log."""

    def roll_some(self, file_end: int, now_ms: int) -> bool | None:
        for _ in range(_ROLLED):
            if not self.states:
                return True
            queue = next(iter(self.states))
            begin = self._snapshots[queue]
            physical_offset = self._log.physical_offset(begin) if begin >= 0 else None
            if physical_offset is not None and physical_offset >= file_end:
                return True
            if self._write_snapshot(queue, now_ms) is not None:
                return False
        return None

    def _drop_copied(self, last_record: int) -> None:
        """Finish messages whose copies are at the end of the log, after its last record of POP."""
        targets = {target for queue in self.states for target in (self._retry_topic(queue), dlq_topic(queue.group))}
        found = {target: Counter(map(_identity, self._last_copies(target, last_record))) for target in targets}
        self._copies = {target: copies for target, copies in found.items() if copies}
        are_compared = True
        for queue, state in self.states.items() if self._copies else ():
            done = []
            for offset, held in state.outstanding.items():
                try:
                    message = self._message(queue, offset) if held.attempt else None
                except NotRead:
                    are_compared = False
                else:
                    if message is not None and self._is_copied(queue, message, held):
                        done.append(offset)
            if done:
                state.apply(record := Done(tuple(done)))
                self._unrecorded.append((*queue, record))
        if are_compared:
            self._copies = {}

    def _is_copied(self, queue: PopQueue, message: MessageExt, held: Outstanding) -> bool:
        if not self._copies:
            return False
        identity = _identity(_copy(message, held))
        for target in (self._retry_topic(queue), dlq_topic(queue.group)):
            if target in self._copies and self._copies[target][identity] > 0:
                self._copies[target][identity] -= 1
                return True
        return False

    def _last_copies(self, topic: str, since: int) -> Iterable[MessageExt]:
        end = self._store.max_offset(topic, 0)
        for physical_offset, _, _ in self._store.units(topic, 0, max(0, end - REVIVAL_BATCH), REVIVAL_BATCH):
            if physical_offset > since:
                with suppress(InvalidMessage):
                    yield stored_message(self._store, physical_offset)

    def _on_lake_read(self, topic: str, queue_id: int) -> None:
        for due in self._unread.pop((topic, queue_id), ()):
            self._schedule(due)

    def waits_for_lake(self, queue: PopQueue) -> bool:
        """Whether messages that are to be delivered again are read from the lake."""
        return any(due[1] == queue for due in self._unread.get((queue.topic, queue.queue_id), ()))

    # States.

    def open(self, queues: Sequence[PopQueue], begin: Callable[[PopQueue], int | None], now_ms: int) -> list[PopQueue]:
        """Make sure that queues have states, which follow the offsets of the group; return them. Raises Refused.

        A state of a queue without an offset of the group begins at `begin`; one for which that is None is left out.
        """
        changes: list[tuple[PopQueue, PopRecord]] = []
        opened: list[PopQueue] = []
        for queue in queues:
            offset = self._offsets.get(queue.group, queue.topic, queue.queue_id)
            state = self.states.get(queue)
            if state is None or offset < 0:
                pop_time_ms = 0 if state is None else state.pop_time_ms
                if (first := offset if offset >= 0 else begin(queue)) is None:
                    continue
                changes.append((queue, Snapshot(pop_time_ms, first)))
            elif offset != state.committed:
                changes.append((queue, Begin(offset)))
            opened.append(queue)
        if changes:
            self.record(changes, now_ms)
        return opened

    def reset(self, offsets: Mapping[PopQueue, int], now_ms: int) -> None:
        """Have queues that have a state read on from other offsets, without what is outstanding. Raises Refused."""
        changes = [
            (queue, Snapshot(state.pop_time_ms, offset))
            for queue, offset in offsets.items()
            if (state := self.states.get(queue)) is not None
        ]
        if changes:
            self.record(changes, now_ms)

    def record(self, changes: Sequence[tuple[PopQueue, PopRecord]], now_ms: int) -> int:
        """Write records and apply them; return the end of the log that contains them. Raises Refused."""
        while self.states and self._snapshots[queue := next(iter(self.states))] < 0:  # after damage of the log
            if (why := self._write_snapshot(queue, now_ms)) is not None:
                raise Refused(Reason.UNAVAILABLE, why)
        entries: list[Entry] = []
        for (topic, group, queue_id), record in changes:
            entries.append((topic, group, queue_id, record))
        if (log_offset := self._together) is not None:
            self._unrecorded += entries
            end = self._store.max_physical_offset
        else:
            log_offset, end = self._write(entries, now_ms)
        for queue, record in changes:
            self._apply(queue, record, log_offset)
        if self._together is None:
            self._renew_snapshots(log_offset, now_ms)
        return end

    @contextmanager
    def together(self, now_ms: int) -> Iterator[None]:
        """Write what is recorded within as one message of the log, at the end. Raises Refused.

        Nobody may be told of the changes before. If it fails, they stay, and the next message of the log begins with
        them. Messages whose time is over are delivered again before, not within.
        """
        self.revive(now_ms)
        if self._unrecorded:
            self._write((), now_ms)
        self._together = self._log.end
        try:
            yield
        finally:
            self._together = None
        if self._unrecorded:
            log_offset, _ = self._write((), now_ms)
            self._renew_snapshots(log_offset, now_ms)

    def _write(self, entries: Sequence[Entry], now_ms: int) -> tuple[int, int]:
        put = self._put(entries, now_ms)
        if isinstance(put, str):
            raise Refused(Reason.UNAVAILABLE, f"POP cannot be recorded: {put}")
        return put

    def _put(self, entries: Sequence[Entry], now_ms: int) -> tuple[int, int] | str:
        """Put one message, after what is unrecorded; see `PopLog.put`."""
        put = self._log.put(max(0, self._first()), [*self._unrecorded, *entries], now_ms)
        if not isinstance(put, str):
            self._unrecorded = []
        return put

    def _renew_snapshots(self, log_offset: int, now_ms: int) -> None:
        # Last: between copies and the record that their originals are done, no other record may come.
        for queue in list(itertools.islice(self.states, 2)):
            if self._snapshots[queue] <= log_offset - SNAPSHOT_INTERVAL:
                self._write_snapshot(queue, now_ms)

    def read_on(self, queue: PopQueue, next_offset: int) -> None:
        """Skip messages that no filter of the group accepts; a later record has the offset."""
        self._apply(queue, Begin(next_offset), 0)

    def _apply(self, queue: PopQueue, record: PopRecord, log_offset: int) -> None:
        if isinstance(record, Removed):
            self.count -= len(self.states.pop(queue).outstanding)
            del self._snapshots[queue]
            return
        state = self.states.get(queue)
        if state is None:
            state = self.states[queue] = PopState()
        if isinstance(record, Snapshot):
            self._snapshots[queue] = log_offset
            self.states.move_to_end(queue)
        if isinstance(record, Snapshot | Begin):  # follows what was committed by others
            state.committed = self._offsets.get(queue.group, queue.topic, queue.queue_id)
        before = len(state.outstanding)
        state.apply(record)
        self.count += len(state.outstanding) - before
        self._commit(queue, state)
        if isinstance(record, Pop):
            self._schedule((record.visible_ms, queue, record.pop_time_ms, record.taken))
        elif isinstance(record, Change):
            self._schedule((record.visible_ms, queue, record.pop_time_ms, (record.queue_offset,)))
        elif isinstance(record, Snapshot) or (isinstance(record, Done) and (state.is_ordered or before >= state.limit)):
            self.on_visible(queue)

    def _commit(self, queue: PopQueue, state: PopState) -> None:
        offset, known = state.committed_offset, state.committed
        if known != offset and self._offsets.get(queue.group, queue.topic, queue.queue_id) == known:
            self._offsets.commit(queue.group, queue.topic, queue.queue_id, offset)
            state.committed = offset

    def remove(self, queues: Iterable[PopQueue], now_ms: int) -> None:
        """Forget states. Raises Refused."""
        if known := [queue for queue in queues if queue in self.states]:
            self.record([(queue, Removed()) for queue in known], now_ms)

    def of(self, *, group: str | None = None, topic: str | None = None) -> list[PopQueue]:
        """Return the queues of a group, or of a topic with its retry topics, that have a state."""
        return [
            queue
            for queue in self.states
            if group in (None, queue.group) and topic in (None, queue.topic, _topic_of_retry(queue))
        ]

    def detach_steps(self, now_ms: int) -> Generator[None, None, None]:
        """Forget states without outstanding messages whose group no longer uses POP."""
        for queue, state in list(self.states.items()):
            if queue in self.states and not state.outstanding:
                offset = self._offsets.get(queue.group, queue.topic, queue.queue_id)
                if offset != state.committed:
                    self.remove([queue], now_ms)
            yield

    def _first(self) -> int:
        return self._snapshots[next(iter(self.states))] if self.states else self._log.end

    def _write_snapshot(self, queue: PopQueue, now_ms: int) -> str | None:
        """Write the state again; return why that failed."""
        whole = self.states[queue].snapshot()
        begin = -1
        count = max(1, -(-len(whole.outstanding) // _SNAPSHOT_PART))
        for part in range(count):
            held = whole.outstanding[part * _SNAPSHOT_PART : (part + 1) * _SNAPSHOT_PART]
            record = Snapshot(whole.pop_time_ms, whole.next_offset, held, part, part == count - 1)
            # With the snapshot, later readers begin after it, if it is the only one that is as old.
            put = self._put([(*queue, record)], now_ms)
            if isinstance(put, str):
                return put
            begin = put[0] if begin < 0 else begin
        self._snapshots[queue] = begin
        self.states.move_to_end(queue)
        return None

    # Revival.

    def revive(self, now_ms: int) -> int | None:
        """Deliver a batch of messages whose time is over again; return the time of the next call in ms, or None."""
        if self._together is not None:
            return None
        moved: dict[PopQueue, list[int]] = {}
        left, size = REVIVAL_BATCH, 0
        while left > 0 and size <= REVIVAL_BYTES and self._due and self._due[0][0] <= now_ms:
            visible_ms, queue, pop_time_ms, offsets = heapq.heappop(self._due)
            current = self._current(queue, pop_time_ms, offsets)
            if len(current) > left:
                heapq.heappush(self._due, (visible_ms, queue, pop_time_ms, tuple(current[left:])))
            unread = []
            for offset in current[:left]:
                try:
                    size += self._revive_message(queue, offset, now_ms, moved)
                except NotRead:
                    unread.append(offset)
            if unread:
                due = visible_ms, queue, pop_time_ms, tuple(unread)
                self._unread.setdefault((queue.topic, queue.queue_id), []).append(due)
            left -= max(1, len(current))
        if moved:
            changes = [(queue, Done(tuple(offsets))) for queue, offsets in moved.items()]
            try:
                self.record(changes, now_ms)
            except Refused as error:
                # The copies exist: the originals are done, and the next record contains that.
                logger.error("%s", error)
                for queue, done in changes:
                    self._unrecorded.append((*queue, done))
                    self._apply(queue, done, 0)
        next_ms = self._due[0][0] if self._due else None
        return (
            next_ms if next_ms is None or self._store.write_state.is_writable else max(next_ms, now_ms + FIRST_RETRY_MS)
        )

    def _revive_message(self, queue: PopQueue, offset: int, now_ms: int, moved: dict[PopQueue, list[int]]) -> int:
        """Deliver a message again, which is `moved` if its copy is done; return its size."""
        held = self.states[queue].outstanding[offset]
        limit = self._retry_max_times(queue.group)
        if held.message_group is not None and held.attempts <= limit:
            self.on_visible(queue)
            return 0
        message = self._message(queue, offset)
        if (
            message is None
            or self._is_copied(queue, message, held)
            or self._put_copy(queue, message, held, limit, now_ms)
        ):
            moved.setdefault(queue, []).append(offset)
        else:
            heapq.heappush(self._due, (now_ms + FIRST_RETRY_MS, queue, held.pop_time_ms, (offset,)))
        return 0 if message is None else len(message.body)

    def _put_copy(self, queue: PopQueue, message: MessageExt, held: Outstanding, limit: int, now_ms: int) -> bool:
        copy = _copy(message, held)
        is_dead = copy.reconsume_times > limit
        for dead in (is_dead, True):
            if dead:
                copy.topic, copy.queue_id = dead_letter_queue(self._topics, queue.group, now_ms)
            else:
                copy.topic = self._topics.ensure(self._retry_topic(queue), 1, now_ms).topic_name
                copy.queue_id = 0
            status = self._puts.put_again("POP revival", copy, now_ms).status
            if status is not PutMessageStatus.PROPERTIES_SIZE_EXCEEDED:
                break
            copy.properties = message.properties
        return status is PutMessageStatus.PUT_OK

    def _message(self, queue: PopQueue, offset: int) -> MessageExt | None:
        """Return a message, None if there is none. Raises NotRead."""
        name = queue.topic, queue.queue_id
        try:
            if (record := self._tiered.record(*name, offset)) is not None:
                return decode(record, decompress=False)
            if self._tiered.reader is None and offset < self._store.min_offset(*name):
                return None  # deleted
            raise InvalidMessage("it is in neither log nor lake")
        except InvalidMessage as error:
            logger.error("POP revival: skipping message %d of %s-%d: %s", offset, *name, error)
            return None

    def _retry_topic(self, queue: PopQueue) -> str:
        return queue.topic if queue.topic.startswith(RETRY_PREFIX) else pop_retry_topic(queue.group, queue.topic)

    def _retry_max_times(self, group: str) -> int:
        config = self._groups.get(group)
        return 16 if config is None else config.retry_max_times

    def _schedule(self, due: _Due) -> None:
        heapq.heappush(self._due, due)
        if len(self._due) > 2 * self.count + _MAX_OUTDATED:
            self._due = [due for due in self._due if self._current(*due[1:])]
            heapq.heapify(self._due)
        if self._due and self._due[0] is due:
            self.on_due(due[0])

    def _current(self, queue: PopQueue, pop_time_ms: int, offsets: Sequence[int]) -> list[int]:
        """Return those messages of a delivery that are outstanding since then."""
        state = self.states.get(queue)
        if state is None or state.outstanding.keys().isdisjoint(offsets):
            return []
        outstanding = state.outstanding
        return [offset for offset in offsets if (held := outstanding.get(offset)) and held.pop_time_ms == pop_time_ms]


def _copy(message: MessageExt, held: Outstanding) -> MessageExt:
    copy = next_attempt(message)
    copy.reconsume_times = message.reconsume_times + held.attempts
    copy.properties.setdefault(properties.FIRST_POP_TIME, str(held.pop_time_ms))
    return copy


def _identity(message: MessageExt) -> tuple[Any, ...]:
    pairs = message.properties
    origin = pairs.get(properties.RETRY_TOPIC), pairs.get(properties.ORIGIN_MESSAGE_ID)
    return *origin, message.reconsume_times, message.born_timestamp, message.body_crc


def _topic_of_retry(queue: PopQueue) -> str | None:
    prefix = pop_retry_topic(queue.group, "")
    return queue.topic.removeprefix(prefix) if queue.topic.startswith(prefix) else None
