"""Scans: bounded searches through a topic's messages, which run while pages show their progress.

A scan reads every message of a time range, oldest first in each queue, then those that only a lake has, and keeps what
it found without the bodies. It belongs to an account and its question, so that its page can be reloaded, and opened by
others, who get their own.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rucola.admin import TOOLS_GROUP, AdminClient, MessageExt, MessageQueue, read_queue
from rucola.admin.commands.archive_query import MessageArchive
from rucola.admin.queries import MAX_LONG
from rucola.client import PullConsumer
from rucola.errors import ConfigError, MQError, TopicNotFound
from rucola.message import sql92

MAX_MESSAGES: Final = 1_000_000
MAX_BYTES: Final = 1 << 30
MAX_S: Final = 120.0
MAX_HITS: Final = 200
MAX_RUNNING: Final = 4
MAX_KEPT: Final = 50
PREVIEW_BYTES: Final = 200


class Question(NamedTuple):
    """What a scan looks for: messages with a text in body, keys or properties, and for which a SQL92 filter holds."""

    topic: str
    text: str = ""
    filter: str = ""
    begin_ms: int | None = None
    end_ms: int | None = None


class Hit(NamedTuple):
    message: MessageExt
    """Without its body."""
    broker_name: str
    size: int
    preview: str
    is_archived: bool = False
    """Only the lake has it."""


@dataclass(slots=True)
class Scan:
    question: Question
    state: str = "running"
    """`running`, `complete`, `incomplete` (see `failures`), `stopped`, or `limit`: there may be more."""
    scanned: int = 0
    total: int | None = None
    """An estimate, known when the ends of the queues are."""
    size: int = 0
    hits: list[Hit] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Why queues are missing, or the whole topic."""
    begin_s: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None
    hides: Callable[[MessageExt], object] = lambda _: False
    """Whether a body is neither searched nor shown."""
    is_in_lake: bool = False
    """It has read the log."""
    first_read: dict[tuple[str, int], int] = field(default_factory=dict)
    """The first queue offset that was read from the log, by the store host of the messages and queue."""

    @property
    def is_at_limit(self) -> bool:
        return (
            len(self.hits) >= MAX_HITS
            or self.scanned >= MAX_MESSAGES
            or self.size >= MAX_BYTES
            or time.monotonic() - self.begin_s >= MAX_S
        )


