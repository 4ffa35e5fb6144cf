"""Rows sent as messages: the sink of batches and streams.

Columns of a row, of which only `body` must be there:

    topic        string; the option `topic`, if given, applies to all rows instead
    body         binary, or string, which is sent as UTF-8
    tags         string
    keys         array<string>, or string with the keys separated by blanks
    properties   map<string,string>; names that are the system's are left out, but those that ask for a time, such as
                 TIMER_DELIVER_MS
    flag         int
    delayLevel   int; the broker keeps the message back so long, see `rucola.message.delay`
    msgId        string; the unique key of the message
    shardingKey  string; rows with one key go to one queue, chosen as by `rucola.client.select_by_hash`
    queueId      int or bigint; the queue, if there is no shardingKey (see `delivery.queue_like`)
    brokerName   string; of which broker that queue is, if several have the topic

Other columns of `schema.COLUMNS` describe the place of a message and are ignored, so that rows can be written as they
were read. Rows without shardingKey and queueId go to all queues in turn.

Every message is sent at least once. Spark repeats a task that failed and a batch that it does not know to be complete,
and with it the messages that were sent already; a request that fails is tried again for `deliveryTimeoutMs`. So that
consumers can drop repeats a row without `msgId` gets a unique key that is the same each time: the hash of the query,
the batch, the partition and the place of the row in it. That holds if the rows of a partition come in the same order
again, as those of files and of the source `rocketmq` do.

Order holds within a partition of the rows and a queue: those with one shardingKey, or one queueId, are stored in the
order in which they come.

A task that fails reports how many of its messages brokers have acknowledged. They stay sent, and up to `CHUNK_ROWS`
more may have been stored.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import md5
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rucola.client import Message, MessageQueue, Producer, SendResult, SendStatus
from rucola.client.event_loop_thread import EventLoopThread
from rucola.client.producer.producer import IN_FLIGHT
from rucola.client.producer.queue_selectors import select_by_hash
from rucola.errors import ConfigError, InvalidMessage, MQError, RemotingError
from rucola.message import properties
from rucola.message.topics import check_topic
from rucola.spark.errors import sentences
from rucola.spark.source.delivery import MESSAGES_A_REQUEST, persist, queue_like, requests
from rucola.spark.source.options import SinkOptions
from rucola.spark.source.schema import COLUMNS

_log = logging.getLogger(__name__)

T = TypeVar("T")

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "flag": ("int",),
    "delayLevel": ("int",),
    "msgId": ("string",),
    "shardingKey": ("string",),
    "queueId": ("int", "bigint"),
    "brokerName": ("string",),
}

CHUNK_ROWS: Final = 2048
"""How many rows of a task are sent together."""

TAKEN_OVER: Final = frozenset({properties.KEYS, properties.TAGS, properties.UNIQ_KEY})
"""Properties of the system that a row may bring along."""


@dataclass
class Sent(WriterCommitMessage):
    """Result of a task: messages by topic, and how many of them were not flushed or replicated in time.

    `skipped` rows were invalid; `first_skipped` is the reason for one of them.
    """

    topics: dict[str, int] = field(default_factory=dict)
    unsafe: int = 0
    skipped: int = 0
    first_skipped: str = ""

    @property
    def count(self) -> int:
        """Messages that the task sent."""
        return sum(self.topics.values())


class Sending:
    """Sends the rows of a task; made on the driver, and pickled to the workers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _check(options, schema)
        self._options = options
        self._run = uuid.uuid4().hex

    def send(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        """Send all rows and return the result.

        Raises RemotingError, or InvalidMessage for a row, with a count of the messages sent before.
        """
        task = TaskContext.get()
        assert task is not None, "writers are called in a task"
        # What Spark calls the query and its batch, if there are such; they outlive a restart.
        query = task.getLocalProperty("sql.streaming.queryId")
        origin = f"{query}/{task.getLocalProperty('streaming.sql.batchId')}" if query else self._run
        # The loop runs while Spark computes the next rows, so that heartbeats go out.
        thread = EventLoopThread(f"sink of partition {task.partitionId()}")
        producer = Producer(self._options.producer_group, self._options.name_server)
        sender = _Sender(producer, self._options, origin, task.partitionId())
        try:
            thread.run(producer.open())
            for batch in batches:
                for begin in range(0, batch.num_rows, CHUNK_ROWS):
                    thread.run(sender.send(batch.slice(begin, CHUNK_ROWS).to_pylist(maps_as_pydicts="lossy")))
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


class _Row(NamedTuple):
    """A row as a message, and the name by which errors call it."""

    name: str
    message: Message


class _Sender:
    """Sends the rows of one task, chunk by chunk."""

    def __init__(self, producer: Producer, options: SinkOptions, origin: str, partition: int) -> None:
        self.sent = Sent()
        self._producer = producer
        self._options = options
        self._origin = origin
        self._partition = partition
        self._number = 0
        # Asked for once: with another number of queues a sharding key would lead to another one in mid-task.
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._in_flight = asyncio.Semaphore(IN_FLIGHT)
        self._has_warned = False

    async def send(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send rows: those for one queue one request after the other, all others as they fit."""
        bound: dict[MessageQueue, list[_Row]] = {}
        free: dict[str, list[_Row]] = {}
        for row in rows:
            try:
                made = self._made(row)
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
            # Requests small enough that every queue gets its share.
            share = -(-len(of_topic) // len(await self._queues_of(topic)))
            jobs += [self._in_order(piece, None) for piece in _cut(of_topic, share)]
        done = await asyncio.gather(*jobs, return_exceptions=True)
        for result in done:
            if isinstance(result, BaseException):
                raise result

    def _made(self, row: Mapping[str, Any]) -> _Row:
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
        return _Row(name, message)

    async def _queue_of(self, row: Mapping[str, Any], made: _Row) -> MessageQueue | None:
        """Return the queue that a row asks for; None if any will do."""
        key, queue_id = row.get("shardingKey"), row.get("queueId")
        if key is not None:
            return select_by_hash(key)(await self._queues_of(made.message.topic))
        if queue_id is None:
            return None
        if queue_id < 0:
            raise InvalidMessage(f"{made.name} has the queueId {queue_id}; it must not be negative")
        return queue_like(await self._queues_of(made.message.topic), queue_id, row.get("brokerName"))

    async def _queues_of(self, topic: str) -> Sequence[MessageQueue]:
        if topic not in self._queues:
            ask = partial(self._producer.queues, topic)
            self._queues[topic] = await self._persist(topic, ask, is_known_topic=False)
        return self._queues[topic]

    async def _in_order(self, rows: Sequence[_Row], queue: MessageQueue | None) -> None:
        """Send rows of one topic, in requests one after the other; to one queue, or each request to the next."""
        for piece in _cut(rows, MESSAGES_A_REQUEST):
            request = partial(self._request, [row.message for row in piece], queue)
            try:
                self._count(await self._persist(piece[0].message.topic, request))
            except InvalidMessage as error:  # found before anything was sent
                if len(piece) == 1:
                    self._skip(InvalidMessage(f"{piece[0].name}: {error}"))
                    continue
                for row in piece:
                    await self._in_order([row], queue)

    async def _persist(self, topic: str, request: Callable[[], Awaitable[T]], *, is_known_topic: bool = True) -> T:
        """Make a request about a topic until it succeeds or the delivery timeout has passed."""
        before_retry = partial(self._before_retry, topic)
        timeout_ms = self._options.delivery_timeout_ms
        return await persist(request, timeout_ms, is_known_topic=is_known_topic, before_retry=before_retry)

    async def _before_retry(self, topic: str, failure: RemotingError) -> None:
        """Ask where the topic's brokers are now, and warn once: many requests fail together."""
        if not self._has_warned:
            _log.warning("%s; trying again for up to %g s", failure, self._options.delivery_timeout_ms / 1000)
        self._has_warned = True
        with suppress(MQError):
            await self._producer.instance.routes.refresh(topic)

    async def _request(self, messages: list[Message], queue: MessageQueue | None) -> list[SendResult]:
        async with self._in_flight:
            if len(messages) == 1:
                return [await self._producer.send(messages[0], queue)]
            return await self._producer.send_batch(messages, queue)

    def _count(self, results: Sequence[SendResult]) -> None:
        topic = results[0].queue.topic
        self.sent.topics[topic] = self.sent.topics.get(topic, 0) + len(results)
        self.sent.unsafe += sum(result.status is not SendStatus.SEND_OK for result in results)

    def _skip(self, error: InvalidMessage) -> None:
        """Leave an invalid row out and count it, or end the task."""
        if not self._options.skip_invalid_rows:
            raise error
        self.sent.skipped += 1
        self.sent.first_skipped = self.sent.first_skipped or str(error)


def _cut(rows: Sequence[_Row], most: int) -> Iterator[Sequence[_Row]]:
    for begin, end in requests([row.message for row in rows], min(most, MESSAGES_A_REQUEST)):
        yield rows[begin:end]


def row_name(row: Mapping[str, Any], number: int, partition: int) -> str:
    """Return the name of a row in an error: its place in the task and, if it has any, its keys."""
    keys = row.get("keys")
    words = keys if isinstance(keys, str) else " ".join(key for key in keys or () if key is not None)
    known = f"keys {words!r}" if words else f"msgId {row['msgId']}" if row.get("msgId") else ""
    return f"row {number} of partition {partition}{f' with {known}' if known else ''}"


def message_of(row: Mapping[str, Any], topic: str | None, number: int, partition: int) -> Message:
    """Return the message of a row, for `topic` or the one it names. InvalidMessage names the row."""
    topic, body = topic or row.get("topic"), row["body"]
    if topic is None or body is None:
        missing = "topic" if topic is None else "body"
        raise InvalidMessage(f"{row_name(row, number, partition)} has no {missing}")
    own = {
        name: value
        for name, value in (row.get("properties") or {}).items()
        if value is not None and (name not in properties.RESERVED or name in TAKEN_OVER)
    }
    message = Message(
        topic,
        body.encode() if isinstance(body, str) else body,
        tags=row.get("tags"),
        keys=row.get("keys"),
        properties=own,
        flag=row.get("flag") or 0,
    )
    if row.get("msgId"):
        message.unique_key = row["msgId"]
    message.delay_level = row.get("delayLevel") or 0
    return message


@sentences
class RocketMQWriter(DataSourceArrowWriter):
    """Sends the rows of a batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._sending = Sending(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return self._sending.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _account("batch", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _account("batch that failed", messages)


@sentences
class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of one batch of a stream after the other."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._sending = Sending(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return self._sending.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _account(f"batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _account(f"batch {batchId}, which failed and will be repeated,", messages)


def _check(options: SinkOptions, schema: StructType) -> None:
    """Raise ConfigError unless these columns can be messages."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "body" not in kinds:
        raise ConfigError(f"rows without a column body cannot be messages; they have {', '.join(kinds) or 'none'}")
    if options.topic is None and "topic" not in kinds:
        raise ConfigError("neither option topic nor a column of that name says where messages go")
    for name, kind in kinds.items():
        if name not in _TYPES and name not in COLUMNS:
            raise ConfigError(f"column {name} is none that a message has; it may have {', '.join(_TYPES)}")
        if name in _TYPES and kind not in _TYPES[name]:
            raise ConfigError(f"column {name} is {kind}; it must be {' or '.join(_TYPES[name])}")


def _account(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    topics: dict[str, int] = {}
    unsafe = failed = skipped = 0
    first_skipped = ""
    for message in messages:
        if not isinstance(message, Sent):
            failed += 1
            continue
        unsafe += message.unsafe
        skipped += message.skipped
        first_skipped = first_skipped or message.first_skipped
        for topic, count in message.topics.items():
            topics[topic] = topics.get(topic, 0) + count
    text = f"{what}: {_by_topic(topics)} sent by {len(messages) - failed} tasks that ended well"
    if skipped:
        _log.warning("%s: %d invalid rows left out; the first: %s", what, skipped, first_skipped)
    if failed:
        _log.error("%s; %d tasks failed, whose messages may have been sent in part", text, failed)
    elif unsafe:
        _log.warning("%s; %d of them not flushed or not replicated in time", text, unsafe)
    else:
        _log.info("%s", text)


def _by_topic(topics: Mapping[str, int]) -> str:
    return ", ".join(f"{count} to {topic}" for topic, count in sorted(topics.items())) or "nothing"
