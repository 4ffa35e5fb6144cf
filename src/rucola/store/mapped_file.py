"""Mapped files: fixed-size files, mapped into memory, that form one long logical file.

A CommitLog and a ConsumeQueue are each a directory of such files. A file's name is the logical offset of its first
byte in 20 decimal digits, and each begins where the one before ends:

    00000000000000000000    bytes          0 ..   size
    00000000000000001024    bytes       1024 .. 2 size          (with a size of 1024)

When the oldest files are deleted, the logical file begins later; offsets never change.

How a file is written:

1. It is created with its full size, sparse: the file system adds blocks as the file fills.
2. `reserve` requests blocks ahead of the writes, in windows. A mapped write to a hole that the full disk cannot fill
   would kill the process (SIGBUS); `reserve` turns that into an OSError.
3. `warm` touches the pages of the next window in another thread, so that the writer gets no page faults.
4. `flush` syncs only the requested pages. Warmed pages would otherwise be written to disk twice, and fault
   again at their first write.
5. The first flush also makes the file's name durable (`sync_name`): only callers that wait for the bytes wait for it.
   The next file is not created before that, because a gap between files could not be repaired.

An opened file is mapped at the first access: a broker has thousands of queues, most of them idle, and a process has
limits of descriptors and mappings. A mapping keeps a descriptor of its own. It cannot be closed while a memoryview of
it exists; then the garbage collector closes it.

A file may be removed from its queue while other threads use it. They hold it (`hold`, `release`); a detached file can
no longer be held, and after its deletion the last holder closes it.

Corresponds to org.apache.rocketmq.store.MappedFile and MappedFileQueue.
"""

from __future__ import annotations

import ctypes
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
from rucola.files import DIRECTORY_MODE, FILE_MODE, open_inside, sync_directory
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
"""Whether pages can be touched for writing beside the writer; if not, `warm` does nothing."""

_LIBC: Final = c_library()
_madvise: Final = _LIBC.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_msync: Final = _LIBC.msync
_msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_holders_lock: Final = threading.Lock()
"""Guards `_holders` and `_is_detached` of all files; never held while the disk works."""


