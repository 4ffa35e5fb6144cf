"""Records of a split of a store's log as record batches: where they stand, whether they are wanted, what is damaged.

A split that names queues is read by their units, in the order of the addresses to which these point. Any other is
followed from record to record; the units of ConsumeQueues, if there are few of these, say beforehand where records may
begin, so that a batch of them is checked at once. Either way a batch's places are found first, then decoded together
(see `columns`).

The store may have changed since the split was planned. What was deleted meanwhile ends the read, or with
failOnDataLoss=false is left out with a warning.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rucola.errors import StoreCorrupt, StoreError
from rucola.message import properties, sysflag
from rucola.message.hashing import string_hashes
from rucola.message.record import BLANK_MAGIC, FRAME, MESSAGE_MAGIC, MIN_RECORD_SIZE
from rucola.message.topics import DUE_TIME_TOPICS
from rucola.spark.source import columns, log_splits, record_layout
from rucola.spark.source.arrays import Array
from rucola.spark.source.byte_ranges import fields_at
from rucola.spark.source.log_splits import LogSplit, QueueRange
from rucola.spark.source.options import CorruptRecords, ReadOptions, sql92_matcher
from rucola.spark.source.record_layout import DamagedRecord, Records
from rucola.spark.source.source_offsets import is_chosen_topic
from rucola.store.reader import LogFile, StoreReader

_log = logging.getLogger(__name__)

_FRAME: Final = np.dtype([("size", ">i4"), ("magic", ">u4")])
_MOST_QUEUES: Final = 64
"""Queues whose units are looked for in a split, at a quarter of a millisecond each."""


class ExpectedRecords(NamedTuple):
    """Places in one file where records are expected, ascending.

    `ranges` and `queue_offsets` say which message each must be, as an index into the split's queues and its place
    there; they are None where the log itself is followed.
    """

    file: LogFile
    positions: Array
    sizes: Array
    ranges: Array | None = None
    queue_offsets: Array | None = None


class _DamageHandler:
    """What to do about damage: end the read, count it, or make rows of it."""

    def __init__(self, what: CorruptRecords) -> None:
        self._what = what
        self._count = 0
        self._first_offset = ""
        self._rows: list[DamagedRecord] = []

    def report(self, file: LogFile, damages: Sequence[DamagedRecord]) -> None:
        for damage in damages:
            error = StoreCorrupt(file.path, damage.physical_offset - file.begin, damage.why)
            if self._what is CorruptRecords.FAIL:
                raise error
            if self._what is CorruptRecords.COLUMN:
                self._rows.append(damage)
                continue
            self._first_offset = self._first_offset or str(error)
            self._count += 1

    def rows(self, names: Sequence[str], broker_name: str) -> Iterator[pa.RecordBatch]:
        """Yield what was reported since the last time, where that are to be rows."""
        if self._rows:
            rows, self._rows = self._rows, []
            yield columns.corrupt_rows(rows, names, broker_name=broker_name)

    def close(self, split: LogSplit) -> None:
        if self._count:
            place = f"{split.store} between physical offsets {split.begin} and {split.end}"
            _log.warning("left out %d damaged records of %s; the first: %s", self._count, place, self._first_offset)


def read(split: LogSplit, chosen: ReadOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one split of a log as record batches of these columns, in the order of the log."""
    damaged = _DamageHandler(chosen.corrupt_records)
    with StoreReader(split.store) as reader:
        split = _remaining_split(reader, split, chosen)
        find = _along_the_log if split.queues is None else _by_units
        for found in find(reader, split, chosen, damaged):
            log = reader.buffer(found.file)
            for cut in record_layout.batches(found.positions, found.sizes):
                records, damages = record_layout.locate(log, found.file.begin, found.positions[cut], found.sizes[cut])
                if split.queues is not None:
                    records, strangers = _as_expected(records, found, split.queues)
                    damages += strangers
                damaged.report(found.file, damages)
                records = records.where(selection_mask(records, chosen, whole_log=split.queues is None))
                for batch, damages in columns.decode(records, names, broker_name=split.broker_name):
                    damaged.report(found.file, damages)
                    if batch.num_rows:
                        yield batch
                yield from damaged.rows(names, split.broker_name)
    yield from damaged.rows(names, split.broker_name)
    damaged.close(split)


def _remaining_split(reader: StoreReader, split: LogSplit, chosen: ReadOptions) -> LogSplit:
    """Return what the store still holds of a split. Raises StoreError if that is less, unless loss is allowed."""
    least = reader.min_physical_offset
    if split.queues is None:
        left = replace(split, begin=min(max(split.begin, least), split.end))
    else:
        queues = []
        for each in split.queues:
            first, last = reader.queues().get((each.topic, each.queue_id), (0, 0))
            begin, end = max(each.begin, first), min(each.end, last)
            if begin < end:
                queues.append(each._replace(begin=begin, end=end))
        left = replace(split, queues=tuple(queues))
    if left != split:
        what = f"messages of {split.store} were deleted before they were read; its log now begins at {least}"
        if chosen.fail_on_data_loss:
            raise StoreError(f"{what}; failOnDataLoss=false reads what there is")
        _log.warning("%s", what)
    return left


