"""Status of a lake: its contents, and its lag behind stores or live brokers."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rucola.message.topics import is_system_topic
from rucola.spark.archive import Archive, ArchiveProgress
from rucola.spark.source import batch_reader
from rucola.spark.source.array_conversions import milliseconds
from rucola.spark.source.lake_source import Lake, begins
from rucola.spark.source.options import ReadOptions, parse_read_options
from rucola.spark.source.source_offsets import BrokerQueue, OffsetRanges, Origin, SourceBounds, refuse_missing

Log = Mapping[str, str]
"""Options of the data source that name stores or name servers."""


@dataclass(frozen=True)
class TopicStatus:
    """What is archived of a topic, and what is not.

    `lag` counts the messages of the log that are not archived, `latency_ms` is the age of the oldest of them, 0 without
    any. Both are None if no log is given.
    """

    topic: str
    rows: int
    files: int
    size: int
    newest_ms: int | None
    lag: int | None = None
    latency_ms: int | None = None


@dataclass(frozen=True)
class LakeStatus:
    """The state of a lake; `missing` has a sentence for each broker whose lag is unknown."""

    lake: str
    committed_ms: int | None
    snapshots: int
    rows: int
    files: int
    size: int
    key_files: int
    key_size: int
    topics: tuple[TopicStatus, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArchivedLog:
    """The log of a lake: options to read its queues, their bounds, and where the next archive run begins in each."""

    lake: Lake
    options: ReadOptions
    bounds: SourceBounds
    begins: Mapping[Origin, int]


def archived_log(lake: Archive, log: Log, topics: Collection[str] = (), *, fail_on_missing_broker: bool) -> ArchivedLog:
    """Compare the progress of a lake with the bounds of the queues of its log.

    Raises as a read of lake and log does: ConfigError, StoreError, RemotingError.
    """
    # System topics are compared if they are archived.
    archives_system_topics = any(map(is_system_topic, _topics_of(lake.progress())))
    chosen = (
        {"subscribe": ",".join(topics)}
        if topics
        else {"subscribePattern": "(?s).*", "includeSystemTopics": str(archives_system_topics).lower()}
    )
    missing = {"failOnMissingBroker": str(fail_on_missing_broker).lower()} if "nameServer" in log else {}
    catalog = {} if lake.catalog is None else {"catalog": lake.catalog}
    given = parse_read_options({**log, **chosen, **missing, "lake": str(lake), **catalog})
    scan = Lake(given)
    options = scan.options_of_log()
    archived = scan.archived_offsets(options)
    bounds = batch_reader.source_of(options).bounds(archived)
    refuse_missing(options, bounds)
    return ArchivedLog(scan, options, bounds, begins(archived, bounds))


def _topics_of(progress: Mapping[str, ArchiveProgress]) -> set[str]:
    return {topic for each in progress.values() for topic in each.queues}


def run(lake: str | Path | Archive, log: Log | None = None) -> LakeStatus:
    """Return the status of a lake, with the lag of each topic if a log is given.

    Raises StoreError if there is no lake, StoreCorrupt if its metadata is damaged.
    """
    archive = Archive(lake)
    table = archive.status()
    topics = {each.topic: TopicStatus(*vars(each).values()) for each in table.topics}
    missing: tuple[str, ...] = ()
    if log is not None:
        found = archived_log(archive, log, fail_on_missing_broker=False)
        missing = tuple(found.bounds.describe_missing())
        topics = _with_lags(topics, found)
    return LakeStatus(
        str(archive.path),
        table.committed_ms,
        table.snapshots,
        sum(each.rows for each in topics.values()),
        sum(each.files for each in topics.values()),
        sum(each.size for each in topics.values()),
        table.key_files,
        table.key_size,
        tuple(each for _, each in sorted(topics.items())),
        missing,
    )


def _with_lags(topics: Mapping[str, TopicStatus], log: ArchivedLog) -> dict[str, TopicStatus]:
    lags: dict[str, int] = {}
    first: dict[Origin, tuple[int, int]] = {}
    for origin, (least, most) in log.bounds.ranges.items():
        assert isinstance(origin, BrokerQueue)
        begin = max(log.begins[origin], least)
        lags[origin.topic] = lags.get(origin.topic, 0) + max(most - begin, 0)
        if begin < most:
            first[origin] = begin, begin + 1
    oldest = _oldest(log.options, first)
    now_ms = time.time_ns() // 1_000_000
    found = {topic: TopicStatus(topic, 0, 0, 0, None) for topic, lag in lags.items() if lag} | dict(topics)
    return {
        topic: replace(each, lag=lags[topic], latency_ms=max(now_ms - oldest.get(topic, now_ms), 0))
        if topic in lags
        else each
        for topic, each in found.items()
    }


def _oldest(options: ReadOptions, ranges: OffsetRanges) -> dict[str, int]:
    """Return the least store time by topic of the messages in these ranges."""
    found: dict[str, int] = {}
    names = ("topic", "storeTimestamp")
    for partition in batch_reader.source_of(options).plan(ranges):
        for batch in batch_reader.read(partition, options, names):
            for topic, stored in zip(batch["topic"].to_pylist(), milliseconds(batch["storeTimestamp"]), strict=True):
                found[topic] = min(found.get(topic, int(stored)), int(stored))
    return found


def metrics(status: LakeStatus) -> str:
    """Return a status in the text format of Prometheus. ModuleNotFoundError without prometheus_client."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    for name, text, value in (
        ("snapshots", "Snapshots of the table that are kept", status.snapshots),
        ("committed_timestamp_seconds", "Time of the last commit", (status.committed_ms or 0) / 1000),
        ("key_files", "Files of the key index", status.key_files),
        ("key_size_bytes", "Bytes of the key index", status.key_size),
    ):
        Gauge(f"rocketmq_archive_{name}", text, registry=registry).set(value)
    values: dict[str, tuple[str, Any]] = {
        "rows": ("Archived messages", lambda each: each.rows),
        "files": ("Files of archived messages", lambda each: each.files),
        "size_bytes": ("Bytes of these files", lambda each: each.size),
        "lag": ("Messages of the log that are not archived", lambda each: each.lag),
        "latency_ms": ("Age of the oldest message that is not archived", lambda each: each.latency_ms),
    }
    for name, (text, value_of) in values.items():
        gauge = Gauge(f"rocketmq_archive_{name}", text, ["topic"], registry=registry)
        for each in status.topics:
            if value_of(each) is not None:
                gauge.labels(each.topic).set(value_of(each))
    return str(generate_latest(registry), "utf-8")
