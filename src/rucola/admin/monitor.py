"""MonitorAdmin: one look at all groups, and what an operator should know of them.

    UNDONE    how many messages of a topic are before a group, in all and in its worst queue, and how long they wait
    CLIENTS   members that do not answer, or that subscribe differently
    FAILED    dead letters that were not re-driven
    DELETED   a group asked for messages that are gone, and was sent on (OFFSET_MOVED_EVENT)

Answers to `MonitorService` of Apache RocketMQ 4.9.8, which knows no dead letters.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from rucola.admin.dead_letters import DeadLetterAdmin
from rucola.admin.queue_reader import TOOLS_GROUP, read_queue
from rucola.client.consumer.pull_consumer import PullConsumer
from rucola.errors import MQError, TopicNotFound
from rucola.message.topics import OFFSET_MOVED_EVENT
from rucola.protocol.body import decode_object


@dataclass(slots=True)
class Finding:
    """Something about a group; `details` by their names in JSON."""

    event: str
    group: str
    details: dict[str, Any]


class MonitorAdmin(DeadLetterAdmin):
    """Part of AdminClient."""

    async def look_at_groups(self, since_ms: int) -> list[Finding]:
        """What there is to say of all groups now, and of those that were sent on since then."""
        found = []
        for group in await self.fetch_consumer_groups():
            found += await self._undone(group)
            found += await self._clients(group)
        for group in await self.fetch_dead_letter_groups():
            if waiting := (await self.examine_dead_letters(group)).waiting:
                found.append(Finding("FAILED", group, {"count": waiting}))
        return found + await self._deleted(since_ms)

    async def _undone(self, group: str) -> list[Finding]:
        total: Counter[str] = Counter()
        worst: Counter[str] = Counter()
        for queue, at in (await self.examine_consume_stats(group)).offset_table.items():
            ahead = max(0, at.broker_offset - at.consumer_offset)
            total[queue.topic] += ahead
            worst[queue.topic] = max(worst[queue.topic], ahead)
        found = []
        for topic, count in total.items():
            delays_ms = await self.examine_consume_delays(group, [topic])
            delay_ms = max(delays_ms.values(), default=0)
            details = {"topic": topic, "total": count, "singleQueue": worst[topic], "delayMs": delay_ms}
            found.append(Finding("UNDONE", group, details))
        return found

    async def _clients(self, group: str) -> list[Finding]:
        """What is wrong with the members of a group; nothing where it has none."""
        connection = await self.find_consumer_connection(group)
        if connection is None:
            return []
        wanted, found = set(), []
        for one in connection.connection_set:
            try:
                info = await self.get_consumer_running_info(group, one.client_id)
            except MQError as error:
                found.append(Finding("CLIENTS", group, {"clientId": one.client_id, "problem": str(error)}))
            else:
                wanted.add(frozenset((data.topic, data.sub_string) for data in info.subscription_set))
        if len(wanted) > 1:
            found.append(Finding("CLIENTS", group, {"problem": "its members subscribe differently"}))
        return found

    async def _deleted(self, since_ms: int) -> list[Finding]:
        found = []
        async with PullConsumer(TOOLS_GROUP, self.namesrv) as consumer:
            try:
                queues = await consumer.queues(OFFSET_MOVED_EVENT)
            except TopicNotFound:
                return []
            for queue in queues:
                async for message in read_queue(consumer, queue, begin_ms=since_ms):
                    event = decode_object(message.body, OFFSET_MOVED_EVENT)
                    group = str(event.pop("consumerGroup", ""))
                    found.append(Finding("DELETED", group, event | {"timestamp": message.store_timestamp}))
        return found
