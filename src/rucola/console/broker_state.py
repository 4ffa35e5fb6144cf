"""What a page asks single brokers for: settings, users and policies, and messages that wait to be delivered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rucola.admin import AdminClient, MessageQueue, ResponseCode
from rucola.admin.access import AclVersions
from rucola.domain.pending import PendingMessages
from rucola.domain.user import AclInfo, UserInfo
from rucola.errors import BrokerError
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC

UNITS: Final = 200
"""Messages of a queue of delayed ones that are looked at."""
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose offsets are a broker's progress with transactions."""
ACCESS_REQUESTS: Final = 4
PENDING_REQUESTS: Final = 43
"""At most: two tables of queues, figures and pending messages; two for each of 18 levels, one for timed messages; two
for transactions."""


class Delayed(NamedTuple):
    """A message that is delivered later, at `due_ms`; its place is that of the queue where it waits."""

    due_ms: int
    queue: MessageQueue
    queue_offset: int


@dataclass(frozen=True, slots=True)
class DelayedQueue:
    """Messages of a delay level, or with a time of their own, that a broker has not delivered yet."""

    queue: MessageQueue
    count: int
    seen: Sequence[Delayed]
    """At most UNITS, the next one first: of a level the first ones, of others those that came last."""
    next_ms: int | None
    """Delivery of the first one; None if it may be one that was not looked at."""
    last_ms: int | None

    @property
    def level(self) -> int:
        """The delay level; 0 for messages with a time of their own."""
        return 0 if self.queue.topic == TIMER_TOPIC else self.queue.queue_id + 1


@dataclass(frozen=True, slots=True)
class Pending:
    """Delayed and half messages of one broker."""

    delayed: Sequence[DelayedQueue]
    exact: PendingMessages | None
    """What the broker counts itself; None if it is Apache's."""
    half_count: int | None
    """Open transactions; of Apache's broker an upper limit, or None."""
    discarded_count: int
    """Transactions that were checked too often and are not checked again."""


async def pending(client: AdminClient, address: str) -> Pending:
    now_ms = time.time_ns() // 1_000_000
    exact = await _exact(client, address)
    levels = await _queues(client, address, SCHEDULE_TOPIC)
    # Asked after the ends, so that nothing delivered is counted.
    figures = await client.brokers.runtime_stats(address) if levels else {}
    delayed = []
    for queue, (first, end) in sorted(levels.items()):
        delivered, _, _ = figures.get(f"scheduleMessageOffset_{queue.queue_id + 1}", "0").partition(",")
        if (begin := max(first, int(delivered))) < end:
            delayed.append(await _level(client, address, queue, begin, end))
    if exact is not None and exact.timed.total:  # Apache's broker of 4.x has none
        for queue, (first, end) in (await _queues(client, address, TIMER_TOPIC)).items():
            seen = await _units(client, address, queue, max(first, end - UNITS))
            seen = sorted(one for one in seen if one.due_ms > now_ms)
            next_ms = seen[0].due_ms if len(seen) == exact.timed.total else None
            delayed.append(DelayedQueue(queue, exact.timed.total, seen, next_ms, exact.timed.last_due_ms or None))
    half_count = exact.half.total if exact is not None else await _half_count(client, address)
    return Pending(delayed, exact, half_count, await _discarded_count(client, address))


async def _exact(client: AdminClient, address: str) -> PendingMessages | None:
    try:
        return await client.brokers.pending(address)
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return None


async def _level(client: AdminClient, address: str, queue: MessageQueue, begin: int, end: int) -> DelayedQueue:
    """The messages of a delay level, which are ordered by due time."""
    seen = await _units(client, address, queue, begin)
    last = seen if end - begin <= UNITS else await _units(client, address, queue, end - 1)
    next_ms, last_ms = (seen[0].due_ms if seen else None), (last[-1].due_ms if last else None)
    return DelayedQueue(queue, end - begin, seen, next_ms, last_ms)


async def _units(client: AdminClient, address: str, queue: MessageQueue, begin: int) -> list[Delayed]:
    """Up to UNITS messages of a queue of delayed ones, whose tags code is their due time."""
    found = await client.topics.consume_queue_units(address, queue.topic, queue.queue_id, begin, UNITS)
    return [Delayed(unit.tags_code, queue, offset) for offset, unit in enumerate(found.queue_data, begin)]


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

    @property
    def has_users(self) -> bool:
        """Whether it is access control 2.0."""
        return self.versions is None and not self.refusal


async def access(client: AdminClient, address: str) -> Access:
    try:
        users = await client.access.users(address)
        return Access(users, await client.access.all_policies(address))
    except BrokerError as error:  # ACL 1.0, or none
        # Apache's broker without access control has no users, and does not answer the question for files.
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            settings = await client.brokers.config(address)
            if settings.get("aclEnable") == "false":
                return Access(refusal=f"access control is off: aclEnable of {address} is false")
    try:
        return Access(versions=await client.access.versions(address))
    except BrokerError as error:
        return Access(refusal=str(error))