def sync_pages(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Wait until the pages between two positions, and metadata to read them, are on disk.

    Unless `SYNC_REACHES_DRIVE`, the bytes may still be in the drive's cache. Raises OSError.
    """
    _ask_for_pages(_msync, mapped, begin - begin % PAGE_SIZE, end, MS_SYNC)


def _ask_for_pages(call: Callable[..., int], mapped: mmap.mmap, begin: int, end: int, flag: int) -> None:
    """Call msync or madvise for the pages from `begin`, a page boundary, to `end`.

    Raises OSError. `mmap.flush` and `mmap.madvise` hold the interpreter lock during the system call, so the writer
    would wait for the disk. A ctypes call releases it.
    """
    if begin < end:
        first = ctypes.c_char.from_buffer(mapped, begin)  # keeps the file mapped during the call
        if call(ctypes.addressof(first), end - begin, flag):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


class MappedFile:
    """One mapped file.

    One thread writes; `flush`, `warm`, `hold`, `release` and `sync_name` are for any thread. A file that was opened
    read-only keeps the size that it had then; an empty one has an empty buffer.
    """

    def __init__(self, path: Path, size: int, *, writable: bool, begin: int, reads_ahead: bool = True) -> None:
        self.path = path
        self.size = size
        self.writable = writable
        self.begin = begin
        """The logical offset of the first byte."""
        self.reads_ahead = reads_ahead
        """Whether the kernel may read ahead; to be set before the file is mapped. In a file that ends in holes it would
        fill the page cache with zeros: megabytes for one page if the machine is configured for large read-ahead."""
        self.is_changed = False
        """Whether this process may have written to the file: it created it, reserved blocks, or erased."""
        self.reserved = 0
        """The position up to which the file is known to have blocks. Owner and warming thread only ever raise it."""
        self._fd = -1
        """The descriptor of `write`; -1 until it is needed."""
        self._warmed = 0
        """The position up to which pages were touched. Belongs to the warming thread."""
        self._can_populate = _POPULATES
        """False if `warm` is not possible, and after it failed: the kernel is too old, or the disk is full."""
        self._unsynced: list[Path] = []
        """Directories whose entry for this file, or for each other, may not be on disk yet; innermost first."""
        self._sync_error: OSError | None = None
        """The error of a failed `sync_name`, which all later calls raise."""
        self._holders = 0
        self._is_detached = self._is_deleted = self._is_closed = False

    @classmethod
    def open(cls, path: Path, *, writable: bool = False, begin: int = 0) -> MappedFile:
        """Open an existing file, without mapping it yet. Raises OSError if it does not exist."""
        return cls(path, path.stat().st_size, writable=writable, begin=begin)

    @classmethod
    def create(cls, path: Path, size: int, *, begin: int = 0, reads_ahead: bool = True) -> MappedFile:
        """Create a file of `size` zeros, with missing directories, and map it.

        Raises FileExistsError if it exists, and OSError; then no file is left.
        """
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
                file = cls(path, size, writable=True, begin=begin, reads_ahead=reads_ahead)
                file.map = file._mapped(fd)
            except BaseException:
                path.unlink()
                raise
            finally:
                os.close(fd)
        except OSError:
            # A directory that stays would count as durable at the next attempt.
            with suppress(OSError):
                for directory in unsynced[:-1]:
                    directory.rmdir()
            raise
        file._unsynced = unsynced
        file.is_changed = True
        return file

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
        # Beyond the end of its file a mapping ends the process (SIGBUS); a file that is shorter by now is not mapped.
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

    def seal(self) -> None:
        """End writing to a full file: close `write`'s descriptor, and let the kernel read ahead."""
        self._close_fd()
        if not self.reads_ahead:
            self.reads_ahead = True
            self.map.madvise(mmap.MADV_NORMAL)

    def _close_fd(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open a descriptor of the file for the duration of the block. Raises OSError."""
        fd = open_inside(self.path.parent, self.path, os.O_RDWR if self.writable else os.O_RDONLY)
        try:
            yield fd
        finally:
            os.close(fd)

    @property
    def end(self) -> int:
        """The logical offset after the file's last byte."""
        return self.begin + self.size

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write many bytes with pwrite, to a position that has blocks.

        Mapped pages cost a fault at their first write, another one after each flush, and each flush an interrupt per
        page; pwrite costs none of these. Bytes that pwrite does not accept are written through the mapping.
        """
        written = 0
        with suppress(OSError):  # the process may be out of descriptors
            written = os.pwrite(self._fd if self._fd >= 0 else self.descriptor(), data, position)
        if written < len(data):
            self.map[position + written : position + len(data)] = data[written:]

    def descriptor(self) -> int:
        """Return the descriptor of `write`, which stays open until the file is full. Raises OSError."""
        if self._fd < 0:
            self._fd = open_inside(self.path.parent, self.path, os.O_RDWR)
        return self._fd

    @property
    def is_name_durable(self) -> bool:
        """Whether `sync_name` has nothing to do."""
        return not self._unsynced

    def reserve(self, end: int, window: int) -> None:
        """Ensure disk blocks up to position `end`, requesting `window` bytes at a time.

        Raises OSError (ENOSPC, EDQUOT) if the disk is full; nothing was written then.
        """
        begin = self.reserved  # read once: the warming thread may raise it at any moment
        if end > begin:
            # Up to the next multiple of the window: 9,000,000 with windows of 8 MiB gives 16,777,216.
            upto = min(max(end, end + window - end % window), self.size)
            # After a restart `reserved` is 0, so this starts at the begin of the file, which may have holes as well.
            with self.opened() as fd:
                allocate(fd, begin, upto - begin)
            self.reserved = max(self.reserved, upto)
            self.is_changed = True

    def warm(self, begin: int, end: int, pause: Callable[[], None] | None = None) -> None:
        """Touch the pages from position `begin` to `end` for writing.

        Writes there then cause no page fault. For a thread beside the writer's. Requests their blocks first; skips
        pages that were warmed before; calls `pause` between two steps. A full disk or an old kernel ends the warming of
        this file without an error.
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

    def erase(self, position: int) -> bool:
        """Overwrite the file with zeros from `position` on, and tell whether it held anything else.

        Whole pages give back their blocks. The zeros are not on disk yet. The file keeps its size at every moment: a
        shorter one, left by a crash, would contradict the configuration.
        """
        is_anything = not self.is_zero_from(position)
        if is_anything:
            # From position 5,000 on: zeros up to 8,192, and from there whole pages.
            page = min(-(-position // PAGE_SIZE) * PAGE_SIZE, self.size)
            self.map[position:page] = bytes(page - position)
            if page < self.size:
                self._erase_pages(page)
            self.reserved = self._warmed = 0
            self.is_changed = True
        return is_anything

    def _erase_pages(self, begin: int) -> None:
        """Overwrite whole pages with zeros from position `begin` on; free their blocks if possible."""
        if hasattr(mmap, "MADV_REMOVE"):
            self.map.madvise(mmap.MADV_REMOVE, begin, self.size - begin)
            return
        with self.opened() as fd:
            for position, end in data_ranges(fd, begin, self.size):
                for piece in range(position, end, len(_ZEROS)):
                    os.pwrite(fd, _ZEROS[: end - piece], piece)

    def is_zero_from(self, position: int) -> bool:
        """Tell whether the file has only zeros from `position` on. Skips holes without reading them."""
        with self.opened() as fd:
            for begin, end in data_ranges(fd, position, self.size):
                for at in range(begin, end, len(_ZEROS)):
                    piece = os.pread(fd, min(len(_ZEROS), end - at), at)
                    if piece != _ZEROS[: len(piece)]:
                        return False
            return True

    def flush(self, begin: int = 0, end: int | None = None) -> None:
        """Wait until the bytes from `begin` to `end` and the file's name are on disk.

        By default these are all bytes. Other threads may write meanwhile. Does nothing for a detached file. Raises
        OSError.
        """
        if self.hold():
            try:
                if "map" in self.__dict__:
                    sync_pages(self.map, begin, self.size if end is None else end)
                # A file that is not mapped was not written by this process, but may have been by an earlier one.
                if "map" not in self.__dict__ or not SYNC_REACHES_DRIVE:
                    with self.opened() as fd:
                        sync_data(fd)
                self.sync_name()
            except FileNotFoundError:
                if not self._is_detached:
                    raise
            finally:
                self.release()

    def sync_name(self) -> None:
        """Wait until the names of a new file and its new directories are on disk.

        For any thread. fsync reports an error once, so the error is kept and raised by every later call; that of a call
        which got no descriptor is not.
        """
        if self._sync_error is not None:
            raise self._sync_error
        try:
            # From the outside in, since a directory's entries count only once its own name is durable.
            for directory in reversed(self._unsynced):
                sync_directory(directory)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                self._sync_error = error
            raise
        self._unsynced = []

    def mark_name_unsynced(self) -> None:
        """Let the next flush sync the file's name, which a killed process may have skipped."""
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
        """Whether a thread holds the file."""
        return self._holders > 0

    def detach(self) -> None:
        """Make every later `hold` fail: the file is about to be deleted."""
        with _holders_lock:
            self._is_detached = True

    def close(self) -> None:
        """Unmap and close the file. The kernel writes back the bytes that were not flushed."""
        self._is_closed = True
        self._close_fd()
        try:
            if "map" in self.__dict__:
                self.map.close()
        except BufferError:
            pass  # a reader still has a memoryview; the mapping is closed with it

    def delete(self) -> None:
        """Delete the file and close it, or let its last holder close it.

        Closing frees its blocks. Raises OSError; may be called again then.
        """
        self.detach()
        self.path.unlink(missing_ok=True)
        with _holders_lock:
            self._is_deleted = True
            is_held = self.is_held
        if not is_held:
            self.close()


class MappedFileQueue:
    """The files of one directory, which form a logical file from `begin` to `end`.

    `files` has them oldest first; empty if the directory is new.
    """

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
        """Open all files of a directory; a missing directory counts as empty.

        With `file_size` 0 the size is that of the first file. A crash during the creation of a file leaves it empty or
        short. If `writable`, the last file then gets its full size; `after_crash` every empty one does, since several
        may have been created of which nothing was flushed. Raises StoreCorrupt for a file of another size and for a
        gap between two files, unless it `may_have_gaps` (see `gap`). Ignores names other than 20 digits.
        """
        paths = file_paths(directory)
        sizes = [path.stat().st_size for path in paths]
        if paths and not file_size:
            # After a crash the last file may be short, and the last may be the second; so the larger of two counts.
            file_size = max(sizes[:2])
        files: list[MappedFile] = []
        for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
            begin, is_last = int(path.name), number == len(paths) - 1
            if number and begin != files[-1].begin + file_size and not may_have_gaps:
                raise StoreCorrupt(
                    path, 0, f"the file should begin at {files[-1].begin + file_size}; a file before it is missing"
                )
            if (is_last and size < file_size and (len(paths) > 1 or not size)) or (after_crash and not size):
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
        """The logical offset of the first byte that is not deleted; 0 without files."""
        return self.files[0].begin if self.files else 0

    @property
    def gap(self) -> int | None:
        """The logical offset at which the first missing file would begin; None if there is none."""
        for before, after in pairwise(self.files):
            if before.end != after.begin:
                return before.end
        return None

    @property
    def end(self) -> int:
        """The logical offset after the last file, written or not; 0 without files."""
        return self.files[-1].end if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        """Return the file with a logical offset, or None. O(1): all files have one size."""
        files = self.files
        if not files or not files[0].begin <= offset < files[-1].begin + self.file_size:
            return None
        return files[(offset - files[0].begin) // self.file_size]

    def map_all(self) -> None:
        """Map all files now, to read them even after another process deletes them. Raises OSError."""
        for file in self.files:
            _ = file.map

    def create_next(self, begin: int | None = None, *, reads_ahead: bool = True) -> MappedFile:
        """Add a file after the last one.

        If there is none, the file begins at `begin`, a multiple of the file size.
        """
        if begin is None or self.files:
            begin = self.end
        if self.files:
            self.files[-1].sync_name()
        file = MappedFile.create(
            self.directory / file_name(begin), self.file_size, begin=begin, reads_ahead=reads_ahead
        )
        self.files.append(file)
        return file

    def detach_first(self) -> MappedFile:
        """Remove and return the first file; the caller deletes it."""
        file = self.files[0]
        file.detach()
        del self.files[0]
        return file

    def truncate(self, offset: int) -> None:
        """Erase everything from a logical offset on.

        Its file has zeros up to the end then, and no file follows. The zeros are durable on return, so that a later
        record, if it is torn, cannot be completed by an old one.
        """
        if self.files and self.files[-1].begin > offset:
            while self.files and self.files[-1].begin > offset:
                # The last file first: a crash in between leaves no gap.
                self.files.pop().delete()
            sync_directory(self.directory)
        file = self.find(offset)
        if file is not None and file.erase(offset - file.begin):
            file.flush()

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()

    def __iter__(self) -> Iterator[MappedFile]:
        return iter(self.files)


def file_name(begin: int) -> str:
    """Return the name of the file whose first byte has this logical offset."""
    return f"{begin:0{NAME_DIGITS}d}"


def file_paths(directory: Path) -> list[Path]:
    """Return the paths in `directory` whose names are logical offsets, in order."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [directory / name for name in sorted(names) if is_file_name(name)]


def is_file_name(name: str) -> bool:
    """Tell whether a name is a logical offset in 20 digits."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
