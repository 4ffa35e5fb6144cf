"""Search job: finds messages of a lake by key, unique key, offsetMsgId, topic, time, tags and SQL92 filter.

Files are pruned before anything is read: by topic and day, for a key by the hashes in the key index, and for an
offsetMsgId by the range of physical offsets. The remaining rows are compared with every condition, so the index affects
only speed. Searches by key or offsetMsgId, or of little data, run in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.message import MessageExt
from rucola.spark.archive import DEFAULT_LIMIT, Archive, SearchResult, has_key, messages_of
from rucola.spark.error_translation import translate_spark_errors
from rucola.spark.jobs.selection import Selection
from rucola.spark.session import AnySession, resolve_session, runs_in_spark
from rucola.spark.source.option_values import parse_tags, sql92_matcher
from rucola.spark.source.schema import LAST_TIME_MS


def search(rows: DataFrame, selection: Selection, offset_msg_id: str | None = None) -> DataFrame:
    """Return the rows that meet the selection and, if given, have this offsetMsgId."""
    chosen = selection.filter(rows)
    return chosen if offset_msg_id is None else chosen.where(F.col("offsetMsgId") == offset_msg_id.upper())


def find(
    spark: AnySession, lake: str | Path | Archive, selection: Selection, offset_msg_id: str | None = None
) -> DataFrame:
    """Return the matching messages of a lake as a DataFrame over the pruned files."""
    # Before the session starts: a wrong lake or id is reported without Spark.
    scan = Archive(lake).scan(selection.topics, selection.days, keys=selection.keys, offset_msg_id=offset_msg_id)
    return search(scan.rows(resolve_session(spark)), selection, offset_msg_id)


@translate_spark_errors()
def run(
    spark: AnySession,
    lake: str | Path | Archive,
    selection: Selection,
    offset_msg_id: str | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
) -> SearchResult:
    """Return the newest matching messages of a lake.

    Raises StoreError if there is none, InvalidMessage for a wrong id.
    """
    archive = Archive(lake)
    # Searches by key or offsetMsgId read single pages, which count as 0 bytes.
    is_by_id = offset_msg_id is not None or selection.keys is not None
    if not runs_in_spark(spark, lambda: 0 if is_by_id else archive.scan(selection.topics, selection.days).size):
        return _run_in_process(archive, selection, offset_msg_id, limit)
    with translate_spark_errors():
        rows = find(spark, archive, selection, offset_msg_id)
        newest = rows.orderBy(F.desc("storeTimestamp"), F.desc("commitLogOffset"))
        # One row more than asked for shows whether the result is cut.
        messages = messages_of(newest.limit(limit + 1).toArrow())
    return SearchResult(messages[:limit], is_cut=len(messages) > limit)


def _run_in_process(archive: Archive, selection: Selection, offset_msg_id: str | None, limit: int) -> SearchResult:
    topics, days, matches = selection.topics, selection.days, _message_filter(selection)
    if offset_msg_id is not None:
        found = archive.by_offset_msg_id(offset_msg_id)
        return SearchResult([found] if found is not None and matches(found.message) else [])
    if selection.keys is not None:
        return archive.by_key(selection.keys, most=limit, topics=topics, days=days, matches=matches)
    return archive.scan(topics, days).newest(selection.rows.columns, selection.rows.matches, limit)


def _message_filter(selection: Selection) -> Callable[[MessageExt], bool]:
    """Return a predicate for single messages that is equivalent to `Selection.filter`."""
    tags = None if selection.tags is None else parse_tags(selection.tags)
    matches = None if selection.expression is None else sql92_matcher(selection.expression)
    # A number that is no time is in no range of times.
    begin, end = selection.starting_timestamp, selection.ending_timestamp
    times = range(max(begin or 0, 0), LAST_TIME_MS + 1 if end is None else min(end, LAST_TIME_MS + 1))
    is_timed = begin is not None or end is not None

    def matches_all(message: MessageExt) -> bool:
        return (
            (selection.topics is None or message.topic in selection.topics)
            and (tags is None or message.tags in tags)
            and (selection.keys is None or has_key(message, selection.keys))
            and (matches is None or matches(message.properties))
            and (not is_timed or message.store_timestamp in times)
        )

    return matches_all
