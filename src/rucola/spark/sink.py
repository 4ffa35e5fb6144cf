"""Rows sent as messages: the sink of batches and streams.

Columns of a row, of which only `body` must be there:

    topic        string; where the option `topic` is given, that is meant instead
    body         binary, or string, which is sent as UTF-8
    tags         string
    keys         array<string>, or string with the keys separated by blanks
    properties   map<string,string>; names that are the system's are left out, but those that ask for a time, such as
                 TIMER_DELIVER_MS
    flag         int
    delayLevel   int; the broker keeps the message back so long, see `rucola.message.delay`
    msgId        string; the unique key of the message

The other columns of `schema.COLUMNS` say where a message was and are passed over, so that what was read can be written
as it is.

Every message is sent at least once. Spark repeats a task that failed and a batch that it does not know to be complete,
and with it what had been sent already. So that consumers can drop repeats a row without `msgId` gets a unique key that
is the same each time: the hash of the query, the batch, the partition and the place of the row in it. That holds where
the rows of a partition come in the same order again, as those of files and of the source `rocketmq` do.

A task that fails says how many of its messages brokers have acknowledged and at which it failed; up to `IN_FLIGHT`
messages after that may have been stored, too. What was sent stays sent.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rucola.client import Message, SendStatus
from rucola.client.sync import Producer
from rucola.errors import ConfigError, InvalidMessage, MQError, RemotingError
from rucola.message import properties
from rucola.spark.failure import sentences
from rucola.spark.options import SinkOptions
from rucola.spark.schema import COLUMNS

_log = logging.getLogger(__name__)

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "flag": ("int",),
    "delayLevel": ("int",),
    "msgId": ("string",),
}

_TAKEN_OVER: Final = frozenset({properties.KEYS, properties.TAGS, properties.UNIQ_KEY})
"""Properties of the system that a row may bring along."""


@dataclass
class Sent(WriterCommitMessage):
    """What a task sent: messages by topic, and how many of them a broker took without all that it vouches for."""

    topics: dict[str, int] = field(default_factory=dict)
    unsafe: int = 0

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
        """Send all rows and return what that was. Raises RemotingError with an account of what was sent until then."""
        sent = Sent()
        with Producer(self._options.producer_group, self._options.name_server) as producer:
            messages = self._messages(batches)
            try:
                for result in producer.send_many(messages):
                    sent.topics[result.queue.topic] = sent.topics.get(result.queue.topic, 0) + 1
                    sent.unsafe += result.status is not SendStatus.SEND_OK
            except MQError as error:
                raise RemotingError(
                    f"{error}. Before this, brokers acknowledged {sent.count} messages of the task "
                    f"({_by_topic(sent.topics)}); they stay sent"
                ) from error
        return sent

    def _messages(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Message]:
        task = TaskContext.get()
        assert task is not None, "writers are called in a task"
        # What Spark calls the query and its batch, where there are such; they outlive a restart.
        query = task.getLocalProperty("sql.streaming.queryId")
        origin = f"{query}/{task.getLocalProperty('streaming.sql.batchId')}" if query else self._run
        number = 0
        for batch in batches:
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                message = message_of(row, self._options.topic, number, task.partitionId())
                if message.unique_key is None:
                    name = f"{origin}/{task.partitionId()}/{number}"
                    message.unique_key = md5(name.encode(), usedforsecurity=False).hexdigest().upper()
                yield message
                number += 1


def message_of(row: Mapping[str, Any], topic: str | None, number: int, partition: int) -> Message:
    """Return the message of a row, for `topic` or the one it names. InvalidMessage names the row."""
    topic, body = topic or row.get("topic"), row["body"]
    if topic is None or body is None:
        missing = "topic" if topic is None else "body"
        raise InvalidMessage(f"row {number} of partition {partition} has no {missing}")
    own = {
        name: value
        for name, value in (row.get("properties") or {}).items()
        if value is not None and (name not in properties.RESERVED or name in _TAKEN_OVER)
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
    unsafe = failed = 0
    for message in messages:
        if not isinstance(message, Sent):
            failed += 1
            continue
        unsafe += message.unsafe
        for topic, count in message.topics.items():
            topics[topic] = topics.get(topic, 0) + count
    text = f"{what}: {_by_topic(topics)} sent by {len(messages) - failed} tasks that ended well"
    if failed:
        _log.error("%s; %d tasks failed, whose messages may have been sent in part", text, failed)
    elif unsafe:
        _log.warning("%s; %d of them not flushed or not replicated in time", text, unsafe)
    else:
        _log.info("%s", text)


def _by_topic(topics: Mapping[str, int]) -> str:
    return ", ".join(f"{count} to {topic}" for topic, count in sorted(topics.items())) or "nothing"
