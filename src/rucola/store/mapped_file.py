"""Files of one size, mapped into memory, that make up one long logical file.

A CommitLog and a ConsumeQueue are each a directory of such files. A file's name is the logical offset of its first
byte in 20 decimal digits, and each begins where the one before ends:

    00000000000000000000    bytes          0 ..   size
    00000000000000001024    bytes       1024 .. 2 size          (with a size of 1024)

When the oldest files are deleted, the logical file begins later; offsets never change.

A file has its whole size from the start and is sparse: blocks come as the file fills. A mapped write to a block
that the disk cannot give kills the process (SIGBUS), therefore `reserve` asks for blocks ahead of the writes, in
windows, and turns a full disk into an OSError. `warm` takes the page faults of a window off the writer's path.

A file that is opened is mapped when its bytes are first asked for: a broker has thousands of queues, most of them idle,
and a process has a limit of descriptors and one of mappings. A mapping keeps a descriptor of its own.

A flush brings those pages to disk that it is asked for, and not what was touched ahead of the writes: that would go
there twice, and fault once more when it is written.

A mapping cannot be closed while a memoryview into it lives; such a file is left to the garbage collector.

A new file's name is brought to disk by its first flush, not when it is made: whoever waits for the bytes waits for
that, and nobody else has to. Only the next file of a queue is not made before, since a gap could not be mended.

A file that goes away may be in another thread's hands. Whoever works on it there holds it meanwhile (`hold`); a file
that has left its queue cannot be held any more, and is closed by the last who does.

Answers to org.apache.rocketmq.store.MappedFile and MappedFileQueue.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Final

from rucola.errors import StoreCorrupt
from rucola.files import sync_directory

NAME_DIGITS: Final = 20
PAGE_SIZE: Final = mmap.PAGESIZE

_MADV_POPULATE_WRITE: Final = 23
_ZEROS: Final = bytes(1 << 20)
_WARM_STEP: Final = 64 * PAGE_SIZE
_MS_SYNC: Final = 4

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_madvise: Final = _LIBC.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_msync: Final = _LIBC.msync
_msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_lock: Final = threading.Lock()
"""Guards who holds which file; never kept while the disk works."""


def sync_pages(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Wait until the pages from position `begin` to `end` are on disk, and what leads to them. Raises OSError."""
    _ask_for_pages(_msync, mapped, begin - begin % PAGE_SIZE, end, _MS_SYNC)


def _ask_for_pages(call: Callable[..., int], mapped: mmap.mmap, begin: int, end: int, flag: int) -> None:
    """Ask the kernel for something with the pages from `begin`, where one begins, to `end`. Raises OSError.

    `mmap.flush` and `mmap.madvise` keep the interpreter lock for as long as that takes, and the writer waiting for it;
    this goes past them.
    """
    if begin < end:
        first = ctypes.c_char.from_buffer(mapped, begin)  # while this is there the file stays mapped
        if call(ctypes.addressof(first), end - begin, flag):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


