"""Lookup of messages in a lake without Spark, whose runtime needs seconds to start.

By key, the key index has the topics, dates and physical offsets of messages with the hash of the key; by offsetMsgId,
the id contains the physical offset. Only row groups whose statistics match are read, offsets and times first. Hashes
collide, so the messages found are compared with the key itself. Dates are searched from the newest back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rucola.message import MessageExt
from rucola.message.host import encode_host
from rucola.message.ids import parse_offset_msg_id
from rucola.message.properties import KEY_SEPARATOR
from rucola.message.record import body_crc
from rucola.spark.lake import parquet_files
from rucola.spark.lake.data_files import open_parquet, row_group_bounds
from rucola.spark.lake.key_index import key_hash
from rucola.spark.lake.snapshot import KeyFile, RowFile, Snapshot
from rucola.spark.lake.storage import Storage
from rucola.spark.source.array_conversions import Array, arrow, ints, milliseconds, repeated
from rucola.spark.source.schema import COLUMNS

CandidateOffsets = Mapping[tuple[str, str], Array]
"""Physical offsets at which a message may be, ascending, by (topic, date)."""


DEFAULT_LIMIT = 64
"""The brokers' default as well."""


class ArchivedMessage(NamedTuple):
    """A message of the lake, and the broker or store from which it was archived."""

    message: MessageExt
    broker_name: str


@dataclass(frozen=True)
class SearchResult:
    """The messages that a search found, newest first; `is_cut` if there are more."""

    messages: list[ArchivedMessage]
    is_cut: bool = False


def by_key(
    snapshot: Snapshot,
    keys: Iterable[str],
    *,
    most: int = DEFAULT_LIMIT,
    unique: bool | None = None,
    topics: Collection[str] | None = None,
    days: tuple[str, str] = ("", "9999"),
    matches: Callable[[MessageExt], bool] = lambda _: True,
) -> SearchResult:
    """Return the newest `most` messages with one of the keys as key or unique key.

    With `unique`, True compares unique keys only, False keys only. `days` are ISO dates, UTC, inclusive. Raises
    StoreCorrupt if a file is damaged.
    """
    wanted = frozenset(keys)
    chosen = {
        (topic, day): offsets
        for (topic, day), offsets in candidate_offsets(snapshot, wanted).items()
        if (topics is None or topic in topics) and days[0] <= day <= days[1]
    }
    return _at_offsets(snapshot, chosen, lambda each: has_key(each, wanted, unique) and matches(each), most)


def by_offset_msg_id(snapshot: Snapshot, offset_msg_id: str) -> ArchivedMessage | None:
    """Return the message with this offsetMsgId, or None. Raises InvalidMessage, StoreCorrupt."""
    _, physical_offset = parse_offset_msg_id(offset_msg_id)
    offsets = np.array([physical_offset])
    everywhere = {(file.topic, file.date): offsets for file in snapshot.rows}
    wanted = offset_msg_id.upper()
    found = _at_offsets(snapshot, everywhere, lambda message: message.offset_msg_id == wanted, 1)
    return found.messages[0] if found.messages else None


def has_key(message: MessageExt, keys: Iterable[str], unique: bool | None = None) -> bool:
    """Return whether a message has one of the keys, as key or unique key (see `by_key` for `unique`)."""
    words = set() if unique is False else {message.unique_key}
    if not unique:
        words.update((message.keys or "").split(KEY_SEPARATOR))
    return not words.isdisjoint(keys)


def candidate_offsets(snapshot: Snapshot, keys: Iterable[str]) -> CandidateOffsets:
    """Return the locations of the hashes of these keys; messages with other keys may be among them."""
    hashes = sorted(set(map(key_hash, keys)))
    found: dict[tuple[str, str], list[int]] = {}
    for file in snapshot.keys:
        # The entry of a key file has its range of hashes, so most files are not opened.
        wanted = [value for value in hashes if file.least <= value <= file.most]
        if wanted:
            names = ["topic", "date", "commitLogOffset"]
            for _, _, entries in _matching_groups(snapshot.storage, file, "hash", np.array(wanted), names):
                for entry in entries.to_pylist():
                    found.setdefault((entry["topic"], entry["date"].isoformat()), []).append(entry["commitLogOffset"])
    return {partition: np.unique(offsets) for partition, offsets in found.items()}


