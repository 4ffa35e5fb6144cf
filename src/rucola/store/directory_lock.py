"""The directory lock: at most one broker serves a store directory.

`<store>/lock` contains the four letters "lock". The broker holds an exclusive POSIX lock on its first byte, as Apache's
broker does. A POSIX lock is lost when the process closes any descriptor of the file, so the locks of this process are
recorded here, and a second store in the same process is refused before it opens the file.

The directory itself is locked as well (flock) if the file system allows that, in case the file is deleted.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rucola.errors import StoreError, StoreLocked
from rucola.files import FILE_MODE, check_inside, check_ownership
from rucola.store.directory_entries import REBUILD_DIRECTORY, STORE_ENTRIES

_held: set[tuple[int, int]] = set()
"""(device, inode) of each lock file that this process has locked."""

_TAKEN = (errno.EACCES, errno.EAGAIN)


class DirectoryLock:
    """A lock that is held from construction to `release`.

    Raises StoreLocked, StoreError for links or if other users may change the store or its directories `others`, and
    OSError.
    """

    def __init__(self, store: Path, *others: Path) -> None:
        for directory in (store, *others):
            check_ownership(directory)
        check_store_directory(store, *others)
        self._directory = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # The directory after the file: a locked file shows whether it is this process that serves the store.
            self._fd, self._identity = _lock_file(store)
            try:
                _lock_directory(self._directory, store)
            except BaseException:
                os.close(self._fd)
                raise
        except BaseException:
            os.close(self._directory)
            raise
        _held.add(self._identity)

    def release(self) -> None:
        """Release the lock. The file stays, as Apache leaves it."""
        _held.discard(self._identity)
        os.close(self._fd)
        os.close(self._directory)


def check_store_directory(store: Path, *others: Path) -> None:
    """Raise StoreError for a link or a special file among a store's own files, or in its directories `others`."""
    elsewhere = {"commitlog"} if others and store / "commitlog" not in others else set()
    check_inside(store, ((STORE_ENTRIES | {REBUILD_DIRECTORY}) - elsewhere).__contains__)
    for directory in others:
        check_inside(directory)


def _lock_file(store: Path) -> tuple[int, tuple[int, int]]:
    path = store / "lock"
    while True:
        path.touch(FILE_MODE)
        identity = _identity(path.stat())
        # Compared before the file is opened: closing a second descriptor would release the lock of this process.
        if identity in _held:
            raise StoreLocked(f"{store} is served by another broker in this process")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(descriptor, b"lock", 0)
            # The path, the file before, and the file that is locked must be one: another process may have replaced it.
            if path.exists() and _identity(path.stat()) == identity == _identity(os.fstat(descriptor)):
                return descriptor, identity
        except OSError as error:
            os.close(descriptor)
            if error.errno in _TAKEN:
                raise StoreLocked(f"{store} is served by another process; stop that broker first") from error
            raise
        os.close(descriptor)  # the file was replaced: this is the lock of none


def _lock_directory(descriptor: int, store: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems lock no directory; the lock of the file has to do there.
        if error.errno in _TAKEN:
            raise StoreLocked(
                f"{store} is served by another broker, although its file lock was replaced; stop that broker first"
            ) from error


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


@contextmanager
def naming_store(store: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that names the store."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename and error.filename != str(store) else ""
        raise StoreError(f"{store} cannot be opened: {error.strerror or error}{where}", subject=store) from error


def is_served(store: Path) -> bool:
    """Return whether a broker of this or another process serves a store directory. Writes nothing."""
    return _is_directory_locked(store) or _is_file_locked(store / "lock")


def _is_directory_locked(store: Path) -> bool:
    try:
        descriptor = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _TAKEN
    finally:
        os.close(descriptor)
    return False


def _is_file_locked(path: Path) -> bool:
    try:
        # Opening and closing the file would release the lock of this process.
        if _identity(path.stat()) in _held:
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        # Fails while another process has the exclusive lock. Closing the file releases the shared one.
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return True
    finally:
        os.close(descriptor)
    return False
