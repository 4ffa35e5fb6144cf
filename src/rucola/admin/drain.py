"""DrainAdmin: empties a broker before it is removed, and moves topics and groups to another broker.

Sends are stopped at the name servers, as by `wipeWritePerm`; clients get the new route within CLIENT_ROUTE_S. Stored
messages are consumed and delivered from where they are; nothing is copied. Name servers that restart, and brokers that
register a changed topic, permit sends again, so the permission is removed again every WIPE_INTERVAL_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rucola.admin.brokers import BrokerAdmin
from rucola.admin.cluster import ClusterAdmin
from rucola.admin.groups import GroupAdmin
from rucola.admin.name_servers import NameServerAdmin
from rucola.admin.offsets import OffsetAdmin
from rucola.admin.requests import masters_of
from rucola.admin.topics import TopicAdmin
from rucola.domain.pending import Backlog, PendingMessages
from rucola.domain.queue import MessageQueue
from rucola.domain.topic import PERM_READ, PERM_WRITE
from rucola.errors import ConfigError, RemotingError
from rucola.message.topics import is_system_topic, retry_topic

CLIENT_ROUTE_S: Final = 30.0
"""Interval in which clients ask for routes: pollNameServerInterval, of Apache's clients and Rucola's."""
WIPE_INTERVAL_S: Final = 30.0


@dataclass(slots=True)
class DrainState:
    """What waits on a broker."""

    pending: PendingMessages = field(default_factory=PendingMessages)
    remaining_s: float | None = None
    """Estimate of the time until nothing waits; None if a group consumes nothing, or somebody must act."""
    settling_s: float = 0.0
    """Time for which clients may send by an old route."""
    error: str = ""
    """Why the broker or the name servers did not answer; empty if they did."""

    @property
    def is_drained(self) -> bool:
        return not (self.error or self.pending.total or self.settling_s)


class MovedGroup(NamedTuple):
    backlogs: list[Backlog]
    delayed: int
    """Delayed messages on the source, some of which may be retries of the group."""
    waiting: int
    """Messages of the backlogs; 1 if there may be one that is not among the listed ones."""
    clients: int
    """Members that are connected to the source."""

    @property
    def is_complete(self) -> bool:
        return not self.waiting and not self.delayed


class DrainAdmin:
    def __init__(
        self,
        cluster: ClusterAdmin,
        brokers: BrokerAdmin,
        name_servers: NameServerAdmin,
        topics: TopicAdmin,
        groups: GroupAdmin,
        offsets: OffsetAdmin,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._name_servers = name_servers
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clock_s = clock_s

    async def only_on(self, broker_name: str) -> list[str]:
        """Return the topics that no other broker accepts messages of, sorted. ConfigError for an unknown broker."""
        address = await self._cluster.master_address(broker_name)
        masters = masters_of((await self._cluster.info()).broker_addr_table.values())
        elsewhere = {
            topic
            for name, other in masters.items()
            if name != broker_name
            for topic, config in (await self._topics.configs(other)).items()
            if config.perm & PERM_WRITE
        }
        own = await self._topics.configs(address)
        return sorted(
            topic
            for topic, config in own.items()
            if config.perm & PERM_WRITE and topic not in elsewhere and not topic.startswith("%")
            and not is_system_topic(topic) and topic != broker_name
        )  # fmt: skip

    async def drain(
        self, broker_name: str, *, interval_s: float = 5.0, route_s: float = CLIENT_ROUTE_S
    ) -> AsyncGenerator[DrainState, None]:
        """Stop sends to a broker, and yield what waits, every `interval_s`, until that is nothing.

        It ends when also nothing was stored for `route_s`: until then a client may send by an old route. Sends stay
        stopped if the generator is closed early; another call continues. Errors of the first round are raised, later
        ones are yielded. ConfigError for an unknown broker.
        """
        quiet_s = self._clock_s()
        wiped_s: float | None = None
        log_end = ""
        is_first = True
        while True:
            state = DrainState()
            try:
                if wiped_s is None or self._clock_s() >= wiped_s + WIPE_INTERVAL_S:
                    address = await self._cluster.master_address(broker_name)
                    if is_first:
                        await self._brokers.pending(address)  # raises before sends are stopped
                    await self._name_servers.wipe_write_permission(broker_name)
                    wiped_s = self._clock_s()
                stats = await self._brokers.runtime_stats(address)
                if stats.get("commitLogMaxOffset", "") != log_end:
                    log_end, quiet_s = stats.get("commitLogMaxOffset", ""), self._clock_s()
                state.pending = await self._brokers.pending(address)
            except (RemotingError, ConfigError) as error:
                if is_first:
                    raise
                state.error = str(error)
            is_first = False
            state.settling_s = max(0.0, quiet_s + route_s - self._clock_s())
            state.remaining_s = _remaining_s(state)
            yield state
            if state.is_drained:
                return
            await asyncio.sleep(interval_s)

    async def move_topic(
        self, topic: str, source: str, destination: str, *, interval_s: float = 5.0, route_s: float = CLIENT_ROUTE_S
    ) -> AsyncGenerator[int, None]:
        """Let another broker accept the messages of a topic, and yield how many of the old ones are not consumed.

        1. The destination gets the topic with as many queues and without permissions, and each group the end of its
           queues as offset.
        2. It accepts messages, which cannot be read yet, and the source accepts none any more.
        3. When the groups have consumed what the source has, the queues of the destination can be read.

        So a group gets the messages of a queue number in order. Another call continues where one has ended early. With
        more than MAX_ENTRIES backlogs on the source it waits until there are fewer. ConfigError if the brokers or the
        topic do not allow it.
        """
        addresses = await self._move_addresses(source, destination)
        configs = [(await self._topics.configs(address)).get(topic) for address in addresses]
        config, present = configs
        if source == destination or config is None:
            why = "source and destination are the same" if source == destination else f"{source} does not have it"
            raise ConfigError(f"topic {topic} cannot be moved: {why}", subject=topic)
        if present is not None and present.perm & PERM_READ and config.perm & PERM_WRITE:
            raise ConfigError(
                f"topic {topic} cannot be moved: {destination} has readable queues of it already, so that the order of "
                "messages would be lost; updateTopicPerm takes the write permission on the source, and drain waits",
                subject=topic,
            )
        if config.perm & PERM_WRITE:
            if present is not None:
                config.read_queue_nums = max(config.read_queue_nums, present.read_queue_nums)
            if present is None or not present.perm & PERM_WRITE:  # no message has arrived, so that the ends are fixed
                config.perm = 0
                await self._topics.create_or_update(addresses[1], config)
                ends = await self._topics.stats_at(addresses[1], topic)
                for group in await self._topics.consumer_groups_at(addresses[0], topic):
                    for queue, at in ends.items():
                        await self._offsets.commit(addresses[1], group, queue, at.max_offset)
                config.perm = PERM_WRITE
                await self._topics.create_or_update(addresses[1], config)
            order = await self._name_servers.order_conf(topic)
            if source in order:
                order[destination] = order.pop(source)
                await self._name_servers.put_order_conf(topic, order)
            closed = (await self._topics.configs(addresses[0]))[topic]
            closed.perm = PERM_READ
            await self._topics.create_or_update(addresses[0], closed)
        begin_s, waiting = self._clock_s(), -1
        while True:
            try:
                pending = await self._brokers.pending(addresses[0])
            except RemotingError:
                if waiting < 0:
                    raise  # of the first round; a later one may be of a restart
            else:
                waiting = _count(pending, [one for one in pending.backlogs if one.topic == topic])
                yield waiting
                if not waiting and self._clock_s() >= begin_s + route_s:
                    break
            await asyncio.sleep(interval_s)
        opened = (await self._topics.configs(addresses[1])).get(topic) or config
        opened.perm |= PERM_READ | PERM_WRITE
        await self._topics.create_or_update(addresses[1], opened)

    async def move_group(self, group: str, source: str, destination: str) -> MovedGroup:
        """Give another broker the settings and the retry topic of a group, and return what waits on the source.

        If that is nothing, the group is deleted there, except while members are connected: their next heartbeat would
        create it again, without its settings. ConfigError if a topic that it consumes still accepts messages there.
        """
        old, new = await self._move_addresses(source, destination)
        config = (await self._groups.configs(old)).get(group)
        if config is None:
            raise ConfigError(f"group {group} cannot be moved: {source} does not have it", subject=group)
        topics = await self._topics.configs(old)
        connection = await self._groups.find_consumer_connection(group, old)
        consumed = {one.topic for one in await self._offsets.all(old) if one.group == group}
        consumed |= connection.subscription_table.keys() if connection is not None else set()
        accepting = sorted(
            topic
            for topic in consumed & topics.keys()
            if topics[topic].perm & PERM_WRITE and not topic.startswith("%") and not is_system_topic(topic)
        )
        if accepting:
            raise ConfigError(
                f"group {group} cannot be moved: it consumes {', '.join(accepting)}, which {source} accepts "
                "messages of; moveTopic first",
                subject=group,
            )
        await self._groups.create_or_update(new, config)
        retry = retry_topic(group)
        if retry in topics and retry not in await self._topics.configs(new):
            await self._topics.create_or_update(new, topics[retry])
            for queue_id in range(topics[retry].read_queue_nums):
                await self._offsets.commit(new, group, MessageQueue(retry, destination, queue_id), 0)
        pending = await self._brokers.pending(old)
        backlogs = [one for one in pending.backlogs if one.group == group]
        connection = await self._groups.find_consumer_connection(group, old)
        clients = len(connection.connection_set) if connection is not None else 0
        moved = MovedGroup(backlogs, pending.delayed.total, _count(pending, backlogs), clients)
        if moved.is_complete and not clients:
            await self._groups.delete(old, group)
        return moved

    async def _move_addresses(self, source: str, destination: str) -> list[str]:
        """Return both masters' addresses; without the permission to ask what waits, raise before anything changes."""
        addresses = [await self._cluster.master_address(name) for name in (source, destination)]
        await self._brokers.pending(addresses[0])
        return addresses


def _count(pending: PendingMessages, chosen: list[Backlog]) -> int:
    """Return the messages of backlogs; at least 1 if a broker has more backlogs than it lists."""
    is_cut = sum(one.messages for one in pending.backlogs) < pending.backlog_total
    return max(sum(one.messages for one in chosen), int(is_cut))


def _remaining_s(state: DrainState) -> float | None:
    pending, now_ms = state.pending, time.time_ns() // 1_000_000
    last_due_ms = max(pending.delayed.last_due_ms, pending.timed.last_due_ms, pending.half.last_due_ms)
    parts_s = [state.settling_s, (last_due_ms - now_ms) / 1000]
    if pending.dead_letter_total or state.error:
        return None
    for backlog in pending.backlogs:
        if not backlog.consume_tps:
            return None
        parts_s.append(backlog.messages / backlog.consume_tps)
    return max(0.0, *parts_s)
