"""The small JSON files of a broker under `config/`.

    config/topics.json  subscriptionGroup.json  consumerOffset.json  delayOffset.json  consumerFilter.json

They are written by fastjson and read with its habits: integers as map keys without quotes, one tab a level. Beside
each lies `<name>.bak`, its content before the last change.

A new content goes to `<name>.tmp`, which is brought to disk; then the old file is copied to .bak in the same way, and
.tmp takes the file's name. A power cut at any moment leaves a whole file under one of the two names, and reading
falls back to .bak where the file is missing or no JSON.

Answers to org.apache.rocketmq.common.ConfigManager and MixAll.string2File, which neither flush nor rename, so that
a power cut can leave both files broken (apache/rocketmq#3401, #9705).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rucola import fastjson
from rucola.errors import RemoteProtocolError, StoreCorrupt
from rucola.store.mapped_file import sync_directory


def config_path(store: Path, name: str) -> Path:
    """Return where the config file `name`, such as "topics", lies in a store directory."""
    return store / "config" / f"{name}.json"


def read_config(path: Path) -> Any:
    """Return the value in a config file or, where that is missing or broken, in its .bak; None where neither is.

    Raises StoreCorrupt when there is something and none of it can be read.
    """
    damage: StoreCorrupt | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            data = candidate.read_bytes()
            if data.strip():
                return fastjson.loads(data)
            damage = damage or StoreCorrupt(candidate, 0, "the file is empty")
        except FileNotFoundError:
            continue
        except RemoteProtocolError as error:
            damage = damage or StoreCorrupt(candidate, 0, f"no JSON as fastjson writes it: {error}")
    if damage is not None:
        raise damage
    return None


def write_config(path: Path, value: Any) -> None:
    """Replace the value in a config file, keeping the one before in .bak. Does nothing where it is the same.

    When this returns, the new content is on disk. Raises OSError; then the old content is still there.
    """
    text = fastjson.dumps_pretty(value).encode()
    try:
        before: bytes | None = path.read_bytes()
    except FileNotFoundError:
        before = None
    if before == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if before:
        _replace(path.with_name(path.name + ".bak"), before)
    _replace(path, text)


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    sync_directory(path.parent)
