"""Sink: rows of batches and streams sent as messages (see `row_messages` for the columns).

**At least once.** Spark repeats a task that failed and a batch that it does not know to be complete, and failed
requests are retried. So that consumers can drop duplicates, a row without `msgId` gets a unique key that is the same at
every attempt: the hash of the query, the batch, the partition and the number of the row in it. This requires that the
rows of a partition are produced in the same order again, as from files and the source `rocketmq`.

**Order** is preserved within a partition and queue: rows with the same shardingKey or queueId are stored in the order
in which they come. Rows with neither are distributed over all queues.

**Failure.** A task that fails reports its acknowledged messages; up to `CHUNK_ROWS` more may have been stored.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import md5
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rucola.client import Message, MessageQueue, Producer, SendResult, SendStatus
from rucola.client.event_loop_thread import EventLoopThread
from rucola.client.producer.ordered_sender import OrderedSender, with_retries
from rucola.client.producer.queue_selectors import select_by_hash, select_by_id
from rucola.client.producer.send_request import COMPRESS_THRESHOLD, MAX_COUNT
from rucola.errors import InvalidMessage, MQError, RemotingError
from rucola.message.topics import check_topic
from rucola.spark.error_translation import without_tracebacks
from rucola.spark.source.options import SinkOptions, connection_of
from rucola.spark.source.row_messages import check_schema, message_of, row_name, rows_of

_log = logging.getLogger(__name__)

CHUNK_ROWS: Final = 2048
"""Rows of a task that are sent concurrently."""


@dataclass
class SinkTaskResult(WriterCommitMessage):
    """The result of a task, which Spark passes to the driver."""

    topics: dict[str, int] = field(default_factory=dict)
    unsafe: int = 0
    """Acknowledged messages that were not flushed or replicated in time."""
    skipped: int = 0
    first_skip_reason: str = ""

    @property
    def count(self) -> int:
        """All acknowledged messages."""
        return sum(self.topics.values())


class TaskWriter:
    """Sends the rows of a task. Made on the driver, and pickled to the workers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(options, schema)
        self._options = options
        self._run = uuid.uuid4().hex
        """Identifies a batch write, which has no query id, in unique keys."""

    def send(self, batches: Iterator[pa.RecordBatch]) -> SinkTaskResult:
        """Send all rows of a task. Raises RemotingError or InvalidMessage, with the number acknowledged before."""
        task = TaskContext.get()
        assert task is not None, "writers are called in a task"
        # Streams have a query id and a batch id, which are the same after a restart.
        query = task.getLocalProperty("sql.streaming.queryId")
        origin = f"{query}/{task.getLocalProperty('streaming.sql.batchId')}" if query else self._run
        # The event loop has its own thread, so that heartbeats are sent while Spark computes the next rows.
        thread = EventLoopThread(f"sink of partition {task.partitionId()}")
        options = self._options
        producer = Producer(options.producer_group, connection_of(options))
        sender = _ChunkSender(producer, self._options, origin, task.partitionId())
        try:
            thread.run(producer.open())
            for batch in batches:
                for begin in range(0, batch.num_rows, CHUNK_ROWS):
                    thread.run(sender.send(rows_of(batch.slice(begin, CHUNK_ROWS))))
        except MQError as error:
            kind = InvalidMessage if isinstance(error, InvalidMessage) else RemotingError
            sent = sender.sent
            raise kind(
                f"{error}. Before this, brokers acknowledged {sent.count} messages of the task "
                f"({_by_topic(sent.topics)}); they stay sent"
            ) from error
        finally:
            thread.run(producer.close())
            thread.stop()
        return sender.sent


class _RowMessage(NamedTuple):
    name: str
    message: Message


