"""Stores that Apache's broker wrote with features which are off by default. Unpacked for each test: they are sparse."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore
from support.stores import HOST

ARCHIVES = Path(__file__).parent.parent / "golden"


def unpack(name: str, directory: Path) -> Path:
    """Unpack one of the archives and return its store directory."""
    with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
        (top,) = {Path(member).parts[0] for member in archive.getnames()}
    return directory / top


def with_ext(directory: Path) -> Path:
    """S_tag has 201 messages, 100 of them with tag A; their units have addresses in consumequeue_ext."""
    return unpack("consumequeue-ext", directory)


def with_lmq(directory: Path) -> Path:
    """Of 50 messages of S_lmq all are in %LMQ%a, and every second one in %LMQ%b."""
    return unpack("lmq-multi-dispatch", directory)


def crashed(store: MessageStore, to: Path) -> MessageStore:
    """What a kill -9 would leave of an open store, in another directory; holes stay holes, unlike in `crashed_copy`."""
    subprocess.run(["cp", "-r", "--sparse=always", store.config.store_path_root_dir, to], check=True)
    return MessageStore(replace(store.config, store_path_root_dir=to))


def settings(store: Path, **more: Any) -> StoreConfig:
    """The settings with which both were written."""
    return StoreConfig(store, HOST, **{"mapped_file_size_commit_log": 1 << 24, **more})