class MappedFile:
    """One file in memory, `map[position]` being its bytes.

    `begin` is the logical offset of its first byte. A file that was opened read-only is as long as it was then; an
    empty one is an empty buffer.
    """

    def __init__(self, path: Path, size: int, *, writable: bool, begin: int, reads_ahead: bool = True) -> None:
        self.path = path
        self.size = size
        self.writable = writable
        self.begin = begin
        self.reads_ahead = reads_ahead
        """Whether the kernel may read more than is asked for; to be set before the file is mapped. It reads holes, too,
        and fills the memory with their zeros, with megabytes of them for one page where a machine is set to that."""
        self.is_changed = False
        """Whether this process may have written to the file: it asked for blocks, made the file or erased."""
        self.reserved = 0
        """Up to this position the file is known to have blocks."""
        self._fd = -1
        self._warmed = 0
        self._populates = True
        self._unsynced: list[Path] = []
        self._lost_name: OSError | None = None
        self._holders = 0
        self._is_leaving = self._is_deleted = self._is_closed = False

    @classmethod
    def open(cls, path: Path, *, writable: bool = False, begin: int = 0) -> MappedFile:
        """Take an existing file. Raises OSError where there is none."""
        return cls(path, path.stat().st_size, writable=writable, begin=begin)

    @classmethod
    def create(cls, path: Path, size: int, *, begin: int = 0, reads_ahead: bool = True) -> MappedFile:
        """Make a new file of `size` zeros, and missing directories, and map it.

        Raises FileExistsError where one is, and OSError; then there is none.
        """
        unsynced = [path.parent]
        while not os.path.isdir(unsynced[-1]):
            unsynced.append(unsynced[-1].parent)
        os.makedirs(path.parent, exist_ok=True)  # Another task of a rebuild may be making the same topic's.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, size)
            file = cls(path, size, writable=True, begin=begin, reads_ahead=reads_ahead)
            file.map = file._mapped(fd)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(fd)
        file._unsynced = unsynced
        file.is_changed = True
        return file

    @cached_property
    def map(self) -> mmap.mmap:
        """The file in memory. Raises OSError where it cannot be opened."""
        if self._is_closed:
            raise ValueError(f"{self.path} is closed")
        if not self.size:  # Only the read-only side meets such files, and an anonymous page says as little as they do.
            return mmap.mmap(-1, PAGE_SIZE)
        with self.opened() as fd:
            return self._mapped(fd)

    def _mapped(self, fd: int) -> mmap.mmap:
        mapped = mmap.mmap(fd, self.size, access=mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ)
        if not self.reads_ahead:
            mapped.madvise(mmap.MADV_RANDOM)
        return mapped

    def seal(self) -> None:
        """Let the kernel read ahead in a file that is full, and give up the descriptor of its writes."""
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
        """A descriptor of the file for as long as the block runs. Raises OSError where it cannot be opened."""
        fd = os.open(self.path, (os.O_RDWR if self.writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    @property
    def end(self) -> int:
        """The logical offset behind the file's last byte."""
        return self.begin + self.size

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write much to a position that has blocks.

        By a call, which takes it page by page: mapped pages cost a fault when they are first touched, another one after
        each flush, and each flush an interrupt for each of them. What the call does not take goes to the mapped pages.
        """
        written = 0
        with suppress(OSError):  # there may be no descriptor to spare
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            written = os.pwrite(self._fd, data, position)
        if written < len(data):
            self.map[position + written : position + len(data)] = data[written:]

    def reserve(self, end: int, window: int) -> None:
        """See to it that the file has blocks up to position `end`, asking for `window` bytes at a time.

        Raises OSError (ENOSPC, EDQUOT) where the disk has no room; then nothing was written and nothing is lost.
        """
        begin = self.reserved  # which the thread that warms may raise at any moment
        if end > begin:
            upto = min(max(end, end + window - end % window), self.size)
            # In a file that was opened again this asks from its beginning on, where it may have holes too.
            with self.opened() as fd:
                os.posix_fallocate(fd, begin, upto - begin)
            self.reserved = max(self.reserved, upto)
            self.is_changed = True

    def warm(self, begin: int, end: int) -> None:
        """Touch the pages from position `begin` to `end` for writing, so that writes there do not fault.

        Takes blocks for them first. For a thread beside the writer's. Pages that were warmed before are passed over. A
        full disk and an old kernel end it early; both are the writer's to meet.
        """
        begin = max(begin, self._warmed) // PAGE_SIZE * PAGE_SIZE
        end = min(-(-end // PAGE_SIZE) * PAGE_SIZE, self.size)
        try:
            if begin < end and self._populates:
                with self.opened() as fd:
                    os.posix_fallocate(fd, begin, end - begin)
                self.is_changed = True
                if begin <= self.reserved:
                    self.reserved = max(self.reserved, end)
                for step in range(begin, end, _WARM_STEP):
                    _ask_for_pages(_madvise, self.map, step, min(step + _WARM_STEP, end), _MADV_POPULATE_WRITE)
                    self._warmed = min(step + _WARM_STEP, end)
        except OSError:
            self._populates = False

    def erase(self, position: int) -> bool:
        """Turn everything from `position` to the end of the file into zeros, give its blocks back, and tell whether
        there was anything. The zeros are not on disk yet.

        The file keeps its size all the while: a file cut short in a crash would contradict the configuration.
        """
        is_anything = not self.is_zero_from(position)
        if is_anything:
            page = min(-(-position // PAGE_SIZE) * PAGE_SIZE, self.size)
            self.map[position:page] = bytes(page - position)
            if page < self.size:
                self.map.madvise(mmap.MADV_REMOVE, page, self.size - page)
            self.reserved = self._warmed = 0
            self.is_changed = True
        return is_anything

    def is_zero_from(self, position: int) -> bool:
        """Tell whether there are only zeros from `position` to the end of the file. Holes are not read."""
        with self.opened() as fd:
            while position < self.size:
                try:
                    position = os.lseek(fd, position, os.SEEK_DATA)
                    hole = os.lseek(fd, position, os.SEEK_HOLE)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # there is nothing but a hole
                        return True
                    raise
                while position < hole:
                    piece = os.pread(fd, min(len(_ZEROS), hole - position), position)
                    if piece != _ZEROS[: len(piece)]:
                        return False
                    position += len(piece)
            return True

    def flush(self, begin: int = 0, end: int | None = None) -> None:
        """Wait until the bytes from position `begin` to `end`, or all, and the file's name are on disk.

        Lets other threads run; they may write meanwhile. Does nothing for a file that has left its queue.
        """
        if self.hold():
            try:
                if "map" in self.__dict__:
                    sync_pages(self.map, begin, self.size if end is None else end)
                else:  # not written to by this process, but perhaps by one before it
                    with self.opened() as fd:
                        os.fdatasync(fd)
                self.sync_name()
            except FileNotFoundError:
                if not self._is_leaving:
                    raise
            finally:
                self.release()

    def sync_name(self) -> None:
        """Wait until the name of a file that was made here is on disk, and those of its directories. For any thread.

        An error is for all who ask: the kernel tells one alone of it, and who asks next would believe that all is well.
        """
        if self._lost_name is not None:
            raise self._lost_name
        try:
            for directory in reversed(self._unsynced):
                sync_directory(directory)
        except OSError as error:
            self._lost_name = error
            raise
        self._unsynced = []

    def mark_name_unsynced(self) -> None:
        """Let the next flush bring the file's name to disk: a process that was killed may not have come to that."""
        self._unsynced = [self.path.parent]

    def hold(self) -> bool:
        """Keep the file open until `release`. False where it has left its queue. For any thread."""
        with _lock:
            if not self._is_leaving:
                self._holders += 1
            return not self._is_leaving

    def release(self) -> None:
        """End what `hold` began."""
        with _lock:
            self._holders -= 1
        if self._is_deleted and not self._holders:
            self.close()

    @property
    def is_held(self) -> bool:
        """Whether somebody holds the file."""
        return self._holders > 0

    def detach(self) -> None:
        """Let nobody hold the file from now on."""
        with _lock:
            self._is_leaving = True

    def close(self) -> None:
        """Unmap and close the file. Bytes that were not flushed are left to the kernel."""
        self._is_closed = True
        self._close_fd()
        try:
            if "map" in self.__dict__:
                self.map.close()
        except BufferError:
            pass

    def delete(self) -> None:
        """Remove the file from its directory and close it; while somebody holds it, its blocks stay taken.

        May be called again when it raised OSError.
        """
        self.detach()
        self.path.unlink(missing_ok=True)
        self._is_deleted = True
        if not self.is_held:
            self.close()


class MappedFileQueue:
    """The files of one directory in order: a logical file from `begin` to `end`.

    `files` holds them, oldest first; it is empty in a new directory, whose next file then begins at 0 or where
    `create_next` is told.
    """

    __slots__ = ("directory", "file_size", "files")

    def __init__(self, directory: Path, file_size: int, files: list[MappedFile]) -> None:
        self.directory = directory
        self.file_size = file_size
        self.files = files

    @classmethod
    def open(
        cls, directory: Path, *, writable: bool = False, file_size: int = 0, after_crash: bool = False
    ) -> MappedFileQueue:
        """Take all files of a directory. A missing directory is an empty one.

        With `file_size` 0 the size is that of the first file. A last file that is empty, or shorter than those before
        it, as a crash in the moment of its making leaves it, gets its size when `writable`; so does any empty one
        `after_crash`, since several files may have been made of which nothing was flushed. Raises StoreCorrupt for
        a file of another size and for a gap between two files. Names that are no 20 digits are not looked at.
        """
        paths = file_paths(directory)
        sizes = [path.stat().st_size for path in paths]
        if paths and not file_size:
            file_size = max(sizes[:2])
        files: list[MappedFile] = []
        for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
            begin, is_last = int(path.name), number == len(paths) - 1
            if number and begin != files[-1].begin + file_size:
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
        """The logical offset of the first byte that is still there."""
        return self.files[0].begin if self.files else 0

    @property
    def end(self) -> int:
        """The logical offset behind the last file, written or not."""
        return self.files[-1].end if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        """Return the file in which the logical offset lies, or None where there is no such file."""
        files = self.files
        if not files or not files[0].begin <= offset < files[-1].begin + self.file_size:
            return None
        return files[(offset - files[0].begin) // self.file_size]

    def map_all(self) -> None:
        """Map all files now: they can be read then even when others delete them. Raises OSError."""
        for file in self.files:
            _ = file.map

    def create_next(self, begin: int | None = None, *, reads_ahead: bool = True) -> MappedFile:
        """Add a file behind the last one; in an empty queue it starts at `begin`, a multiple of the file size."""
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
        """Let the logical file begin with the second file and return the first, which is then to be deleted."""
        file = self.files[0]
        file.detach()
        del self.files[0]
        return file

    def truncate(self, offset: int) -> None:
        """Erase everything from the logical offset on: zeros to the end of its file, and no file after that.

        The zeros are on disk when this returns: what is written over them cannot be torn together with what lay there.
        """
        if self.files and self.files[-1].begin > offset:
            while self.files and self.files[-1].begin > offset:
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
