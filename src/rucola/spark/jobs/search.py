"""Search job: finds messages of a lake by key, unique key, offsetMsgId, topic, time, tags and SQL92 filter.

Files are pruned before anything is read: by topic and day, for a key by the hashes in the key index, and for an
offsetMsgId by the range of physical offsets. The remaining rows are compared with every condition, so the index affects
only speed. Searches by key or offsetMsgId, or of little data, run in this process with `rucola.spark.lake.lookup`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.files import local_path
from rucola.message import MessageExt
from rucola.message.ids import parse_offset_msg_id
from rucola.spark.error_translation import translate_spark_errors
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

_MAX_PUSHED_OFFSETS: Final = 1000
"""Limit of physical offsets in a pushed filter; a longer list would cost more than the pages it skips."""


def search(rows: DataFrame, selection: Selection, offset_msg_id: str | None = None) -> DataFrame:
    """Return the rows that meet the selection and, if given, have this offsetMsgId."""
    chosen = selection.filter(rows)
    return chosen if offset_msg_id is None else chosen.where(F.col("offsetMsgId") == offset_msg_id.upper())


@dataclass(frozen=True)
class Candidates:
    """Files of a lake that may contain results, and the physical offsets to find, None for all rows."""

    files: Sequence[RowFile]
    offsets: Sequence[int] | None = None


def candidates_of(lake: Path, selection: Selection, offset_msg_id: str | None = None) -> Candidates:
    """Return the files and offsets that a search has to read. Raises what `run` raises."""
    # An offsetMsgId prunes files by their ranges of physical offsets; ranges of several brokers may overlap, so the row
    # filter still compares the whole id.
    snapshot = read_snapshot(lake)
    files, offsets = selection.prune_files(snapshot.rows), None
    if selection.keys is not None:
        where = candidate_offsets(lake, snapshot, selection.keys)
        files = files_with_offsets(files, where)
        offsets = sorted({offset for file in files for offset in where[file.topic, file.date].tolist()})
    if offset_msg_id is not None:
        _, physical_offset = parse_offset_msg_id(offset_msg_id)
        files = [file for file in files if file.least <= physical_offset <= file.most]
        offsets = [physical_offset]
    return Candidates(files, offsets)


def find(spark: AnySession, lake: str | Path, selection: Selection, offset_msg_id: str | None = None) -> DataFrame:
    """Return the matching messages of a lake as a DataFrame over the pruned files."""
    root = local_path(lake).absolute()
    candidates = candidates_of(root, selection, offset_msg_id)
    rows = read_lake(resolve_session(spark), root, candidates.files)
    if candidates.offsets is not None and len(candidates.offsets) <= _MAX_PUSHED_OFFSETS:
        rows = rows.where(F.col("commitLogOffset").isin(*candidates.offsets))
    return search(rows, selection, offset_msg_id)


@translate_spark_errors()
def run(
    spark: AnySession,
    lake: str | Path,
    selection: Selection,
    offset_msg_id: str | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
) -> SearchResult:
    """Return the newest matching messages of a lake.

    Raises StoreError if there is none, InvalidMessage for a wrong id.
    """
    root = local_path(lake).absolute()
    if not runs_in_spark(spark, lambda: _size_of(root, selection, offset_msg_id)):
        return _run_in_process(root, selection, offset_msg_id, limit)
    with translate_spark_errors():
        rows = find(spark, root, selection, offset_msg_id).orderBy(F.desc("storeTimestamp"), F.desc("commitLogOffset"))
        # One row more than asked for shows whether the result is cut.
        messages = messages_of(rows.limit(limit + 1).toArrow())
    return SearchResult(messages[:limit], is_cut=len(messages) > limit)


def _size_of(lake: Path, selection: Selection, offset_msg_id: str | None) -> int:
    """Estimate the bytes to read: 0 for searches by key or offsetMsgId, which read single pages."""
    if offset_msg_id is not None or selection.keys is not None:
        return 0
    return parquet_files.estimate_size(lake, selection.prune_files(read_snapshot(lake).rows))


def _run_in_process(lake: Path, selection: Selection, offset_msg_id: str | None, limit: int) -> SearchResult:
    if offset_msg_id is not None:
        found = by_offset_msg_id(lake, offset_msg_id)
        return SearchResult([found] if found is not None and _message_filter(selection)(found.message) else [])
    if selection.keys is not None:
        keys, topics = selection.keys, selection.topics
        return by_key(
            lake, keys, most=limit, topics=topics, days=selection.date_range, matches=_message_filter(selection)
        )
    files = selection.prune_files(read_snapshot(lake).rows)
    return newest(lake, files, selection.columns, selection.matches, limit)


def _message_filter(selection: Selection) -> Callable[[MessageExt], bool]:
    """Return a predicate for single messages that is equivalent to `Selection.filter`."""
    tags = None if selection.tags is None else parse_tags(selection.tags)
    matches = None if selection.expression is None else sql92_matcher(selection.expression)
    begin, end = selection.starting_timestamp, selection.ending_timestamp

    def matches_all(message: MessageExt) -> bool:
        return (
            (selection.topics is None or message.topic in selection.topics)
            and (tags is None or message.tags in tags)
            and (selection.keys is None or has_key(message, selection.keys))
            and (matches is None or matches(message.properties))
            and (begin is None or message.store_timestamp >= begin)
            and (end is None or message.store_timestamp < end)
        )

    return matches_all
