"""POP: receive messages that are then invisible to others for a time, acknowledge them, change that time.

A receive looks at one queue or at all queues of a topic, beginning at any of them, and at the group's retry topic for
it: last, and first in one of RETRY_SHARE receives. It takes up to MAX_MESSAGES.

    queue           0 1 2 3 4 5 6 7 8        0 done; 1 and 3 held by A; 4 held by B; 2 acked
    outstanding       A . A B                the group's offset is 1, the receive reads on at 5

With `is_ordered`, a message group is the messages with one sharding key in one queue, and those without any. A message
whose group has an earlier one that is not done waits, while other groups continue. It is delivered again from its
place, with its attempts; other messages are delivered again from the retry topic, with their reconsumeTimes.

If a filter rejects many messages, a receive reads a bounded number, and says that it is unfinished.

An acknowledgement counts once it is as durable as an acknowledged message, see `rucola.broker.durability`. One that is
repeated is accepted.

Corresponds to `PopMessageProcessor`, `AckMessageProcessor` and `ChangeInvisibleTimeProcessor` of Apache RocketMQ 5.
Deliberate differences: order is kept for each message group, not for each queue; a stale handle is refused, where
Apache ignores it; a group that begins at the end of a queue gets no message before it.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Final, NamedTuple

from rucola import refusals
from rucola.access import Caller, Refused
from rucola.broker.delivery.pop import MAX_OUTSTANDING
from rucola.broker.delivery.pop_log import PopQueue
from rucola.broker.delivery.pop_state import NO_GROUPS, Change, Done, Handle, Outstanding, Pop, PopRecord, PopState
from rucola.broker.durability import Durability, Missing
from rucola.broker.message_filter import MessageFilter
from rucola.broker.services.fetch import FetchService
from rucola.broker.services.requests import FetchRequest, PopRequest
from rucola.broker.services.results import NothingPopped, Popped, PoppedQueue
from rucola.broker.state import BrokerState
from rucola.broker.tiered_store import NotRead
from rucola.domain.pop import PopMessage, PopQueueStatus
from rucola.message import properties
from rucola.message.record import peek, split
from rucola.message.topics import MAX_TOPIC_LENGTH, RETRY_PREFIX, is_lmq, pop_retry_topic
from rucola.slices import sliced

MAX_MESSAGES: Final = 32
MAX_BYTES: Final = 1 << 20
"""Bytes of the records of one receive; the first record may be longer."""
MAX_INVISIBLE_MS: Final = 30 * 86_400_000
RETRY_SHARE: Final = 5
MAX_QUEUES: Final = 48
"""Queues that one receive reads."""
MAX_READS: Final = 8
"""Reads of the store in one receive beyond one for each queue."""
MAX_SHOWN: Final = 100
"""Messages of a queue in a status."""
LOST_MS: Final = 60_000
"""Time after which a client that is not connected holds no messages any more."""
_RELEASED: Final = 256
_MAX_GROUP_LENGTH: Final = 64
"""Characters of a sharding key that are kept; of a longer one, a hash is."""


class Ack(NamedTuple):
    """Messages of one queue that one receive or change delivered."""

    topic: str
    queue_id: int
    pop_time_ms: int
    invisible_ms: int
    queue_offsets: Sequence[int]
    """Each once."""


class Acknowledged(NamedTuple):
    accepted: int
    stale: list[list[int]]
    """Of each acknowledgement the messages that the caller does not hold any more."""
    end: int
    """End of the log that contains the acknowledgement."""


class PopService:
    def __init__(self, state: BrokerState, fetch: FetchService, durability: Durability) -> None:
        self._state = state
        self._pop = state.pop
        self._store = state.store
        self._admit = fetch.admit
        self._durability = durability
        self.must_wait = durability.must_wait
        """Whether answers to acknowledgements wait with `when_durable`."""
        self._away: dict[tuple[str, str], int] = {}
        """Clients that hold messages and are not connected, by group and id: since when."""

    # Receive.

    def receive(self, caller: Caller, request: PopRequest) -> Popped | NothingPopped:
        """Take messages. Raises Refused."""
        wanted = self._check(caller, request)
        now_ms = self._state.clock()
        self._pop.revive(now_ms)
        queues, rest, is_cut, is_tiered, is_repeated = self._queues(request, now_ms)
        last_ms = max([self._pop.states[queue].pop_time_ms for queue in queues], default=0)
        receive = _Receive(self._state, request, wanted, now_ms, max(now_ms, last_ms + 1))
        if not (is_repeated and receive.repeat(queues)):
            for queue in queues:
                if receive.left <= 0:
                    break
                receive.take(queue)
        if receive.changes:
            self._pop.record(receive.changes, now_ms)
        rest = max(0, rest - receive.added)
        if not receive.found:
            self._state.stats.record_miss()
            return NothingPopped(rest, receive.is_unfinished or is_cut, is_tiered or receive.is_tiered)
        popped = Popped(receive.pop_time_ms, request.invisible_ms, rest, [])
        for queue, (taken, records) in receive.found.items():
            state, offsets = self._pop.states[queue], taken.taken
            attempts: Sequence[int] = (1,) * len(offsets)
            if state.is_ordered or taken.is_repeated:
                attempts = [state.outstanding[offset].attempts for offset in offsets]
            popped.queues.append(PoppedQueue(queue.topic, queue.queue_id, offsets, records, attempts))
            self._state.stats.record_get(request.group, request.topic, len(offsets), len(records))
        return popped

    def together(self) -> AbstractContextManager[None]:
        """Enclose receives that are recorded together; none of them may be answered before the end, or if that raises.

        Raises Refused.
        """
        return self._pop.together(self._state.clock())

    def _check(self, caller: Caller, request: PopRequest) -> MessageFilter:
        if not 1 <= request.max_messages <= MAX_MESSAGES:
            raise Refused(refusals.POP_COUNT_ILLEGAL, count=request.max_messages, limit=MAX_MESSAGES)
        _check_duration(request.invisible_ms, 1)
        if is_lmq(request.topic):
            raise Refused(refusals.POP_LIGHT_QUEUE, topic=request.topic)
        if request.topic.startswith(RETRY_PREFIX):
            raise Refused(refusals.POP_RETRY_TOPIC, topic=request.topic)
        retry_topic = pop_retry_topic(request.group, request.topic)
        if len(retry_topic) > MAX_TOPIC_LENGTH:
            raise Refused(
                refusals.POP_RETRY_TOPIC_TOO_LONG, topic=retry_topic, size=len(retry_topic), limit=MAX_TOPIC_LENGTH
            )
        if request.attempt_id is not None:
            self._state.limits.check_name(request.attempt_id, "an attempt")
        self._state.limits.check_name(request.client, "a client")
        fetch = FetchRequest(
            request.group, request.topic, max(0, request.queue_id), 0, request.max_messages,
            expression=request.expression, expression_type=request.expression_type,
        )  # fmt: skip
        _, wanted = self._admit(caller, fetch)
        return wanted

    def _queues(self, request: PopRequest, now_ms: int) -> tuple[list[PopQueue], int, bool, bool, bool]:
        """Return the queues to look at, in this order; how much the group has not read; whether there are more.

        And whether some are left out, since the lake is asked where they begin; and whether the queues are those of
        an earlier receive with the same attempt id.
        """
        topic, group, attempt_id = request.topic, request.group, request.attempt_id
        if request.queue_id >= 0:
            count, names = 1, _names(group, topic, (request.queue_id,))
        else:
            config = self._state.topics.get(topic)
            count = 0 if config is None else config.read_queue_nums
            names = _names(group, topic, range(count))
        # At random, since any order could fall into step with the receives of a group, and pass over a queue.
        begin = int(random.random() * count)  # noqa: S311 - spreads load
        order = [*range(begin, count), *range(begin)]
        order.insert(0 if random.random() * RETRY_SHARE < 1 else count, count)  # noqa: S311
        ends, states = self._store.visible_ends(names.in_store), self._pop.states
        committed = self._state.offsets.committed(group, topic)
        rest = 0
        queues: list[PopQueue] = []
        new: list[PopQueue] = []
        repeated: list[PopQueue] = []
        for number in order:
            queue, end = names.queues[number], ends[number]
            state = states.get(queue)
            if not end and (number == count or (state is None and not request.begins_at_end)):
                continue
            of_topic = committed if number < count else self._state.offsets.committed(group, queue.topic)
            if state is None or state.committed != of_topic.get(queue.queue_id, -1):
                rest += end
                if end or request.begins_at_end:
                    queues.append(queue)
                    new.append(queue)
                continue
            if end > state.next_offset:
                rest += end - state.next_offset
            if state.can_be_read(now_ms, end):
                queues.append(queue)
            if attempt_id is not None and state.repeated(attempt_id, now_ms):
                repeated.append(queue)
        queues = repeated or queues
        read, is_tiered = queues[:MAX_QUEUES], False
        if new and not repeated:
            new = [queue for queue in new if queue in read]
            for queue in new:
                self._state.limits.check_offset(self._state.offsets, group, queue.topic, queue.queue_id)
            opened = self._pop.open(new, lambda queue: self._begin(queue, request), now_ms)
            if is_tiered := len(opened) < len(new):
                read = [queue for queue in read if queue in opened or queue not in new]
        return read, rest, len(queues) > MAX_QUEUES, is_tiered, bool(repeated)

    def _begin(self, queue: PopQueue, request: PopRequest) -> int | None:
        if request.begins_at_end and queue.topic == request.topic:
            return self._store.max_offset(queue.topic, queue.queue_id, visible=True)
        return self._state.tiered.first_offset(queue.topic, queue.queue_id)

    def wait_ms(self, request: PopRequest, nothing: NothingPopped) -> int:
        """Time for which a receive is held at most; for what the lake has also if it allows no wait."""
        return max(request.wait_ms, self._state.config.tiered_read_timeout) if nothing.is_tiered else request.wait_ms

    # What follows.

    def acknowledge(self, group: str, acks: Iterable[Ack]) -> Acknowledged:
        """Finish messages. Raises Refused."""
        done: dict[PopQueue, list[Sequence[int]]] = {}
        accepted, stale = 0, []
        for ack in acks:
            offsets = ack.queue_offsets
            state = self._pop.states.get(queue := PopQueue(ack.topic, group, ack.queue_id))
            held: Sequence[int] = ()
            if state is not None:
                held = state.held(ack.pop_time_ms, ack.invisible_ms, offsets)
            if len(held) == len(offsets):
                refused = []
            else:
                taken = set(held)
                refused = [one for one in offsets if one not in taken and (state is None or not state.is_done(one))]
            accepted += len(offsets) - len(refused)
            stale.append(refused)
            if held:
                done.setdefault(queue, []).append(held)
        # One that is repeated may not be durable yet.
        end = self._store.max_physical_offset
        if done:
            changes = [
                (queue, Done(tuple(parts[0] if len(parts) == 1 else sorted(set(itertools.chain(*parts))))))
                for queue, parts in done.items()
            ]
            end = self._pop.record(changes, self._state.clock())
        return Acknowledged(accepted, stale, end)

    def holds(self, group: str, topic: str, queue_id: int, handle: Handle) -> bool:
        """Return whether a message is held by this handle, False if it is finished. Raises Refused for a stale one."""
        state = self._pop.states.get(PopQueue(topic, group, queue_id))
        if state is not None and state.is_held_by(handle):
            return True
        if state is None or not state.is_done(handle.queue_offset):
            raise Refused(refusals.HANDLE_STALE, count=1, total=1, group=group)
        return False

    def change_invisible(
        self, group: str, topic: str, queue_id: int, handle: Handle, invisible_ms: int, *, is_suspended: bool = False
    ) -> tuple[Handle, int]:
        """Let a message be visible `invisible_ms` from now; return its new handle, and the end as `acknowledge` does.

        With `is_suspended`, this delivery does not count as an attempt. Raises Refused.
        """
        _check_duration(invisible_ms, 0)
        queue = PopQueue(topic, group, queue_id)
        state = self._pop.states.get(queue)
        if state is None or not state.is_held_by(handle):
            raise Refused(refusals.HANDLE_STALE, count=1, total=1, group=group)
        now_ms = self._state.clock()
        change = state.change(handle, now_ms, invisible_ms, is_suspended=is_suspended)
        end = self._pop.record([(queue, change)], now_ms)
        return state.handle(handle.queue_offset), end

    # For operators.

    @sliced
    def status(
        self, group: str, topic: str | None, shown: int | None = None
    ) -> Generator[None, None, list[PopQueueStatus]]:
        """Return what a group holds of a topic, or of all topics, with MAX_SHOWN messages of each queue.

        With `shown`, it is the message with this queue offset, if it is outstanding.
        """
        found = []
        for queue in self._pop.of(group=group, topic=topic):
            if (state := self._pop.states.get(queue)) is not None:
                found.append(self._status_of(queue, state, shown))
            yield
        return sorted(found, key=lambda one: (one.topic, one.queue_id))

    def _status_of(self, queue: PopQueue, state: PopState, shown: int | None) -> PopQueueStatus:
        now_ms = self._state.clock()
        held = {offset: one for offset, one in state.outstanding.items() if one.attempt}
        end = self._store.max_offset(queue.topic, queue.queue_id, visible=True)
        waiting = len(state.outstanding) - len(held)
        blocked = ""
        config = self._state.groups.get(queue.group)
        if config is not None and not config.consume_enable:
            blocked = f"group {queue.group} may not consume (consumeEnable)"
        elif not state.room:
            blocked = f"{state.limit} messages are outstanding"
        elif waiting and not state.can_be_read(now_ms, end):
            first = next(offset for offset, one in held.items() if one.message_group is not None)
            blocked = f"in order behind {first}, which {held[first].client} holds"
        elif self._pop.waits_for_lake(queue):
            blocked = "messages to deliver again are read from the lake"
        listed = held if shown is None else {shown: state.outstanding[shown]} if shown in state.outstanding else {}
        messages = [
            PopMessage(
                queue_offset=offset,
                client=one.client,
                attempt=one.attempts,
                pop_time_ms=one.pop_time_ms,
                visible_ms=one.visible_ms,
                message_group=one.message_group,
            )
            for offset, one in itertools.islice(listed.items(), MAX_SHOWN)
        ]
        return PopQueueStatus(
            topic=queue.topic,
            queue_id=queue.queue_id,
            committed_offset=state.committed_offset,
            ready=max(0, end - state.next_offset),
            in_flight=len(held),
            waiting=waiting,
            oldest_ms=min((one.visible_ms - one.invisible_ms for one in held.values()), default=0),
            blocked=blocked,
            messages=messages,
        )

    def release(self, group: str, topic: str, queue_id: int | None, offset: int | None) -> int:
        """Let others receive messages that are held, at once; return how many. Raises Refused."""
        if self._state.topics.get(topic) is None:
            raise Refused(refusals.FETCH_TOPIC_NOT_FOUND, topic=topic)
        return sum(
            self._release(queue, lambda held, _: offset in (None, held))
            for queue in self._pop.of(group=group, topic=topic)
            if queue_id in (None, queue.queue_id)
        )

    def _release(self, queue: PopQueue, is_chosen: Callable[[int, Outstanding], bool]) -> int:
        state = self._pop.states.get(queue)
        if state is None:
            return 0
        now_ms = self._state.clock()
        pop_time_ms = max(now_ms, state.pop_time_ms + 1)
        changes: list[tuple[PopQueue, PopRecord]] = [
            (queue, Change(offset, pop_time_ms, 0, now_ms))
            for offset, one in state.outstanding.items()
            if one.attempt and one.visible_ms > now_ms and is_chosen(offset, one)
        ]
        for begin in range(0, len(changes), _RELEASED):
            self._pop.record(changes[begin : begin + _RELEASED], now_ms)
        return len(changes)

    # Clients that are gone.

    def release_lost_steps(self) -> Generator[None, None, None]:
        """Let others receive what clients hold that have been away for LOST_MS. Raises Refused."""
        now_ms, away = self._state.clock(), dict[tuple[str, str], int]()
        for queue in self._pop.of():
            if (state := self._pop.states.get(queue)) is not None:
                clients = {one.client for one in state.outstanding.values() if one.is_renewed}
                for client in clients:
                    if not self._state.clients.is_member(queue.group, client):
                        holder = queue.group, client
                        away[holder] = self._away.get(holder, now_ms)
                        if now_ms - away[holder] >= LOST_MS:
                            self._release_of(queue, client)
            yield
        self._away = away

    @sliced
    def terminate(self, group: str, client: str) -> Generator[None, None, None]:
        """Let others receive what a client holds that has left its group, unless its id is still a member."""
        for queue in self._pop.of(group=group):
            if not self._state.clients.is_member(group, client):
                self._release_of(queue, client)
            yield

    def _release_of(self, queue: PopQueue, client: str) -> None:
        self._release(queue, lambda _, one: one.is_renewed and one.client == client)

    def when_durable(self, end: int, done: Callable[[Missing | None], None]) -> None:
        self._durability.when_durable(end, done)


class _Receive:
    """One receive: its decisions, and its reads."""

    def __init__(
        self, state: BrokerState, request: PopRequest, wanted: MessageFilter, now_ms: int, pop_time_ms: int
    ) -> None:
        self.changes: list[tuple[PopQueue, PopRecord]] = []
        self.found: dict[PopQueue, tuple[Pop, bytes]] = {}
        """What each queue's receive takes, and the records of these messages."""
        self.added = 0
        self.is_unfinished = False
        self.is_tiered = False
        """Whether the lake is read for more."""
        self.pop_time_ms = pop_time_ms
        self._tiered = state.tiered
        self._pop = state.pop
        self._request = request
        self._wanted = wanted
        self._now_ms = now_ms
        self.left = request.max_messages
        self._bytes_left = MAX_BYTES
        self._reads = MAX_READS
        self._room = MAX_OUTSTANDING - self._pop.count

    def repeat(self, queues: Sequence[PopQueue]) -> bool:
        """Take the messages of an earlier receive with the same attempt id, if the store still has any."""
        request, attempt_id = self._request, self._request.attempt_id or ""
        for queue in queues:
            state = self._pop.states[queue]
            if taken := state.repeated(attempt_id, self._now_ms):
                try:
                    found = ((offset, self._record(queue, offset)) for offset in taken)
                    records = {offset: record for offset, record in found if record is not None}
                except NotRead:
                    self.is_tiered = True
                    continue
                if records:
                    again = state.receive_again(
                        self.pop_time_ms, self._now_ms, request.invisible_ms, records, request.client, attempt_id,
                        is_renewed=request.is_renewed,
                    )  # fmt: skip
                    self._take(queue, again, b"".join(records.values()))
        return bool(self.found) or self.is_tiered

    def take(self, queue: PopQueue) -> None:
        """Take messages of one queue, as far as there is room."""
        request, state = self._request, self._pop.states[queue]
        visible = self._visible(queue, state) if state.is_ordered else {}
        begin = state.next_offset
        while True:
            found = self._read(queue, state, begin, visible)
            offsets, joined = found.offsets, found.joined
            groups = _message_groups(split(joined)) if request.is_ordered else NO_GROUPS
            taken = state.receive(
                self.pop_time_ms, self._now_ms, request.invisible_ms, self.left, tuple(visible), offsets, groups,
                found.next_offset, request.client, request.attempt_id, is_renewed=request.is_renewed,
            )  # fmt: skip
            if taken is not None or found.is_end:
                break
            # Nothing matched so far.
            begin = found.next_offset
            self._pop.read_on(queue, begin)
            if self._reads <= 0:
                self.is_unfinished = True
                break
        if taken is None:
            if found.next_offset > state.next_offset:
                self._pop.read_on(queue, found.next_offset)
            return
        if len(taken.taken) != len(offsets) or visible:
            records = visible | split(joined)
            joined = b"".join([records[offset] for offset in taken.taken])
        self._take(queue, taken, joined)

    def _take(self, queue: PopQueue, taken: Pop, records: bytes) -> None:
        self.changes.append((queue, taken))
        self.added += taken.next_offset - self._pop.states[queue].next_offset
        if taken.taken:
            self.found[queue] = taken, records
        else:  # later messages of other groups may follow
            self.is_unfinished = True
        self._room -= len(taken.added)
        self.left -= len(taken.taken)
        self._bytes_left -= len(records)

    def _visible(self, queue: PopQueue, state: PopState) -> dict[int, bytes]:
        """Return the messages of message groups that this receive can take."""
        records: dict[int, bytes] = {}
        size = 0
        gone = []
        for offset in state.visible(self._now_ms, self.left):
            try:
                record = self._record(queue, offset)
            except NotRead:
                self.is_tiered = True
                break
            if record is None:
                gone.append(offset)
                continue
            size += len(record)
            if size > self._bytes_left and (records or self.found):
                break
            records[offset] = record
        if gone:  # neither log nor lake has them
            self.changes.append((queue, Done(tuple(gone))))
        return records

    def _read(self, queue: PopQueue, state: PopState, begin: int, visible: dict[int, bytes]) -> _Read:
        """Read messages from `begin` on."""
        count = min(self.left - len(visible), state.room, self._room)
        size = self._bytes_left - sum(map(len, visible.values()))
        is_first = not (visible or self.found)
        if count <= 0 or (size <= 0 and not is_first):
            return _Read((), b"", state.next_offset, True)
        self._reads -= 1
        wanted = self._wanted if queue.topic == self._request.topic else _of_topic(self._request.topic)
        result = self._tiered.get(queue.topic, queue.queue_id, begin, count, wanted, max(0, size))
        if result is None:
            self.is_tiered = True
            return _Read((), b"", begin, True)
        joined, end = result.joined, result.next_begin_offset
        assert isinstance(joined, bytes)
        if result.count and size < len(joined) and not is_first:
            return _Read((), b"", begin, True)
        offsets = range(begin, end) if end - begin == result.count else tuple(split(joined))
        return _Read(offsets, joined, end, end >= result.max_offset or end <= begin)

    def _record(self, queue: PopQueue, offset: int) -> bytes | None:
        return self._tiered.record(queue.topic, queue.queue_id, offset)


