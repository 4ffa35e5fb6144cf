"""Reader of log splits: finds, selects and decodes their records.

A split with queues is read by the units of their ConsumeQueues, in the order of the addresses they point at; any other
split is followed from record to record. To follow it quickly, one numpy comparison confirms that a run of ConsumeQueue
units is chained without gaps. The units are only a hint: other records are found by following the chain.

Messages deleted between planning and reading end the read or, with failOnDataLoss=false, are skipped with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from rucola.errors import DirectoryNotShared, StoreCorrupt, StoreError
from rucola.message.hashing import string_hash
from rucola.message.record import BLANK_MAGIC, FRAME, MESSAGE_MAGIC, MIN_RECORD_SIZE
from rucola.message.topics import DUE_TIME_TOPICS
from rucola.spark.source import record_layout
from rucola.spark.source.array_conversions import Array
from rucola.spark.source.byte_ranges import fields_at
from rucola.spark.source.log_boundaries import next_record, search_queue
from rucola.spark.source.log_splits import LogSplit, QueueRange
from rucola.spark.source.options import ReadOptions
from rucola.spark.source.record_decoder import RecordDecoder
from rucola.spark.source.record_layout import DamagedRecord, Records
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


def read(split: LogSplit, chosen: ReadOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the selected messages of a split in log order.

    Raises StoreCorrupt for damage and StoreError for deleted messages, unless the options allow them.
    """
    place = f"{split.store} between physical offsets {split.begin} and {split.end}"
    decoder = RecordDecoder(chosen, names, split.broker_name, place, whole_log=split.queues is None)
    check_log(split)
    with StoreReader(split.store) as reader:
        split = _remaining_split(reader, split, chosen)
        find = _follow_log if split.queues is None else _read_units
        for expected in find(reader, split, chosen, decoder):
            file = expected.file
            yield from decoder.decode(
                reader.buffer(file),
                file.begin,
                expected.positions,
                expected.sizes,
                partial(_verify_units, expected=expected, queues=split.queues),
                partial(_damage_of, file),
            )
    yield from decoder.close()


def _damage_of(file: LogFile, damaged: DamagedRecord) -> StoreCorrupt:
    return StoreCorrupt(file.path, damaged.physical_offset - file.begin, damaged.why)


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
    reader: StoreReader, split: LogSplit, _: ReadOptions, decoder: RecordDecoder
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
            decoder.report(
                [DamagedRecord(offset, "neither a record nor a blank begins here")], partial(_damage_of, file)
            )
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
    begin, end = (search_queue(reader, topic, queue_id, least, most, edge) for edge in (split.begin, split.end))
    return reader.units(topic, queue_id, begin, end)["physical_offset"].astype(np.int64)


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
    reader: StoreReader, split: LogSplit, chosen: ReadOptions, decoder: RecordDecoder
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
    order = _drop_damaged_units(reader, addresses, order, decoder)
    # 4. Cut by files.
    for file in reader.commit_log_files:
        inside = order[(addresses[order] >= file.begin) & (addresses[order] < file.begin + file.size)]
        if len(inside):
            positions = addresses[inside] - file.begin
            yield ExpectedRecords(file, positions, sizes[inside], ranges[inside], queue_offsets[inside])


def _may_have_tags(codes: Array, tags: frozenset[str], queues: Sequence[QueueRange], ranges: Array) -> Array:
    """Return a mask of the units that can have one of the tags; codes of delayed messages are their due time."""
    # Another tag with an equal hash passes here; `selection_mask` compares the tags themselves.
    wanted = np.array([string_hash(tag) for tag in sorted(tags)], np.int64)
    delayed = np.array([each.topic in DUE_TIME_TOPICS for each in queues])[ranges]
    found: Array = np.isin(codes, wanted) | delayed
    return found


def _drop_damaged_units(reader: StoreReader, addresses: Array, order: Array, decoder: RecordDecoder) -> Array:
    """Report and drop units that point at another unit's record, or outside the log."""
    # The damaged file is a ConsumeQueue, not the log.
    error = partial(_damage_of, LogFile(reader.path / "consumequeue", 0, 0))
    twice = np.flatnonzero(np.diff(addresses[order]) == 0)
    why = "two units of ConsumeQueues point at this physical offset"
    decoder.report([DamagedRecord(address, why) for address in addresses[order[twice]].tolist()], error)
    order = np.delete(order, twice)
    files = reader.commit_log_files
    outside = (addresses[order] < files[0].begin) | (addresses[order] >= files[-1].begin + files[-1].size)
    why = "a unit of a ConsumeQueue points at this physical offset, which the log does not hold"
    decoder.report([DamagedRecord(address, why) for address in addresses[order[outside]].tolist()], error)
    return order


def _verify_units(
    records: Records, expected: ExpectedRecords, queues: Sequence[QueueRange] | None
) -> tuple[Records, list[DamagedRecord]]:
    """Return the records that are the messages their units promise, and the others as damage."""
    if queues is None or expected.ranges is None or expected.queue_offsets is None:
        return records, []
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


def _file_of(reader: StoreReader, physical_offset: int) -> LogFile:
    for file in reader.commit_log_files:
        if file.begin <= physical_offset < file.begin + file.size:
            return file
    raise StoreError(f"{reader.path} no longer holds physical offset {physical_offset}; it was deleted meanwhile")