def files_with_offsets(files: Iterable[RowFile], candidates: CandidateOffsets) -> list[RowFile]:
    """Return the files whose range includes a candidate, newest date first."""
    none = np.empty(0, np.int64)
    kept = [
        file for file in files if _has_between(candidates.get((file.topic, file.date), none), file.least, file.most)
    ]
    return _newest_date_first(kept)


def _newest_date_first(files: Iterable[RowFile]) -> list[RowFile]:
    return sorted(files, key=lambda file: (file.date, file.topic, file.path), reverse=True)


def messages_of(rows: pa.Table) -> list[ArchivedMessage]:
    """Return rows of the lake as messages; `stored_size` and `body_crc` are of the decompressed body."""
    for name in ("bornTimestamp", "storeTimestamp"):
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, name, arrow(milliseconds(rows[name])))
    return [_archived_message(row) for row in rows.to_pylist(maps_as_pydicts="lossy")]


def _at_offsets(
    snapshot: Snapshot,
    candidates: CandidateOffsets,
    matches: Callable[[MessageExt], bool],
    most: int,
) -> SearchResult:
    def rows_in(file: RowFile) -> Iterator[_MatchingRows]:
        return _rows_at(snapshot.storage, file, candidates[file.topic, file.date])

    return _newest(files_with_offsets(snapshot.rows, candidates), rows_in, matches, most)


def newest(
    storage: Storage,
    files: Iterable[RowFile],
    names: Sequence[str],
    matches: Callable[[pa.RecordBatch], Array],
    most: int,
) -> SearchResult:
    """Return the newest messages of these files whose rows match; `matches` gets the columns `names`."""

    def rows_in(file: RowFile) -> Iterator[_MatchingRows]:
        needed = tuple(dict.fromkeys(("storeTimestamp", "commitLogOffset", *names)))
        for group, batch in enumerate(parquet_files.read_file(storage, file, needed)):
            rows = np.flatnonzero(matches(batch))
            if len(rows):
                stored = milliseconds(batch["storeTimestamp"])
                yield _MatchingRows(storage, file, group, rows, stored[rows], ints(batch["commitLogOffset"])[rows])

    return _newest(_newest_date_first(files), rows_in, lambda _: True, most)


def stored_between(
    storage: Storage, files: Iterable[RowFile], begin_ms: int, end_ms: int, count: int
) -> Iterator[list[ArchivedMessage]]:
    """Yield the messages of these files stored from `begin_ms` to `end_ms`, inclusive, at most `count` at a time.

    They come in the order of their dates, and file by file within a date.
    """
    for file in sorted((file for file in files if file.day is not None), key=lambda file: (file.date, file.least)):
        for batch in parquet_files.read_file(storage, file, tuple(COLUMNS)):
            stored = milliseconds(batch["storeTimestamp"])
            rows = np.flatnonzero((stored >= begin_ms) & (stored <= end_ms))
            for at in range(0, len(rows), count):
                yield messages_of(pa.Table.from_batches([batch.take(arrow(rows[at : at + count]))]))


