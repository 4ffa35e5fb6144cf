"""Dispatch: build the ConsumeQueue units and the index entries of new records.

A consumer can read a record once its unit is in the ConsumeQueue; a query by key finds it once its keys are in the
index: first its unique key, then each word of KEYS. Prepared and rolled-back transaction messages get no unit;
rolled-back messages get no index entries either.

Records are dispatched in batches, in the order of the log, with one write per queue.

The tags code of a unit is the hash of the tag, except in SCHEDULE_TOPIC_XXXX and rmq_sys_wheel_timer. There it is the
time of delivery in milliseconds: computed from the delay level in the first, the property TIMER_OUT_MS in the second.

Corresponds to `DefaultMessageStore.CommitLogDispatcherBuildConsumeQueue`,
`DefaultMessageStore.CommitLogDispatcherBuildIndex` and `CommitLog.checkMessageAndReturnSize` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rucola import speed
from rucola.message import sysflag
from rucola.message.hashing import index_hash
from rucola.message.record import Buffer
from rucola.message.topics import DUE_TIME_TOPICS, is_lmq
from rucola.store.consume_queue import ConsumeQueue, MappingPool, check_queue_name, pack_unit
from rucola.store.dispatch_request import DispatchRequest, unit_tags_code
from rucola.store.index import Index, index_key
from rucola.store.mapped_file import MappedFileQueue

QueueUnits = tuple[int, bytes, list[int], list[int]]
"""Consecutive units of one queue: (queue offset of the first, the units, their tags codes, sizes of the records)."""

Entries = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Index entries in columns of shape (n,): (hashes, physical offsets, store timestamps in milliseconds)."""

TopicArrivals = tuple[list[ConsumeQueue], list[int], list[int]]
"""(queues, possibly repeated; tags codes; sizes of the records in bytes) of one topic, each queue in queue order."""

ArrivalListener = Callable[[Mapping[str, TopicArrivals]], None]
"""Gets all new units of a batch, by topic, once they can be read."""


class ConsumeQueues(dict[tuple[str, int], ConsumeQueue]):
    """All ConsumeQueues by (topic, queue id). A lookup creates a missing queue, without a file yet."""

    def __init__(self, directory: Path, file_size: int) -> None:
        super().__init__()
        self.directory = directory
        self.file_size = file_size
        self.pool = MappingPool()
        self.lmq_count = 0
        """The number of light message queues."""

    def __setitem__(self, name: tuple[str, int], queue: ConsumeQueue) -> None:
        self.lmq_count += is_lmq(name[0]) and name not in self
        super().__setitem__(name, queue)

    def __delitem__(self, name: tuple[str, int]) -> None:
        super().__delitem__(name)
        self.lmq_count -= is_lmq(name[0])

    def __missing__(self, name: tuple[str, int]) -> ConsumeQueue:
        topic, queue_id = name
        check_queue_name(topic, queue_id)
        files = MappedFileQueue(self.directory / topic / str(queue_id), self.file_size, [])
        queue = self[name] = ConsumeQueue(topic, queue_id, files, pool=self.pool)
        return queue

    def count_within_new_queues(self, batch: Sequence[DispatchRequest], max_new: int) -> int:
        """Return the length of the longest prefix of `batch` that creates at most `max_new` queues."""
        new: set[tuple[str, int]] = set()
        for number, request in enumerate(batch):
            name = (request.topic, request.queue_id)
            if name not in self and not request.sys_flag & sysflag.TRANSACTION_PREPARED:
                new.add(name)
                if len(new) > max_new:
                    return number
        return len(batch)


