"""Reader of log splits: finds, selects and decodes their records.

A split with queues is read by the units of their ConsumeQueues, in the order of the addresses they point at; any other
split is followed from record to record. To follow it quickly, one numpy comparison confirms that a run of ConsumeQueue
units is chained without gaps. The units are only a hint: other records are found by following the chain.

Messages deleted between planning and reading end the read or, with failOnDataLoss=false, are skipped with a warning.
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

from rucola.errors import DirectoryNotShared, StoreCorrupt, StoreError
from rucola.message import properties, sysflag
from rucola.message.hashing import string_hashes
from rucola.message.record import BLANK_MAGIC, FRAME, MESSAGE_MAGIC, MIN_RECORD_SIZE
from rucola.message.topics import DUE_TIME_TOPICS
from rucola.spark.source import columns, record_layout
from rucola.spark.source.array_conversions import Array
from rucola.spark.source.byte_ranges import fields_at
from rucola.spark.source.log_boundaries import next_record
from rucola.spark.source.log_splits import LogSplit, QueueRange
from rucola.spark.source.option_values import sql92_matcher
from rucola.spark.source.options import CorruptRecords, ReadOptions
from rucola.spark.source.record_layout import DamagedRecord, Records
from rucola.spark.source.source_offsets import is_chosen_topic
from rucola.store.directory_reader import LogFile, StoreReader

_log = logging.getLogger(__name__)

_FRAME: Final = np.dtype([("size", ">i4"), ("magic", ">u4")])
MAX_HINT_QUEUES: Final = 64
"""Maximum number of queues whose units are used as hints; each costs a quarter of a millisecond."""


class ExpectedRecords(NamedTuple):
    """Positions and sizes of records expected in one file, ascending.

    `ranges` (indices of the split's queues) and `queue_offsets` identify the messages; None if the log is followed.
    """

    file: LogFile
    positions: Array
    sizes: Array
    ranges: Array | None = None
    queue_offsets: Array | None = None


class _DamageHandler:
    """Applies the option corruptRecords: raises for damage, counts it, or collects it as rows."""

    def __init__(self, policy: CorruptRecords) -> None:
        self._policy = policy
        self._count = 0
        self._first = ""
        self._rows: list[DamagedRecord] = []

    def report(self, file: LogFile, damaged: Sequence[DamagedRecord]) -> None:
        for each in damaged:
            error = StoreCorrupt(file.path, each.physical_offset - file.begin, each.why)
            if self._policy is CorruptRecords.FAIL:
                raise error
            if self._policy is CorruptRecords.COLUMN:
                self._rows.append(each)
                continue
            self._first = self._first or str(error)
            self._count += 1

    def rows(self, names: Sequence[str], broker_name: str) -> Iterator[pa.RecordBatch]:
        if self._rows:
            rows, self._rows = self._rows, []
            yield columns.corrupt_rows(rows, names, broker_name=broker_name)

    def close(self, split: LogSplit) -> None:
        if self._count:
            place = f"{split.store} between physical offsets {split.begin} and {split.end}"
            _log.warning("left out %d damaged records of %s; the first: %s", self._count, place, self._first)


def read(split: LogSplit, chosen: ReadOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the selected messages of a split in log order.

    Raises StoreCorrupt for damage and StoreError for deleted messages, unless the options allow them.
    """
    handler = _DamageHandler(chosen.corrupt_records)
    check_log(split)
    with StoreReader(split.store) as reader:
        split = _remaining_split(reader, split, chosen)
        find = _follow_log if split.queues is None else _read_units
        for expected in find(reader, split, chosen, handler):
            log = reader.buffer(expected.file)
            for cut in record_layout.batches(expected.positions, expected.sizes):
                positions, sizes = expected.positions[cut], expected.sizes[cut]
                records, damaged = record_layout.locate(log, expected.file.begin, positions, sizes)
                if split.queues is not None:
                    records, others = _verify_units(records, expected, split.queues)
                    damaged += others
                handler.report(expected.file, damaged)
                # Select by the options, before anything but the fixed part is decoded if possible.
                records = records.where(selection_mask(records, chosen, whole_log=split.queues is None))
                for batch, damaged in columns.decode(records, names, broker_name=split.broker_name):
                    handler.report(expected.file, damaged)
                    if batch.num_rows:
                        yield batch
                yield from handler.rows(names, split.broker_name)
    yield from handler.rows(names, split.broker_name)
    handler.close(split)


def check_log(split: LogSplit) -> None:
    """Raise DirectoryNotShared unless this process sees the log for which the split was planned."""
    piece = split.last_piece
    if piece is None:
        return
    try:
        piece.check()
    except DirectoryNotShared:
        # A deleted file is reported by `_remaining_split`.
        with suppress(StoreError), StoreReader(split.store) as reader:
            if reader.min_physical_offset > int(piece.path.name):
                return
        raise


def _remaining_split(reader: StoreReader, split: LogSplit, chosen: ReadOptions) -> LogSplit:
    """Return the existing part of a split; StoreError for a loss, unless it is allowed."""
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


def _follow_log(
    reader: StoreReader, split: LogSplit, _: ReadOptions, handler: _DamageHandler
) -> Iterator[ExpectedRecords]:
    offset = split.begin
    hints = _dispatched_offsets(reader, split)
    while offset < split.end:
        file = _file_of(reader, offset)
        log = reader.buffer(file)
        end = min(split.end - file.begin, file.size)

        # 1. Confirm the positions of ConsumeQueue units, if they start where the last batch ended.
        first = int(np.searchsorted(hints, offset))
        positions, position = _confirm_chain(log, hints[first : first + record_layout.BATCH_ROWS] - file.begin, end)
        if len(positions) and positions[0] == offset - file.begin:
            yield ExpectedRecords(file, positions, np.diff(positions, append=position))
            offset = file.begin + position
            continue

        # 2. Otherwise follow the chain.
        positions, position = _follow_chain(log, offset - file.begin, end)
        if len(positions):
            yield ExpectedRecords(file, positions, np.diff(positions, append=position))
        offset = file.begin + position
        if position >= end or len(positions) == record_layout.BATCH_ROWS:
            continue

        # 3. The chain ended early: at the blank that fills a file, or at damage.
        size, magic = FRAME.unpack_from(log, position) if position + FRAME.size <= file.size else (0, 0)
        if magic == BLANK_MAGIC and size == file.size - position:
            offset = file.begin + file.size
        else:
            handler.report(file, [DamagedRecord(offset, "neither a record nor a blank begins here")])
            offset = next_record(reader, offset + 1) or split.end


def _dispatched_offsets(reader: StoreReader, split: LogSplit) -> Array:
    """Return the ascending addresses in a split that units point at; empty if they are too many or unreadable."""
    queues = reader.queues()
    found = [np.empty(0, np.int64)]
    if len(queues) <= MAX_HINT_QUEUES:
        with suppress(StoreError, OSError, IndexError):
            found += [_queue_addresses(reader, *queue, *bounds, split) for queue, bounds in queues.items()]
    return np.sort(np.concatenate(found))


def _queue_addresses(reader: StoreReader, topic: str, queue_id: int, least: int, most: int, split: LogSplit) -> Array:
    def address(queue_offset: int) -> int:
        return int(reader.units(topic, queue_id, queue_offset, queue_offset + 1)["physical_offset"][0])

    begin, end = (bisect_left(range(least, most), edge, key=address) for edge in (split.begin, split.end))
    return reader.units(topic, queue_id, least + begin, least + end)["physical_offset"].astype(np.int64)


def _confirm_chain(log: memoryview, positions: Array, end: int) -> tuple[Array, int]:
    """Return the leading positions of gapless records and the end after them; less than half counts as none."""
    positions = positions[(positions < end) & (positions <= len(log) - _FRAME.itemsize)]
    frames = fields_at(np.frombuffer(log, np.uint8), positions, _FRAME)
    sizes = frames["size"].astype(np.int64)
    ends = positions + sizes
    chained = (frames["magic"] == MESSAGE_MAGIC) & (sizes >= MIN_RECORD_SIZE) & (ends <= len(log))
    chained[1:] &= positions[1:] == ends[:-1]
    count = len(positions) if chained.all() else int(np.argmin(chained))
    if not count or 2 * count < len(positions):
        return positions[:0], 0
    return positions[:count], int(ends[count - 1])


def _follow_chain(log: memoryview, position: int, end: int) -> tuple[Array, int]:
    """Return positions of up to a batch of records and the end: the only loop over single records."""
    positions: list[int] = []
    append, unpack = positions.append, FRAME.unpack_from
    last = min(end, len(log) - FRAME.size + 1)
    for _ in range(record_layout.BATCH_ROWS):
        if position >= last:
            break
        size, magic = unpack(log, position)
        if magic != MESSAGE_MAGIC or size < MIN_RECORD_SIZE:
            break
        append(position)
        position += size
    if position > len(log):
        position = positions.pop()  # the last record claims bytes after the end of the file
    return np.array(positions, np.int64), position


def _read_units(
    reader: StoreReader, split: LogSplit, chosen: ReadOptions, handler: _DamageHandler
) -> Iterator[ExpectedRecords]:
    """Yield the records that units of the split's queues point at, file by file, in the order of their addresses."""
    if not split.queues:
        return
    # 1. Read the units of all queues.
    units = [reader.units(each.topic, each.queue_id, each.begin, each.end) for each in split.queues]
    addresses = np.concatenate([each["physical_offset"] for each in units]).astype(np.int64)
    sizes = np.concatenate([each["size"] for each in units]).astype(np.int64)
    ranges = np.repeat(np.arange(len(units)), [len(each) for each in units])
    queue_offsets = np.concatenate([np.arange(each.begin, each.end) for each in split.queues])
    # 2. Order them by address, without those whose tags code excludes the wanted tags.
    order = np.argsort(addresses, kind="stable")
    if chosen.tags is not None:
        codes = np.concatenate([each["tags_code"] for each in units]).astype(np.int64)
        order = order[_may_have_tags(codes, chosen.tags, split.queues, ranges)[order]]
    # 3. Report units that cannot be right.
    order = _drop_damaged_units(reader, addresses, order, handler)
    # 4. Cut by files.
    for file in reader.commit_log_files:
        inside = order[(addresses[order] >= file.begin) & (addresses[order] < file.begin + file.size)]
        if len(inside):
            positions = addresses[inside] - file.begin
            yield ExpectedRecords(file, positions, sizes[inside], ranges[inside], queue_offsets[inside])


def _may_have_tags(codes: Array, tags: frozenset[str], queues: Sequence[QueueRange], ranges: Array) -> Array:
    """Return a mask of the units that can have one of the tags; codes of delayed messages are their due time."""
    # Another tag with an equal hash passes here; `selection_mask` compares the tags themselves.
    wanted = string_hashes(sorted(tags)).astype(np.int64)
    delayed = np.array([each.topic in DUE_TIME_TOPICS for each in queues])[ranges]
    found: Array = np.isin(codes, wanted) | delayed
    return found


def _drop_damaged_units(reader: StoreReader, addresses: Array, order: Array, handler: _DamageHandler) -> Array:
    """Report and drop units that point at another unit's record, or outside the log."""
    queues = LogFile(reader.path / "consumequeue", 0, 0)  # the damaged file is a ConsumeQueue, not the log
    twice = np.flatnonzero(np.diff(addresses[order]) == 0)
    why = "two units of ConsumeQueues point at this physical offset"
    handler.report(queues, [DamagedRecord(address, why) for address in addresses[order[twice]].tolist()])
    order = np.delete(order, twice)
    files = reader.commit_log_files
    outside = (addresses[order] < files[0].begin) | (addresses[order] >= files[-1].begin + files[-1].size)
    why = "a unit of a ConsumeQueue points at this physical offset, which the log does not hold"
    handler.report(queues, [DamagedRecord(address, why) for address in addresses[order[outside]].tolist()])
    return order


def _verify_units(
    records: Records, expected: ExpectedRecords, queues: Sequence[QueueRange]
) -> tuple[Records, list[DamagedRecord]]:
    """Return the records that are the messages their units promise, and the others as damage."""
    assert expected.ranges is not None
    assert expected.queue_offsets is not None
    # By position, since records that `locate` rejected are missing among `records`.
    row = np.searchsorted(expected.positions, records.layout["begin"])
    code_of = {topic: code for code, topic in enumerate(records.topics.dictionary.to_pylist())}
    expected_codes = np.array([code_of.get(each.topic, -1) for each in queues])
    expected_ids = np.array([each.queue_id for each in queues])
    ranges = expected.ranges[row]
    kept = (
        (records.topic_codes == expected_codes[ranges])
        & (records.heads["queue_id"] == expected_ids[ranges])
        & (records.heads["queue_offset"] == expected.queue_offsets[row])
    )
    why = "a unit of a ConsumeQueue points at this record, which has another queue or queue offset"
    return records.where(kept), [DamagedRecord(address, why) for address in records.addresses(~kept).tolist()]


def selection_mask(records: Records, chosen: ReadOptions, *, whole_log: bool) -> Array:
    """Return a mask of the records that the options select, by cheap conditions first and SQL92 last."""
    stored = records.heads["store_timestamp"]
    found = np.ones(len(records), np.bool_)
    if chosen.starting_timestamp is not None or chosen.ending_timestamp is not None:
        found &= columns.is_time(stored)
    if chosen.starting_timestamp is not None:
        found &= stored >= chosen.starting_timestamp
    if chosen.ending_timestamp is not None:
        found &= stored < chosen.ending_timestamp
    if whole_log:
        found &= _queue_mask(records, chosen)
    if chosen.tags is not None and len(records):
        tags = records.properties.values_of(properties.TAGS)
        found &= pc.is_in(tags, pa.array(sorted(chosen.tags), pa.string())).to_numpy(zero_copy_only=False)
    if chosen.keys is not None and len(records):
        found &= _key_mask(records, chosen.keys)
    if chosen.expression is not None and found.any():
        matches = sql92_matcher(chosen.expression)
        maps = records.where(found).properties.as_map().to_pylist(maps_as_pydicts="strict")
        found[found] = [matches(each) for each in maps]
    return found


def _queue_mask(records: Records, chosen: ReadOptions) -> Array:
    queues = chosen.queue_filter
    # Topics are compared once per distinct topic.
    names = records.topics.dictionary.to_pylist()
    is_left = [queues.topics is None or name in queues.topics for name in names]
    topics = np.array([is_chosen_topic(chosen, name) for name in names], np.bool_) & np.array(is_left, np.bool_)
    found: Array = topics[records.topic_codes]
    offsets = records.heads["queue_offset"]
    found &= (offsets >= queues.begin_queue_offset) & (offsets < queues.end_queue_offset)
    if queues.queue_ids is not None:
        found &= np.isin(records.heads["queue_id"], list(queues.queue_ids))
    # Half messages get no ConsumeQueue unit in their topic, so no consumer ever sees them.
    found &= (records.heads["sys_flag"] & sysflag.TRANSACTION_PREPARED) == 0
    return found


def _key_mask(records: Records, keys: frozenset[str]) -> Array:
    wanted = pa.array(sorted(keys), pa.string())
    unique = records.properties.values_of(properties.UNIQ_KEY)
    found: Array = pc.is_in(unique, wanted).to_numpy(zero_copy_only=False).copy()
    # Keys [a b] [] [c] are a b c in one array, with parents 0 0 2: a hit of c selects row 2.
    lists = records.keys()
    hits = pc.is_in(lists.flatten(), wanted).to_numpy(zero_copy_only=False)
    found[pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)[hits]] = True
    return found


def _file_of(reader: StoreReader, physical_offset: int) -> LogFile:
    for file in reader.commit_log_files:
        if file.begin <= physical_offset < file.begin + file.size:
            return file
    raise StoreError(f"{reader.path} no longer holds physical offset {physical_offset}; it was deleted meanwhile")
