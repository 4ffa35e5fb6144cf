"""A lake as versions before tables wrote it: lists of its files in JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rucola.spark.lake.parquet_files import write_rows
from rucola.spark.lake.storage import Directory

_LATER = ("topic", "bodyError", "bornTimestampRaw", "storeTimestampRaw")
"""Columns that files of these versions did not have, or lacked where they were null."""


def write_older_lake(
    root: Path, commits: Sequence[Sequence[pa.RecordBatch]], progress: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write a lake of these commits, and a pending one."""
    row_files, key_files = [], []
    for number, batches in enumerate(commits, 1):
        staged = root / f"staged-{number}"
        write_rows(batches, Directory(staged), "part", "keys")
        for count, path in enumerate(sorted((staged / "data").rglob("*.parquet"))):
            partition = path.parent.relative_to(staged / "data")
            topic, day = (part.partition("=")[2] for part in partition.parts)
            target = f"{partition}/{number:010d}-{count:05d}.parquet"
            (root / target).parent.mkdir(parents=True, exist_ok=True)
            table = pq.read_table(path, partitioning=None).drop_columns([*_LATER])
            pq.write_table(pa.table(table.columns, names=table.schema.names), root / target)
            size = (root / target).stat().st_size
            row_files.append({"path": target, "size": size, "topic": topic, "date": day, "rows": len(table)})
        target = f"_rucola/keys/{number:010d}-00000.parquet"
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(next((staged / "keys").iterdir()), root / target)
        size = (root / target).stat().st_size
        key_files.append({"path": target, "run": number, "size": size})
        shutil.rmtree(staged)
    snapshot = {"number": len(commits), "rows": row_files, "keys": key_files, "progress": progress, "replaced": []}
    for name in ("snapshot.json", "snapshot.json.bak"):
        (root / "_rucola" / name).write_text(json.dumps(snapshot))
    (root / "_rucola" / "pending.json").write_text(json.dumps({"number": len(commits) + 1}))
