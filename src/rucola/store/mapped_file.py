"""Mapped files: fixed-size files, mapped into memory, that form one long logical file.

A file name is the logical offset of its first byte in 20 decimal digits; each file starts at the end of the previous:

    00000000000000000000    bytes          0 ..   size
    00000000000000001024    bytes       1024 .. 2 size          (with a size of 1024)

When the oldest files are deleted, the logical file starts later; offsets never change. How a file is written:

1. It is created sparse, with its full size.
2. `reserve` requests disk blocks ahead of the writes. A mapped write to a hole that a full disk cannot fill would kill
   the process (SIGBUS); `reserve` raises an OSError instead.
3. `warm` prefaults the pages of the next window in another thread.
4. `flush` syncs only the requested pages. Prefaulted pages would otherwise be written to disk twice.
5. The first flush also syncs the file's directory entry (`sync_name`). The next file is not created before that,
   because a gap between files could not be repaired.

An opened file is mapped at the first access, since descriptors and mappings are limited; `read` and `put` do without.
A mapping keeps a descriptor, and cannot be closed while a memoryview of it exists; the garbage collector closes it
later. A detached file can no longer be held (`hold`, `release`); after its deletion the last holder closes it.

Corresponds to `MappedFile` and `MappedFileQueue` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final

from rucola.errors import StoreCorrupt
from rucola.files import DIRECTORY_MODE, FILE_MODE, open_file, sync_directory
from rucola.system_calls import (
    ALLOCATES_BESIDE_WRITER,
    MS_SYNC,
    NO_DESCRIPTOR,
    SYNC_REACHES_DRIVE,
    allocate,
    c_library,
    data_ranges,
    sync_data,
)

NAME_DIGITS: Final = 20
PAGE_SIZE: Final = mmap.PAGESIZE

_MADV_POPULATE_WRITE: Final = 23
_ZEROS: Final = bytes(1 << 20)
_WARM_STEP: Final = 64 * PAGE_SIZE
"""Bytes per madvise call; short calls keep the kernel's lock on the mappings only briefly."""
_POPULATES: Final = sys.platform == "linux" and ALLOCATES_BESIDE_WRITER

_LIBC: Final = c_library()
_madvise: Final = _LIBC.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_msync: Final = _LIBC.msync
_msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_holders_lock: Final = threading.Lock()
"""Guards `_holders` and `_is_detached` of all files; never held during I/O."""


