"""What a page asks single brokers for: settings, users and policies, and messages that wait to be delivered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rucola.admin import AdminClient, MessageQueue
from rucola.admin.access import AclVersions
from rucola.domain.user import AclInfo, UserInfo
from rucola.errors import BrokerError
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC

UNITS: Final = 200
"""The newest messages of a queue of delayed ones that are looked at."""
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose offsets are a broker's progress with transactions."""
ACCESS_REQUESTS: Final = 3
PENDING_REQUESTS: Final = 24
"""At most: a table for each of two topics, the units of their 19 queues, and three for transactions."""


class Delayed(NamedTuple):
    """A message that is delivered later, at `due_ms`; its place is that of the queue where it waits."""

    due_ms: int
    queue: MessageQueue
    queue_offset: int


@dataclass(frozen=True, slots=True)
class DelayedQueue:
    """Messages of a delay level, or with a time of their own, that a broker has not delivered yet."""

    queue: MessageQueue
    pending: Sequence[Delayed]
    """Those among the newest UNITS that are due later, the next one first."""
    is_cut: bool
    """All of these are: there may be more."""

    @property
    def level(self) -> int:
        """The delay level; 0 for messages with a time of their own."""
        return 0 if self.queue.topic == TIMER_TOPIC else self.queue.queue_id + 1


@dataclass(frozen=True, slots=True)
class Pending:
    """Delayed and half messages of one broker."""

    delayed: Sequence[DelayedQueue]
    half_count: int | None
    """Half messages from the oldest open one on, of which some may have ended; None if the broker does not say."""
    discarded_count: int
    """Transactions that were checked too often and are not checked again."""


async def pending(client: AdminClient, address: str) -> Pending:
    now_ms = time.time_ns() // 1_000_000
    found = []
    for topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        for queue, at in sorted((await _queues(client, address, topic)).items()):
            begin = max(at[0], at[1] - UNITS)
            units = await client.topics.consume_queue_units(address, topic, queue.queue_id, begin, UNITS)
            waiting = [
                Delayed(unit.tags_code, queue, offset)
                for offset, unit in enumerate(units.queue_data, begin)
                if unit.tags_code > now_ms
            ]
            # Delay levels are ordered by due time; timed messages are in the order in which they came.
            is_cut = begin > at[0] and (topic == TIMER_TOPIC or len(waiting) == UNITS)
            found.append(DelayedQueue(queue, sorted(waiting), is_cut))
    return Pending(found, await _half_count(client, address), await _discarded_count(client, address))


async def _queues(client: AdminClient, address: str, topic: str) -> dict[MessageQueue, tuple[int, int]]:
    """The ends of the queues of a topic that have messages; none if the broker does not have the topic."""
    try:
        found = await client.topics.stats_at(address, topic)
    except BrokerError:
        return {}
    return {queue: (at.min_offset, at.max_offset) for queue, at in found.items() if at.max_offset > at.min_offset}


async def _half_count(client: AdminClient, address: str) -> int | None:
    try:
        stats = await client.groups.consume_stats_at(address, TRANSACTION_GROUP, TRANS_HALF_TOPIC)
    except BrokerError:
        return None
    return sum(max(0, at.broker_offset - at.consumer_offset) for at in stats.offset_table.values())


async def _discarded_count(client: AdminClient, address: str) -> int:
    queues = await _queues(client, address, TRANS_CHECK_MAX_TIME_TOPIC)
    return sum(end - begin for begin, end in queues.values())


@dataclass(frozen=True, slots=True)
class Access:
    """Access control of one broker: users and policies of ACL 2.0, the files of ACL 1.0, or none."""

    users: Sequence[UserInfo] = ()
    policies: Sequence[AclInfo] = ()
    versions: AclVersions | None = None
    """The files of ACL 1.0, whose accounts a broker does not list."""
    refusal: str = ""
    """Why there is neither."""


async def access(client: AdminClient, address: str) -> Access:
    try:
        users = await client.access.users(address)
        return Access(users, await client.access.all_policies(address))
    except BrokerError:
        pass  # ACL 1.0, or none
    try:
        return Access(versions=await client.access.versions(address))
    except BrokerError as error:
        return Access(refusal=str(error))
