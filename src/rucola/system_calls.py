"""System calls for files, with the same guarantees on Linux and macOS, chosen at import.

    call             Linux              macOS
    sync_data        fdatasync          F_FULLFSYNC: fsync leaves the bytes in the cache of the drive there, which a
                                        power cut empties. A file system without F_FULLFSYNC raises OSError
    sync_all         fsync              F_FULLFSYNC
    allocate         posix_fallocate    zeros are written over zeros, in the pages that hold nothing else
    data_ranges      SEEK_DATA, SEEK_HOLE on both; without them, everything counts as data
    copy_bytes       sendfile           reads and writes
    exchange_names   renameat2          renamex_np
    is_cached        RWF_NOWAIT         yes
    will_read        posix_fadvise      nothing

The client needs none of them and runs on Windows, too, where `check_platform` refuses a broker or a store.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rucola.errors import ConfigError

with suppress(ModuleNotFoundError):  # Windows
    import fcntl
    import resource

NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
"""No fsync has these errors."""
EXHAUSTED: Final = (*NO_DESCRIPTOR, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
"""Temporary errors, except of fsync: the file system may have dropped its data."""

_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None) if "fcntl" in globals() else None

OPEN_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Child processes inherit no descriptor, and bytes are not changed."""
SYNC_REACHES_DRIVE: Final = _FULL_SYNC is None
"""Whether msync waits for the drive. If not, `sync_data` has to follow it."""
ALLOCATES_BESIDE_WRITER: Final = hasattr(os, "posix_fallocate")
"""Whether `allocate` may run while another thread writes to the range."""

_IS_MACOS: Final = sys.platform == "darwin"
_SENDS_FILES: Final = sys.platform == "linux" and hasattr(os, "sendfile")
_FINDS_HOLES: Final = hasattr(os, "SEEK_DATA") and hasattr(os, "SEEK_HOLE")
_PIECE: Final = 1 << 20
_PAGE: Final = 4096
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MAX_MMAP_THRESHOLD: Final = 32 * 1024 * 1024

MS_SYNC: Final = 0x10 if _IS_MACOS else 4
"""The value of Linux means "discard the pages" on macOS."""


_DEFAULT_MAPPINGS: Final = 65_530


def check_platform() -> None:
    """Raise ConfigError on Windows, which lacks the locks and mappings of a store."""
    if sys.platform == "win32":
        raise ConfigError("a broker and its store need Linux or macOS; clients (rucola.client) also run on Windows")


def c_library() -> Any:
    """Return the C library; functions set errno for `ctypes.get_errno`."""
    return ctypes.CDLL(None, use_errno=True)


def descriptor_limit() -> int | None:
    if "resource" not in globals():
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def mapping_limit() -> int:
    """Return how many mappings a process may have."""
    try:
        with open("/proc/sys/vm/max_map_count") as file:
            return int(file.read())
    except OSError:  # macOS has no such limit
        return _DEFAULT_MAPPINGS


def keep_freed_memory(size: int) -> None:
    """Let glibc keep up to `size` freed bytes instead of returning them to the kernel."""
    if sys.platform == "linux" and hasattr(library := c_library(), "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)
        library.mallopt(_M_TRIM_THRESHOLD, size)


def sync_data(fd: int) -> None:
    """Wait until a file's data, and the metadata to read them, are on the drive. OSError."""
    if _FULL_SYNC is not None:
        fcntl.fcntl(fd, _FULL_SYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def sync_all(fd: int) -> None:
    """Wait until a file with its metadata, or a directory, is on the drive. OSError."""
    if _FULL_SYNC is not None:
        fcntl.fcntl(fd, _FULL_SYNC)
    else:
        os.fsync(fd)


def allocate(fd: int, begin: int, size: int) -> None:
    """Allocate blocks for a range in a file; needs ALLOCATES_BESIDE_WRITER if another thread writes to it. OSError."""
    if ALLOCATES_BESIDE_WRITER:
        os.posix_fallocate(fd, begin, size)
        return
    # Zeros written over a hole allocate blocks and change nothing; pages with other bytes have blocks.
    end = begin + size
    for position in range(begin, end, _PIECE):
        piece = os.pread(fd, min(_PIECE, end - position), position)
        if not any(piece):
            os.pwrite(fd, piece, position)
            continue
        for page in range(0, len(piece), _PAGE):
            if not any(piece[page : page + _PAGE]):
                os.pwrite(fd, piece[page : page + _PAGE], position + page)


def data_ranges(fd: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) of ranges that may hold nonzero bytes."""
    while begin < end:
        if not _FINDS_HOLES:
            yield begin, end
            return
        try:
            # Data at 0 to 4,096 and at 12,288 to 16,384, in a file of 20,480 bytes: these two ranges, then ENXIO.
            begin = os.lseek(fd, begin, os.SEEK_DATA)
            hole = os.lseek(fd, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        if begin < end:
            yield begin, min(hole, end)
        begin = hole


def copy_bytes(source: int, target: int, size: int) -> None:
    """Copy a file's first `size` bytes over another's, fewer if the source is shorter."""
    position = 0
    while position < size:
        if _SENDS_FILES:
            count = os.sendfile(target, source, position, min(size - position, 1 << 30))
        else:
            count = os.pwrite(target, os.pread(source, min(size - position, _PIECE), position), position)
        if not count:
            return
        position += count


def is_cached(fd: int, position: int) -> bool:
    """Return whether a read waits for no disk; True if the system cannot tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    try:
        os.preadv(fd, [bytearray(1)], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def will_read(fd: int, position: int, size: int) -> None:
    """Have the disk read a range, without waiting for it."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, position, size, os.POSIX_FADV_WILLNEED)


def exchange_names(one: Path, other: Path) -> None:
    """Exchange the names of two directories atomically. OSError: ENOSYS or EINVAL if not supported."""
    library, names = c_library(), (os.fsencode(one), os.fsencode(other))
    if _IS_MACOS:
        failed = library.renamex_np(*names, _RENAME_EXCHANGE)
    elif hasattr(library, "renameat2"):
        failed = library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(other))
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))
