"""Consumer offsets in a store directory, from config/consumerOffset.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rucola.store.directory_reader import StoreReader


def read(store: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield group, topic, queue id and committed offset of each group and queue."""
    with StoreReader(store) as reader:
        table = (reader.config("consumerOffset") or {}).get("offsetTable", {})
    for name, offsets in table.items():
        topic, _, group = name.partition("@")
        for queue_id, committed in offsets.items():
            yield group, topic, int(queue_id), int(committed)