class Scans:
    def __init__(self, client: AdminClient, lake: MessageArchive | None = None) -> None:
        self._client = client
        self._lake = lake
        self._scans: OrderedDict[tuple[str, Question], Scan] = OrderedDict()

    def get(self, account: str, question: Question) -> Scan | None:
        return self._scans.get((account, question))

    def start(self, account: str, question: Question, hides: Callable[[MessageExt], object] = lambda _: False) -> Scan:
        """Start a scan, again if it has run before. Raises ConfigError if too many run, InvalidExpression."""
        expression = sql92.compile(question.filter) if question.filter else None
        self.stop(account, question)
        if sum(one.state == "running" for one in self._scans.values()) >= MAX_RUNNING:
            raise ConfigError(f"{MAX_RUNNING} searches run already: stop one, or wait", subject=question.topic)
        scan = Scan(question, hides=hides)
        scan.task = asyncio.create_task(self._run(scan, expression))
        self._scans.pop((account, question), None)
        self._scans[account, question] = scan
        ended = [key for key, one in self._scans.items() if one.state != "running"]
        for key in ended[: max(0, len(self._scans) - MAX_KEPT)]:
            del self._scans[key]
        return scan

    def stop(self, account: str, question: Question) -> None:
        scan = self.get(account, question)
        if scan is not None and scan.task is not None:
            scan.task.cancel()
            scan.state = "stopped" if scan.state == "running" else scan.state

    async def close(self) -> None:
        tasks = [one.task for one in self._scans.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, scan: Scan, expression: sql92.Expression | None) -> None:
        end = "stopped"
        try:
            async with PullConsumer(TOOLS_GROUP, self._client.connection) as consumer:
                await self._scan_log(scan, consumer, expression)
            if self._lake is not None and not scan.is_at_limit:
                scan.is_in_lake = True
                await self._scan_lake(scan, self._lake, expression)
            end = "limit" if scan.is_at_limit else "incomplete" if scan.failures else "complete"
        except MQError as error:
            scan.failures[scan.question.topic] = str(error)
            end = "incomplete"
        finally:
            scan.state = end

    async def _scan_log(self, scan: Scan, consumer: PullConsumer, expression: sql92.Expression | None) -> None:
        try:
            begins = await self._begins(scan, consumer)
        except TopicNotFound:
            if self._lake is None:
                raise
            return  # it may have been deleted after it was archived
        except MQError as error:
            if self._lake is None:
                raise
            scan.failures[scan.question.topic] = str(error)
            return
        for queue, begin in begins.items():
            await self._scan_queue(scan, consumer, queue, begin, expression)
            if scan.is_at_limit:
                return

    async def _scan_lake(self, scan: Scan, lake: MessageArchive, expression: sql92.Expression | None) -> None:
        """Read what the lake has and the log has not: messages before the first of their queue in the log."""
        question = scan.question
        end_ms = MAX_LONG if question.end_ms is None else question.end_ms
        try:
            lists = await asyncio.to_thread(lake.stored_between, question.topic, question.begin_ms or 0, end_ms)
            while (archived := await asyncio.to_thread(next, lists, None)) is not None:
                for message, broker_name in archived:
                    place = message.store_host, message.queue_id
                    if message.queue_offset >= scan.first_read.get(place, MAX_LONG):
                        continue
                    if _look_at(scan, message, expression):
                        scan.hits.append(hit_of(message, broker_name)._replace(is_archived=True))
                    if scan.is_at_limit:
                        return
        except (MQError, OSError) as error:
            scan.failures[str(lake)] = str(error)

    async def _begins(self, scan: Scan, consumer: PullConsumer) -> dict[MessageQueue, int]:
        """The first offset of each queue that answers."""
        question, begins, total = scan.question, dict[MessageQueue, int](), 0
        for queue in sorted(await consumer.queues(question.topic)):
            try:
                begin, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
                if question.begin_ms is not None:
                    begin = max(begin, await consumer.search_offset(queue, question.begin_ms - 1))
            except MQError as error:
                scan.failures[str(queue)] = str(error)
                continue
            begins[queue] = begin
            total += max(0, end - begin)
        scan.total = total
        return begins

    async def _scan_queue(
        self, scan: Scan, consumer: PullConsumer, queue: MessageQueue, begin: int, expression: sql92.Expression | None
    ) -> None:
        question = scan.question
        messages = read_queue(consumer, queue, "*", question.begin_ms, question.end_ms, begin_offset=begin)
        try:
            async with aclosing(messages):
                async for message in messages:
                    scan.first_read.setdefault((message.store_host, message.queue_id), message.queue_offset)
                    if _look_at(scan, message, expression):
                        scan.hits.append(hit_of(message, queue.broker_name))
                    if scan.is_at_limit:
                        return
        except MQError as error:
            scan.failures[str(queue)] = str(error)


def _look_at(scan: Scan, message: MessageExt, expression: sql92.Expression | None) -> bool:
    """Count a message, and return whether it is wanted."""
    scan.scanned += 1
    scan.size += message.store_size
    if scan.hides(message):
        message.body = b""
    is_wanted = _has_text(message, scan.question.text)
    return is_wanted and (expression is None or expression.matches(message.properties))


def _has_text(message: MessageExt, text: str) -> bool:
    return not text or text.encode() in message.body or any(text in value for value in message.properties.values())


def hit_of(message: MessageExt, broker_name: str) -> Hit:
    """Return what is kept of a message, whose body is dropped."""
    size, preview = len(message.body), message.body[:PREVIEW_BYTES].decode("utf-8", "replace")
    message.body = b""
    return Hit(message, broker_name, size, preview)
