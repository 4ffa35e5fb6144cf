"""The store reader: read-only access to a store directory, for Spark and `rucola store`.

A StoreReader writes nothing, locks nothing and leaves no `abort`, so it can read the directory of a running broker, a
copy, or a read-only file system. It is a snapshot of the time of its opening, and keeps its files open until `close`,
except for ConsumeQueues that exceed a quarter of the descriptors.

It does not rely on a clean stop: the log ends at the first invalid record, and a ConsumeQueue ends with its last unit
that points at its record, since Apache's broker leaves on disk what a recovery has cut off.

No counterpart in Apache RocketMQ, where reading a store requires a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rucola.errors import InvalidMessage, StoreCorrupt, StoreError
from rucola.files import local_path
from rucola.message import MessageExt
from rucola.message.delay import parse_delay_levels
from rucola.message.record import decode
from rucola.store.config_files import config_path, read_config
from rucola.store.consume_queue import UNIT, ConsumeQueue, open_queues
from rucola.store.directory_lock import check_store_directory
from rucola.store.dispatch_request import tags_code_reader
from rucola.store.index import Index
from rucola.store.mapped_file import MappedFile, MappedFileQueue
from rucola.store.scan import RecordRun, ScanEnd, scan

OPEN_ATTEMPTS: Final = 16
"""Attempts to open a store whose files expire."""


class LogFile(NamedTuple):
    """A CommitLog file: path, physical offset of its first byte, and size in bytes."""

    path: Path
    begin: int
    size: int


class StoreReader:
    """A store directory, read-only.

    Args:
        path: the directory that holds `commitlog/`.
        index_slots: maxHashSlotNum of the broker that wrote the index; 0 detects it in each file.
        commit_log: the directory of the log if it is not `<path>/commitlog` (storePathCommitLog).

    Raises StoreError if `path` is no directory or has links in it, and StoreCorrupt if its files contradict each other.
    """

    def __init__(self, path: str | Path, *, index_slots: int = 0, commit_log: str | Path | None = None) -> None:
        self.path = local_path(path)
        if not self.path.is_dir():
            raise StoreError(
                f"{self.path} is no directory; give the directory that holds commitlog/", subject=self.path
            )
        log = local_path(commit_log) if commit_log else self.path / "commitlog"
        check_store_directory(self.path, log)
        self._index_slots = index_slots
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        for attempt in range(1, OPEN_ATTEMPTS + 1):
            self._log = MappedFileQueue.open(log)
            try:
                self._open_files()
                break
            except FileNotFoundError:  # the broker has deleted a file since it was listed
                self.close()
                if attempt == OPEN_ATTEMPTS:
                    raise

    def _open_files(self) -> None:
        for file in self._log:
            _ = file.map
        self._queues = open_queues(self.path / "consumequeue", tags_code_reader(self._log, parse_delay_levels()))
        for queue in self._queues.values():
            queue.map_all()
            self._drop_stale_units(queue)
            queue.raise_min_offset(self._log.begin)

    def close(self) -> None:
        """Close all files. Records and units that were returned stay valid; buffers do not."""
        self._log.close()
        for queue in self._queues.values():
            queue.files.close()
        if "index" in self.__dict__:
            self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- the log ------------------------------------------------------------------------------------------------------

    @cached_property
    def commit_log_files(self) -> list[LogFile]:
        return [LogFile(file.path, file.begin, file.size) for file in self._log]

    @property
    def min_physical_offset(self) -> int:
        return self._log.begin

    @cached_property
    def max_physical_offset(self) -> int:
        """The log end offset. The first access scans the last file, including its CRCs."""
        end = self._log.begin
        # From the last file back, since the last ones may have been created in advance and be empty.
        for file in reversed(self._log.files):
            stop = list(scan(self._log, file.begin))[-1]
            assert isinstance(stop, ScanEnd)
            end = stop.physical_offset
            if end > file.begin or stop.damage is not None:
                break
        return end

    def buffer(self, file: LogFile) -> memoryview:
        """Return the bytes of a log file, mapped read-only; release the view before the reader is closed."""
        return memoryview(self._mapped(file.begin).map)[: file.size]

    def record(self, physical_offset: int, *, decompress: bool = True) -> MessageExt:
        """Return the message at a physical offset; StoreError outside the log, StoreCorrupt without a valid record."""
        file = self._mapped(physical_offset)
        position = physical_offset - file.begin
        try:
            message = decode(file.map, position, decompress=decompress)
        except InvalidMessage as error:
            raise StoreCorrupt(file.path, position, str(error)) from error
        if message.physical_offset != physical_offset:
            raise StoreCorrupt(file.path, position, f"the record states physical offset {message.physical_offset}")
        return message

    def runs(self, begin: int | None = None) -> Iterator[RecordRun | ScanEnd]:
        """Yield the valid records from physical offset `begin` as columnar runs, and finally a ScanEnd."""
        return scan(self._log, self._log.begin if begin is None else begin)

    def walk(self, begin: int | None = None, end: int | None = None) -> Iterator[MessageExt]:
        """Yield the messages from `begin`, a record's start, up to `end`. Raises StoreCorrupt at an invalid record."""
        for item in self.runs(begin):
            if isinstance(item, ScanEnd):
                if end is None or item.physical_offset < end:
                    self.check_end(item)
                return
            for position in item.positions.tolist():
                if end is not None and item.file.begin + position >= end:
                    return
                try:
                    yield decode(item.file.map, position, check_crc=False)
                except InvalidMessage as error:
                    raise StoreCorrupt(item.file.path, position, str(error)) from error

    def check_end(self, end: ScanEnd) -> None:
        """Raise StoreCorrupt if a scan ended at damage."""
        if end.damage is not None:
            file = self._mapped(end.physical_offset)
            raise StoreCorrupt(file.path, end.physical_offset - file.begin, end.damage)

    def _mapped(self, physical_offset: int) -> MappedFile:
        file = self._log.find(physical_offset)
        if file is None or physical_offset >= file.end:
            raise StoreError(
                f"physical offset {physical_offset} is outside {self._log.directory}, "
                f"which holds {self._log.begin} to {self._log.end}",
                subject=physical_offset,
            )
        return file

    # -- queues and keys ----------------------------------------------------------------------------------------------

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return every queue's half-open range: {(topic, queue id): (min queue offset, max queue offset)}."""
        return {name: (queue.min_offset, queue.max_offset) for name, queue in self._queues.items()}

    def units(self, topic: str, queue_id: int, begin: int = 0, end: int | None = None) -> npt.NDArray[Any]:
        """Return the existing units of queue offsets `begin` to `end`: shape (n,), type `consume_queue.UNIT`."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return np.empty(0, UNIT)
        return queue.units(max(begin, queue.min_offset), queue.max_offset if end is None else end)

    def unit_of(self, message: MessageExt) -> tuple[str, int] | None:
        """Return ("topic|queueId|queueOffset", tags code) of the unit that points at a message, or None."""
        units = self.units(message.topic, message.queue_id, message.queue_offset, message.queue_offset + 1)
        if not len(units) or units["physical_offset"][0] != message.physical_offset:
            return None
        return f"{message.topic}|{message.queue_id}|{message.queue_offset}", int(units["tags_code"][0])

    def query(
        self, topic: str, key: str, max_count: int = 64, begin_ms: int = 0, end_ms: int = (1 << 63) - 1
    ) -> list[MessageExt]:
        """Return the messages of the key's latest `max_count` index entries, oldest first; times in whole seconds."""
        messages = []
        for physical_offset in self.index.query(topic, key, max_count, begin_ms, end_ms):
            if self._log.find(physical_offset) is not None:
                message = self.record(physical_offset)
                if message.topic == topic and key in (message.unique_key, *(message.keys or "").split(" ")):
                    messages.append(message)
        return messages

    @cached_property
    def index(self) -> Index:
        return Index.open(self.path / "index", self._index_slots)

    def config(self, name: str) -> Any:
        """Return the value of `config/<name>.json`, or None if there is no such file."""
        return read_config(config_path(self.path, name))

    def _drop_stale_units(self, queue: ConsumeQueue) -> None:
        end = queue.max_offset
        while end > queue.min_offset and not queue.is_valid_at(end - 1, self._log):
            end -= 1
        queue.max_offset = end
