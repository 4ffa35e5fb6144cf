"""The tables of an audit, computed from record batches in this process.

They are those of `rucola.spark.jobs.audit`, function by function and column by column, for sources that are too small
for Spark. `facts` makes a narrow row of each message; only these stay in memory, some 250 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rucola.message import properties
from rucola.message.delay import parse_delay_levels
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX
from rucola.spark.arrays import Array, arrow, bools, ints, mask
from rucola.spark.columns import TIMESTAMP

COLUMNS: Final = (
    *("brokerName", "topic", "queueId", "queueOffset", "msgId", "offsetMsgId", "keys", "reconsumeTimes", "storeSize"),
    *("storeTimestamp", "bornTimestamp", "body", "properties"),
)
"""The columns of a message that `facts` looks at."""

HOUR_MS: Final = 3_600_000
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_INT: Final = "^[+-]?[0-9]{1,9}$"
_QUEUE: Final = ["brokerName", "topic", "queueId"]
_TRACED: Final = pa.schema([("group", pa.string()), ("msgId", pa.string()), ("at", pa.int64())])
_LAGS: Final = pa.schema(
    [
        *(("group", pa.string()), ("brokerName", pa.string()), ("topic", pa.string()), ("queueId", pa.int32())),
        *((name, pa.int64()) for name in ("committed", "end", "messages", "bytes", "waitingMs")),
    ]
)


class Groups:
    """The rows of a table, grouped by some of its columns.

    Methods return an array with an element for each group. `keys` has the columns by which rows are grouped, `codes`
    the group of each row, and `firsts` a row of each group; in the order of groups, the rows of group k are from
    edges[k] to edges[k+1].
    """

    def __init__(self, rows: pa.Table, by: Sequence[str]) -> None:
        codes = np.zeros(len(rows), np.int64)
        firsts = np.zeros(min(len(rows), 1), np.int64)
        for name in by:
            encoded = rows[name].combine_chunks().dictionary_encode("encode")
            both = codes * max(len(encoded.dictionary), 1) + ints(encoded.indices)
            _, firsts, codes = np.unique(both, return_index=True, return_inverse=True)
        self.keys = rows.select(list(by)).take(arrow(firsts))
        self.codes, self.firsts = codes, firsts
        self._order = np.argsort(codes, kind="stable")
        self.edges = np.searchsorted(codes[self._order], np.arange(len(firsts) + 1))

    def table(self, **columns: Array | pa.Array) -> pa.Table:
        """Return the keys with these columns behind them."""
        found = self.keys
        for name, values in columns.items():
            found = found.append_column(name, arrow(values) if isinstance(values, np.ndarray) else values)
        return found

    def count(self) -> Array:
        return np.diff(self.edges)

    def sum(self, values: Array) -> Array:
        return np.add.reduceat(values[self._order].astype(np.int64), self.edges[:-1])

    def least(self, values: Array) -> Array:
        return np.minimum.reduceat(values[self._order], self.edges[:-1])

    def most(self, values: Array) -> Array:
        return np.maximum.reduceat(values[self._order], self.edges[:-1])

    def first(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        return values.take(arrow(self._order[self.edges[:-1]]))

    def distinct(self, rows: pa.Table, names: Sequence[str]) -> Array:
        """Count the different values of these columns; `rows` has them for each row of the table."""
        inner = Groups(rows, names).codes
        both = np.unique(self.codes * (len(rows) + 1) + inner)
        return np.bincount(both // (len(rows) + 1), minlength=len(self.keys))

    def percentiles(self, values: Array) -> dict[str, Array]:
        """Return the maximum and percentiles, each the least value that so large a share of rows does not exceed."""
        ordered = values[np.lexsort((values, self.codes))]
        begins, counts = self.edges[:-1], self.count()
        ranks = {name: np.ceil(share * counts).astype(np.int64) for name, share in PERCENTILES.items()}
        return {name: ordered[begins + rank - 1] for name, rank in ranks.items()} | {"most": self.most(values)}


def facts(messages: pa.RecordBatch) -> pa.Table:
    """Return what is counted of each message: where it is, when, how large, of which group, a hash of its body."""
    topic, pairs = messages["topic"], messages["properties"]
    retry, dead = pc.starts_with(topic, RETRY_PREFIX), pc.starts_with(topic, DLQ_PREFIX)
    kind = pc.if_else(retry, "retry", pc.if_else(dead, "dead letter", "message"))
    group = pc.if_else(dead, pc.utf8_slice_codeunits(topic, len(DLQ_PREFIX)), pa.scalar(None, pa.string()))
    level = pc.map_lookup(pairs, properties.DELAY, "first")
    names = ["brokerName", "topic", "queueId", "queueOffset", "msgId", "offsetMsgId", "keys", "reconsumeTimes"]
    return pa.table(
        {
            **{name: messages[name] for name in names},
            "size": messages["storeSize"],
            "storedMs": arrow(ints(messages["storeTimestamp"].view(pa.int64())) // 1000),
            "bornMs": arrow(ints(messages["bornTimestamp"].view(pa.int64())) // 1000),
            "bodyHash": arrow(np.fromiter(map(hash, messages["body"].to_pylist()), np.int64, len(messages))),
            "kind": kind,
            "group": pc.if_else(retry, pc.utf8_slice_codeunits(topic, len(RETRY_PREFIX)), group),
            "originTopic": pc.map_lookup(pairs, properties.RETRY_TOPIC, "first"),
            "originId": pc.map_lookup(pairs, properties.ORIGIN_MESSAGE_ID, "first"),
            "delayLevel": pc.if_else(pc.match_substring_regex(level, _INT), level, "0").cast(pa.int32()).fill_null(0),
        }
    )


def topics(facts: pa.Table) -> pa.Table:
    """Return a row a topic: messages, bytes, sizes, first and last time, milliseconds from birth to store, repeats."""
    groups = Groups(facts, ["topic"])
    size, stored = ints(facts["size"]), ints(facts["storedMs"])
    count, kind = groups.count(), groups.first(facts["kind"])
    is_plain = bools(pc.equal(kind, "message").combine_chunks())
    return groups.table(
        kind=kind,
        queues=groups.distinct(facts, ["brokerName", "queueId"]),
        messages=count,
        bytes=groups.sum(size),
        averageSize=groups.sum(size) / count,
        largestSize=groups.most(size),
        first=_times(groups.least(stored)),
        last=_times(groups.most(stored)),
        **groups.percentiles(stored - ints(facts["bornMs"])),
        repeatedIds=np.where(is_plain, count - groups.distinct(facts, ["msgId"]), 0),
        repeatedBodies=np.where(is_plain, count - groups.distinct(facts, ["bodyHash"]), 0),
    )


def hours(facts: pa.Table) -> pa.Table:
    """Return a row a topic and hour: messages, bytes, messages a second on average and at most, born-to-store times."""
    stored = ints(facts["storedMs"])
    timed = _with_hour(facts).append_column("second", arrow(stored // 1000))
    groups, seconds = Groups(timed, ["topic", "hour"]), Groups(timed, ["topic", "hour", "second"])
    peaks = np.zeros(len(groups.keys), np.int64)
    np.maximum.at(peaks, groups.codes[seconds.firsts], seconds.count())
    return groups.table(
        messages=groups.count(),
        bytes=groups.sum(ints(facts["size"])),
        perSecond=groups.count() / (HOUR_MS / 1000),
        **groups.percentiles(stored - ints(facts["bornMs"])),
        peakPerSecond=peaks,
    )


def failures(facts: pa.Table) -> pa.Table:
    """Return a row a group, kind (`retry` or `dead letter`), topic of origin and hour: messages, and most tries."""
    failed = _with_hour(facts.filter(pc.not_equal(facts["kind"], "message")))
    groups = Groups(failed, ["group", "kind", "originTopic", "hour"])
    return groups.table(messages=groups.count(), mostTries=groups.most(ints(failed["reconsumeTimes"])))


def sizes(facts: pa.Table) -> pa.Table:
    """Return a row a topic and class of size: records of more than `upto` / 2 and up to `upto` bytes."""
    size = ints(facts["size"])
    upto = np.int64(1) << np.ceil(np.log2(size)).astype(np.int64)
    groups = Groups(facts.append_column("upto", arrow(upto)), ["topic", "upto"])
    return groups.table(messages=groups.count(), bytes=groups.sum(size))


def hot_keys(facts: pa.Table, most: int) -> pa.Table:
    """Return a row a topic and key, for the `most` keys of each topic that most messages have, but not one alone."""
    keys = facts["keys"].combine_chunks()
    exploded = pa.table({"topic": facts["topic"].take(pc.list_parent_indices(keys)), "key": keys.flatten()})
    groups = Groups(exploded, ["topic", "key"])
    counted = groups.table(messages=groups.count()).filter(mask(groups.count() > 1))
    counted = counted.sort_by([("topic", "ascending"), ("messages", "descending"), ("key", "ascending")])
    of_topic = Groups(counted, ["topic"])
    rank = np.arange(len(counted)) - np.repeat(np.cumsum(of_topic.count()) - of_topic.count(), of_topic.count()) + 1
    return counted.append_column("rank", arrow(rank.astype(np.int32))).filter(mask(rank <= most))


def consumption(facts: pa.Table, traces: Iterable[bytes], delay_levels: str) -> pa.Table:
    """Return a row a group, topic and way to know (`trace` or `given back`): milliseconds from store to consumption.

    `traces` are the bodies of the messages of RMQ_SYS_TRACE_TOPIC, `delay_levels` the brokers' messageDelayLevel.
    """
    plain = facts.filter(pc.equal(facts["kind"], "message")).select(["topic", "msgId", "offsetMsgId", "storedMs"])
    first_retry = pc.and_(pc.equal(facts["kind"], "retry"), pc.equal(facts["reconsumeTimes"], 1))
    retries = facts.filter(first_retry)
    delays = np.array([0, *parse_delay_levels(delay_levels)])
    level = ints(retries["delayLevel"]).clip(0, len(delays) - 1)
    given_back = pa.table(
        {
            "group": retries["group"],
            "offsetMsgId": retries["originId"],
            "at": arrow(ints(retries["storedMs"]) - delays[level]),
        }
    )
    traced = pa.Table.from_pylist([*_consumed(traces)], _TRACED)
    ways = {
        "given back": plain.join(given_back, "offsetMsgId", join_type="inner"),
        "trace": plain.join(traced, "msgId", join_type="inner"),
    }
    known = pa.concat_tables(
        way.select(["group", "topic", "storedMs", "at"]).append_column("known", pa.repeat(name, len(way)))
        for name, way in ways.items()
    )
    groups = Groups(known, ["group", "topic", "known"])
    waited = np.maximum(ints(known["at"]) - ints(known["storedMs"]), 0)
    return groups.table(messages=groups.count(), **groups.percentiles(waited))


def _consumed(traces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield who consumed which message when, for the first time, as traces say."""
    for trace in traces:
        for line in trace.decode("utf-8", "replace").split("\x02"):
            fields = line.split("\x01")
            if len(fields) > 6 and fields[0] == "SubBefore" and fields[6] == "0" and fields[1].isdecimal():
                yield {"group": fields[3], "msgId": fields[5], "at": int(fields[1])}


