"""The directory lock: at most one broker serves a store directory.

`<store>/lock` contains the four letters "lock". The broker holds an exclusive POSIX lock on its first byte. Apache's
broker takes the same lock, so neither starts on a directory that the other serves. A POSIX lock belongs to the process
and is lost when the process closes any descriptor of the file. Therefore the locks of this process are recorded here,
and a second store in the same process is refused before it opens the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from rucola.errors import StoreLocked
from rucola.files import FILE_MODE, check_ownership

_held: set[tuple[int, int]] = set()
"""(device, inode) of each lock file that this process has locked."""


class DirectoryLock:
    """A lock that is held from construction to `release`.

    Raises StoreLocked if another store has it, and StoreError if other users may change the directory or one of
    `others`, which belong to the store as well.
    """

    def __init__(self, store: Path, *others: Path) -> None:
        path = store / "lock"
        for directory in (store, *others):
            check_ownership(directory)
        path.touch(FILE_MODE)
        status = path.stat()
        self._identity = (status.st_dev, status.st_ino)
        if self._identity in _held:
            raise StoreLocked(f"{store} is served by another broker in this process")
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(self._fd, b"lock", 0)
        except OSError as error:
            os.close(self._fd)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise StoreLocked(f"{store} is served by another process; stop that broker first") from error
        _held.add(self._identity)

    def release(self) -> None:
        """Release the lock. The file stays, as Apache leaves it."""
        _held.discard(self._identity)
        os.close(self._fd)


def is_served(store: Path) -> bool:
    """Tell whether a broker, of this process or another one, serves a store directory. Nothing is written."""
    try:
        status = (store / "lock").stat()
        # Opening and closing the file would release the lock of this process.
        if (status.st_dev, status.st_ino) in _held:
            return True
        descriptor = os.open(store / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Fails while another process has the exclusive lock. Closing the file releases the shared one.
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return True
    finally:
        os.close(descriptor)
    return False