def _along_the_log(
    reader: StoreReader, split: LogSplit, _: ReadOptions, damaged: _DamageHandler
) -> Iterator[ExpectedRecords]:
    """Follow the log from record to record."""
    offset = split.begin
    dispatched = _dispatched_offsets(reader, split)
    while offset < split.end:
        file = _file_of(reader, offset)
        log = reader.buffer(file)
        end = min(split.end - file.begin, file.size)
        first = int(np.searchsorted(dispatched, offset))
        positions, position = _check_chained(
            log, dispatched[first : first + record_layout.BATCH_ROWS] - file.begin, end
        )
        if len(positions) and positions[0] == offset - file.begin:
            yield ExpectedRecords(file, positions, np.diff(positions, append=position))
            offset = file.begin + position
            continue
        positions, position = _follow_chain(log, offset - file.begin, end)
        if len(positions):
            yield ExpectedRecords(file, positions, np.diff(positions, append=position))
        offset = file.begin + position
        whole = position >= end or len(positions) == record_layout.BATCH_ROWS
        size, magic = FRAME.unpack_from(log, position) if not whole and position + FRAME.size <= file.size else (0, 0)
        if not whole and magic == BLANK_MAGIC and size == file.size - position:
            offset = file.begin + file.size
        elif not whole:
            damaged.report(file, [DamagedRecord(offset, "neither a record nor a blank begins here")])
            offset = log_splits.next_record(reader, offset + 1) or split.end


def _dispatched_offsets(reader: StoreReader, split: LogSplit) -> Array:
    """Return the addresses in a split to which the units of ConsumeQueues point, ascending.

    They only spare steps from record to record, so there are none if there are many queues, or if one cannot be read.
    """
    queues = reader.queues()
    found = [np.empty(0, np.int64)]
    if len(queues) <= _MOST_QUEUES:
        with suppress(StoreError, OSError, IndexError):
            found += [_addresses(reader, *queue, *bounds, split) for queue, bounds in queues.items()]
    return np.sort(np.concatenate(found))


def _addresses(reader: StoreReader, topic: str, queue_id: int, least: int, most: int, split: LogSplit) -> Array:
    """Return the addresses in a split to which the units of a queue point."""

    def address(queue_offset: int) -> int:
        return int(reader.units(topic, queue_id, queue_offset, queue_offset + 1)["physical_offset"][0])

    begin, end = (bisect_left(range(least, most), edge, key=address) for edge in (split.begin, split.end))
    return reader.units(topic, queue_id, least + begin, least + end)["physical_offset"].astype(np.int64)


def _check_chained(log: memoryview, positions: Array, end: int) -> tuple[Array, int]:
    """Return those positions from the first on at which one record follows the other, and where the last one ends.

    Does for all of them at once what `_follow_chain` does for each, for a tenth of the time. There are none if less than half
    of the positions are such, so that batches stay large.
    """
    positions = positions[(positions < end) & (positions <= len(log) - _FRAME.itemsize)]
    frames = fields_at(np.frombuffer(log, np.uint8), positions, _FRAME)
    sizes = frames["size"].astype(np.int64)
    ends = positions + sizes
    sound = (frames["magic"] == MESSAGE_MAGIC) & (sizes >= MIN_RECORD_SIZE) & (ends <= len(log))
    sound[1:] &= positions[1:] == ends[:-1]
    count = len(positions) if sound.all() else int(np.argmin(sound))
    if not count or 2 * count < len(positions):
        return positions[:0], 0
    return positions[:count], int(ends[count - 1])


def _follow_chain(log: memoryview, position: int, end: int) -> tuple[Array, int]:
    """Return where records of a file begin, from `position` to `end` at most a batch, and where the last one ends.

    That is before `end` if no record begins there. This is the only step over single records: it is kept to what finds
    the next.
    """
    positions: list[int] = []
    found, unpack = positions.append, FRAME.unpack_from
    last = min(end, len(log) - FRAME.size + 1)
    for _ in range(record_layout.BATCH_ROWS):
        if position >= last:
            break
        size, magic = unpack(log, position)
        if magic != MESSAGE_MAGIC or size < MIN_RECORD_SIZE:
            break
        found(position)
        position += size
    if position > len(log):
        position = positions.pop()
    return np.array(positions, np.int64), position


