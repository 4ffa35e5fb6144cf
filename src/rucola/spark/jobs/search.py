"""The search job: messages of the lake by key, unique key, offsetMsgId, topic, time, tags and SQL92 filter.

What the snapshot and the key index tell is left out before Spark begins:

    topic, time          files of other topics and days
    key, unique key      files in which the key index knows no message with its hash; in the others Spark looks for the
                         physical offsets that the index gives, and passes over row groups and pages without them
    offsetMsgId          files without its physical offset

Everything is then compared row by row, so a search finds the same with the index as without. By key or offsetMsgId, and
in few or small files, `rucola.spark.lake.lookup` finds the same without a session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.message import MessageExt
from rucola.message.ids import parse_offset_msg_id
from rucola.spark.errors import translate_spark_errors
from rucola.spark.jobs.selection import Selection
from rucola.spark.lake import parquet_files, read_lake
from rucola.spark.lake.lookup import (
    DEFAULT_LIMIT,
    SearchResult,
    by_key,
    by_offset_msg_id,
    candidate_offsets,
    files_with_offsets,
    has_key,
    messages_of,
    newest,
)
from rucola.spark.lake.snapshot import RowFile, read_snapshot
from rucola.spark.session import AnySession, resolve_session, runs_in_spark
from rucola.spark.source.option_values import parse_tags, sql92_matcher

_MOST_OFFSETS: Final = 1000
"""Spark is told to look for so many physical offsets at most; with more it reads the files as they are."""


def search(rows: DataFrame, selection: Selection, offset_msg_id: str | None = None) -> DataFrame:
    """Return the rows of the lake that are asked for."""
    chosen = selection.of(rows)
    return chosen if offset_msg_id is None else chosen.where(F.col("offsetMsgId") == offset_msg_id.upper())


@dataclass(frozen=True)
class Parts:
    """Files of a lake that may hold what is asked for, and the physical offsets to look at there, None for all."""

    files: Sequence[RowFile]
    offsets: Sequence[int] | None = None


def parts_of(lake: Path, selection: Selection, offset_msg_id: str | None = None) -> Parts:
    """Return the parts of a lake that a search reads. Raises what `run` does."""
    snapshot = read_snapshot(lake)
    files, offsets = selection.files_of(snapshot.rows), None
    if selection.keys is not None:
        where = candidate_offsets(lake, snapshot, selection.keys)
        files = files_with_offsets(files, where)
        offsets = sorted({offset for file in files for offset in where[file.topic, file.date].tolist()})
    if offset_msg_id is not None:
        _, physical_offset = parse_offset_msg_id(offset_msg_id)
        files = [file for file in files if file.least <= physical_offset <= file.most]
        offsets = [physical_offset]
    return Parts(files, offsets)


def find(spark: AnySession, lake: str | Path, selection: Selection, offset_msg_id: str | None = None) -> DataFrame:
    """Return the messages of a lake that are asked for, as a DataFrame that reads no more than it must."""
    root = Path(lake).absolute()
    parts = parts_of(root, selection, offset_msg_id)
    rows = read_lake(resolve_session(spark), root, parts.files)
    if parts.offsets is not None and len(parts.offsets) <= _MOST_OFFSETS:
        rows = rows.where(F.col("commitLogOffset").isin(*parts.offsets))
    return search(rows, selection, offset_msg_id)


@translate_spark_errors()
def run(
    spark: AnySession,
    lake: str | Path,
    selection: Selection,
    offset_msg_id: str | None = None,
    *,
    most: int = DEFAULT_LIMIT,
) -> SearchResult:
    """Return the newest `most` messages of a lake that are asked for.

    Raises StoreError if there is no lake, InvalidMessage for what is no offsetMsgId.
    """
    root = Path(lake).absolute()
    if not runs_in_spark(spark, lambda: _size_of(root, selection, offset_msg_id)):
        return _run_directly(root, selection, offset_msg_id, most)
    with translate_spark_errors():
        rows = find(spark, root, selection, offset_msg_id).orderBy(F.desc("storeTimestamp"), F.desc("commitLogOffset"))
        messages = messages_of(rows.limit(most + 1).toArrow())
    return SearchResult(messages[:most], is_cut=len(messages) > most)


def _size_of(lake: Path, selection: Selection, offset_msg_id: str | None) -> int:
    """Return about how many bytes are read; next to nothing of what the key index or the snapshot points at."""
    if offset_msg_id is not None or selection.keys is not None:
        return 0
    return parquet_files.estimate_size(lake, selection.files_of(read_snapshot(lake).rows))


def _run_directly(lake: Path, selection: Selection, offset_msg_id: str | None, most: int) -> SearchResult:
    if offset_msg_id is not None:
        found = by_offset_msg_id(lake, offset_msg_id)
        return SearchResult([found] if found is not None and _takes(selection)(found.message) else [])
    if selection.keys is not None:
        keys, topics = selection.keys, selection.topics
        return by_key(lake, keys, most=most, topics=topics, days=selection.days, matches=_takes(selection))
    files = selection.files_of(read_snapshot(lake).rows)
    return newest(lake, files, selection.columns, selection.matches, most)


def _takes(selection: Selection) -> Callable[[MessageExt], bool]:
    """Return what tells of a single message whether it is asked for, as `Selection.of` does of rows."""
    tags = None if selection.tags is None else parse_tags(selection.tags)
    matches = None if selection.expression is None else sql92_matcher(selection.expression)
    begin, end = selection.starting_timestamp, selection.ending_timestamp

    def takes(message: MessageExt) -> bool:
        return (
            (selection.topics is None or message.topic in selection.topics)
            and (tags is None or message.tags in tags)
            and (selection.keys is None or has_key(message, selection.keys))
            and (matches is None or matches(message.properties))
            and (begin is None or message.store_timestamp >= begin)
            and (end is None or message.store_timestamp < end)
        )

    return takes