class _ChunkSender:
    """Sender of one task's rows, chunk by chunk; all methods run in the event loop."""

    def __init__(self, producer: Producer, options: SinkOptions, origin: str, partition: int) -> None:
        self.sent = SinkTaskResult()
        self._producer = producer
        self._options = options
        self._origin = origin
        self._partition = partition
        self._number = 0
        # Looked up once: if the number of queues changed within the task, a sharding key would change its queue.
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._has_warned = False
        timeout_ms = options.delivery_timeout_ms
        self._sender = OrderedSender(
            producer, timeout_ms, alone_from=COMPRESS_THRESHOLD, before_retry=self._before_retry
        )

    async def send(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send rows: a queue's in sequential requests, all others concurrently."""
        bound: dict[MessageQueue, list[_RowMessage]] = {}
        free: dict[str, list[_RowMessage]] = {}
        for row in rows:
            try:
                made = self._row_message(row)
                queue = await self._queue_of(row, made)
            except InvalidMessage as error:
                self._skip(error)
                continue
            if queue is None:
                free.setdefault(made.message.topic, []).append(made)
            else:
                bound.setdefault(queue, []).append(made)
        jobs = [self._in_order(of_queue, queue) for queue, of_queue in bound.items()]
        for topic, of_topic in free.items():
            # At least as many requests as queues, so that the rows spread evenly.
            share = min(-(-len(of_topic) // len(await self._queues_of(topic))), MAX_COUNT)
            jobs += [self._in_order(of_topic[at : at + share], None) for at in range(0, len(of_topic), share)]
        # Wait for all requests, so that the count of acknowledged messages is final before an error is raised.
        done = await asyncio.gather(*jobs, return_exceptions=True)
        for result in done:
            if isinstance(result, BaseException):
                raise result

    def _row_message(self, row: Mapping[str, Any]) -> _RowMessage:
        number, self._number = self._number, self._number + 1
        name = row_name(row, number, self._partition)
        message = message_of(row, self._options.topic, number, self._partition)
        if message.topic not in self._queues:
            try:
                check_topic(message.topic)
            except InvalidMessage as error:
                raise InvalidMessage(f"{name}: {error}") from None
        if message.unique_key is None:
            origin = f"{self._origin}/{self._partition}/{number}"
            message.unique_key = md5(origin.encode(), usedforsecurity=False).hexdigest().upper()
        return _RowMessage(name, message)

    async def _queue_of(self, row: Mapping[str, Any], made: _RowMessage) -> MessageQueue | None:
        key, queue_id = row.get("shardingKey"), row.get("queueId")
        if key is not None:
            return select_by_hash(key)(await self._queues_of(made.message.topic))
        if queue_id is None:
            return None
        if queue_id < 0:
            raise InvalidMessage(f"{made.name} has the queueId {queue_id}; it must not be negative")
        return select_by_id(queue_id, row.get("brokerName"))(await self._queues_of(made.message.topic))

    async def _queues_of(self, topic: str) -> Sequence[MessageQueue]:
        if topic not in self._queues:
            self._queues[topic] = await with_retries(
                partial(self._producer.queues, topic),
                self._options.delivery_timeout_ms,
                is_known_topic=False,
                before_retry=partial(self._before_retry, topic),
            )
        return self._queues[topic]

    async def _in_order(self, rows: Sequence[_RowMessage], queue: MessageQueue | None) -> None:
        async for sent, found in self._sender.send(rows, attrgetter("message"), queue):
            if isinstance(found, InvalidMessage):  # found before the request was sent
                self._skip(InvalidMessage(f"{sent[0].name}: {found}"))
            elif isinstance(found, MQError):
                raise found
            else:
                self._count(found)

    async def _before_retry(self, topic: str, failure: RemotingError) -> None:
        """Refresh the route, and warn once per task, since many requests fail together."""
        if not self._has_warned:
            _log.warning("%s; retrying for up to %g s", failure, self._options.delivery_timeout_ms / 1000)
        self._has_warned = True
        with suppress(MQError):
            await self._producer.instance.routes.refresh(topic)

    def _count(self, results: Sequence[SendResult]) -> None:
        topic = results[0].queue.topic
        self.sent.topics[topic] = self.sent.topics.get(topic, 0) + len(results)
        self.sent.unsafe += sum(result.status is not SendStatus.SEND_OK for result in results)

    def _skip(self, error: InvalidMessage) -> None:
        if not self._options.skip_invalid_rows:
            raise error
        self.sent.skipped += 1
        self.sent.first_skip_reason = self.sent.first_skip_reason or str(error)


@without_tracebacks
class RocketMQWriter(DataSourceArrowWriter):
    """Writer of a batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._task_writer = TaskWriter(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkTaskResult:
        return self._task_writer.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        report_result("batch", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        report_result("batch that failed", messages)


@without_tracebacks
class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writer of a stream, batch by batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._task_writer = TaskWriter(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkTaskResult:
        return self._task_writer.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        report_result(f"batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        report_result(f"batch {batchId}, which failed and will be repeated,", messages)


def report_result(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Log what the tasks of the batch `what` sent; a failed task has no result."""
    topics: dict[str, int] = {}
    unsafe = failed = skipped = 0
    first_skip_reason = ""
    for message in messages:
        if not isinstance(message, SinkTaskResult):
            failed += 1
            continue
        unsafe += message.unsafe
        skipped += message.skipped
        first_skip_reason = first_skip_reason or message.first_skip_reason
        for topic, count in message.topics.items():
            topics[topic] = topics.get(topic, 0) + count
    text = f"{what}: {_by_topic(topics)} sent by {len(messages) - failed} successful tasks"
    if skipped:
        _log.warning("%s: %d invalid rows left out; the first: %s", what, skipped, first_skip_reason)
    if failed:
        _log.error("%s; %d tasks failed, whose messages may have been sent in part", text, failed)
    elif unsafe:
        _log.warning("%s; %d of them not flushed or not replicated in time", text, unsafe)
    else:
        _log.info("%s", text)


def _by_topic(topics: Mapping[str, int]) -> str:
    return ", ".join(f"{count} to {topic}" for topic, count in sorted(topics.items())) or "nothing"
