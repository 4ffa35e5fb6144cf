"""Tables of an audit, computed in this process, for sources that are too small for Spark.

Each function corresponds to the one in `rucola.spark.jobs.audit`. Memory holds the `facts`, 250 bytes per message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rucola.message import properties
from rucola.message.delay import parse_delay_levels
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX
from rucola.spark.source.array_conversions import (
    Array,
    arrow,
    bools,
    combined,
    ints,
    mask,
    milliseconds,
    repeated,
    scalar,
    strings,
    values_of,
)
from rucola.spark.source.columns import TIMESTAMP
from rucola.spark.source.grouping import Groups, join

COLUMNS: Final = (
    *("brokerName", "topic", "queueId", "queueOffset", "msgId", "offsetMsgId", "keys", "reconsumeTimes", "storeSize"),
    *("storeTimestamp", "bornTimestamp", "body", "properties"),
)

HOUR_MS: Final = 3_600_000
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_KINDS: Final = strings([b"message", b"retry", b"dead letter"])
_ZERO: Final = arrow(np.zeros(1, np.int32))[0]
_INT: Final = "^[+-]?[0-9]{1,9}$"
_QUEUE: Final = ["brokerName", "topic", "queueId"]
_LAG_NUMBERS: Final = {
    "queueId": pa.int32(),
    **dict.fromkeys(("committed", "end", "messages", "bytes", "waitingMs"), pa.int64()),
}


def facts(messages: pa.RecordBatch) -> pa.Table:
    """Reduce messages to the counted values: position, times, size, kind, group and a body hash."""
    topic, pairs = messages["topic"], messages["properties"]
    retry, dead = bools(pc.starts_with(topic, RETRY_PREFIX)), bools(pc.starts_with(topic, DLQ_PREFIX))
    kind = _KINDS.take(arrow(np.where(retry, 1, np.where(dead, 2, 0))))
    slices = pc.utf8_slice_codeunits(topic, len(RETRY_PREFIX)), pc.utf8_slice_codeunits(topic, len(DLQ_PREFIX))
    group = pc.if_else(mask(retry), slices[0], pc.if_else(mask(dead), slices[1], pa.nulls(len(topic), pa.string())))
    level = values_of(pairs, properties.DELAY)
    stored, born = milliseconds(messages["storeTimestamp"]), milliseconds(messages["bornTimestamp"])
    names = ["brokerName", "topic", "queueId", "queueOffset", "msgId", "offsetMsgId", "keys", "reconsumeTimes"]
    return pa.table(
        {
            **{name: messages[name] for name in names},
            "size": messages["storeSize"],
            "storedMs": arrow(stored),
            "bornMs": arrow(np.where(bools(messages["bornTimestamp"].is_valid()), born, stored)),
            # Python salts the hash of bytes per process; it is only compared within this one.
            "bodyHash": arrow(np.fromiter(map(hash, messages["body"].to_pylist()), np.int64, len(messages))),
            "kind": kind,
            "group": group,
            "originTopic": values_of(pairs, properties.RETRY_TOPIC),
            "originId": values_of(pairs, properties.ORIGIN_MESSAGE_ID),
            "delayLevel": pc.if_else(pc.match_substring_regex(level, _INT), level, scalar("0")).cast(pa.int32()),
        }
    )


def topics(facts: pa.Table) -> pa.Table:
    """Return one row per topic: messages, bytes, sizes, first and last time, born-to-store latency, repeats."""
    groups = Groups(facts, ["topic"])
    size, stored = ints(facts["size"]), ints(facts["storedMs"])
    count, kind = groups.count(), groups.first(facts["kind"])
    is_plain = _is(kind, "message")
    return groups.table(
        kind=kind,
        queues=groups.count_distinct(facts, ["brokerName", "queueId"]),
        messages=count,
        bytes=groups.sum(size),
        averageSize=groups.sum(size) / count,
        largestSize=groups.max(size),
        first=_times(groups.min(stored)),
        last=_times(groups.max(stored)),
        **_percentiles(groups, stored - ints(facts["bornMs"])),
        repeatedIds=np.where(is_plain, count - groups.count_distinct(facts, ["msgId"]), 0),
        repeatedBodies=np.where(is_plain, count - groups.count_distinct(facts, ["bodyHash"]), 0),
    )


def hours(facts: pa.Table) -> pa.Table:
    """Return one row per topic and hour: messages, bytes, average and peak rate per second, born-to-store latency."""
    stored = ints(facts["storedMs"])
    timed = _with_step(facts, "hour", HOUR_MS)
    groups = Groups(timed, ["topic", "hour"])
    return groups.table(
        messages=groups.count(),
        bytes=groups.sum(ints(facts["size"])),
        perSecond=groups.count() / (HOUR_MS / 1000),
        **_percentiles(groups, stored - ints(facts["bornMs"])),
        peakPerSecond=_peaks(groups, timed, "hour"),
    )


def timeline(facts: pa.Table, step_ms: int) -> pa.Table:
    """Return one row per topic and step of `step_ms`: kind, group, messages, bytes, latency, peak rate per second."""
    timed = _with_step(facts, "begin", step_ms)
    groups = Groups(timed, ["topic", "begin"])
    return groups.table(
        kind=groups.first(facts["kind"]),
        group=groups.first(facts["group"]),
        messages=groups.count(),
        bytes=groups.sum(ints(facts["size"])),
        **_percentiles(groups, ints(facts["storedMs"]) - ints(facts["bornMs"])),
        peakPerSecond=_peaks(groups, timed, "begin"),
    )


def _peaks(groups: Groups, timed: pa.Table, step: str) -> Array:
    seconds = timed.append_column("second", arrow(ints(timed["storedMs"]) // 1000))
    within = Groups(seconds, ["topic", step, "second"])
    # `within` groups within `groups`: each second is assigned to the step of one of its rows, and the step keeps the
    # largest count. np.maximum.at applies every pair, unlike peaks[codes] = ..., which keeps only the last one.
    peaks = np.zeros(len(groups.keys), np.int64)
    np.maximum.at(peaks, groups.codes[within.firsts], within.count())
    return peaks


def failures(facts: pa.Table) -> pa.Table:
    """Return one row per group, kind (`retry` or `dead letter`), original topic and hour: messages, most retries."""
    failed = _with_step(facts.filter(mask(~_is(facts["kind"], "message"))), "hour", HOUR_MS)
    groups = Groups(failed, ["group", "kind", "originTopic", "hour"])
    return groups.table(messages=groups.count(), mostTries=groups.max(ints(failed["reconsumeTimes"])))


def sizes(facts: pa.Table) -> pa.Table:
    """Return one row per topic and size class: records of more than `upto` / 2 and at most `upto` bytes."""
    size = ints(facts["size"])
    # The smallest power of two that is not below the size: 1000 and 1024 give 1024, 1025 gives 2048.
    upto = np.int64(1) << np.ceil(np.log2(size)).astype(np.int64)
    groups = Groups(facts.append_column("upto", arrow(upto)), ["topic", "upto"])
    return groups.table(messages=groups.count(), bytes=groups.sum(size))


def hot_keys(facts: pa.Table, limit: int) -> pa.Table:
    """Return one row for each of the `limit` most frequent keys of a topic that occur more than once."""
    keys = combined(facts["keys"])
    exploded = pa.table({"topic": facts["topic"].take(pc.list_parent_indices(keys)), "key": keys.flatten()})
    groups = Groups(exploded, ["topic", "key"])
    counted = groups.table(messages=groups.count()).filter(mask(groups.count() > 1))
    order = [("topic", "ascending"), ("messages", "descending"), ("key", "ascending")]
    counted = counted.take(pc.sort_indices(counted, order))
    of_topic = Groups(counted, ["topic"])
    # Rows are sorted by topic, then by count: the rank is the distance to the topic's first row.
    rank = np.arange(len(counted)) - np.repeat(np.cumsum(of_topic.count()) - of_topic.count(), of_topic.count()) + 1
    return counted.append_column("rank", arrow(rank.astype(np.int32))).filter(mask(rank <= limit))


def consumption(facts: pa.Table, traces: Iterable[bytes], delay_levels: str) -> pa.Table:
    """Return store-to-consumption latency per group, topic and source: `trace` or `retried`.

    `traces` are the bodies of the messages of RMQ_SYS_TRACE_TOPIC, `delay_levels` the brokers' messageDelayLevel.
    """
    plain = facts.filter(mask(_is(facts["kind"], "message"))).select(["topic", "msgId", "offsetMsgId", "storedMs"])
    retries = facts.filter(mask(_is(facts["kind"], "retry") & (ints(facts["reconsumeTimes"]) == 1)))
    # delays[level] is the delay of a level in milliseconds; clipping gives levels above the last one the last delay.
    delays = np.array([0, *parse_delay_levels(delay_levels)])
    level = ints(retries["delayLevel"].fill_null(_ZERO)).clip(0, len(delays) - 1)
    retried = pa.table(
        {
            "group": retries["group"],
            "offsetMsgId": retries["originId"],
            "at": arrow(ints(retries["storedMs"]) - delays[level]),
        }
    )
    consumed = list(_consumed(traces))
    traced = pa.table(
        {
            "group": strings([group.encode() for group, _, _ in consumed]),
            "msgId": strings([msg_id.encode() for _, msg_id, _ in consumed]),
            "at": arrow(np.array([at for _, _, at in consumed], np.int64)),
        }
    )
    ways = {
        "retried": join(plain, retried, "offsetMsgId"),
        "trace": join(plain, traced, "msgId"),
    }
    known = pa.concat_tables(
        way.select(["group", "topic", "storedMs", "at"]).append_column("known", repeated(name, len(way)))
        for name, way in ways.items()
    )
    groups = Groups(known, ["group", "topic", "known"])
    waited = np.maximum(ints(known["at"]) - ints(known["storedMs"]), 0)
    return groups.table(messages=groups.count(), **_percentiles(groups, waited))


def _consumed(traces: Iterable[bytes]) -> Iterator[tuple[str, str, int]]:
    """Yield group, msgId and time of first consumptions: fields 3, 5 and 1 of SubBefore lines without retries."""
    for trace in traces:
        for line in trace.decode("utf-8", "replace").split("\x02"):
            fields = line.split("\x01")
            if len(fields) > 6 and fields[0] == "SubBefore" and fields[6] == "0" and fields[1].isdecimal():
                yield fields[3], fields[5], int(fields[1])


def lags(facts: pa.Table, commits: Iterable[tuple[str, str, str, int, int]]) -> pa.Table:
    """Return the backlog per group and queue, for `commits` (brokerName, group, topic, queueId, committed)."""
    # 1. Sort all messages by queue and offset, so that queue k is the slice edges[k] to edges[k+1].
    # 2. Find the committed offset in the slice by binary search: everything from there on is backlog.
    # 3. Measure the backlog. Store times need not increase with offsets, so the oldest message is a minimum.
    groups = Groups(facts, _QUEUE)
    queue_of = {tuple(key.values()): number for number, key in enumerate(groups.keys.to_pylist())}
    order = np.lexsort((ints(facts["queueOffset"]), groups.codes))
    offsets, size, stored = (ints(facts[name])[order] for name in ("queueOffset", "size", "storedMs"))
    last = int(stored.max(initial=0))
    names: list[tuple[str, str, str]] = []
    numbers: list[tuple[int, ...]] = []
    for broker_name, group, topic, queue_id, committed in commits:
        number = queue_of.get((broker_name, topic, queue_id))
        begin, end = (0, 0) if number is None else groups.edges[number : number + 2].tolist()
        first = begin + int(np.searchsorted(offsets[begin:end], committed))
        oldest = int(stored[first:end].min()) if first < end else last
        names.append((group, broker_name, topic))
        most = int(offsets[end - 1]) + 1 if begin < end else committed
        waiting = int(size[first:end].sum(dtype=np.int64))
        numbers.append((queue_id, committed, most, end - first, waiting, last - oldest))
    columns = np.array(numbers, np.int64).reshape(-1, len(_LAG_NUMBERS))
    return pa.table(
        {name: strings([row[at].encode() for row in names]) for at, name in enumerate(("group", "brokerName", "topic"))}
        | {name: arrow(columns[:, at]).cast(kind) for at, (name, kind) in enumerate(_LAG_NUMBERS.items())}
    )


def _is(column: pa.ChunkedArray, value: str) -> Array:
    return bools(pc.equal(column, scalar(value)))


def _percentiles(groups: Groups, values: Array) -> dict[str, Array]:
    return {name: groups.quantile(values, share) for name, share in PERCENTILES.items()} | {"most": groups.max(values)}


def _with_step(facts: pa.Table, name: str, step_ms: int) -> pa.Table:
    return facts.append_column(name, _times(ints(facts["storedMs"]) // step_ms * step_ms))


def _times(milliseconds: Array) -> pa.Array:
    return arrow(milliseconds * 1000).view(TIMESTAMP)
