"""Small files and directories: paths, atomic replacement, modes and ownership.

Replacing a file such as `config/topics.json`:

    1. write the previous content to `<name>.bak`, by way of a temporary file like the new content
    2. write the new content to `<name>.<random>.tmp` and fsync it
    3. rename that to the name and fsync the directory

A power cut at any moment leaves a complete file under the name. Each writer has a temporary file of its own, so that of
two at once, in threads or processes, one comes last, and neither renames what the other is still writing.

Files have messages, offsets and settings: new ones are readable and writable by their owner only (0600), new
directories as well (0700), even if the umask allows more. A replaced file keeps its mode, so that an operator can admit
a group.

Another user with write permission could replace a file of the log, or by a link have the broker overwrite a file
elsewhere. A broker therefore refuses a directory that belongs to another user or that every user may write to.
A directory of root's is accepted, since root can do everything anyway; a group that may write is, too, because an
operator or Kubernetes (fsGroup) chose it. Root refuses the directory of another user as well: files that root creates
in it could not be written by that user's broker later.

Someone else may have prepared a directory, such as a store or a lake that was copied. Files below it are opened by
`open_inside`, which follows no link; `check_inside` refuses a directory with links before anything in it is changed.

Counterpart of `MixAll.string2File` of Apache RocketMQ 4.9.8, which neither flushes nor renames, so that a power cut can
leave both files truncated (apache/rocketmq#3401, #9705).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from typing import Final

from rucola.errors import ConfigError, StoreError
from rucola.system_calls import OPEN_FLAGS, sync_all

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/.*)", re.DOTALL)
"""A URL, or a Path made of one, which has a slash less. A scheme of one letter would be a drive of Windows."""


_NO_FILE: Final = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.ENXIO)
"""Errors of opening a link or a special file as a file."""


def local_path(path: str | PathLike[str]) -> Path:
    """Return a path on this machine. `file:///x` and `file:/x` are `/x`.

    Raises ConfigError for any other URL: as a path, it would be a directory in the working directory.
    """
    text = fspath(path)
    url = _URL.fullmatch(text)
    if url is None:
        return Path(text)
    scheme, rest = url.groups()
    if scheme.lower() == "file" and (not rest.startswith("//") or rest.startswith("///")):
        return Path("/" + rest.lstrip("/"))
    raise ConfigError(
        f"{text} is not a local path: give the path of a directory on this machine, such as the one at which the file "
        f"system of {scheme}: is mounted"
    )


def open_inside(root: Path, path: Path, flags: int = os.O_RDONLY, mode: int = FILE_MODE) -> int:
    """Open a regular file below a directory, and return its descriptor.

    The directory itself may be named by a link. Raises StoreError for a link below it, which could lead anywhere, and
    for what is no regular file, such as a FIFO, whose readers would wait; OSError otherwise.
    """
    flags |= OPEN_FLAGS
    *directories, name = path.relative_to(root).parts
    if ".." in directories:
        raise StoreError(f"{path} leads out of {root}")
    if not hasattr(os, "O_NOFOLLOW"):  # Windows, where only clients run
        return os.open(path, flags, mode)
    place, directory = root, os.open(root, os.O_RDONLY | os.O_DIRECTORY | OPEN_FLAGS)
    try:
        for part in directories:
            place /= part
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | OPEN_FLAGS, dir_fd=directory)
            os.close(directory)
            directory = inner
        place = path
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode, dir_fd=directory)
    except OSError as error:
        if error.errno in _NO_FILE:
            _refuse_link(place, error)
        raise
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _special_file(path)
    return descriptor


def read_inside(root: Path, path: Path) -> bytes:
    """Return the content of a regular file below a directory. Raises as `open_inside` does."""
    with open(open_inside(root, path), "rb") as file:
        return file.read()


def size_inside(root: Path, path: Path) -> int:
    """Return the size of a regular file below a directory. Raises as `open_inside` does."""
    descriptor = open_inside(root, path)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def check_inside(root: Path, is_own: Callable[[str], bool] = bool) -> None:
    """Raise StoreError if there is a link or a special file below a directory, which could be taken for its own file.

    Entries of the directory with other names than `is_own` accepts are left alone. A missing directory has none.
    """
    directories = [root]
    for directory in directories:
        # What cannot be listed is not opened either; what is gone was deleted meanwhile.
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(directory) as entries:
            for entry in entries:
                if directory is root and not is_own(entry.name):
                    continue
                if entry.is_symlink():
                    _refuse_link(Path(entry.path))
                if entry.is_dir(follow_symlinks=False):
                    directories.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    raise _special_file(Path(entry.path))


def _refuse_link(path: Path, cause: OSError | None = None) -> None:
    """Raise the error for a link, or for a FIFO that cannot be opened."""
    if path.is_symlink():
        target = os.readlink(path)
        raise StoreError(
            f"{path} is a link to {target}: a directory that others have prepared could have any file read or "
            f"overwritten by it. Put what it leads to in its place; for a directory on another disk, use a mount "
            f"(`mount --bind`), or for a log storePathCommitLog"
        ) from cause
    if cause is not None and path.exists() and not path.is_file() and not path.is_dir():
        raise _special_file(path) from cause


def _special_file(path: Path) -> StoreError:
    return StoreError(f"{path} is neither a file nor a directory; remove it, or restore the file from a backup")


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by `content` and keep its previous content in .bak.

    Does nothing if they are equal. On return the new content is on disk. After an OSError the file has its previous
    content. Missing directories are created.
    """
    try:
        before = path.read_bytes()
    except FileNotFoundError:
        make_directory(path.parent)
        before = b""
    # An empty file is written again, since `before` does not tell it from a missing one.
    if before == content and content:
        return
    # The copy first: a power cut between the two leaves the previous content under both names.
    if before:
        _write(path.with_name(path.name + ".bak"), before, path)
    _write(path, content, path)


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents, for their owner only.

    The names of those created are synced (fsync).
    """
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Flush the entries of `directory` to disk. Does nothing on Windows, which opens no directories."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | OPEN_FLAGS)
    try:
        sync_all(fd)
    finally:
        os.close(fd)


def check_ownership(directory: Path) -> None:
    """Raise StoreError if other users can change an existing directory.

    The error names the command that mends it.
    """
    try:
        status = directory.stat()
    except FileNotFoundError:
        return
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        owner, own = _name(status.st_uid), _name(user)
        raise StoreError(
            f"{directory} belongs to {owner} and not to {own}: run this as {owner} (`sudo -u {owner} ...`), or "
            f"`chown -R {own} {directory}` makes it {own}'s"
        )
    if status.st_mode & stat.S_IWOTH:
        raise StoreError(f"every user of this machine can change {directory}: `chmod -R o-w {directory}` mends it")


def _write(path: Path, content: bytes, model: Path) -> None:
    """Write a file with the mode of `model`, if that exists."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    mode = stat.S_IMODE(model.stat().st_mode) if model.exists() else FILE_MODE
    fd = open_inside(path.parent, temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            sync_all(fd)
        finally:
            os.close(fd)
        # Synced before the rename: otherwise a power cut could leave the name with a file without its bytes.
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _name(user: int) -> str:
    import pwd  # which Windows does not have, where only clients run

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # in a container, users often have no names
        return str(user)
