"""Small files and directories: paths, atomic replacement, modes and ownership.

Replacing a file such as `config/topics.json`:

    1. write the previous content to `<name>.bak`, by way of a temporary file like the new content
    2. write the new content to `<name>.tmp` and fsync it
    3. rename .tmp to the name and fsync the directory

A power cut at any moment leaves a complete file under the name.

Files have messages, offsets and settings: new ones are readable and writable by their owner only (0600), new
directories as well (0700), even if the umask allows more. A replaced file keeps its mode, so that an operator can admit
a group.

Another user with write permission could replace a file of the log, or by a link have the broker overwrite a file
elsewhere. A broker therefore refuses a directory that belongs to another user or that every user may write to.
A directory of root's is accepted, since root can do everything anyway; a group that may write is, too, because an
operator or Kubernetes (fsGroup) chose it. Root refuses the directory of another user as well: files that root creates
in it could not be written by that user's broker later.

Counterpart of `MixAll.string2File` of Apache RocketMQ 4.9.8, which neither flushes nor renames, so that a power cut can
leave both files truncated (apache/rocketmq#3401, #9705).
"""

from __future__ import annotations

import os
import re
import stat
from os import PathLike, fspath
from pathlib import Path
from typing import Final

from rucola.errors import ConfigError, StoreError
from rucola.system_calls import OPEN_FLAGS, sync_all

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/.*)", re.DOTALL)
"""A URL, or a Path made of one, which has a slash less. A scheme of one letter would be a drive of Windows."""


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
        f"{text} is not a path on this machine, where files must be: give a local path, such as the one at which "
        f"the file system of {scheme}: is mounted, or file:///PATH"
    )


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
    temporary = path.with_name(path.name + ".tmp")
    mode = stat.S_IMODE(model.stat().st_mode) if model.exists() else FILE_MODE
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | OPEN_FLAGS, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        sync_all(fd)
    except BaseException:
        temporary.unlink()
        raise
    finally:
        os.close(fd)
    # Synced before the rename: otherwise a power cut could leave the name with a file without its bytes.
    temporary.replace(path)
    sync_directory(path.parent)


def _name(user: int) -> str:
    import pwd  # which Windows does not have, where only clients run

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # in a container, users often have no names
        return str(user)
