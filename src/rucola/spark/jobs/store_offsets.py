"""Consumer offsets in a store directory, from config/consumerOffset.json or, with enableLmq, lmqConsumerOffset.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rucola.store.directory_reader import StoreReader


def read(store: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield group, topic, queue id and committed offset of each group and queue."""
    with StoreReader(store) as reader:
        stored = reader.config("consumerOffset") or reader.config("lmqConsumerOffset") or {}
    table = stored.get("offsetTable", {})
    for name, committed in stored.get("lmqOffsetTable", {}).items():
        topic, _, group = name.partition("@")
        yield group, topic, 0, int(committed)
    for name, offsets in table.items():
        topic, _, group = name.partition("@")
        for queue_id, committed in offsets.items():
            yield group, topic, int(queue_id), int(committed)