def lags(facts: pa.Table, progress: Iterable[tuple[str, str, str, int, int]]) -> pa.Table:
    """Return a row a group and queue: what it has not consumed, and how long the oldest of that has been waiting.

    `progress` has the committed offsets: brokerName, group, topic, queueId, committed.
    """
    groups = Groups(facts, _QUEUE)
    queue_of = {tuple(key.values()): number for number, key in enumerate(groups.keys.to_pylist())}
    order = np.lexsort((ints(facts["queueOffset"]), groups.codes))
    offsets, size, stored = (ints(facts[name])[order] for name in ("queueOffset", "size", "storedMs"))
    last = int(stored.max(initial=0))
    rows = []
    for broker_name, group, topic, queue_id, committed in progress:
        number = queue_of.get((broker_name, topic, queue_id))
        begin, end = (0, 0) if number is None else groups.edges[number : number + 2].tolist()
        first = begin + int(np.searchsorted(offsets[begin:end], committed))
        oldest = int(stored[first:end].min()) if first < end else last
        rows.append(
            {
                "group": group,
                "brokerName": broker_name,
                "topic": topic,
                "queueId": queue_id,
                "committed": committed,
                "end": int(offsets[end - 1]) + 1 if begin < end else committed,
                "messages": end - first,
                "bytes": int(size[first:end].sum(dtype=np.int64)),
                "waitingMs": last - oldest,
            }
        )
    return pa.Table.from_pylist(rows, _LAGS)


def _with_hour(facts: pa.Table) -> pa.Table:
    hour = ints(facts["storedMs"]) // HOUR_MS * HOUR_MS
    return facts.append_column("hour", _times(hour))


def _times(milliseconds: Array) -> pa.Array:
    return arrow(milliseconds * 1000).view(TIMESTAMP)
