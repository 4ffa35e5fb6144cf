"""The messages of the golden stores, as the recording lists them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def expected(golden: Path, name: str) -> list[Row]:
    return [json.loads(line) for line in (golden / name / "expected.jsonl").read_text().splitlines()]


def keys_of(row: Row) -> set[str]:
    """The keys of a message and its unique key."""
    properties = row["properties"]
    return {*properties.get("KEYS", "").split(), properties.get("UNIQ_KEY", "")} - {""}
