"""Diagnosis: messages that no consumer can get.

    QUEUE_NOT_READ   a queue whose id is not below readQueueNums: no route shows it, no consumer reads it
    TOPIC_MISSING    queues with messages of a topic that does not exist: deleted, or lost with topics.json

The first remains when a topic gets fewer queues, or of retries that Apache's broker stored after a group's
retryQueueNums was raised. The messages are read again once the topic has the queue. The broker logs its findings at the
start, and `rucola admin doctor` shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator

from rucola.broker.tables.topics import TopicConfigTable
from rucola.domain.diagnosis import Diagnosis, Finding
from rucola.slices import sliced
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

QUEUE_NOT_READ = "QUEUE_NOT_READ"
TOPIC_MISSING = "TOPIC_MISSING"


class DiagnosisService:
    """`certificate_expires_ms` returns the end of the validity of the broker's certificate, 0 without TLS."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigTable,
        clock: Callable[[], int],
        certificate_expires_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._topics = topics
        self._clock = clock
        self._certificate_expires_ms = certificate_expires_ms

    async def log(self) -> None:
        """Log each finding as a warning; missing topics, which operators delete, as information."""
        for finding in (await self.findings()).findings:
            level = logging.INFO if finding.reason == TOPIC_MISSING else logging.WARNING
            logger.log(level, "%s %s: %s; see `rucola admin doctor`", finding.reason, finding.subject, finding.fields)

    @sliced
    def findings(self) -> Generator[None, None, Diagnosis]:
        found: list[Finding] = []
        missing: dict[str, int] = {}
        for (topic, queue_id), (begin, end) in sorted(self._store.queues().items()):
            yield
            if begin >= end or self._topics.is_system_topic(topic):
                continue
            config = self._topics.get(topic)
            if config is None:
                missing[topic] = missing.get(topic, 0) + end - begin
            elif queue_id >= config.read_queue_nums:
                fields: dict[str, str | int] = {
                    "topic": topic,
                    "queueId": queue_id,
                    "messages": end - begin,
                    "readQueueNums": config.read_queue_nums,
                }
                found.append(Finding(reason=QUEUE_NOT_READ, subject=f"{topic}:{queue_id}", fields=fields))
        for topic, count in missing.items():
            found.append(Finding(reason=TOPIC_MISSING, subject=topic, fields={"topic": topic, "messages": count}))
        pool = self._store.mapping_pool
        return Diagnosis(found, self._clock(), self._certificate_expires_ms(), pool.count / max(pool.limit, 1))
