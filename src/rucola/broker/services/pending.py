"""Pending messages: what a broker still has to deliver, and what its consumer groups have not consumed.

A broker without any can be stopped for ever (`rucola admin drain`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from heapq import heappush, heappushpop

from rucola.broker.services.groups import is_subscribed
from rucola.broker.state import BrokerState
from rucola.domain.pending import MAX_ENTRIES, Backlog, PendingMessages
from rucola.domain.statistics import group_key
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX
from rucola.slices import in_slices

_QUEUES_PER_STEP = 16

_Ends = dict[int, tuple[int, int]]
"""The half-open range of visible messages of each queue that has any, the longest queue first."""


class _Largest:
    """The MAX_ENTRIES largest of many backlogs, found one by one: to sort all of them is a long step."""

    def __init__(self) -> None:
        self.total = 0
        """Messages of all."""
        self._count = 0
        self._heap: list[tuple[int, int, Backlog]] = []

    def add(self, backlog: Backlog) -> None:
        self.total += backlog.messages
        self._count += 1
        entry = backlog.messages, -self._count, backlog
        if len(self._heap) < MAX_ENTRIES:
            heappush(self._heap, entry)
        else:
            heappushpop(self._heap, entry)

    def sorted(self) -> list[Backlog]:
        """Return them, the largest first, and of equal ones the first added."""
        return [backlog for *_, backlog in sorted(self._heap, reverse=True)]


class PendingService:
    def __init__(self, state: BrokerState) -> None:
        self._state = state

    async def pending(self) -> PendingMessages:
        """Return what waits. A group has no backlog on a topic that is deleted, not subscribed to, or broadcast."""
        return await in_slices(self.steps())

    def steps(self) -> Generator[None, None, PendingMessages]:
        """Return the same in small steps."""
        state, now_ms = self._state, self._state.clock()
        found = PendingMessages()
        found.delayed = yield from state.delayed.due_steps(now_ms)
        found.timed = yield from state.timers.due_steps(now_ms)
        found.half = yield from state.transactions.due_steps(now_ms)
        topics = yield from self._topics()
        totals: dict[str, int] = {}
        for topic, queues in topics.items():
            totals[topic] = sum(end - begin for begin, end in queues.values())
            yield
        backlogs, dead, unread = _Largest(), Counter[str](), Counter[str]()
        groups_of: Counter[str] = Counter()
        without_offsets = yield from self._without_offsets(topics)
        for key, committed in list(state.offsets.table().items()):
            yield
            topic, _, group = key.partition(group_key("", ""))
            if topic not in topics:
                continue
            without_offsets.discard((topic, group))
            if topic.startswith(DLQ_PREFIX):
                for queue_id, offset in list(committed.items()):  # read by anybody is read, and re-driven as well
                    if queue_id in topics[topic]:
                        begin, end = topics[topic][queue_id]
                        topics[topic][queue_id] = max(begin, min(offset, end)), end
                    yield
                continue
            if state.groups.get(group) is None or not is_subscribed(state, group, topic):
                continue
            groups_of[topic] += 1
            members = state.clients.consumers.get(group)
            if members is not None and members.message_model == "BROADCASTING":
                continue
            backlog = yield from self._backlog(group, topic, topics[topic], totals[topic], committed)
            if backlog.messages:
                backlog.clients = len(members.members) if members is not None else 0
                backlog.consume_tps = state.stats.consume_tps(group, topic, now_ms)
                backlogs.add(backlog)
        for topic, group in without_offsets:
            groups_of[topic] += 1
            backlogs.add((yield from self._backlog(group, topic, topics[topic], totals[topic], {})))
        for topic, queues in topics.items():
            count = sum(end - begin for begin, end in queues.values())
            if count and topic.startswith(DLQ_PREFIX):
                dead[topic.removeprefix(DLQ_PREFIX)] = count
            elif count and not groups_of[topic]:
                unread[topic] = count
            yield
        found.backlogs, found.backlog_total = backlogs.sorted(), backlogs.total
        found.dead_letters, found.dead_letter_total = dict(dead.most_common(MAX_ENTRIES)), dead.total()
        found.unread, found.unread_total = dict(unread.most_common(MAX_ENTRIES)), unread.total()
        return found

    def _topics(self) -> Generator[None, None, dict[str, _Ends]]:
        """Return the queues that consumers may read, of all topics with messages."""
        state, found = self._state, dict[str, _Ends]()
        state.store.reput()
        for step, (topic, queue_id) in enumerate(state.store.queue_names()):
            if step % _QUEUES_PER_STEP == 0:
                yield
            config = state.topics.get(topic)
            if config is None or queue_id >= config.read_queue_nums or state.topics.is_system_topic(topic):
                continue
            begin, end = state.store.min_offset(topic, queue_id), state.store.max_offset(topic, queue_id, visible=True)
            if begin < end:
                found.setdefault(topic, {})[queue_id] = begin, end
        for topic, queues in found.items():
            found[topic] = dict(sorted(queues.items(), key=lambda item: item[1][0] - item[1][1]))
            yield
        return found

    def _without_offsets(self, topics: Mapping[str, _Ends]) -> Generator[None, None, set[tuple[str, str]]]:
        """Return topics and groups that need them, also without an offset: of members, and for retries."""
        state, found = self._state, set[tuple[str, str]]()
        for group, members in list(state.clients.consumers.items()):
            if members.message_model != "BROADCASTING" and state.groups.get(group) is not None:
                found |= {(topic, group) for topic in members.subscriptions if topic in topics}
            yield
        for topic in topics:
            if topic.startswith(RETRY_PREFIX):
                name = topic.removeprefix(RETRY_PREFIX)
                # By POP, the topic of the message follows the group.
                names = [name, *(name[:at] for at, character in enumerate(name) if character == "_")]
                owner = next((group for group in names if state.groups.get(group) is not None), None)
                if owner is not None:
                    found.add((topic, owner))
            yield
        return found

    def _backlog(
        self, group: str, topic: str, queues: _Ends, total: int, committed: Mapping[int, int]
    ) -> Generator[None, None, Backlog]:
        # A queue without an offset is consumed from its begin. A step visits an offset and not a queue, since many
        # groups may have offsets on a few queues of a wide topic. Comparisons: min and max take twice the time.
        offsets, messages, count = dict(committed), total, len(queues)
        largest_id = largest = 0
        for step, (queue_id, offset) in enumerate(offsets.items(), 1):
            if (bounds := queues.get(queue_id)) is not None:
                begin, end = bounds
                if offset >= end:
                    messages -= end - begin
                    count -= 1
                else:
                    if offset > begin:
                        messages -= offset - begin
                        begin = offset
                    if end - begin > largest:
                        largest_id, largest = queue_id, end - begin
            if step % _QUEUES_PER_STEP == 0:
                yield
        for queue_id, (begin, end) in queues.items():  # the longest first
            if queue_id not in offsets:
                if end - begin > largest:
                    largest_id, largest = queue_id, end - begin
                break
        return Backlog(group, topic, messages, queues=count, largest_queue_id=largest_id, largest_queue=largest)