class _Read(NamedTuple):
    offsets: Sequence[int]
    joined: bytes
    """The records, one after the other."""
    next_offset: int
    is_end: bool
    """Whether reading on is of no use."""


def _message_groups(records: Mapping[int, bytes]) -> dict[int, str]:
    return {offset: _message_group(record) for offset, record in records.items()}


def _message_group(record: bytes) -> str:
    found = peek(record)
    pairs = properties.parse(record[found.properties_begin : found.properties_end])
    key = pairs.get(properties.SHARDING_KEY, "")
    return key if len(key) <= _MAX_GROUP_LENGTH else "#" + hashlib.blake2b(key.encode(), digest_size=24).hexdigest()


def _of_topic(topic: str) -> MessageFilter:
    """Return a filter of a retry topic: `%RETRY%a_b_c` may be of group a and topic b_c, or of a_b and c."""
    return MessageFilter(None, lambda pairs: pairs.get(properties.RETRY_TOPIC, topic) == topic)


class _Names(NamedTuple):
    """Queues of a topic for a group, the retry topic's last."""

    queues: list[PopQueue]
    in_store: list[tuple[str, int]]


@lru_cache(128)
def _names(group: str, topic: str, queue_ids: Sequence[int]) -> _Names:
    # In loops of C: a topic may have thousands of queues.
    retry = PopQueue(pop_retry_topic(group, topic), group, 0)
    queues = [*map(PopQueue, itertools.repeat(topic), itertools.repeat(group), queue_ids), retry]
    return _Names(queues, [*zip(itertools.repeat(topic), queue_ids), (retry.topic, 0)])


def _check_duration(duration_ms: int, least_ms: int) -> None:
    if not least_ms <= duration_ms <= MAX_INVISIBLE_MS:
        raise Refused(
            refusals.POP_DURATION_ILLEGAL, duration_ms=duration_ms, least_ms=least_ms, limit_ms=MAX_INVISIBLE_MS
        )
