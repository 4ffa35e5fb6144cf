"""Names of the entries of a store directory."""

from __future__ import annotations

from typing import Final

from rucola.store.epoch_file import EPOCH_FILE

DIVERGED: Final = "diverged"

IDENTIFYING_ENTRIES: Final = ("commitlog", "config", "checkpoint", "lock")
"""At least one of these remains even in a badly damaged store; a new one has `lock`."""

STORE_ENTRIES: Final = frozenset(
    {
        *IDENTIFYING_ENTRIES,
        *("abort", "audit", "consumequeue", DIVERGED, "index"),
        *(EPOCH_FILE, f"{EPOCH_FILE}.bak"),
    }
)
"""All entries of a store that is not being rebuilt."""

REBUILD_DIRECTORY: Final = "rebuild.tmp"
"""An entry in addition to STORE_ENTRIES while a rebuild runs, and after one that was interrupted."""
