"""Messages, ends of queues and consumer offsets that the job reconcile compares with the tables.

A message beyond the end of its queue in a store or live broker does not exist. A lake has neither ends nor offsets.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.errors import ConfigError
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX
from rucola.reliable.group_offsets import committed_offsets
from rucola.spark.archive import Archive
from rucola.spark.jobs import store_offsets
from rucola.spark.jobs.selected_messages import check_source, map_partitions, source_of
from rucola.spark.jobs.selection import Selection
from rucola.spark.source import batch_reader
from rucola.spark.source.options import ReadOptions, parse_read_options
from rucola.spark.source.pull_partitions import consumer_of
from rucola.spark.source.schema import ddl
from rucola.spark.source.source_offsets import BrokerQueue

_COLUMNS: Final = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", "msgId")
ENDS: Final = "brokerName string, topic string, queueId int, end bigint"
COMMITS: Final = "brokerName string, `group` string, topic string, queueId int, committed bigint"


class Commit(NamedTuple):
    """A row of `COMMITS`."""

    broker_name: str
    group: str
    topic: str
    queue_id: int
    committed: int


class End(NamedTuple):
    """A row of `ENDS`."""

    broker_name: str
    topic: str
    queue_id: int
    end: int


class LogRead(NamedTuple):
    """Messages of all sources, with two rows for a message in a store and in a lake.

    `brokers` are those whose queues have known ends: a queue without an end does not exist. `missing` has a sentence
    for each live broker that was not read.
    """

    messages: DataFrame
    ends: list[End]
    brokers: list[str]
    missing: list[str]


@dataclass(frozen=True)
class LogSources:
    """Stores by the brokerName of the stubs' positions, lakes, and name servers of live brokers.

    `topics` restricts the messages, but not dead letters. Raises StoreError for other directories, ConfigError for
    none.
    """

    stores: Mapping[str, Path] = field(default_factory=dict)
    lakes: Sequence[Path | Archive] = ()
    name_server: str | None = None
    topics: tuple[str, ...] | None = None
    corrupt_records: str = "fail"

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigError("reconcile needs messages: name a store directory, a lake or a name server")
        for source in (*self.stores.values(), *self.lakes):
            check_source(source, Selection())

    @property
    def names(self) -> list[str]:
        """The sources as text."""
        return [*map(str, (*self.stores.values(), *self.lakes)), *([self.name_server] if self.name_server else [])]

    def commits(self) -> list[Commit]:
        """Return the current committed offsets of all groups in stores and live brokers."""
        found = [Commit(name, *row) for name, path in self.stores.items() for row in store_offsets.read(path)]
        if self.name_server is not None:
            by_broker = asyncio.run(committed_offsets(self.name_server))
            found += [Commit(name, *row) for name, rows in by_broker.items() for row in rows]
        return found

    def read(self, session: SparkSession) -> LogRead:
        """Return the current messages, and the ends of queues."""
        frames: list[DataFrame] = []
        ends: list[End] = []
        brokers, missing = {*self.stores}, []
        for options in self._read_options():
            parsed = parse_read_options(options)
            source = batch_reader.source_of(parsed)
            bounds = source.bounds()
            for queue, (_, end) in bounds.ranges.items():
                assert isinstance(queue, BrokerQueue)
                ends.append(End(queue.broker_name, queue.topic, queue.queue_id, end))
            if parsed.name_server is not None:
                brokers |= asyncio.run(_masters(parsed)) - bounds.missing.keys()
                missing += bounds.describe_missing()
            read = partial(batch_reader.read, options=parsed, names=_COLUMNS)
            frame = map_partitions(session, source.plan(bounds.ranges), read, ddl(_COLUMNS))
            frames.append(_facts(frame, len(frames)))
        pattern = re.compile(self._pattern)
        for lake in self.lakes:
            scan = Archive(lake).scan(lambda topic: pattern.fullmatch(topic) is not None)
            frames.append(_facts(scan.rows(session), len(frames)))
        return LogRead(reduce(DataFrame.unionByName, frames), ends, sorted(brokers), missing)

    @property
    def _pattern(self) -> str:
        """The topics to read. Retry topics are left out: their messages are in their own topics, too."""
        if self.topics is None:
            return f"(?!{re.escape(RETRY_PREFIX)}).*"
        return "|".join([*map(re.escape, self.topics), f"{re.escape(DLQ_PREFIX)}.*"])

    def _read_options(self) -> Iterator[dict[str, str]]:
        common = {"subscribePattern": self._pattern}
        for name, path in self.stores.items():
            yield {"storePath": str(path), "brokerName": name, "corruptRecords": self.corrupt_records, **common}
        if self.name_server is not None:
            yield {"nameServer": self.name_server, "failOnMissingBroker": "false", **common}


async def _masters(options: ReadOptions) -> set[str]:
    async with consumer_of(options) as consumer:
        return await consumer.registered_masters()


def log_sources(
    directories: Sequence[str | Path | Archive],
    broker_names: Sequence[str] = (),
    name_server: str | None = None,
    *,
    topics: Sequence[str] | None = None,
    corrupt_records: str = "fail",
) -> LogSources:
    """Sort directories into stores and lakes. Raises ConfigError unless `broker_names` has one name for each store."""
    paths = [source_of(each) for each in directories]
    lakes = [path for path in paths if Archive(path).exists]
    stores = [path for path in paths if isinstance(path, Path) and path not in lakes]
    if len(broker_names) != len(stores) or len(set(broker_names)) != len(broker_names):
        raise ConfigError(
            f"there are {len(stores)} store directories and {len(set(broker_names))} broker names: give --brokerName "
            "once for each store, in the same order; stubs name the broker that stored them"
        )
    return LogSources(
        dict(zip(broker_names, stores, strict=True)), lakes, name_server,
        None if topics is None else tuple(topics), corrupt_records,
    )  # fmt: skip


def _facts(messages: DataFrame, number: int) -> DataFrame:
    return messages.select(
        F.lit(number).alias("number"), "brokerName", "topic", "queueId", "queueOffset",
        F.coalesce(F.unix_millis("storeTimestamp"), F.lit(0)).alias("storedMs"), F.col("msgId").alias("messageId"),
    )  # fmt: skip
