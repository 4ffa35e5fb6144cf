"""Messages of all sorts, and rows of them that can be compared whatever reader made them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rucola.spark.source.schema import COLUMNS, LAST_TIME_MS
from support.small_store import SmallStore

MIDNIGHT_MS = 1_700_006_400_000  # 2023-11-15 00:00 UTC


def put_all_sorts(store: SmallStore) -> None:
    """Put twelve messages of three topics, at three days and at a time that is none."""
    for at_ms in (MIDNIGHT_MS - 1, MIDNIGHT_MS, 0, LAST_TIME_MS + 1):
        store.put("T", 1, "é漢".encode(), at_ms=at_ms, KEYS="é k1 k1", UNIQ_KEY=f"U{store.end}", TAGS="A")
        store.put("%RETRY%a#b=c", at_ms=at_ms, born_ms=-1)
        store.put("007", body=bytes(3000), at_ms=at_ms, sys_flag=1, KEYS="007")


def canonical(rows: Iterable[Mapping[str, Any]], names: Collection[str] = tuple(COLUMNS)) -> list[str]:
    """Return rows as texts that can be compared, whatever classes a reader makes of their values."""
    return sorted(
        repr([sorted(dict(row[name] or ()).items()) if name == "properties" else _plain(row[name]) for name in names])
        for row in rows
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return round(value.replace(tzinfo=value.tzinfo or UTC).timestamp() * 1000)
    return bytes(value) if isinstance(value, bytearray) else value
