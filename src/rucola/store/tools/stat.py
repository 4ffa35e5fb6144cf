"""Stat: a store directory in numbers: log, queues, index files, and wasted space.

Sizes count bytes in use; `allocated` is from the file system: less if files are sparse, more if blocks are reserved.
The log wastes the blanks at the ends of its files, and the bytes after its end. A damaged log is counted up to the
first invalid record, which `damage` describes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rucola.epochs import Epoch
from rucola.files import local_path
from rucola.message import properties, sysflag
from rucola.message.record import peek
from rucola.store.checkpoint import Checkpoint
from rucola.store.directory_reader import StoreReader
from rucola.store.epoch_file import read_epochs
from rucola.store.features import Feature, detect_multi_dispatch, find_features
from rucola.store.index import Index
from rucola.store.mapped_file import file_paths
from rucola.store.multi_dispatch import MultiDispatch, further_units
from rucola.store.scan import RecordRun, ScanEnd


@dataclass(slots=True)
class RecordCounts:
    """Counts over records: messages, bytes, first and last store time, keys (index entries)."""

    messages: int = 0
    size: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0
    keys: int = 0

    def add(self, size: int, timestamp: int, keys: int) -> None:
        self.messages += 1
        self.size += size
        self.first_timestamp = min(self.first_timestamp or timestamp, timestamp)
        self.last_timestamp = max(self.last_timestamp, timestamp)
        self.keys += keys


@dataclass(slots=True)
class LogStat:
    """The CommitLog: physical offsets `begin` and `end`; sizes, blanks and unused space in bytes."""

    files: int = 0
    file_size: int = 0
    allocated: int = 0
    begin: int = 0
    end: int = 0
    blanks: int = 0
    blank_size: int = 0
    unused: int = 0
    records: RecordCounts = field(default_factory=RecordCounts)
    damage: str | None = None


@dataclass(slots=True)
class QueueStat:
    """A queue: its range of queue offsets, files, and records in the log, which may not all be dispatched."""

    topic: str
    queue_id: int
    min_offset: int = 0
    max_offset: int = 0
    files: int = 0
    in_log: RecordCounts = field(default_factory=RecordCounts)


@dataclass(slots=True)
class IndexFileStat:
    """An index file: entries and slots (used, total), store times of first and last message."""

    name: str
    entries: int
    max_entries: int
    slots_used: int
    slots: int
    begin_timestamp: int
    end_timestamp: int


@dataclass(slots=True)
class StoreStat:
    """A whole store: `queues` ordered by topic and id, `config` as {name: size in bytes}."""

    path: Path
    log: LogStat
    queues: list[QueueStat]
    index: list[IndexFileStat]
    config: dict[str, int]
    checkpoint: tuple[int, int, int]
    """physicMsgTimestamp, logicsMsgTimestamp, indexMsgTimestamp."""
    epochs: tuple[Epoch, ...]
    """The masterships that wrote the log; none without epochs."""
    abort: bool
    """Whether the store is open, or was not closed cleanly."""
    features: list[Feature]


def stat(path: str | Path, *, index_slots: int = 0, progress: Callable[[int, int], None] | None = None) -> StoreStat:
    """Count everything in the store at `path`, in one walk through its log.

    `index_slots` is as for `StoreReader`. Raises StoreError without a store, and StoreCorrupt.
    """
    store = local_path(path)
    with StoreReader(store, index_slots=index_slots) as reader:
        queues = {
            name: QueueStat(*name, begin, end, len(file_paths(store / "consumequeue" / name[0] / str(name[1]))))
            for name, (begin, end) in reader.queues().items()
        }
        log = _log(reader, queues, progress)
        index = _index(reader.index)
    point = Checkpoint(store / "checkpoint")
    return StoreStat(
        store,
        log,
        [queues[name] for name in sorted(queues)],
        index,
        {path.name: path.stat().st_size for path in sorted((store / "config").glob("*")) if path.is_file()},
        (point.physic_timestamp, point.logics_timestamp, point.index_timestamp),
        read_epochs(store),
        (store / "abort").exists(),
        find_features(store),
    )


def _log(
    reader: StoreReader, queues: dict[tuple[str, int], QueueStat], progress: Callable[[int, int], None] | None
) -> LogStat:
    mode = detect_multi_dispatch(reader.path)
    files = reader.commit_log_files
    log = LogStat(len(files), files[0].size if files else 0, begin=reader.min_physical_offset)
    log.end = log.begin
    log.allocated = sum(file.path.stat().st_blocks * 512 for file in files)
    total = sum(file.size for file in files)
    for item in reader.runs():
        if isinstance(item, ScanEnd):
            log.damage = item.damage and f"{item.damage}, at physical offset {item.physical_offset}"
            _blank(log, item.physical_offset)
            log.end = item.physical_offset
            break
        _blank(log, int(item.file.begin + item.positions[0]))
        _count(item, log.records, queues, mode)
        log.end = item.end
        if progress is not None:
            progress(item.end - log.begin, total)
    if progress is not None:
        progress(total, total)
    log.unused = log.begin + total - log.end
    return log


def _blank(log: LogStat, begin: int) -> None:
    if begin > log.end:
        log.blanks += 1
        log.blank_size += begin - log.end


def _count(
    run: RecordRun, records: RecordCounts, queues: dict[tuple[str, int], QueueStat], mode: MultiDispatch
) -> None:
    sizes, timestamps = run.heads["size"].tolist(), run.store_timestamps.tolist()
    for position, size, timestamp in zip(run.positions.tolist(), sizes, timestamps, strict=True):
        outline = peek(run.file.map, position)
        encoded = run.file.map[outline.properties_begin : outline.properties_end]
        stored = properties.parse(encoded)
        keys = (properties.UNIQ_KEY in stored) + len(stored.get(properties.KEYS, "").split())
        records.add(size, timestamp, keys)
        if sysflag.is_dispatched(outline.sys_flag):
            own = outline.topic, outline.queue_id
            for name in (own, *further_units(encoded, own, mode)):
                queue = queues.get(name)
                if queue is None:
                    queue = queues[name] = QueueStat(*name)
                queue.in_log.add(size, timestamp, keys)


def _index(index: Index) -> list[IndexFileStat]:
    return [
        IndexFileStat(
            file.file.path.name,
            file.count - 1,
            file.max_count - 1,
            int(np.count_nonzero(file.slots())),
            file.slot_count,
            file.begin_timestamp,
            file.end_timestamp,
        )
        for file in index.files
    ]
