"""Stores for tests, each of which ends with `check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.stores import OpenStore, config


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Open stores under tmp_path. What is still open at the end is closed, and every store must then be sound."""
    opened: list[MessageStore] = []

    def open_one(settings: StoreConfig | None = None, *, now_ms: int = 1, **hooks: Any) -> MessageStore:
        store = MessageStore(settings or config(tmp_path / "store"), **hooks)
        store.open(now_ms)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()
    for root in {store.config.store_path_root_dir for store in opened}:
        assert check(root) == []
