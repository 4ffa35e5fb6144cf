"""The index: where the messages with one key lie.

    index/<yyyyMMddHHmmssSSS>      named by the local time of its creation

A file is a hash table that never grows. With s slots (5,000,000) and room for n entries (20,000,000), 420 MB, sparse:

    position      bytes  field
           0          8  beginTimestamp, store time of the first entry's message
           8          8  endTimestamp, of the last entry's
          16          8  beginPhyOffset, physical offset of the first entry's message
          24          8  endPhyOffset, of the last entry's
          32          4  hashSlotCount, how many slots are in use
          36          4  indexCount, the number of the next entry; starts at 1, so that n - 1 entries fit
          40        4 s  slots: the number of the last entry whose hash falls here, 0 for none
    40 + 4 s       20 n  entries, entry 0 stays empty:
                           0  4  hash of "topic#key", not negative (see `hashing.index_hash`)
                           4  8  physicalOffset
                          12  4  seconds from the file's beginTimestamp to the message's store time, never negative
                          16  4  the number of the entry before this one in the same slot, 0 for none

A key is found by going from its slot (hash modulo s) back along the chain. Hashes collide, so whoever asks compares
the keys of the messages. Times are whole seconds, so a window exact to the millisecond can miss its own message.

The first file has no beginTimestamp while its first entry is made, and that entry's difference is 0. A later file
takes over endTimestamp and endPhyOffset of the one before as its beginning until its first entry replaces them.

An index can be rebuilt from the log. Only a file that is full counts as safe after a crash, and only when the
checkpoint says that it was flushed.

Answers to org.apache.rocketmq.store.index.{IndexFile, IndexHeader, IndexService}. The chain may only lead to smaller
numbers here, so that a damaged file cannot send a query round in circles.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

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


class IndexFile:
    """One file of the index."""

    __slots__ = (
        "_entries_at",
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
        self.count = max(self.count, 1)
        self.is_flushed = False
        """Whether the file was brought to disk after it was full."""

    @classmethod
    def open(cls, path: Path, slot_count: int = 0, *, writable: bool = False) -> IndexFile:
        """Map an existing file. With `slot_count` 0 the file is taken to have four entries per slot, as by default.

        Raises StoreCorrupt for a file whose size cannot be right.
        """
        size = path.stat().st_size
        if not slot_count:
            slot_count, odd = divmod(size - HEADER_SIZE, SLOT_SIZE + DEFAULT_ENTRIES_PER_SLOT * ENTRY_SIZE)
            if odd or slot_count < 1:
                raise StoreCorrupt(path, size, f"an index file of {size} bytes; say how many slots it has")
        room = size - HEADER_SIZE - slot_count * SLOT_SIZE
        if room < 0 or room % ENTRY_SIZE:
            raise StoreCorrupt(
                path,
                size,
                f"an index file of {size} bytes cannot have {slot_count} slots; set maxHashSlotNum and maxIndexNum to "
                "what they were when it was made",
            )
        # Lookups jump; reading ahead around each jump makes a cold one cost a hundred times as much.
        file = MappedFile.open(path, writable=writable)
        file.reads_ahead = False
        return cls(file, slot_count)

    @classmethod
    def create(cls, path: Path, slot_count: int, max_count: int) -> IndexFile:
        """Make a new file. Raises OSError where the disk has no room for its slots; then there is none."""
        size = HEADER_SIZE + slot_count * SLOT_SIZE + max_count * ENTRY_SIZE
        file = MappedFile.create(path, size, reads_ahead=False)
        try:
            # Slots are written all over, so their blocks are taken at once; a hole could end the process later.
            file.reserve(HEADER_SIZE + slot_count * SLOT_SIZE, HEADER_SIZE)
        except OSError:
            file.delete()
            raise
        return cls(file, slot_count)

    @property
    def is_full(self) -> bool:
        """Whether no entry fits any more."""
        return self.count >= self.max_count

    def has_valid_end(self) -> bool:
        """Tell whether the entry that the header calls the last one is that, and leads where the header says."""
        if not 1 <= self.count <= self.max_count or any(self.entries(self.count, self.count + 1).tobytes()):
            return False
        return self.count == 1 or int(self.entries(self.count - 1)["physical_offset"][0]) == self.end_physical_offset

    def entries(self, begin: int = 1, end: int | None = None) -> npt.NDArray[np.void]:
        """Return the entries from number `begin` to `end`, or all that were made: shape (n,), of type ENTRY, a copy."""
        end = self.count if end is None else end
        at = self._entries_at
        return np.frombuffer(self.file.map[at + begin * ENTRY_SIZE : at + end * ENTRY_SIZE], ENTRY)

    def slots(self) -> npt.NDArray[np.int32]:
        """Return all slots: shape (slot_count,), a copy."""
        return np.frombuffer(self.file.map[HEADER_SIZE : self._entries_at], ">i4")

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Tell whether the time window meets that of this file, as Apache decides it."""
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin_ms < first and end_ms > last) or first <= begin_ms <= last or first <= end_ms <= last

    def select(
        self, key_hash: int, max_count: int, begin_ms: int, end_ms: int, before_physical_offset: int = MAX_LONG
    ) -> list[int]:
        """Return up to `max_count` physical offsets whose hash and whole-second time match, latest first.

        Only offsets below `before_physical_offset` count.
        """
        mapped, at = self.file.map, self._entries_at
        found: list[int] = []
        (number,) = _SLOT.unpack_from(mapped, HEADER_SIZE + key_hash % self.slot_count * SLOT_SIZE)
        following = min(self.count, self.max_count)
        while 0 < number < following and len(found) < max_count:
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
        """Add one entry. The file must not be full. Raises OSError where the disk has no room."""
        mapped, number = self.file.map, self.count
        slot_at = HEADER_SIZE + key_hash % self.slot_count * SLOT_SIZE
        entry_at = self._entries_at + number * ENTRY_SIZE
        self.file.reserve(entry_at + ENTRY_SIZE, _RESERVE_WINDOW)
        (previous,) = _SLOT.unpack_from(mapped, slot_at)
        if not 0 < previous < number:
            previous = 0
        seconds = (store_timestamp - self.begin_timestamp) // 1000 if self.begin_timestamp > 0 else 0
        _ENTRY.pack_into(mapped, entry_at, key_hash, physical_offset, min(max(seconds, 0), _MAX_SECONDS), previous)
        _SLOT.pack_into(mapped, slot_at, number)
        self._advance(1, not previous, physical_offset, store_timestamp, physical_offset, store_timestamp)

    def put_many(
        self,
        key_hashes: npt.NDArray[np.int32],
        physical_offsets: npt.NDArray[np.int64],
        store_timestamps: npt.NDArray[np.int64],
    ) -> int:
        """Add entries in order, as many as fit, and return how many. The three arrays have the same shape (n,).

        The result is the same as that of as many calls of `put`.
        """
        if not len(key_hashes) or self.is_full:
            return 0
        done = 0
        if self.count == 1:  # The first entry gives the file its beginning, from which the others count.
            self.put(int(key_hashes[0]), int(physical_offsets[0]), int(store_timestamps[0]))
            done = 1
        end = min(len(key_hashes), done + self.max_count - self.count)
        if done < end:
            self._put_block(key_hashes[done:end], physical_offsets[done:end], store_timestamps[done:end])
        return end

    def _put_block(
        self,
        key_hashes: npt.NDArray[np.int32],
        physical_offsets: npt.NDArray[np.int64],
        store_timestamps: npt.NDArray[np.int64],
    ) -> None:
        count, number = len(key_hashes), self.count
        begin = self._entries_at + number * ENTRY_SIZE
        end = begin + count * ENTRY_SIZE
        self.file.reserve(end, _RESERVE_WINDOW)
        slots = np.frombuffer(self.file.map, ">i4", self.slot_count, HEADER_SIZE)
        slot_of = key_hashes % self.slot_count
        numbers = np.arange(number, number + count, dtype=np.int32)
        # Entries that share a slot follow each other in `order`, earliest first: each points to the one before it,
        # the first of them to what the slot holds, and the slot to the last.
        order = slot_of.argsort(kind="stable")
        sorted_slots, sorted_numbers = slot_of[order], numbers[order]
        is_first = np.empty(count, bool)
        is_first[0] = True
        np.not_equal(sorted_slots[1:], sorted_slots[:-1], out=is_first[1:])
        firsts = is_first.nonzero()[0]
        touched = sorted_slots[firsts]
        held = slots[touched].astype(np.int32)
        held[(held < 0) | (held >= number)] = 0
        sorted_previous = np.empty(count, np.int32)
        sorted_previous[1:] = sorted_numbers[:-1]
        sorted_previous[firsts] = held
        entries = np.empty(count, ENTRY)
        entries["hash"] = key_hashes
        entries["physical_offset"] = physical_offsets
        if self.begin_timestamp > 0:
            entries["seconds"] = ((store_timestamps - self.begin_timestamp) // 1000).clip(0, _MAX_SECONDS)
        else:
            entries["seconds"] = 0
        entries["previous"][order] = sorted_previous
        self.file.map[begin:end] = entries.tobytes()
        lasts = np.empty_like(firsts)
        lasts[:-1] = firsts[1:] - 1
        lasts[-1] = count - 1
        slots[touched] = sorted_numbers[lasts]
        self._advance(
            count,
            int((held == 0).sum()),
            int(physical_offsets[0]),
            int(store_timestamps[0]),
            int(physical_offsets[-1]),
            int(store_timestamps[-1]),
        )

    def _advance(
        self, count: int, new_slots: int, first_offset: int, first_time: int, last_offset: int, last_time: int
    ) -> None:
        if self.count <= 1:
            self.begin_physical_offset, self.begin_timestamp = first_offset, first_time
        self.end_physical_offset, self.end_timestamp = last_offset, last_time
        self.slots_used += new_slots
        self.count += count
        self._write_header()

    def begin_after(self, end_timestamp: int, end_physical_offset: int) -> None:
        """Take over where the file before ended, until the first entry comes."""
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


class Index:
    """All files of an index, oldest first."""

    def __init__(self, directory: Path, slot_count: int, max_count: int, files: list[IndexFile]) -> None:
        self.directory = directory
        self.files = files
        self._slot_count = slot_count
        self._max_count = max_count

    @classmethod
    def open(cls, directory: Path, slot_count: int = 0, max_count: int = 0, *, writable: bool = False) -> Index:
        """Map all files. `slot_count` and `max_count` say how new ones are made and what the old ones must be."""
        files = []
        for path in index_paths(directory):
            if path.stat().st_size:
                files.append(IndexFile.open(path, slot_count, writable=writable))
            elif writable:
                path.unlink()  # a crash in the moment of its making
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
        """Return up to `max_count` physical offsets of messages with this key, ascending.

        Those with a colliding hash are among them; the latest below `before_physical_offset` win where there are more,
        so the first of an answer bounds the next.
        """
        key_hash = index_hash(index_key(topic, key))
        found: list[int] = []
        for file in reversed(self.files):
            if file.begin_physical_offset < before_physical_offset and file.overlaps(begin_ms, end_ms):
                found += file.select(key_hash, max_count - len(found), begin_ms, end_ms, before_physical_offset)
            if file.begin_timestamp < begin_ms or len(found) >= max_count:
                break
        return sorted(found)

    @property
    def begin_timestamp(self) -> int:
        """The store time of the first message that is in the index; 0 without any."""
        return self.files[0].begin_timestamp if self.files else 0

    @property
    def end_timestamp(self) -> int:
        """The store time of the message that was indexed last; 0 without any."""
        return self.files[-1].end_timestamp if self.files else 0

    @property
    def end_physical_offset(self) -> int:
        """The physical offset of the message that was indexed last; 0 without any."""
        return self.files[-1].end_physical_offset if self.files else 0

    def put(self, key_hashes: Sequence[int], physical_offset: int, store_timestamp: int) -> None:
        """Add the keys of one message in order. Raises OSError where the disk has no room."""
        for key_hash in key_hashes:
            self._last(store_timestamp).put(key_hash, physical_offset, store_timestamp)

    def put_many(
        self,
        key_hashes: npt.NDArray[np.int32],
        physical_offsets: npt.NDArray[np.int64],
        store_timestamps: npt.NDArray[np.int64],
    ) -> None:
        """Add many keys in order; the three arrays have the same shape (n,). As as many calls of `put`."""
        done = 0
        while done < len(key_hashes):
            file = self._last(int(store_timestamps[done]))
            done += file.put_many(key_hashes[done:], physical_offsets[done:], store_timestamps[done:])

    def _last(self, now_ms: int) -> IndexFile:
        """Return the file that takes the next entry, made at `now_ms` where there is none with room."""
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
        """Up to this store time everything is in full files that `flush_full_files` brought to disk; 0 without any."""
        return max([file.end_timestamp for file in list(self.files) if file.is_flushed], default=0)

    def flush_full_files(self) -> None:
        """Wait until all files that are full are on disk. For any thread, one at a time."""
        for file in list(self.files):
            if not file.is_full:
                break
            if not file.is_flushed:
                file.file.flush()
                file.is_flushed = True

    def flush(self) -> None:
        """Wait until everything is on disk."""
        self.flush_full_files()
        for file in self.files:
            if not file.is_flushed:
                file.file.flush()

    def delete_from(self, first: int) -> None:
        """Delete the files from number `first` on; their messages must be indexed again.

        Nobody waits for their blocks: to give back those of a large file can take a disk seconds.
        """
        if len(self.files) > first:
            while len(self.files) > first:
                file = self.files.pop().file
                file.hold()
                file.delete()
                threading.Thread(target=file.release, name="blocks-of-index").start()
            sync_directory(self.directory)

    def detach_before(self, physical_offset: int) -> list[MappedFile]:
        """Give up the files whose messages all lie before a physical offset, but the last; they are to be deleted."""
        taken = []
        while len(self.files) > 1 and self.files[0].end_physical_offset < physical_offset:
            file = self.files.pop(0).file
            file.detach()
            taken.append(file)
        return taken

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.file.close()


def index_key(topic: str, key: str) -> str:
    """Return what an index hashes for a key of a message in this topic."""
    return f"{topic}#{key}"


def index_paths(directory: Path) -> list[Path]:
    """Return the paths in `directory` that are named as index files are, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if is_index_name(path.name))


def is_index_name(name: str) -> bool:
    """Tell whether a name is a time in 17 digits."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def index_file_name(now_ms: int) -> str:
    """Return the name of a file that is made at `now_ms`: local time down to the millisecond, 17 digits.

    A time for which these are too few, which only a damaged record names, is taken for the last that has a name.
    """
    seconds, ms = divmod(min(max(now_ms, 0), _LAST_NAMED_MS), 1000)
    return f"{datetime.fromtimestamp(seconds):%Y%m%d%H%M%S}{ms:03d}"


def later_name(name: str, before: str) -> str:
    """Return the name of a file behind another one: not the same where two are made in one millisecond, nor an earlier
    one where a clock was set back."""
    if name > before:
        return name
    moment = datetime.strptime(before[:14], "%Y%m%d%H%M%S") + timedelta(milliseconds=int(before[14:]) + 1)
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