def sync_pages(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Sync pages and metadata, only to the drive's cache without `SYNC_REACHES_DRIVE`. Raises OSError."""
    _ask_for_pages(_msync, mapped, begin - begin % PAGE_SIZE, end, MS_SYNC)


def _ask_for_pages(call: Callable[..., int], mapped: mmap.mmap, begin: int, end: int, flag: int) -> None:
    """Call msync or madvise through ctypes, which releases the interpreter lock; mmap's methods hold it."""
    if begin < end:
        first = ctypes.c_char.from_buffer(mapped, begin)  # keeps the file mapped during the call
        if call(ctypes.addressof(first), end - begin, flag):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


class MappedFile:
    """One mapped file with one writer; `flush`, `warm`, `hold`, `release` and `sync_name` are for any thread."""

    def __init__(self, name: str, size: int, *, writable: bool, begin: int, reads_ahead: bool = True) -> None:
        self._name = name  # a Path would take half of the time in which a queue is opened
        self.size = size
        self.writable = writable
        self.begin = begin
        self.reads_ahead = reads_ahead
        """To be set before mapping: with read-ahead, holes at the end fill the page cache with zeros."""
        self.is_changed = False
        """Whether this process may have written to the file."""
        self.reserved = 0
        """The position up to which the file has blocks. Owner and warming thread only ever raise it."""
        self._fd = -1
        self._warmed = 0
        """Belongs to the warming thread."""
        self._can_populate = _POPULATES
        self._unsynced: list[Path] = []
        """Directories whose entry for this file, or for each other, may not be synced; innermost first."""
        self._sync_error: OSError | None = None
        self._holders = 0
        self._is_detached = self._is_deleted = self._is_closed = False

    @classmethod
    def open(cls, path: Path, *, writable: bool = False, begin: int = 0) -> MappedFile:
        """Open an existing file, without mapping it yet. Raises OSError if it does not exist."""
        return cls(str(path), path.stat().st_size, writable=writable, begin=begin)

    @classmethod
    def create(
        cls, path: Path, size: int, *, begin: int = 0, reads_ahead: bool = True, is_mapped: bool = True
    ) -> MappedFile:
        """Create and map a file of zeros and missing directories; FileExistsError or OSError leaves nothing new."""
        unsynced = [path.parent]
        while not os.path.isdir(unsynced[-1]):
            unsynced.append(unsynced[-1].parent)
        try:
            for directory in reversed(unsynced[:-1]):
                with suppress(FileExistsError):  # another task of a rebuild may create the same topic's directory
                    os.mkdir(directory, DIRECTORY_MODE)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
            try:
                os.ftruncate(fd, size)
                file = cls(str(path), size, writable=True, begin=begin, reads_ahead=reads_ahead)
                if is_mapped:
                    file.map = file._mapped(fd)
            except BaseException:
                path.unlink()
                raise
            finally:
                os.close(fd)
        except OSError:
            # A directory that stays would count as synced at the next attempt.
            with suppress(OSError):
                for directory in unsynced[:-1]:
                    directory.rmdir()
            raise
        file._unsynced = unsynced
        file.is_changed = True
        return file

    @property
    def path(self) -> Path:
        return Path(self._name)

    @cached_property
    def map(self) -> mmap.mmap:
        """The bytes of the file. Raises OSError if it cannot be opened."""
        if self._is_closed:
            raise ValueError(f"{self.path} is closed")
        if not self.size:  # an empty file cannot be mapped; only readers meet one, and a page of zeros is equivalent
            return mmap.mmap(-1, PAGE_SIZE)
        with self.opened() as fd:
            return self._mapped(fd)

    def _mapped(self, fd: int) -> mmap.mmap:
        # Access after the end of the file ends the process (SIGBUS); a file that is shorter by now is not mapped.
        size = os.fstat(fd).st_size
        if size < self.size:
            raise StoreCorrupt(
                self.path,
                size,
                f"the file has {size} bytes, and had {self.size} when it was opened; stop what truncates files of the "
                "store, then the broker, and run `rucola store check` on the directory",
            )
        mapped = mmap.mmap(fd, self.size, access=mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ)
        if not self.reads_ahead:
            mapped.madvise(mmap.MADV_RANDOM)
        return mapped

    @property
    def is_mapped(self) -> bool:
        return "map" in self.__dict__

    def unmap(self) -> bool:
        """Unmap a file without holders until the next access to `map`; for the owner. Written bytes stay."""
        with _holders_lock:
            if self._holders or not self.is_mapped:
                return False
            try:
                self.map.close()
            except BufferError:
                return False
            del self.map
            self._warmed = 0
            return True

    def seal(self) -> None:
        """End writing to a full file: close `write`'s descriptor, and let the kernel read ahead."""
        self._close_fd()
        if not self.reads_ahead:
            self.reads_ahead = True
            if self.is_mapped:
                self.map.madvise(mmap.MADV_NORMAL)

    def _close_fd(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open a descriptor of the file for the duration of the block. Raises OSError."""
        fd = open_file(self._name, os.O_RDWR if self.writable else os.O_RDONLY)
        try:
            yield fd
        finally:
            os.close(fd)

    @property
    def end(self) -> int:
        return self.begin + self.size

    def read(self, begin: int, end: int) -> bytes:
        """Return a range, without mapping the file. Raises OSError."""
        with self.opened() as fd:
            return os.pread(fd, end - begin, begin)

    def source(self) -> mmap.mmap | int:
        """Return a descriptor, since a page fault that reads ahead takes ten times as long as a pread, or the map."""
        try:
            return self.descriptor()
        except OSError:  # the process may be out of descriptors
            return self.map

    def put(self, position: int, data: bytes) -> None:
        """Write to the mapping, to a position that has blocks, or to the file. Raises OSError."""
        if self.is_mapped:
            self.map[position : position + len(data)] = data
            return
        with self.opened() as fd:
            if os.pwrite(fd, data, position) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._name)
        self.is_changed = True

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write many bytes with pwrite, which avoids page faults, to a position that has blocks."""
        written = 0
        with suppress(OSError):  # the process may be out of descriptors
            written = os.pwrite(self._fd if self._fd >= 0 else self.descriptor(), data, position)
        if written < len(data):
            self.map[position + written : position + len(data)] = data[written:]

    def descriptor(self) -> int:
        if self._fd < 0:
            self._fd = open_file(self._name, os.O_RDWR if self.writable else os.O_RDONLY)
        return self._fd

    @property
    def is_name_durable(self) -> bool:
        """Whether the file's directory entry is synced."""
        return not self._unsynced

    def reserve(self, end: int, window: int) -> None:
        """Ensure disk blocks up to `end`, in windows. Raises OSError (ENOSPC, EDQUOT) before anything is written."""
        begin = self.reserved  # read once: the warming thread may raise it
        if end > begin:
            upto = min(max(end, end + window - end % window), self.size)
            # After a restart `reserved` is 0, so this starts at the start of the file, which may have holes as well.
            with self.opened() as fd:
                allocate(fd, begin, upto - begin)
            self.reserved = max(self.reserved, upto)
            self.is_changed = True

    def warm(self, begin: int, end: int, pause: Callable[[], None] | None = None) -> None:
        """Prefault pages for writing, in a thread other than the writer's; calls `pause` between two steps.

        Requests their blocks first. A full disk or an old kernel ends it without an error.
        """
        begin = max(begin, self._warmed) // PAGE_SIZE * PAGE_SIZE
        end = min(-(-end // PAGE_SIZE) * PAGE_SIZE, self.size)
        try:
            if begin < end and self._can_populate:
                with self.opened() as fd:
                    allocate(fd, begin, end - begin)
                self.is_changed = True
                if begin <= self.reserved:
                    self.reserved = max(self.reserved, end)
                for step in range(begin, end, _WARM_STEP):
                    if pause is not None and step > begin:
                        pause()
                    _ask_for_pages(_madvise, self.map, step, min(step + _WARM_STEP, end), _MADV_POPULATE_WRITE)
                    self._warmed = min(step + _WARM_STEP, end)
        except OSError:
            self._can_populate = False

    def drop_pages(self) -> None:
        """Unmap the pages that were read; they stay in the page cache."""
        self.map.madvise(mmap.MADV_DONTNEED)

    def erase(self, position: int) -> bool:
        """Overwrite with zeros from `position` on, not yet durable; return whether there was anything else.

        Never shortens the file: a crash would leave a size that contradicts the configuration.
        """
        is_anything = not self.is_zero_from(position)
        if is_anything:
            page = min(-(-position // PAGE_SIZE) * PAGE_SIZE, self.size)
            self.put(position, bytes(page - position))
            if page < self.size:
                self._erase_pages(page)
            self.reserved = self._warmed = 0
            self.is_changed = True
        return is_anything

    def _erase_pages(self, begin: int) -> None:
        if self.is_mapped and hasattr(mmap, "MADV_REMOVE"):
            self.map.madvise(mmap.MADV_REMOVE, begin, self.size - begin)
            return
        with self.opened() as fd:
            for position, end in data_ranges(fd, begin, self.size):
                for piece in range(position, end, len(_ZEROS)):
                    os.pwrite(fd, _ZEROS[: end - piece], piece)

    def is_zero_from(self, position: int) -> bool:
        """Return whether the file has only zeros from `position` on. Skips holes without reading them."""
        with self.opened() as fd:
            for begin, end in data_ranges(fd, position, self.size):
                for at in range(begin, end, len(_ZEROS)):
                    piece = os.pread(fd, min(len(_ZEROS), end - at), at)
                    if piece != _ZEROS[: len(piece)]:
                        return False
            return True

    def flush(self, begin: int = 0, end: int | None = None) -> None:
        """Make a range (by default all) and the directory entry durable, unless detached. Raises OSError."""
        if self.hold():
            try:
                if self.is_mapped:
                    sync_pages(self.map, begin, self.size if end is None else end)
                # A file that is not mapped was not written by this process, but may have been by an earlier one.
                if not self.is_mapped or not SYNC_REACHES_DRIVE:
                    with self.opened() as fd:
                        sync_data(fd)
                self.sync_name()
            except FileNotFoundError:
                if not self._is_detached:
                    raise
            finally:
                self.release()

    def sync_name(self) -> None:
        """Sync the directory entries of a new file and its new directories. For any thread.

        fsync reports an error once, so every later call raises it again, unless no descriptor was available.
        """
        if self._sync_error is not None:
            raise self._sync_error
        try:
            # From the outside in, since a directory's entries count only once the directory itself is durable.
            for directory in reversed(self._unsynced):
                sync_directory(directory)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                self._sync_error = error
            raise
        self._unsynced = []

    def mark_name_unsynced(self) -> None:
        """Let the next flush sync the directory entry, which a killed process may have skipped."""
        self._unsynced = [self.path.parent]

    def hold(self) -> bool:
        """Keep the file open until `release`; False if it is detached. For any thread."""
        # Check and count are one step, so that `detach` cannot come between them.
        with _holders_lock:
            if not self._is_detached:
                self._holders += 1
            return not self._is_detached

    def release(self) -> None:
        """End a `hold`; the last holder of a deleted file closes it. For any thread."""
        with _holders_lock:  # the decision, too: of two threads that end together, one closes
            self._holders -= 1
            is_last = self._is_deleted and not self._holders
        if is_last:
            self.close()

    @property
    def is_held(self) -> bool:
        return self._holders > 0

    def detach(self) -> None:
        with _holders_lock:
            self._is_detached = True

    def close(self) -> None:
        """Unmap and close the file. The kernel writes back unflushed bytes."""
        self._is_closed = True
        self._close_fd()
        try:
            if self.is_mapped:
                self.map.close()
        except BufferError:
            pass  # a reader still has a memoryview; the mapping is closed with it

    def delete(self) -> None:
        """Delete the file and close it, or let its last holder do so. Raises OSError; may be repeated then."""
        self.detach()
        self.path.unlink(missing_ok=True)
        with _holders_lock:
            self._is_deleted = True
            is_held = self.is_held
        if not is_held:
            self.close()


class MappedFileQueue:
    """The files of one directory, oldest first, which form a logical file from `begin` to `end`."""

    __slots__ = ("directory", "file_size", "files")

    def __init__(self, directory: Path, file_size: int, files: list[MappedFile]) -> None:
        self.directory = directory
        self.file_size = file_size
        self.files = files

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        writable: bool = False,
        file_size: int = 0,
        after_crash: bool = False,
        may_have_gaps: bool = False,
    ) -> MappedFileQueue:
        """Open all files of a directory, none if it is missing; with `file_size` 0 the first file's size applies.

        If `writable`, the last file, or `after_crash` any empty one, gets its full size. Raises StoreCorrupt for
        another size, and for a gap unless it `may_have_gaps`. Ignores names other than 20 digits.
        """
        names, base = _file_names(directory), f"{directory}{os.sep}"
        sizes = [os.stat(base + name).st_size for name in names]
        if names and not file_size:
            # After a crash the last file may be short, and the last may be the second; so the larger of two counts.
            file_size = max(sizes[:2])
        files: list[MappedFile] = []
        for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
            path, begin, is_last = base + name, int(name), number == len(names) - 1
            if number and begin != files[-1].begin + file_size and not may_have_gaps:
                raise StoreCorrupt(
                    path, 0, f"the file should begin at {files[-1].begin + file_size}; a file before it is missing"
                )
            if (is_last and size < file_size and (len(names) > 1 or not size)) or (after_crash and not size):
                if writable:
                    os.truncate(path, file_size)
                    size = file_size
            elif size != file_size:
                raise StoreCorrupt(
                    path, size, f"the file has {size} bytes; others have, or are set to have, {file_size}"
                )
            files.append(MappedFile(path, size, writable=writable, begin=begin))
        return cls(directory, file_size, files)

    @property
    def begin(self) -> int:
        return self.files[0].begin if self.files else 0

    @property
    def gap(self) -> int | None:
        """The logical offset of the first missing file; None without a gap."""
        for before, after in pairwise(self.files):
            if before.end != after.begin:
                return before.end
        return None

    @property
    def end(self) -> int:
        """The logical offset after the last file, written or not; 0 without files."""
        return self.files[-1].end if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        files = self.files
        if not files or not files[0].begin <= offset < files[-1].begin + self.file_size:
            return None
        return files[(offset - files[0].begin) // self.file_size]

    def create_next(self, begin: int | None = None, *, reads_ahead: bool = True, is_mapped: bool = True) -> MappedFile:
        """Add a file after the last one; the first starts at `begin`, a multiple of the file size."""
        if begin is None or self.files:
            begin = self.end
        if self.files:
            self.files[-1].sync_name()
        path = self.directory / file_name(begin)
        file = MappedFile.create(path, self.file_size, begin=begin, reads_ahead=reads_ahead, is_mapped=is_mapped)
        self.files.append(file)
        return file

    def detach_first(self) -> MappedFile:
        file = self.files[0]
        file.detach()
        del self.files[0]
        return file

    def truncate(self, offset: int) -> None:
        """Erase everything from an offset on, durably: old bytes must not complete a later, torn record."""
        if self.files and self.files[-1].begin > offset:
            while self.files and self.files[-1].begin > offset:
                # The last file first: a crash in between leaves no gap.
                self.files.pop().delete()
            sync_directory(self.directory)
        file = self.find(offset)
        if file is not None and file.erase(offset - file.begin):
            file.flush()

    def close(self) -> None:
        for file in self.files:
            file.close()

    def __iter__(self) -> Iterator[MappedFile]:
        return iter(self.files)


def file_name(begin: int) -> str:
    return f"{begin:0{NAME_DIGITS}d}"


def file_paths(directory: Path) -> list[Path]:
    return [directory / name for name in _file_names(directory)]


def _file_names(directory: Path) -> list[str]:
    try:
        return sorted(filter(is_file_name, os.listdir(directory)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_file_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