def _by_units(
    reader: StoreReader, split: LogSplit, chosen: ReadOptions, damaged: _DamageHandler
) -> Iterator[ExpectedRecords]:
    """Go to the records to which the units of the split's queues point, in the order of their addresses.

    Units whose hash of tags says that the record has no wanted tag are passed over.
    """
    assert split.queues is not None
    if not split.queues:
        return
    queues = LogFile(reader.path / "consumequeue", 0, 0)  # where the damage is when the log is not to blame
    units = [reader.units(each.topic, each.queue_id, each.begin, each.end) for each in split.queues]
    addresses = np.concatenate([each["physical_offset"] for each in units]).astype(np.int64)
    sizes = np.concatenate([each["size"] for each in units]).astype(np.int64)
    ranges = np.repeat(np.arange(len(units)), [len(each) for each in units])
    queue_offsets = np.concatenate([np.arange(each.begin, each.end) for each in split.queues])
    order = np.argsort(addresses, kind="stable")
    if chosen.tags is not None:
        wanted_codes = string_hashes(sorted(chosen.tags)).astype(np.int64)
        codes = np.concatenate([each["tags_code"] for each in units]).astype(np.int64)
        # The units of delayed messages hold the time at which they are due.
        delayed = np.array([each.topic in DUE_TIME_TOPICS for each in split.queues])[ranges]
        order = order[(np.isin(codes, wanted_codes) | delayed)[order]]
    twice = np.flatnonzero(np.diff(addresses[order]) == 0)
    why = "two units of ConsumeQueues point at this physical offset"
    damaged.report(queues, [DamagedRecord(address, why) for address in addresses[order[twice]].tolist()])
    order = np.delete(order, twice)
    files = reader.commit_log_files
    outside = (addresses[order] < files[0].begin) | (addresses[order] >= files[-1].begin + files[-1].size)
    why = "a unit of a ConsumeQueue points at this physical offset, which the log does not hold"
    damaged.report(queues, [DamagedRecord(address, why) for address in addresses[order[outside]].tolist()])
    for file in files:
        inside = order[(addresses[order] >= file.begin) & (addresses[order] < file.begin + file.size)]
        if len(inside):
            positions = addresses[inside] - file.begin
            yield ExpectedRecords(file, positions, sizes[inside], ranges[inside], queue_offsets[inside])


def _as_expected(
    records: Records, found: ExpectedRecords, queues: Sequence[QueueRange]
) -> tuple[Records, list[DamagedRecord]]:
    """Return the records that are the messages which the units promised, and the damage of the others."""
    assert found.ranges is not None
    assert found.queue_offsets is not None
    row = np.searchsorted(found.positions, records.layout["begin"])
    code_of = {topic: code for code, topic in enumerate(records.topics.dictionary.to_pylist())}
    expected_codes = np.array([code_of.get(each.topic, -1) for each in queues])
    expected_ids = np.array([each.queue_id for each in queues])
    ranges = found.ranges[row]
    kept = (
        (records.topic_codes == expected_codes[ranges])
        & (records.heads["queue_id"] == expected_ids[ranges])
        & (records.heads["queue_offset"] == found.queue_offsets[row])
    )
    why = "a unit of a ConsumeQueue points at this record, which is of another queue or place"
    return records.where(kept), [DamagedRecord(address, why) for address in records.addresses(~kept).tolist()]


def selection_mask(records: Records, chosen: ReadOptions, *, whole_log: bool) -> Array:
    """Tell which records the read asks for; `whole_log` where they were not found through the queues they are in."""
    stored = records.heads["store_timestamp"]
    found = np.ones(len(records), np.bool_)
    if chosen.starting_timestamp is not None:
        found &= stored >= chosen.starting_timestamp
    if chosen.ending_timestamp is not None:
        found &= stored < chosen.ending_timestamp
    if whole_log:
        left = chosen.queue_filter
        names = records.topics.dictionary.to_pylist()
        is_left = [left.topics is None or name in left.topics for name in names]
        topics = np.array([is_chosen_topic(chosen, name) for name in names], np.bool_) & np.array(is_left, np.bool_)
        found &= topics[records.topic_codes]
        offsets = records.heads["queue_offset"]
        found &= (offsets >= left.begin_queue_offset) & (offsets < left.end_queue_offset)
        if left.queue_ids is not None:
            found &= np.isin(records.heads["queue_id"], list(left.queue_ids))
        # What takes no place in a queue was never there for anyone to consume.
        found &= (records.heads["sys_flag"] & sysflag.TRANSACTION_PREPARED) == 0
    if chosen.tags is not None and len(records):
        tags = records.properties.values_of(properties.TAGS)
        found &= pc.is_in(tags, pa.array(sorted(chosen.tags), pa.string())).to_numpy(zero_copy_only=False)
    if chosen.keys is not None and len(records):
        found &= _with_keys(records, chosen.keys)
    if chosen.expression is not None and found.any():
        is_wanted = sql92_matcher(chosen.expression)
        maps = records.where(found).properties.as_map().to_pylist(maps_as_pydicts="strict")
        found[found] = [is_wanted(each) for each in maps]
    return found


def _with_keys(records: Records, keys: frozenset[str]) -> Array:
    """Tell which records have one of these as a key or as their unique key."""
    asked = pa.array(sorted(keys), pa.string())
    unique = records.properties.values_of(properties.UNIQ_KEY)
    found: Array = pc.is_in(unique, asked).to_numpy(zero_copy_only=False).copy()
    lists = records.keys()
    hits = pc.is_in(lists.flatten(), asked).to_numpy(zero_copy_only=False)
    found[pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)[hits]] = True
    return found


def _file_of(reader: StoreReader, physical_offset: int) -> LogFile:
    for file in reader.commit_log_files:
        if file.begin <= physical_offset < file.begin + file.size:
            return file
    raise StoreError(f"{reader.path} no longer holds physical offset {physical_offset}; it was deleted meanwhile")
