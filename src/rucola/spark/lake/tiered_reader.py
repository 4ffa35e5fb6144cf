"""Reader of queues in a lake, the process that a broker starts for messages that have left its log.

    python -m rucola.spark.lake.tiered_reader <directory> <name of the store in the lake> [<catalog>]

It answers the requests of `rucola.tiered_reads` one after the other, from the table as it was at its last commit. It
ends when the broker closes the connection. The directory has the archive progress for brokers: it is the lake, unless a
catalog has it elsewhere.

    files        by topic and range of queue offsets, from the snapshot
    row groups   their ranges from the footers; for each of a request's, where the messages of each queue are
    records      of all queues in a row group, encoded together, since groups read several queues at the same time

Both are kept, the one used last first, up to `_INDEX_SIZE` and `_RECORDS_SIZE` bytes. The lake keeps the messages of a
topic that was deleted and created again; they are passed over by the physical offsets in the archive progress.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rucola.errors import ConfigError, MQError, StoreCorrupt, StoreError
from rucola.files import local_path
from rucola.spark.lake import record_columns
from rucola.spark.lake.data_files import MAX_LONG, open_parquet, row_group_bounds
from rucola.spark.lake.lookup import candidate_offsets
from rucola.spark.lake.parquet_files import read_group
from rucola.spark.lake.snapshot import METADATA_DIRECTORY, RowFile, Snapshot
from rucola.spark.lake.tables import read_snapshot
from rucola.spark.source.array_conversions import Array, arrow, bools, ints, scalar
from rucola.spark.source.schema import LAST_TIME_MS
from rucola.tiered_reads import (
    Chunk,
    Failed,
    FindFirst,
    FindKey,
    FindOffset,
    FindTime,
    Place,
    Places,
    ReadQueue,
    ReadRecord,
    Records,
    Request,
    Result,
    receive_request,
    send,
)

CHUNK_SIZE: Final = 1 << 20
"""Bytes of a chunk; its first record may be larger."""

_INDEX_SIZE: Final = 64 << 20
_RECORDS_SIZE: Final = 128 << 20
_FOOTERS_SIZE: Final = 8 << 20
"""As stored, a fifth of their size in memory."""
_NICE: Final = 10
"""Reads of old messages yield the processor to the broker."""

_MAX_FOUND_SIZE: Final = 8 << 20
"""Bytes of the records with a key, as in a log."""

_INDEXED: Final = ("brokerName", "queueId", "queueOffset", "commitLogOffset", "storeTimestamp", "storeTimestampRaw")

K = TypeVar("K")
V = TypeVar("V")


class _Cache(Generic[K, V]):
    """What was used last, up to a total of sizes; the last one may exceed it alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size = 0

    def get(self, key: K, make: Callable[[], V], size_of: Callable[[V], int]) -> V:
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return found[0]
        value = make()
        self._kept[key] = value, size_of(value)
        self._size += size_of(value)
        while self._size > self._most and len(self._kept) > 1:
            self._size -= self._kept.popitem(last=False)[1][1]
        return value


class _Group(NamedTuple):
    """A row group, with its ranges of physical offsets and queue offsets, inclusive."""

    file: RowFile
    footer: pq.FileMetaData
    number: int
    least: int
    most: int
    least_queue_offset: int
    most_queue_offset: int

    @property
    def key(self) -> tuple[str, int]:
        return self.file.path, self.number


class _QueueRows(NamedTuple):
    """The rows of one queue in a row group, by physical offset."""

    rows: Array
    queue_offsets: Array
    physical_offsets: Array
    times: Array

    def place(self, index: int) -> Place:
        return Place(int(self.queue_offsets[index]), int(self.times[index]))


_NO_ROWS: Final = _QueueRows(*(np.empty(0, np.int64),) * 4)


class _Row(NamedTuple):
    group: _Group
    rows: _QueueRows
    number: int

    @property
    def place(self) -> Place:
        return self.rows.place(self.number)


