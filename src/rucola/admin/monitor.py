"""MonitorAdmin: one check of all consumer groups for problems that need an operator.

    UNDONE    the group's backlog on a topic, in total and of its longest queue, and the age of its next message
    CLIENTS   members that do not answer, whose subscriptions differ, or that have one client id
    FAILED    dead letters that were not re-driven
    DELETED   a member pulled an offset below the start of its queue and was moved (OFFSET_MOVED_EVENT)

Corresponds to `MonitorService` of Apache RocketMQ 4.9.8, which does not report dead letters.
"""

from __future__ import annotations

from collections import Counter

from rucola.admin.dead_letters import DeadLetterAdmin
from rucola.admin.groups import GroupAdmin
from rucola.admin.queue_reader import TOOLS_GROUP, read_queue
from rucola.admin.requests import AdminRequests
from rucola.client.consumer.pull_consumer import PullConsumer
from rucola.domain.diagnosis import Finding
from rucola.errors import TopicNotFound
from rucola.message.topics import OFFSET_MOVED_EVENT
from rucola.protocol.body import decode_object


class MonitorAdmin:
    def __init__(self, requests: AdminRequests, groups: GroupAdmin, dead_letters: DeadLetterAdmin) -> None:
        self._requests = requests
        self._groups = groups
        self._dead_letters = dead_letters

    async def check_groups(self, since_ms: int) -> list[Finding]:
        """Return the findings about all groups; DELETED from `since_ms` on, milliseconds since 1970."""
        findings = []
        for group in await self._groups.names():
            findings += await self._backlogs(group)
            findings += await self._members(group)
        for group in await self._dead_letters.groups():
            if waiting := (await self._dead_letters.stats(group)).waiting:
                findings.append(Finding("FAILED", group, {"count": waiting}))
        return findings + await self._moved_offsets(since_ms)

    async def _backlogs(self, group: str) -> list[Finding]:
        total: Counter[str] = Counter()
        longest: Counter[str] = Counter()
        for queue, offsets in (await self._groups.consume_stats(group)).offset_table.items():
            backlog = max(0, offsets.broker_offset - offsets.consumer_offset)
            total[queue.topic] += backlog
            longest[queue.topic] = max(longest[queue.topic], backlog)
        findings = []
        for topic, backlog in total.items():
            if not backlog:
                continue
            delays_ms = await self._groups.consume_delays(group, [topic])
            delay_ms = max(delays_ms.values(), default=0)
            details = {"topic": topic, "total": backlog, "singleQueue": longest[topic], "delayMs": delay_ms}
            findings.append(Finding("UNDONE", group, details))
        return findings

    async def _members(self, group: str) -> list[Finding]:
        connection = await self._groups.find_consumer_connection(group)
        if connection is None:
            return []
        infos, failures = await self._groups.running_infos(group, connection)
        problems = [{"clientId": client_id, "problem": str(error)} for client_id, error in failures.items()]
        problems += [
            {"clientId": client_id, "problem": f"several clients have this id: {', '.join(addresses)}"}
            for client_id, addresses in connection.shared_client_ids.items()
        ]
        if len({info.subscriptions for info in infos.values()}) > 1:
            problems.append({"problem": "its members subscribe differently"})
        return [Finding("CLIENTS", group, problem) for problem in problems]

    async def _moved_offsets(self, since_ms: int) -> list[Finding]:
        findings = []
        async with PullConsumer(TOOLS_GROUP, self._requests.connection) as consumer:
            try:
                queues = await consumer.queues(OFFSET_MOVED_EVENT)
            except TopicNotFound:
                return []
            for queue in queues:
                async for message in read_queue(consumer, queue, begin_ms=since_ms):
                    event = decode_object(message.body, OFFSET_MOVED_EVENT)
                    group = str(event.pop("consumerGroup", ""))
                    findings.append(Finding("DELETED", group, event | {"timestamp": message.store_timestamp}))
        return findings
