"""Store directories as a message source. Every call opens the stores again, read-only, and freezes their ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import partial

from rucola.errors import ConfigError
from rucola.message.topics import is_lmq
from rucola.spark.source.log_boundaries import log_end, skip_records
from rucola.spark.source.log_splits import (
    LogSplit,
    QueueRange,
    drop_other_times,
    restrict_to_keys,
    split_queues,
    split_whole_log,
    with_last_piece,
)
from rucola.spark.source.options import ReadOptions
from rucola.spark.source.source_offsets import (
    NO_OFFSETS,
    BrokerLog,
    BrokerQueue,
    OffsetRanges,
    Offsets,
    Origin,
    SourceBounds,
    is_chosen,
    limit_ranges,
)
from rucola.store.directory_reader import StoreReader


class StoreSource:
    """The logs or queues of store directories that the options choose. No file stays open between calls."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def bounds(self, known: Offsets = NO_OFFSETS) -> SourceBounds:
        """Return the bounds of every log or chosen queue; nothing in a store that can be opened is unavailable."""
        bounds: dict[Origin, tuple[int, int]] = {}
        present: set[tuple[str, int]] = set()
        for broker_name, path in self._options.stores.items():
            with StoreReader(path) as reader:
                if not self._options.by_queue:
                    bounds[BrokerLog(broker_name)] = reader.min_physical_offset, log_end(reader)
                    continue
                # Messages of light message queues are in other topics.
                queues = {name: ends for name, ends in reader.queues().items() if not is_lmq(name[0])}
                present |= queues.keys()
                for (topic, queue_id), (least, most) in queues.items():
                    if is_chosen(self._options, queue := BrokerQueue(topic, broker_name, queue_id)):
                        bounds[queue] = least, most
        _check_topics_exist(self._options, present)
        return SourceBounds(bounds)

    def plan(self, ranges: OffsetRanges) -> list[LogSplit]:
        """Return the partitions, store by store in the order of the log."""
        splits: list[LogSplit] = []
        for broker_name, path in self._options.stores.items():
            with StoreReader(path) as reader:
                found = list(self._splits(reader, broker_name, ranges))
                kept = drop_other_times(reader, found, self._options)
                splits += [with_last_piece(reader, split) for split in kept]
        return splits

    def _splits(self, reader: StoreReader, broker_name: str, ranges: OffsetRanges) -> Iterator[LogSplit]:
        if not self._options.by_queue:
            begin, end = ranges.get(BrokerLog(broker_name), (0, 0))
            return split_whole_log(reader, broker_name, begin, end, self._options)
        chosen = [
            QueueRange(origin.topic, origin.queue_id, begin, end)
            for origin, (begin, end) in sorted(ranges.items())
            if isinstance(origin, BrokerQueue) and origin.broker_name == broker_name
        ]
        if self._options.keys is not None:
            chosen = restrict_to_keys(reader, chosen, self._options.keys)
        return split_queues(reader, broker_name, chosen, self._options)

    def at_times(self, times: Mapping[BrokerQueue, int], bounds: OffsetRanges) -> Mapping[BrokerQueue, int]:
        """Find offsets by a binary search over the store times of each queue's messages."""
        found: dict[BrokerQueue, int] = {}
        for broker_name, path in self._options.stores.items():
            queues = [queue for queue in times if queue.broker_name == broker_name]
            if queues:
                with StoreReader(path) as reader:
                    for queue in queues:
                        begin, end = bounds[queue]
                        stored_at = partial(_store_time, reader, queue)
                        found[queue] = begin + bisect_left(range(begin, end), times[queue], key=stored_at)
        return found

    def limit(self, ranges: OffsetRanges, count: int) -> OffsetRanges:
        """Return the first `count` messages of the ranges. For logs this walks over the records."""
        if self._options.by_queue:
            return limit_ranges(ranges, count)
        limited: dict[Origin, tuple[int, int]] = {}
        logs = {origin: bounds for origin, bounds in ranges.items() if bounds[0] < bounds[1]}
        for number, (origin, (begin, end)) in enumerate(logs.items()):
            # Equal shares that add up to `count`: the differences of rounded multiples.
            share = count * (number + 1) // len(logs) - count * number // len(logs)
            with StoreReader(self._options.stores[origin.broker_name]) as reader:
                limited[origin] = begin, skip_records(reader, begin, end, max(share, 1))[0]
        return limited

    def count(self, ranges: OffsetRanges, most: int) -> int:
        """Return the number of messages in the ranges, counting at most to `most`."""
        if self._options.by_queue:
            return sum(end - begin for begin, end in ranges.values())
        found = 0
        for origin, (begin, end) in ranges.items():
            if found < most and begin < end:
                with StoreReader(self._options.stores[origin.broker_name]) as reader:
                    found += skip_records(reader, begin, end, most - found)[1]
        return found


def _store_time(reader: StoreReader, queue: BrokerQueue, queue_offset: int) -> int:
    units = reader.units(queue.topic, queue.queue_id, queue_offset, queue_offset + 1)
    return reader.record(int(units["physical_offset"][0]), decompress=False).store_timestamp


def _check_topics_exist(options: ReadOptions, queues: set[tuple[str, int]]) -> None:
    wanted: set[tuple[str, int | None]] = {(topic, None) for topic in options.topics or ()}
    wanted |= {(topic, queue_id) for topic, _, queue_id in options.assigned or ()}
    wanted = {(topic, queue_id) for topic, queue_id in wanted if topic not in options.archived_topics}
    present: set[tuple[str, int | None]] = queues | {(topic, None) for topic, _ in queues}
    for topic, queue_id in sorted(wanted - present, key=str):
        queue = "" if queue_id is None else f"queue {queue_id} of "
        topics = ", ".join(sorted({topic for topic, _ in present})) or "no topic at all"
        raise ConfigError(
            f"{queue}topic {topic!r} is not in {', '.join(options.stores.values())}, which holds {topics}"
        )