class QueueReader:
    """Reads the messages that a lake has of one store."""

    def __init__(self, directory: Path, name: str, catalog: str | None = None) -> None:
        self._directory = local_path(directory).absolute()
        self._name = name
        self._catalog = catalog
        self._snapshot = Snapshot()
        self._version: tuple[int, ...] = ()
        self._files: dict[str, list[RowFile]] = {}
        self._footers: _Cache[str, list[_Group]] = _Cache(_FOOTERS_SIZE)
        self._indexes: _Cache[tuple[str, int], dict[int, _QueueRows]] = _Cache(_INDEX_SIZE)
        self._records: _Cache[tuple[str, int], tuple[pa.BinaryArray, Array]] = _Cache(_RECORDS_SIZE)

    def answer(self, request: Request) -> Result:
        """Raises StoreError if there is no lake, StoreCorrupt if it is damaged."""
        self.refresh()
        try:
            return self._answer(request)
        except MQError:
            # Another engine may have compacted the table, and deleted the files that it replaced.
            self._version = ()
            self.refresh()
            return self._answer(request)

    def refresh(self) -> None:
        """Read the snapshot if there was a commit since, after which the list of files is replaced."""
        path = self._directory / METADATA_DIRECTORY / "files.json"
        try:
            found = path.stat()
            version: tuple[int, ...] = (found.st_ino, found.st_mtime_ns, found.st_size)
        except FileNotFoundError:
            version = ()
        if version != self._version or not version:
            self._snapshot = self._read_snapshot(path)
            self._files.clear()
            for file in sorted(self._snapshot.rows, key=lambda file: file.least):
                self._files.setdefault(file.topic, []).append(file)
            self._version = version

    def _read_snapshot(self, path: Path) -> Snapshot:
        location = _location(path)
        if location is not None and self._catalog is None:
            raise ConfigError(
                f"the lake is {location}, which a catalog has: name it in tieredReadCatalog", subject=location
            )
        snapshot = read_snapshot(location or self._directory, self._catalog)
        if self._name not in snapshot.progress:  # what it lacks would be taken for lost
            raise StoreError(
                f"the lake {snapshot.storage.location} has no messages of {self._name}", subject=self._name
            )
        return snapshot

    def _answer(self, request: Request) -> Result:
        match request:
            case ReadQueue():
                return self._read(request)
            case FindFirst():
                first = self._first(request.topic, request.queue_id, -1)
                return Places([] if first is None else [first])
            case FindOffset():
                found = self._at(request.topic, request.queue_id, request.queue_offset)
                return Places([] if found is None else [found.place])
            case FindTime():
                return self._around(request)
            case ReadRecord():
                return Records(self._records_at(self._snapshot.rows, np.array([request.physical_offset]), 1))
            case FindKey():
                return self._with_key(request)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _read(self, request: ReadQueue) -> Chunk:
        found = self._at(request.topic, request.queue_id, request.queue_offset)
        if found is None:
            following = self._first(request.topic, request.queue_id, request.queue_offset)
            return Chunk(-1 if following is None else following.queue_offset)
        group, rows, index = found.group, found.rows, found.number
        offsets = rows.queue_offsets[index:]
        breaks = np.flatnonzero(np.diff(offsets) != 1)
        end = index + (int(breaks[0]) + 1 if len(breaks) else len(offsets))
        records, codes = self._encoded(group)
        sizes = np.cumsum(ints(pc.binary_length(records))[rows.rows[index:end]], dtype=np.int64)
        count = max(1, int(np.searchsorted(sizes, CHUNK_SIZE, "right")))
        chosen = rows.rows[index : index + count]
        positions = np.concatenate([np.zeros(1, np.int64), sizes[:count]])
        joined = records.take(arrow(chosen)).buffers()[2]  # one after the other
        return Chunk(request.queue_offset, positions.tobytes(), codes[chosen].tobytes(), memoryview(joined))

    def _with_key(self, request: FindKey) -> Records:
        candidates = candidate_offsets(self._snapshot, [request.key])
        found = [
            offsets[offsets < request.before] for (topic, _), offsets in candidates.items() if topic == request.topic
        ]
        if not found:
            return Records([])
        times = range(request.begin_ms, request.end_ms + 1)
        offsets = np.unique(np.concatenate(found))
        return Records(self._records_at(self._files.get(request.topic, ()), offsets, request.max_count, times))

    def _records_at(
        self, files: Iterable[RowFile], offsets: Array, max_count: int, times: range | None = None
    ) -> list[bytes]:
        """Return the last records at these physical offsets, ascending, up to `_MAX_FOUND_SIZE` bytes."""
        places = []
        for file in files:
            for group in self._groups_of(file, int(offsets[0]) if len(offsets) else MAX_LONG, 0, MAX_LONG):
                if np.searchsorted(offsets, group.least) == np.searchsorted(offsets, group.most, "right"):
                    continue
                for rows in self._index_of(group).values():
                    for index in np.flatnonzero(np.isin(rows.physical_offsets, offsets)).tolist():
                        if times is None or int(rows.times[index]) in times:
                            places.append((int(rows.physical_offsets[index]), group, int(rows.rows[index])))
        places.sort(key=lambda place: place[0], reverse=True)
        found: list[bytes] = []
        size = 0
        for _, group, row in places[:max_count]:
            record = self._encoded(group)[0][row].as_py()
            size += len(record)
            if found and size > _MAX_FOUND_SIZE:
                break
            found.append(record)
        return found[::-1]

    def _encoded(self, group: _Group) -> tuple[pa.BinaryArray, Array]:
        """Return the records of a row group, and their tags codes."""
        return self._records.get(group.key, lambda: self._encode(group), lambda made: int(made[0].nbytes))

    def _encode(self, group: _Group) -> tuple[pa.BinaryArray, Array]:
        rows = self._columns(group, record_columns.NAMES)
        return record_columns.encode(rows, group.file.topic), record_columns.tags_codes(rows)

    # -- places --------------------------------------------------------------------------------------------------------

    def _at(self, topic: str, queue_id: int, queue_offset: int) -> _Row | None:
        """Return the row of a message, the last in the order of the log."""
        begin = self._begin(topic, queue_id)
        for file in reversed(self._files.get(topic, [])):
            for group in reversed([*self._groups_of(file, begin, queue_offset, queue_offset)]):
                rows = self._queue_rows(group, queue_id, begin)
                if len(found := np.flatnonzero(rows.queue_offsets == queue_offset)):
                    return _Row(group, rows, int(found[-1]))
        return None

    def _begin(self, topic: str, queue_id: int) -> int:
        """Return where a queue begins, as physical offset."""
        recreated = self._snapshot.progress[self._name].recreated
        return recreated.get(topic, {}).get(str(queue_id), (0,))[-1]

    def _first(self, topic: str, queue_id: int, after: int) -> Place | None:
        """Return the first message of a queue after a queue offset."""
        begin = self._begin(topic, queue_id)
        found: Place | None = None
        for file in sorted(self._files.get(topic, ()), key=lambda file: file.least_queue_offset):
            most = MAX_LONG if found is None else found.queue_offset - 1
            for group in self._groups_of(file, begin, after + 1, most):
                rows = self._queue_rows(group, queue_id, begin)
                if len(later := np.flatnonzero(rows.queue_offsets > after)):
                    place = rows.place(int(later[np.argmin(rows.queue_offsets[later])]))
                    if found is None or place.queue_offset < found.queue_offset:
                        found = place
        return found

    def _around(self, request: FindTime) -> Places:
        files = self._files.get(request.topic, [])
        day = datetime.fromtimestamp(min(request.timestamp_ms, LAST_TIME_MS) / 1000, UTC).date().isoformat()
        later = [file for file in files if file.date >= day]
        earlier = sorted((file for file in files if file.date <= day), key=lambda file: file.most, reverse=True)
        after = self._nearest(request, later, is_after=True)
        before = self._nearest(request, earlier, is_after=False)
        return Places([each for each in (before, after) if each is not None])

    def _nearest(self, request: FindTime, files: Iterable[RowFile], *, is_after: bool) -> Place | None:
        begin = self._begin(request.topic, request.queue_id)
        best: tuple[int, Place] | None = None
        for file in files:
            # Messages are stored in the order of their physical offsets.
            if best is not None and (file.least > best[0] if is_after else file.most < best[0]):
                break
            for group in self._groups_of(file, begin, 0, request.end - 1):
                rows = self._queue_rows(group, request.queue_id, begin)
                is_later = rows.times >= request.timestamp_ms
                matching = np.flatnonzero((is_later == is_after) & (rows.queue_offsets < request.end))
                if len(matching):
                    index = int(matching[0 if is_after else -1])
                    physical_offset = int(rows.physical_offsets[index])
                    if best is None or (physical_offset < best[0]) == is_after:
                        best = physical_offset, rows.place(index)
        return None if best is None else best[1]

    # -- row groups ----------------------------------------------------------------------------------------------------

    def _groups_of(self, file: RowFile, begin: int, least: int, most: int) -> Iterator[_Group]:
        """Yield the row groups that can have messages from a physical offset on, with queue offsets in a range."""

        def read() -> list[_Group]:
            with open_parquet(self._snapshot.storage, file) as opened:
                names = ("commitLogOffset", "queueOffset")
                bounds = zip(*(row_group_bounds(opened.metadata, name) for name in names), strict=True)
                footer = opened.metadata
                return [_Group(file, footer, number, *own, *offsets) for number, (own, offsets) in enumerate(bounds)]

        if file.most < begin or file.most_queue_offset < least or file.least_queue_offset > most:
            return
        for group in self._footers.get(
            file.path, read, lambda groups: groups[0].footer.serialized_size if groups else 0
        ):
            if group.most >= begin and group.most_queue_offset >= least and group.least_queue_offset <= most:
                yield group

    def _columns(self, group: _Group, names: Sequence[str]) -> pa.RecordBatch:
        with open_parquet(self._snapshot.storage, group.file, group.footer) as opened:
            return read_group(opened, group.number, group.file.topic, names)

    def _queue_rows(self, group: _Group, queue_id: int, begin: int) -> _QueueRows:
        """Return the rows of a queue from a physical offset on."""
        rows = self._index_of(group).get(queue_id, _NO_ROWS)
        number = int(np.searchsorted(rows.physical_offsets, begin))
        return rows if not number else _QueueRows(*(each[number:] for each in rows))

    def _index_of(self, group: _Group) -> dict[int, _QueueRows]:
        return self._indexes.get(
            group.key, lambda: self._index(group), lambda made: 256 + sum(32 * len(each.rows) for each in made.values())
        )

    def _index(self, group: _Group) -> dict[int, _QueueRows]:
        rows = self._columns(group, _INDEXED)
        own = bools(pc.equal(rows["brokerName"], scalar(self._name)))
        queue_ids, queue_offsets, physical_offsets = (
            ints(rows[name]) for name in ("queueId", "queueOffset", "commitLogOffset")
        )
        times = record_columns.times(rows, "storeTimestamp")
        numbers = np.flatnonzero(own)
        # By queue, and within it by physical offset.
        numbers = numbers[np.lexsort((physical_offsets[numbers], queue_ids[numbers]))]
        ids, begins = np.unique(queue_ids[numbers], return_index=True)
        return {
            queue_id: _QueueRows(rows_of, queue_offsets[rows_of], physical_offsets[rows_of], times[rows_of])
            for queue_id, rows_of in zip(ids.tolist(), np.split(numbers, begins[1:]), strict=True)
        }


def _location(path: Path) -> str | None:
    """Return where the lake is, None for the directory with this list of its files."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Files).location
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(path, 0, f"the list of the lake's files cannot be read: {error}") from error


class _Files(msgspec.Struct):
    location: str | None = None


def main() -> None:
    """Answer requests until the broker closes the connection."""
    pa.set_cpu_count(1)
    if "jemalloc" in pa.supported_memory_backends():  # half of the CPU time: it keeps pages for the next row group
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    os.nice(_NICE)
    reader = QueueReader(Path(sys.argv[1]), *sys.argv[2:])
    with suppress(MQError, OSError):  # the first request then meets it
        reader.refresh()
    with socket.socket(fileno=os.dup(0)) as stream:
        while True:
            try:
                request = receive_request(stream)
            except (EOFError, ConnectionError):
                return
            try:
                result = reader.answer(request)
            except Exception as error:
                result = Failed(str(error) or type(error).__name__)
            try:
                send(stream, result)
            except ConnectionError:
                return


if __name__ == "__main__":
    main()
