"""The index: from a key to the physical offsets of the messages that have it.

    index/<yyyyMMddHHmmssSSS>      named by the local time of its creation

A file is a hash table of fixed size. With s slots (5,000,000) and n entries (20,000,000) it has 420 MB, sparse:

    position      bytes  field
           0          8  beginTimestamp, store time of the first entry's message
           8          8  endTimestamp, of the last entry's
          16          8  beginPhyOffset, physical offset of the first entry's message
          24          8  endPhyOffset, of the last entry's
          32          4  hashSlotCount, how many slots are in use
          36          4  indexCount, the number of the next entry; starts at 1, so that n - 1 entries fit
          40        4 s  slots: the number of the last entry whose hash maps to this slot, 0 for none
    40 + 4 s       20 n  entries; entry 0 is never used:
                           0  4  hash of "topic#key", not negative (see `hashing.index_hash`)
                           4  8  physicalOffset
                          12  4  seconds from the file's beginTimestamp to the message's store time, never negative
                          16  4  the number of the entry before this one in the same slot, 0 for none

A lookup starts at the slot of the key (hash modulo s) and follows the chain back. Hashes collide, so the caller
compares the keys. Times are whole seconds, so a window exact to the millisecond can miss its own message.

The first file has no beginTimestamp when its first entry is written, so that entry's difference is 0; a later file
inherits endTimestamp and endPhyOffset of the previous one as its begin values until then.

An index can be rebuilt from the log. After a crash the full files that the checkpoint covers are kept, and of the next
one the entries of messages before the scan (`rewind`): entries are only ever appended, and `flush_entries` makes them
durable before the checkpoint covers their messages. The slots and the header are then made from the entries.

Corresponds to `IndexFile`, `IndexHeader` and `IndexService` of Apache RocketMQ 4.9.8. Deliberate difference: a chain
may only lead to smaller numbers, so that a damaged file cannot trap a query in a cycle. After a crash Apache deletes a
file that is not full; it also deletes one that is being rewound.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Generator
from datetime import datetime, timedelta
from itertools import count as count_from
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from rucola import slices, speed
from rucola.errors import StoreCorrupt
from rucola.files import sync_directory
from rucola.message.hashing import index_hash
from rucola.store.mapped_file import MappedFile

HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
NAME_DIGITS: Final = 17
ENTRY: Final = np.dtype([("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
ENTRY_SIZE: Final = ENTRY.itemsize
DEFAULT_ENTRIES_PER_SLOT: Final = 4
_HEADER: Final = struct.Struct(">qqqqii")
_ENTRY: Final = struct.Struct(">iqii")
_SLOT: Final = struct.Struct(">i")
_RESERVE_WINDOW: Final = 1 << 20
_MAX_SECONDS: Final = 0x7FFFFFFF
_LAST_NAMED_MS: Final = 253_370_764_799_999
"""The end of the year 9998, UTC; beyond it a local time may have five digits for its year."""
MAX_LONG: Final = (1 << 63) - 1
_ENTRIES_PER_STEP: Final = 64
_ENTRIES_PER_CHECK: Final = 1 << 16


class IndexFile:
    """One index file. The owner thread writes; the flusher reads counts, and sets `is_flushed` and `_flushed_count`."""

    __slots__ = (
        "_entries_at",
        "_flushed_count",
        "begin_physical_offset",
        "begin_timestamp",
        "count",
        "end_physical_offset",
        "end_timestamp",
        "file",
        "is_flushed",
        "max_count",
        "slot_count",
        "slots_used",
    )

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    slots_used: int
    count: int

    def __init__(self, file: MappedFile, slot_count: int) -> None:
        self.file = file
        self.slot_count = slot_count
        self._entries_at = HEADER_SIZE + slot_count * SLOT_SIZE
        self.max_count = (file.size - self._entries_at) // ENTRY_SIZE
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical_offset,
            self.end_physical_offset,
            self.slots_used,
            self.count,
        ) = _HEADER.unpack_from(file.map, 0)
        # The first entry has number 1, because 0 ends a chain.
        self.count = max(self.count, 1)
        self.is_flushed = False
        self._flushed_count = 1

    @classmethod
    def open(cls, path: Path, slot_count: int = 0, *, writable: bool = False) -> IndexFile:
        """Map an existing file; 0 detects the slots. Raises StoreCorrupt if that fails or the size does not fit."""
        size = path.stat().st_size
        slot_count = slot_count or _count_slots(path, size)
        room = size - HEADER_SIZE - slot_count * SLOT_SIZE
        if room < 0 or room % ENTRY_SIZE:
            raise StoreCorrupt(
                path,
                size,
                f"an index file of {size} bytes cannot have {slot_count} slots; set maxHashSlotNum and maxIndexNum to "
                "their values when it was created",
            )
        # Lookups are random; with read-ahead a cold one costs a hundred times as much.
        file = MappedFile.open(path, writable=writable)
        file.reads_ahead = False
        return cls(file, slot_count)

    @classmethod
    def create(cls, path: Path, slot_count: int, max_count: int) -> IndexFile:
        """Create a file. Raises OSError if the disk has no space for its slots; then no file is left."""
        size = HEADER_SIZE + slot_count * SLOT_SIZE + max_count * ENTRY_SIZE
        file = MappedFile.create(path, size, reads_ahead=False)
        try:
            # Slots are written at random, so all their blocks are requested now: a mapped write to a hole can be fatal.
            file.reserve(HEADER_SIZE + slot_count * SLOT_SIZE, HEADER_SIZE)
        except OSError:
            file.delete()
            raise
        return cls(file, slot_count)

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_count

    def has_valid_end(self) -> bool:
        """Return whether header and file agree on the last entry and its physical offset."""
        # Bytes after the last entry: the disk got these entries, and of the header an older version.
        if not 1 <= self.count <= self.max_count or any(self.entries(self.count, self.count + 1).tobytes()):
            return False
        return self.count == 1 or int(self.entries(self.count - 1)["physical_offset"][0]) == self.end_physical_offset

    def entries(self, begin: int = 1, end: int | None = None) -> npt.NDArray[np.void]:
        """Return a copy of entries `begin` to `end`, by default all: shape (n,), type ENTRY."""
        end = self.count if end is None else end
        at = self._entries_at
        return np.frombuffer(self.file.map[at + begin * ENTRY_SIZE : at + end * ENTRY_SIZE], ENTRY)

    def slots(self) -> npt.NDArray[np.int32]:
        """Return a copy of all slots: shape (slot_count,)."""
        return np.frombuffer(self.file.map[HEADER_SIZE : self._entries_at], ">i4")

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin_ms < first and end_ms > last) or first <= begin_ms <= last or first <= end_ms <= last

    def select_steps(
        self, key_hash: int, max_count: int, begin_ms: int, end_ms: int, before_physical_offset: int = MAX_LONG
    ) -> Generator[None, None, list[int]]:
        """Find up to `max_count` physical offsets below a bound, latest first, in O(length of the chain) steps."""
        mapped, at = self.file.map, self._entries_at
        if speed.select_entries is not None:
            wanted = key_hash, max_count, begin_ms, end_ms, before_physical_offset
            selected = speed.select_entries(mapped, self.slot_count, self.count, self.begin_timestamp, *wanted)
            if selected is not None:
                return selected
        found: list[int] = []
        (number,) = _SLOT.unpack_from(mapped, HEADER_SIZE + key_hash % self.slot_count * SLOT_SIZE)
        # Numbers must fall along a chain, so that a damaged number ends the search instead of leading it in a circle.
        following = min(self.count, self.max_count)
        for step in count_from(1):
            if not 0 < number < following or len(found) >= max_count:
                break
            if step % _ENTRIES_PER_STEP == 0:
                yield
            stored_hash, physical_offset, seconds, previous = _ENTRY.unpack_from(mapped, at + number * ENTRY_SIZE)
            time_ms = self.begin_timestamp + seconds * 1000
            if seconds < 0:
                break
            if stored_hash == key_hash and begin_ms <= time_ms <= end_ms and physical_offset < before_physical_offset:
                found.append(physical_offset)
            if time_ms < begin_ms:
                break
            following, number = number, previous
        return found

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, key_hash: int, physical_offset: int, store_timestamp: int) -> None:
        """Add one entry to a file that is not full. Raises OSError without disk space."""
        mapped, number = self.file.map, self.count
        # With 5,000,000 slots, hash 12,345,678 has slot 2,345,678, at position 40 + 4 * 2,345,678 = 9,382,752, and
        # entry 3 is at 40 + 20,000,000 + 3 * 20 = 20,000,100.
        slot_at = HEADER_SIZE + key_hash % self.slot_count * SLOT_SIZE
        entry_at = self._entries_at + number * ENTRY_SIZE
        self.file.reserve(entry_at + ENTRY_SIZE, _RESERVE_WINDOW)
        (previous,) = _SLOT.unpack_from(mapped, slot_at)
        # A number that is no earlier entry's, in a damaged file, ends the chain here.
        if not 0 < previous < number:
            previous = 0
        seconds = (store_timestamp - self.begin_timestamp) // 1000 if self.begin_timestamp > 0 else 0
        # The entry before the slot: a slot never points to an entry that does not exist.
        _ENTRY.pack_into(mapped, entry_at, key_hash, physical_offset, min(max(seconds, 0), _MAX_SECONDS), previous)
        _SLOT.pack_into(mapped, slot_at, number)
        own = (physical_offset, store_timestamp)
        self._advance(1, not previous, own, own)

    def put_many(
        self,
        key_hashes: npt.NDArray[np.int32],
        physical_offsets: npt.NDArray[np.int64],
        store_timestamps: npt.NDArray[np.int64],
    ) -> int:
        """Add entries in order like `put`, as many as fit, and return their number; all arrays have shape (n,)."""
        columns = key_hashes, physical_offsets, store_timestamps
        end = max(min(len(key_hashes), self.max_count - self.count), 0)
        done = 0
        if end and self.count == 1:  # The first entry sets beginTimestamp, on which the seconds of the others depend.
            self.put(*(int(column[0]) for column in columns))
            done = 1
        if done == end:
            return end
        columns = key_hashes[done:end], physical_offsets[done:end], store_timestamps[done:end]
        if speed.put_entries is not None:
            self.file.reserve(self._entries_at + (self.count + end - done) * ENTRY_SIZE, _RESERVE_WINDOW)
            new_slots = speed.put_entries(self.file.map, self.slot_count, self.count, self.begin_timestamp, *columns)
            if new_slots is not None:
                first, last = ((int(columns[1][at]), int(columns[2][at])) for at in (0, -1))
                self._advance(end - done, new_slots, first, last)
                return end
        for row in zip(*(column.tolist() for column in columns), strict=True):
            self.put(*row)
        return end

    def _advance(self, count: int, new_slots: int, first: tuple[int, int], last: tuple[int, int]) -> None:
        if self.count <= 1:
            self.begin_physical_offset, self.begin_timestamp = first
        self.end_physical_offset, self.end_timestamp = last
        self.slots_used += new_slots
        self.count += count
        self._write_header()

    def flush_entries(self) -> None:
        """Make the entries written before this call durable, then the header, but not the slots. For any thread."""
        count, begin = self.count, self._flushed_count
        if count > begin:
            self.file.flush(self._entries_at + begin * ENTRY_SIZE, self._entries_at + count * ENTRY_SIZE)
            self.file.flush(0, HEADER_SIZE)
            self._flushed_count = count

    def rewind(self, physical_offset: int, time_at: Callable[[int], int]) -> bool:
        """After a crash, keep the entries of records before a physical offset, up to the first that the disk lacks.

        `time_at` returns the store time of the record at a physical offset, -1 without one. Only the erasure is durable
        on return, not slots and header. False if nothing can be kept: the file has to be deleted. Raises OSError
        without disk space for the slots.
        """
        count, slots = self._intact_entries(physical_offset)
        if count == 1:
            return False
        first, last = (int(self.entries(number, number + 1)["physical_offset"][0]) for number in (1, count - 1))
        time_ms = time_at(last)
        if first != self.begin_physical_offset or time_ms < 0:
            return False
        # Slots of a sparse file have to get their blocks now, see `create`.
        self.file.reserve(self._entries_at, HEADER_SIZE)
        # With this time, no checkpoint covers the file until the end: a recovery after a kill rewinds it again, and
        # Apache deletes it.
        self.end_timestamp, self.count = MAX_LONG, count
        self._write_header()
        self.file.map[HEADER_SIZE : self._entries_at] = slots.astype(">i4").tobytes()
        end = self._entries_at + count * ENTRY_SIZE
        self.file.mark_name_unsynced()
        if self.file.erase(end):
            # Before other messages get the offsets of those that the crash took: nothing may bring their entries back.
            self.file.flush(end)
        self.end_physical_offset, self.end_timestamp = last, time_ms
        self.slots_used = int(np.count_nonzero(slots))
        self._write_header()
        self._flushed_count = 1
        return True

    def _intact_entries(self, physical_offset: int) -> tuple[int, npt.NDArray[np.int32]]:
        """Return how many entries there are before a physical offset, as `count` has it, and the slots with them."""
        slots = np.zeros(self.slot_count, np.int32)
        begin, last = 1, -1
        while begin < self.count:
            # Up to 400 MB: a pread reads ahead, the map does not.
            ends = (self._entries_at + at * ENTRY_SIZE for at in (begin, min(begin + _ENTRIES_PER_CHECK, self.count)))
            entries = np.frombuffer(self.file.read(*ends), ENTRY)
            hashes, offsets = entries["hash"].astype(np.int64), entries["physical_offset"].astype(np.int64)
            numbers = np.arange(begin, begin + len(entries), dtype=np.int32)
            own = np.where(hashes >= 0, hashes, 0) % self.slot_count
            # The entry before in the same slot: in this step, or an earlier one.
            expected, order = slots[own], np.argsort(own, kind="stable")
            again = np.flatnonzero(np.diff(own[order]) == 0)
            expected[order[again + 1]] = numbers[order[again]]
            # Bytes that the disk did not get are zeros. An entry with some of them breaks its chain or the order.
            is_whole = (entries["previous"] == expected) & (hashes >= 0) & (hashes + offsets > 0)
            is_whole &= (np.diff(offsets, prepend=last) >= 0) & (entries["seconds"] >= 0)
            there = len(is_whole) if is_whole.all() else int(np.argmin(is_whole))
            before = int(np.searchsorted(offsets[:there], physical_offset))
            np.maximum.at(slots, own[:before], numbers[:before])
            begin += before
            if before < len(entries):
                if before == there and begin > 1:  # the entry before may have been torn where it cannot be seen
                    begin -= 1
                    hash_, previous_ = (int(self.entries(begin, begin + 1)[name][0]) for name in ("hash", "previous"))
                    slots[hash_ % self.slot_count] = previous_
                break
            last = int(offsets[-1])
        return begin, slots

    def count_at_end(self, physical_offset: int) -> int:
        """Return how many of the last entries have a physical offset."""
        number = self.count - 1
        while number > 0 and self.entries(number, number + 1)["physical_offset"][0] == physical_offset:
            number -= 1
        return self.count - 1 - number

    def begin_after(self, end_timestamp: int, end_physical_offset: int) -> None:
        if end_physical_offset > 0:
            self.begin_physical_offset = self.end_physical_offset = end_physical_offset
        if end_timestamp > 0:
            self.begin_timestamp = self.end_timestamp = end_timestamp
        self._write_header()

    def _write_header(self) -> None:
        _HEADER.pack_into(
            self.file.map,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical_offset,
            self.end_physical_offset,
            self.slots_used,
            self.count,
        )


def _count_slots(path: Path, size: int) -> int:
    # Each slot has 4 bytes and its four entries 80: a default file of 420,000,040 bytes has 5,000,000 slots.
    slots: int
    usual, odd = divmod(size - HEADER_SIZE, SLOT_SIZE + DEFAULT_ENTRIES_PER_SLOT * ENTRY_SIZE)
    is_usual = usual > 0 and not odd
    mapped = MappedFile.open(path)
    try:
        if size >= HEADER_SIZE:
            _, _, begin, end, _, count = _HEADER.unpack_from(mapped.map, 0)
            if is_usual and (count <= 1 or _has_ends(mapped, usual, begin, end, count)):
                return usual
            if count > 1 and end > 0:
                # The last entry has `end` as its physical offset; its position yields the number of slots.
                behind = HEADER_SIZE + (count - 1) * ENTRY_SIZE + _SLOT.size
                at = mapped.map.find(wanted := struct.pack(">q", end), behind + SLOT_SIZE)
                while at >= 0:
                    slots, odd = divmod(at - behind, SLOT_SIZE)
                    if not odd and _has_ends(mapped, slots, begin, end, count):
                        return slots
                    at = mapped.map.find(wanted, at + 1)
    finally:
        mapped.close()
    if is_usual:
        return usual
    why = (
        f"an index file of {size} bytes does not tell how many slots it has: give maxHashSlotNum in a broker.conf (-c)"
    )
    raise StoreCorrupt(path, size, why)


def _has_ends(file: MappedFile, slot_count: int, begin: int, end: int, count: int) -> bool:
    entries_at = HEADER_SIZE + slot_count * SLOT_SIZE
    room, odd = divmod(file.size - entries_at, ENTRY_SIZE)
    if odd or count > room:
        return False
    if any(file.map[entries_at : entries_at + ENTRY_SIZE]):
        return False
    # Both entries point at the log as the header says, and are in the chains of their slots, where the last one is the
    # head: or a later one, since slots are written before the header.
    (first_hash, first), (last_hash, last) = (
        _ENTRY.unpack_from(file.map, entries_at + number * ENTRY_SIZE)[:2] for number in (1, count - 1)
    )
    of_first, of_last = (
        _SLOT.unpack_from(file.map, HEADER_SIZE + key_hash % slot_count * SLOT_SIZE)[0]
        for key_hash in (first_hash, last_hash)
    )
    return (first, last) == (begin, end) and of_first > 0 and bool(count - 1 <= of_last < room)


class Index:
    """The files of an index, oldest first. The owner thread queries and writes."""

    def __init__(self, directory: Path, slot_count: int, max_count: int, files: list[IndexFile]) -> None:
        self.directory = directory
        self.files = files
        self.added = 0
        """The number of entries that this process has added, also by calls that raised."""
        self._slot_count = slot_count
        self._max_count = max_count

    @classmethod
    def open(cls, directory: Path, slot_count: int = 0, max_count: int = 0, *, writable: bool = False) -> Index:
        """Map all files. Existing ones must fit `slot_count` and `max_count`, as new ones will."""
        files = []
        for path in index_paths(directory):
            if path.stat().st_size:
                files.append(IndexFile.open(path, slot_count, writable=writable))
            elif writable:
                path.unlink()  # left by a crash during its creation
        return cls(directory, slot_count, max_count, files)

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = MAX_LONG,
        before_physical_offset: int = MAX_LONG,
    ) -> list[int]:
        return slices.run(self.query_steps(topic, key, max_count, begin_ms, end_ms, before_physical_offset))

    def query_steps(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = MAX_LONG,
        before_physical_offset: int = MAX_LONG,
        after_physical_offset: int = -1,
    ) -> Generator[None, None, list[int]]:
        """Find the latest `max_count` physical offsets for the hash of this key, ascending, in small steps.

        The first one is the bound that continues the query. Skips files that retention deletes in the meantime, and
        those that end by `after_physical_offset`.
        """
        key_hash = index_hash(index_key(topic, key))
        found: list[int] = []
        # A copy of the list: retention may remove files between two steps.
        for file in self.files[::-1]:
            if file.end_physical_offset <= after_physical_offset:
                break
            is_wanted = file.begin_physical_offset < before_physical_offset and file.overlaps(begin_ms, end_ms)
            if is_wanted and file.file.hold():
                try:
                    found += yield from file.select_steps(
                        key_hash, max_count - len(found), begin_ms, end_ms, before_physical_offset
                    )
                finally:
                    file.file.release()
                yield
            # All older files end before this one starts, and so before the window.
            if file.begin_timestamp < begin_ms or len(found) >= max_count:
                break
        return sorted(found)

    @property
    def begin_timestamp(self) -> int:
        return self.files[0].begin_timestamp if self.files else 0

    @property
    def end_timestamp(self) -> int:
        """The store time of the last indexed message; 0 if the index is empty."""
        return self.files[-1].end_timestamp if self.files else 0

    @property
    def end_physical_offset(self) -> int:
        return self.files[-1].end_physical_offset if self.files else 0

    def put_many(
        self,
        key_hashes: npt.NDArray[np.int32],
        physical_offsets: npt.NDArray[np.int64],
        store_timestamps: npt.NDArray[np.int64],
    ) -> None:
        """Add the entries of many keys in order; all arrays have shape (n,). Raises OSError if the disk is full."""
        done = 0
        while done < len(key_hashes):
            file = self._last(int(store_timestamps[done]))
            count = file.count
            try:
                done += file.put_many(key_hashes[done:], physical_offsets[done:], store_timestamps[done:])
            finally:
                self.added += file.count - count

    def _last(self, now_ms: int) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            return last
        name = index_file_name(now_ms)
        if last is not None:
            name = later_name(name, last.file.path.name)
        new = IndexFile.create(self.directory / name, self._slot_count, self._max_count)
        if last is not None:
            new.begin_after(last.end_timestamp, last.end_physical_offset)
        self.files.append(new)
        return new

    @property
    def flushed_timestamp(self) -> int:
        """The end of the last flushed, full file; 0 without any."""
        return ([0] + [file.end_timestamp for file in list(self.files) if file.is_flushed])[-1]

    def flush_full_files(self) -> None:
        """Wait until all full files are on disk. For any thread, one at a time."""
        for file in list(self.files):
            if not file.is_full:
                break
            if not file.is_flushed:
                file.file.flush()
                file.is_flushed = True

    def flush_entries(self) -> None:
        """Make all full files durable, and the entries of the last one. For any thread, one at a time."""
        last = list(self.files)[-1:]  # before the flush, in which the owner may fill it and begin the next
        self.flush_full_files()
        for file in last:
            if not file.is_flushed:
                file.flush_entries()

    def flush(self) -> None:
        self.flush_full_files()
        for file in self.files:
            if not file.is_flushed:
                file.file.flush()

    def delete_from(self, first: int) -> None:
        """Delete the files from number `first` on, unmapped in a thread, since freeing blocks can take seconds."""
        if len(self.files) > first:
            while len(self.files) > first:
                file = self.files.pop().file
                file.hold()
                file.delete()
                threading.Thread(target=file.release, name="blocks-of-index").start()
            sync_directory(self.directory)

    def detach_before(self, physical_offset: int) -> list[MappedFile]:
        """Remove and return the files with messages before a physical offset only, except the last."""
        detached = []
        while len(self.files) > 1 and self.files[0].end_physical_offset < physical_offset:
            file = self.files.pop(0).file
            file.detach()
            detached.append(file)
        return detached

    def close(self) -> None:
        for file in self.files:
            file.file.close()


def index_key(topic: str, key: str) -> str:
    return f"{topic}#{key}"


def index_paths(directory: Path) -> list[Path]:
    """Return the paths in `directory` that have names of index files, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if is_index_name(path.name))


def is_index_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def index_file_name(now_ms: int) -> str:
    """Return the local time in 17 digits; the latest possible name for the time of a damaged record."""
    seconds, ms = divmod(min(max(now_ms, 0), _LAST_NAMED_MS), 1000)
    return f"{datetime.fromtimestamp(seconds):%Y%m%d%H%M%S}{ms:03d}"


def later_name(name: str, before: str) -> str:
    """Return `name`, or the next name after `before` if it is not later, since clocks may be set back."""
    if name > before:
        return name
    # After 20240501120000999, for example, 20240501120001000.
    moment = datetime.strptime(before[:14], "%Y%m%d%H%M%S") + timedelta(milliseconds=int(before[14:]) + 1)
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