class CommitLogDispatcher:
    """Writes the units and index entries of records. Belongs to the store's owner thread."""

    def __init__(self, queues: ConsumeQueues, index: Index | None, delay_levels: Sequence[int]) -> None:
        self.queues = queues
        self.index = index
        """None if the store has no index (messageIndexEnable=false)."""
        self.delay_levels = delay_levels
        """The delay of each level in milliseconds, level 1 first (messageDelayLevel)."""
        self._is_interrupted = False
        """Whether the last `dispatch` raised; the next one has the same batch."""
        self._entries_there = 0

    def dispatch(
        self,
        batch: Sequence[DispatchRequest],
        touched: set[ConsumeQueue],
        on_arrival: ArrivalListener | None = None,
    ) -> None:
        """Write units and entries of `batch` in order; add queues with new units to `touched`.

        Raises OSError without disk space or a descriptor, perhaps after a part; the next call must have the same batch,
        or the next recovery writes the rest.
        """
        units = batch
        if self._is_interrupted:
            # Units are found by their queue offset; index entries have to be counted.
            units = [request for request in batch if not self._has_unit(request)]
        self._is_interrupted = True
        self.add_units(units, touched, on_arrival)
        index = self.index
        if index is not None:
            added = index.added
            try:
                self.add_entries(batch, self._entries_there)
            except OSError:
                self._entries_there += index.added - added
                raise
            self._entries_there = 0
        self._is_interrupted = False

    def _has_unit(self, request: DispatchRequest) -> bool:
        queue = self.queues.get((request.topic, request.queue_id))
        return queue is not None and request.queue_offset < queue.max_offset

    def add_units(
        self,
        batch: Sequence[DispatchRequest],
        touched: set[ConsumeQueue],
        on_arrival: ArrivalListener | None = None,
    ) -> None:
        """Write the ConsumeQueue units of `batch`; otherwise like `dispatch`."""
        arrivals: dict[str, TopicArrivals] = {}
        try:
            for (topic, queue_id), (queue_offset, units, tags_codes, sizes) in self.units_by_queue(batch).items():
                queue = self.queues[topic, queue_id]
                queue.append(queue_offset, units)
                queues, *columns = arrivals.setdefault(topic, ([], [], []))
                queues.append(queue)
                columns[0].extend(tags_codes)
                columns[1].extend(sizes)
        finally:
            # After an error, too: units that were written can be read, so they are announced, and flushed by a
            # checkpoint.
            for queues, _, _ in arrivals.values():
                touched.update(queues)
            if on_arrival is not None and arrivals:
                on_arrival(arrivals)

    def units_by_queue(self, batch: Iterable[DispatchRequest]) -> dict[tuple[str, int], QueueUnits]:
        """Return the units of `batch` by queue; each queue's records must have consecutive queue offsets."""
        if speed.units_by_queue is not None:
            found = speed.units_by_queue(batch, DUE_TIME_TOPICS)
            if found is not None:
                return found
        groups: dict[tuple[str, int], tuple[int, list[bytes], list[int], list[int]]] = {}
        for request in batch:
            if not request.sys_flag & sysflag.TRANSACTION_PREPARED:
                group = groups.setdefault((request.topic, request.queue_id), (request.queue_offset, [], [], []))
                tags_code = unit_tags_code(request, self.delay_levels)
                group[1].append(pack_unit(request.physical_offset, request.size, tags_code))
                group[2].append(tags_code)
                group[3].append(request.size)
        return {name: (first, b"".join(units), codes, sizes) for name, (first, units, codes, sizes) in groups.items()}

    def add_entries(self, batch: Sequence[DispatchRequest], skip: int = 0) -> None:
        """Write the index entries of `batch`, except the first `skip`, which the index has already."""
        assert self.index is not None
        hashes, physical_offsets, timestamps = index_entries_of(batch)
        self.index.put_many(hashes[skip:], physical_offsets[skip:], timestamps[skip:])


def index_entries_of(batch: Sequence[DispatchRequest]) -> Entries:
    """Return the index entries of `batch`, in order: for each key the hash, and its record's offset and time."""
    if speed.index_entries is not None and (columns := speed.index_entries(batch)) is not None:
        return _entries_of(columns)
    rows = [
        (index_hash(index_key(request.topic, key)), request.physical_offset, request.store_timestamp)
        for request in batch
        for key in index_keys(request)
    ]
    found, physical_offsets, timestamps = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    return found.astype(np.int32), physical_offsets, timestamps


def _entries_of(columns: tuple[bytes, bytes, bytes]) -> Entries:
    hashes, offsets, times = columns
    return np.frombuffer(hashes, np.int32), np.frombuffer(offsets, np.int64), np.frombuffer(times, np.int64)


def read_run(
    buffer: Buffer, position: int, end: int
) -> tuple[dict[tuple[str, int], tuple[int, bytes]], Entries] | None:
    """Return the units, by queue as (queue offset of the first, units), and the index entries of consecutive records.

    None without the accelerator, and unless all records between the two positions are whole and of the usual form: in
    one queue with consecutive offsets that is not ordered by due time, with properties that are text without zeros.
    """
    if speed.read_run is None or (found := speed.read_run(buffer, position, end, DUE_TIME_TOPICS)) is None:
        return None
    return found[0], _entries_of(found[1])


def index_keys(request: DispatchRequest) -> list[str]:
    if sysflag.transaction_state(request.sys_flag) == sysflag.TRANSACTION_ROLLBACK:
        return []
    words = request.keys.split(" ") if request.keys else []
    return [key for key in (request.unique_key, *words) if key]
