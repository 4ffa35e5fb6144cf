"""The key index of a lake, read file by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rucola.spark.lake.tables import read_snapshot


def lake_entries(lake: Path) -> list[dict[str, Any]]:
    """Every entry, in the order of its values."""
    files = [pq.read_table(lake / file.path) for file in read_snapshot(lake).keys]
    return sorted((entry for file in files for entry in file.to_pylist()), key=lambda entry: tuple(entry.values()))
