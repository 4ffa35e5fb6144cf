"""Pending messages: what a broker still has to deliver, and what its consumer groups have not consumed.

A broker without any can be stopped for ever (`rucola admin drain`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from heapq import nlargest
from operator import attrgetter

from rucola.broker.services.groups import is_subscribed
from rucola.broker.state import BrokerState
from rucola.domain.pending import MAX_ENTRIES, Backlog, PendingMessages
from rucola.domain.statistics import group_key
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX
from rucola.slices import in_slices

_QUEUES_PER_STEP = 16

_Ends = dict[int, tuple[int, int]]
"""The half-open range of visible messages of each queue that has any, the longest queue first."""


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
        totals = {topic: sum(end - begin for begin, end in queues.values()) for topic, queues in topics.items()}
        backlogs, dead, unread = list[Backlog](), Counter[str](), Counter[str]()
        groups_of: Counter[str] = Counter()
        known: set[tuple[str, str]] = set()
        for key, committed in list(state.offsets.table().items()):
            yield
            topic, _, group = key.partition(group_key("", ""))
            if topic not in topics:
                continue
            known.add((topic, group))
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
                backlogs.append(backlog)
        for topic, group in (yield from self._without_offsets(topics)) - known:
            groups_of[topic] += 1
            backlogs.append((yield from self._backlog(group, topic, topics[topic], totals[topic], {})))
        for topic, queues in topics.items():
            count = sum(end - begin for begin, end in queues.values())
            if count and topic.startswith(DLQ_PREFIX):
                dead[topic.removeprefix(DLQ_PREFIX)] = count
            elif count and not groups_of[topic]:
                unread[topic] = count
            yield
        found.backlogs = nlargest(MAX_ENTRIES, backlogs, key=attrgetter("messages"))
        found.backlog_total = sum(backlog.messages for backlog in backlogs)
        found.dead_letters, found.dead_letter_total = dict(dead.most_common(MAX_ENTRIES)), dead.total()
        found.unread, found.unread_total = dict(unread.most_common(MAX_ENTRIES)), unread.total()
        return found

    def _topics(self) -> Generator[None, None, dict[str, _Ends]]:
        """Return the queues that consumers may read, of all topics with messages."""
        state, sizes = self._state, list[tuple[int, str, int, int]]()
        state.store.reput()
        for topic, queue_id in state.store.queue_names():
            yield
            config = state.topics.get(topic)
            if config is None or queue_id >= config.read_queue_nums or state.topics.is_system_topic(topic):
                continue
            begin, end = state.store.min_offset(topic, queue_id), state.store.max_offset(topic, queue_id, visible=True)
            if begin < end:
                sizes.append((end - begin, topic, queue_id, begin))
        found: dict[str, _Ends] = {}
        for size, topic, queue_id, begin in sorted(sizes, reverse=True):
            found.setdefault(topic, {})[queue_id] = begin, begin + size
            yield
        return found

    def _without_offsets(self, topics: Mapping[str, _Ends]) -> Generator[None, None, set[tuple[str, str]]]:
        """Return topics and groups that need them without an offset: of members, and for retries."""
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
        # groups may have offsets on a few queues of a wide topic.
        known = queues.keys() & committed.keys()
        backlog = Backlog(group, topic, total, queues=len(queues))
        for step, queue_id in enumerate(known, 1):
            begin, end = queues[queue_id]
            waiting = end - max(begin, min(committed.get(queue_id, 0), end))
            backlog.messages -= end - begin - waiting
            if not waiting:
                backlog.queues -= 1
            elif waiting > backlog.largest_queue:
                backlog.largest_queue_id, backlog.largest_queue = queue_id, waiting
            if step % _QUEUES_PER_STEP == 0:
                yield
        for queue_id, (begin, end) in queues.items():  # the longest first
            if queue_id not in known:
                if end - begin > backlog.largest_queue:
                    backlog.largest_queue_id, backlog.largest_queue = queue_id, end - begin
                break
        return backlog
