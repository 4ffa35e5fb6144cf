"""Files: small files that are replaced as a whole, such as `config/*.json` and `kvConfig.json`.

The new content goes to `<name>.tmp`, which is brought to disk; then the content before is written to `<name>.bak` in
the same way, and .tmp takes the file's name. A power cut at any moment leaves a whole file under the name itself.

Answers to `MixAll.string2File` of Apache RocketMQ 4.9.8, which neither flushes nor renames, so that a power cut can
leave both files broken (apache/rocketmq#3401, #9705).
"""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` into a file, keeping what it held before in .bak. Does nothing where it is the same.

    When this returns, the new content is on disk. OSError leaves the old content there. Missing directories are made.
    """
    try:
        before = path.read_bytes()
    except FileNotFoundError:
        make_directory(path.parent)
        before = b""
    if before == content and content:
        return
    if before:
        _write(path.with_name(path.name + ".bak"), before)
    _write(path, content)


def make_directory(directory: Path) -> None:
    """See to it that there is such a directory, and that its name and those of its new parents are on disk."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Wait until the names in `directory` are on disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except BaseException:
        temporary.unlink()
        raise
    finally:
        os.close(fd)
    temporary.replace(path)
    sync_directory(path.parent)
