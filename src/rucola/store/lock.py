"""The lock that keeps a second broker out of a store directory.

`<store>/lock` holds the four letters "lock". Whoever serves the directory holds an exclusive POSIX lock on its first
byte, which is what Apache's broker takes too, so that neither starts where the other runs. Such a lock belongs to a
process, not to a file descriptor, and goes with the first descriptor that the process closes; therefore the locks of
this process are remembered here, and a second store in the same process is turned away before it opens the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from rucola.errors import StoreLocked

_held: set[tuple[int, int]] = set()


class DirectoryLock:
    """The lock, held from construction to `release`. Raises StoreLocked where somebody has it."""

    def __init__(self, store: Path) -> None:
        path = store / "lock"
        path.touch()
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
        """Let the directory go. The file stays, as Apache leaves it."""
        _held.discard(self._identity)
        os.close(self._fd)
