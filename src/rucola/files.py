"""Small files and directories: paths, atomic replacement, modes and ownership.

Replacing a file such as `config/topics.json`:

    1. write the previous content to `<name>.bak`, in the same way as the new content
    2. write the new content to `<name>.<random>.tmp` and fsync it
    3. rename that to the name and fsync the directory

A power cut leaves a complete file under the name. Each writer has its own temporary file, so that the last of several
concurrent ones wins.

New files are readable and writable by their owner only (0600, directories 0700). A replaced file keeps its mode, so
that an operator can admit a group.

A broker refuses a directory of another user, or one that every user may write to: they could replace a file of the log,
or by a link let it overwrite a file elsewhere. Directories of root are accepted, and groups that may write, which an
operator or Kubernetes (fsGroup) chose. Root refuses another user's directory, since that user's broker could not write
the files it creates.

A directory, such as a copied store, may have been prepared by others. `open_inside` follows no link below it;
`check_inside` refuses links before any change.

Counterpart of `MixAll.string2File` of Apache RocketMQ 4.9.8, which neither flushes nor renames (apache/rocketmq#3401,
#9705).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike, fspath
from pathlib import Path
from typing import IO, Final

from rucola.errors import ConfigError, StoreError
from rucola.system_calls import OPEN_FLAGS, sync_all

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/.*)", re.DOTALL)
"""A URL, or a Path of one, with one slash less. A scheme of one letter would be a drive of Windows."""


_NO_FILE: Final = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.ENXIO)
_PLAIN_FLAGS: Final = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY"))


def local_path(path: str | PathLike[str]) -> Path:
    """Return a local path, `/x` for `file:///x` and `file:/x`. ConfigError for any other URL."""
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


def is_remote(path: str | PathLike[str]) -> bool:
    """Return whether this is a URL of something that is not on this machine."""
    url = _URL.fullmatch(fspath(path))
    return url is not None and url[1].lower() != "file"


def open_file(
    path: Path | str, flags: int = os.O_RDONLY, mode: int = FILE_MODE, *, directory: int | None = None
) -> int:
    """Open a regular file. StoreError for a link or a special file, which could lead anywhere; OSError otherwise.

    With `directory`, a descriptor, the last part of the path is opened in that.
    """
    name = path if directory is None else Path(path).name
    try:
        descriptor = os.open(name, flags | OPEN_FLAGS | _PLAIN_FLAGS, mode, dir_fd=directory)
    except OSError as error:
        if error.errno in _NO_FILE:
            _refuse_link(Path(path), error)
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _special_file(Path(path))
    return descriptor


def open_inside(root: Path, path: Path, flags: int = os.O_RDONLY, mode: int = FILE_MODE) -> int:
    """Open a regular file below `root`. StoreError for a link or a special file below it, OSError otherwise."""
    *directories, _ = path.relative_to(root).parts
    if ".." in directories:
        raise StoreError(f"{path} leads out of {root}")
    if not hasattr(os, "O_NOFOLLOW"):  # Windows, where only clients run
        return os.open(path, flags | OPEN_FLAGS, mode)
    place, directory = root, os.open(root, os.O_RDONLY | os.O_DIRECTORY | OPEN_FLAGS)
    try:
        for part in directories:
            place /= part
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | OPEN_FLAGS, dir_fd=directory)
            os.close(directory)
            directory = inner
        return open_file(path, flags, mode, directory=directory)
    except OSError as error:
        if error.errno in _NO_FILE:
            _refuse_link(place, error)
        raise
    finally:
        os.close(directory)


def read_inside(root: Path, path: Path) -> bytes:
    """Read a regular file below a directory. Errors as of `open_inside`."""
    with open(open_inside(root, path), "rb") as file:
        return file.read()


def size_inside(root: Path, path: Path) -> int:
    descriptor = open_inside(root, path)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def check_inside(root: Path, is_own: Callable[[str], bool] = bool) -> None:
    """Raise StoreError for a link or a special file below a directory, among entries that `is_own` accepts."""
    directories: list[Path | str] = [root]
    for directory in directories:
        # Entries that cannot be listed are not opened either; missing ones were deleted in the meantime.
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(directory) as entries:
            for entry in entries:
                if directory is root and not is_own(entry.name):
                    continue
                if entry.is_symlink():
                    _refuse_link(Path(entry.path))
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise _special_file(Path(entry.path))


def _refuse_link(path: Path, cause: OSError | None = None) -> None:
    if path.is_symlink():
        target = os.readlink(path)
        raise StoreError(
            f"{path} is a link to {target}: a directory that others have prepared could have any file read or "
            f"overwritten by it. Put what it leads to in its place; for a directory on another disk, use a mount "
            f"(`mount --bind`), or for a log storePathCommitLog",
            subject=path,
        ) from cause
    if cause is not None and path.exists() and not path.is_file() and not path.is_dir():
        raise _special_file(path) from cause


def _special_file(path: Path) -> StoreError:
    return StoreError(f"{path} is neither a file nor a directory; remove it, or restore the file from a backup")


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file durably and keep its previous content in .bak; after an OSError it is unchanged."""
    try:
        before = path.read_bytes()
    except FileNotFoundError:
        make_directory(path.parent)
        before = b""
    # An empty file is written again, since `before` is empty for a missing one, too.
    if before == content and content:
        return
    # The copy first: a power cut between the two leaves the previous content under both names.
    if before:
        _write(path.with_name(path.name + ".bak"), before, path)
    _write(path, content, path)


@contextmanager
def replacing(path: Path, *, is_flushed: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` once the block has succeeded, and is deleted otherwise.

    It has the mode of `path`, if that exists. With `is_flushed` it is on disk at the end.
    """
    with _replacing(path, path, is_flushed=is_flushed) as fd, open(fd, "wb", closefd=False) as file:
        yield file


def temporary_path(path: Path) -> Path:
    """Return a name in the directory of `path` that no other writer has, ending with `.tmp`."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, for their owner only, and sync their names."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Sync the entries of `directory`; no effect on Windows."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | OPEN_FLAGS)
    try:
        sync_all(fd)
    finally:
        os.close(fd)


def check_ownership(directory: Path) -> None:
    """Raise StoreError, with a command to correct it, if other users can change the directory."""
    try:
        status = directory.stat()
    except FileNotFoundError:
        return
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        owner, own = _name(status.st_uid), _name(user)
        raise StoreError(
            f"{directory} belongs to {owner} and not to {own}: run this as {owner} (`sudo -u {owner} ...`), or "
            f"`chown -R {own} {directory}` makes it {own}'s",
            subject=directory,
        )
    if status.st_mode & stat.S_IWOTH:
        raise StoreError(
            f"every user of this machine can change {directory}: `chmod -R o-w {directory}` mends it", subject=directory
        )


def _write(path: Path, content: bytes, model: Path) -> None:
    with _replacing(path, model, is_flushed=True) as fd:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]


@contextmanager
def _replacing(path: Path, model: Path, *, is_flushed: bool) -> Iterator[int]:
    """Open the descriptor of a file with the mode of `model`, as `replacing` does."""
    temporary = temporary_path(path)
    mode = stat.S_IMODE(model.stat().st_mode) if model.exists() else FILE_MODE
    fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            yield fd
            # Synced before the rename: otherwise a power cut could leave the name with a file without its bytes.
            if is_flushed:
                sync_all(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if is_flushed:
        sync_directory(path.parent)


def _name(user: int) -> str:
    import pwd  # which Windows does not have, where only clients run

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # in a container, users often have no names
        return str(user)
