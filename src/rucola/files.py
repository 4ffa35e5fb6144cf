"""Files: small files that are replaced as a whole, such as `config/*.json` and `kvConfig.json`.

A reader, and whoever starts after a power cut, finds the old content or the new, never a part of either: the new
content is written beside the file and made durable, then takes its name.

Answers to `MixAll.string2File`. Deliberate difference: Apache renames without a flush in between, so that a power cut
can leave an empty file (apache/rocketmq#3401).
"""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to the file, durably; what it held before is kept beside it with the ending `.bak`.

    The directory is made where it is missing. OSError leaves the file as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    backup = path.with_name(path.name + ".bak")
    if path.exists():
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