def _newest(
    files: Iterable[RowFile],
    rows_in: Callable[[RowFile], Iterable[_MatchingRows]],
    matches: Callable[[MessageExt], bool],
    most: int,
) -> SearchResult:
    """Return the newest matching messages in the rows that `rows_in` finds; `files` are newest first."""
    found: list[ArchivedMessage] = []
    for _, of_date in groupby(files, key=lambda file: file.date):
        # 1. Order the rows of a date, over all of its files, newest first.
        parts = [part for file in of_date for part in rows_in(file)]
        if not parts:
            continue
        stored, offsets, row_of = (
            np.concatenate(each) for each in zip(*((p.stored, p.offsets, p.rows) for p in parts), strict=True)
        )
        part_of = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
        # By store time, then by physical offset, both from the greatest: lexsort compares its last key first.
        newest_first = np.lexsort((-offsets, -stored))
        # 2. Read whole messages until there is one more than wanted. Rounds double, because candidates may not match.
        # With 10 wanted, the rounds have 11, 22, 44 … rows.
        begin, count = 0, most + 1
        while begin < len(newest_first) and len(found) <= most:
            chosen = newest_first[begin : begin + count]
            for number in np.unique(part_of[chosen]).tolist():
                rows = np.sort(row_of[chosen[part_of[chosen] == number]])
                found += [each for each in messages_of(parts[number].read(rows)) if matches(each.message)]
            begin, count = begin + count, count * 2
        if len(found) > most:
            break
    # The rounds are in order, but within a round messages come file by file.
    found.sort(key=lambda each: (each.message.store_timestamp, each.message.physical_offset), reverse=True)
    return SearchResult(found[:most], is_cut=len(found) > most)


@dataclass(frozen=True)
class _MatchingRows:
    """Rows of one row group that may match, with their store times in milliseconds and physical offsets."""

    storage: Storage
    file: RowFile
    group: int
    rows: Array
    stored: Array
    offsets: Array

    def read(self, rows: Array) -> pa.Table:
        with open_parquet(self.storage, self.file) as opened:
            table = opened.read_row_group(self.group).take(arrow(rows))
        if "topic" in table.schema.names:
            return table
        return table.append_column("topic", repeated(self.file.topic, len(table)))  # a file of an earlier version


def _rows_at(storage: Storage, file: RowFile, offsets: Array) -> Iterator[_MatchingRows]:
    names = ["storeTimestamp", "commitLogOffset"]
    for group, rows, table in _matching_groups(storage, file, "commitLogOffset", offsets, names):
        stored = milliseconds(table["storeTimestamp"])
        yield _MatchingRows(storage, file, group, rows, stored, ints(table["commitLogOffset"]))


def _matching_groups(
    storage: Storage, file: RowFile | KeyFile, column: str, wanted: Array, names: Sequence[str]
) -> Iterator[tuple[int, Array, pa.Table]]:
    """Yield number, matching rows and their columns `names` of row groups with one of the ascending `wanted`."""
    with open_parquet(storage, file) as opened:
        for group, (least, most) in enumerate(row_group_bounds(opened.metadata, column)):
            # Read the one column first; the others only if a row matches.
            if _has_between(wanted, least, most):
                numbers = ints(opened.read_row_group(group, [column])[column])
                rows = np.flatnonzero(np.isin(numbers, wanted))
                if len(rows):
                    yield group, rows, opened.read_row_group(group, list(names)).take(arrow(rows))


def _has_between(wanted: Array, least: int, most: int) -> bool:
    index = int(np.searchsorted(wanted, least))
    return index < len(wanted) and int(wanted[index]) <= most


def _archived_message(row: Mapping[str, Any]) -> ArchivedMessage:
    message = MessageExt(
        topic=row["topic"],
        queue_id=row["queueId"],
        queue_offset=row["queueOffset"],
        physical_offset=row["commitLogOffset"],
        store_size=row["storeSize"],
        body=row["body"],
        properties=row["properties"],
        flag=row["flag"],
        sys_flag=row["sysFlag"],
        body_crc=body_crc(row["body"]),
        stored_size=len(row["body"]),
        born_timestamp=_raw_or(row, "bornTimestamp"),
        born_host=row["bornHost"],
        store_timestamp=_raw_or(row, "storeTimestamp"),
        store_host=row["storeHost"],
        reconsume_times=row["reconsumeTimes"],
        prepared_transaction_offset=row["preparedTransactionOffset"],
        store_host_bytes=encode_host(row["storeHost"]),
        body_error=row.get("bodyError"),
    )
    return ArchivedMessage(message, row["brokerName"])


def _raw_or(row: Mapping[str, Any], name: str) -> int:
    """Return a time in milliseconds, or the number as stored if it is no time."""
    raw: int | None = row.get(f"{name}Raw")
    return row[name] if raw is None else raw
