"""Lookup of messages in a lake without Spark, whose runtime takes seconds to start.

    key          the key index says in which topics and days, and at which physical offsets, messages with its hash are
    offsetMsgId  the physical offset is part of it, and the snapshot knows which files have such offsets
    conditions   the columns they are about are read of all files of the topics and days asked for (`newest`)

By key or offset the row groups are read whose statistics agree, first offsets and times alone. What stands there is
compared with what was asked for, for a hash is only a hash. Days are read from the newest back, and of a day the newest
messages, until there are enough.

The job `rucola.spark.jobs.search` asks the same through Spark if much is to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
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
from rucola.spark.lake.snapshot import KeyFile, RowFile, Snapshot, read_snapshot
from rucola.spark.source.arrays import Array, arrow, ints, repeated

CandidateOffsets = Mapping[tuple[str, str], Array]
"""Physical offsets, ascending, by topic and day."""


DEFAULT_LIMIT = 64
"""So many messages are looked for when nobody says how many, as brokers do."""


class ArchivedMessage(NamedTuple):
    """A message of the lake, and the broker or store that it was archived from."""

    message: MessageExt
    broker_name: str


@dataclass(frozen=True)
class SearchResult:
    """What a search found, newest first. `is_cut` says that there are more messages than these."""

    messages: list[ArchivedMessage]
    is_cut: bool = False


def by_key(
    lake: str | Path,
    keys: Iterable[str],
    *,
    most: int = DEFAULT_LIMIT,
    unique: bool | None = None,
    topics: Sequence[str] | None = None,
    days: tuple[str, str] = ("", "9999"),
    matches: Callable[[MessageExt], bool] = lambda _: True,
) -> SearchResult:
    """Return the newest `most` messages with one of these keys or unique keys; `unique` says of which of both alone.

    They must be of one of the `topics`, if these are given, stored between two `days` (ISO, UTC, both included) and
    such that `matches` says yes. Raises StoreError if there is no lake, StoreCorrupt if a file of it is damaged.
    """
    asked = frozenset(keys)
    root, snapshot = Path(lake).absolute(), read_snapshot(lake)
    found = candidate_offsets(root, snapshot, asked)
    chosen = {
        (topic, day): offsets
        for (topic, day), offsets in found.items()
        if (topics is None or topic in topics) and days[0] <= day <= days[1]
    }
    return _at(root, snapshot, chosen, lambda each: has_key(each, asked, unique) and matches(each), most)


def by_offset_msg_id(lake: str | Path, offset_msg_id: str) -> ArchivedMessage | None:
    """Return the message to which a broker gave this id, None where the lake has none.

    Raises InvalidMessage for what is no offsetMsgId, StoreError if there is no lake, StoreCorrupt if a file of it is
    damaged.
    """
    _, physical_offset = parse_offset_msg_id(offset_msg_id)
    root, snapshot = Path(lake).absolute(), read_snapshot(lake)
    offsets = np.array([physical_offset])
    everywhere = {(file.topic, file.date): offsets for file in snapshot.rows}
    asked = offset_msg_id.upper()
    found = _at(root, snapshot, everywhere, lambda message: message.offset_msg_id == asked, 1)
    return found.messages[0] if found.messages else None


def has_key(message: MessageExt, keys: Iterable[str], unique: bool | None = None) -> bool:
    """Tell whether a message has one of these as a key or as its unique key; `unique` says as which of both alone."""
    words = set() if unique is False else {message.unique_key}
    if not unique:
        words.update((message.keys or "").split(KEY_SEPARATOR))
    return not words.isdisjoint(keys)


def candidate_offsets(root: Path, snapshot: Snapshot, keys: Iterable[str]) -> CandidateOffsets:
    """Return where messages with one of these keys may be; a message with another key may be among them."""
    hashes = sorted(set(map(key_hash, keys)))
    found: dict[tuple[str, str], list[int]] = {}
    for file in snapshot.keys:
        wanted = [value for value in hashes if file.least <= value <= file.most]
        if wanted:
            names = ["topic", "date", "commitLogOffset"]
            for _, _, entries in _groups_with(root, file, "hash", np.array(wanted), names):
                for entry in entries.to_pylist():
                    found.setdefault((entry["topic"], entry["date"].isoformat()), []).append(entry["commitLogOffset"])
    return {place: np.unique(offsets) for place, offsets in found.items()}


def files_with_offsets(files: Iterable[RowFile], places: CandidateOffsets) -> list[RowFile]:
    """Return the files that may hold what is at these places, newest day first."""
    nowhere = np.empty(0, np.int64)
    kept = [file for file in files if _holds_one(places.get((file.topic, file.date), nowhere), file.least, file.most)]
    return _from_the_last_day(kept)


def _from_the_last_day(files: Iterable[RowFile]) -> list[RowFile]:
    return sorted(files, key=lambda file: (file.date, file.topic, file.path), reverse=True)


def messages_of(rows: pa.Table) -> list[ArchivedMessage]:
    """Return rows of the lake as messages.

    The lake has bodies as they were before they were compressed; `stored_size` and `body_crc` are of that.
    """
    for name in ("bornTimestamp", "storeTimestamp"):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, _in_microseconds(rows[name]))
    return [_archived(row) for row in rows.to_pylist(maps_as_pydicts="lossy")]


def _at(
    root: Path, snapshot: Snapshot, places: CandidateOffsets, matches: Callable[[MessageExt], bool], most: int
) -> SearchResult:
    """Return the newest messages at these places that match."""

    def spots(file: RowFile) -> Iterator[_MatchingRows]:
        return _spots(root, file, places[file.topic, file.date])

    return _newest(files_with_offsets(snapshot.rows, places), spots, matches, most)


def newest(
    root: Path,
    files: Iterable[RowFile],
    names: Sequence[str],
    matches: Callable[[pa.RecordBatch], Array],
    most: int,
) -> SearchResult:
    """Return the newest messages of some files whose rows match, by these columns of theirs."""

    def spots(file: RowFile) -> Iterator[_MatchingRows]:
        asked = tuple(dict.fromkeys(("storeTimestamp", "commitLogOffset", *names)))
        for group, batch in enumerate(parquet_files.read_file(root, file, asked)):
            rows = np.flatnonzero(matches(batch))
            if len(rows):
                stored = ints(batch["storeTimestamp"].view(pa.int64()))
                yield _MatchingRows(root, file, group, rows, stored[rows], ints(batch["commitLogOffset"])[rows])

    return _newest(_from_the_last_day(files), spots, lambda _: True, most)


def _newest(
    files: Iterable[RowFile],
    spots_in: Callable[[RowFile], Iterable[_MatchingRows]],
    matches: Callable[[MessageExt], bool],
    most: int,
) -> SearchResult:
    """Return the newest messages at the spots in these files that match. The files come from the last day back."""
    found: list[ArchivedMessage] = []
    for _, of_day in groupby(files, key=lambda file: file.date):
        spots = [spot for file in of_day for spot in spots_in(file)]
        if not spots:
            continue
        stored, offsets, row_of = (
            np.concatenate(each) for each in zip(*((s.stored, s.offsets, s.rows) for s in spots), strict=True)
        )
        spot_of = np.repeat(np.arange(len(spots)), [len(spot.rows) for spot in spots])
        newest_first = np.lexsort((-offsets, -stored))
        begin, count = 0, most + 1
        while begin < len(newest_first) and len(found) <= most:
            chosen = newest_first[begin : begin + count]
            for number in np.unique(spot_of[chosen]).tolist():
                rows = np.sort(row_of[chosen[spot_of[chosen] == number]])
                found += [each for each in messages_of(spots[number].read(rows)) if matches(each.message)]
            begin, count = begin + count, count * 2
        if len(found) > most:
            break
    found.sort(key=lambda each: (each.message.store_timestamp, each.message.physical_offset), reverse=True)
    return SearchResult(found[:most], is_cut=len(found) > most)


@dataclass(frozen=True)
class _MatchingRows:
    """Rows of one row group of a file, when their messages were stored, in microseconds, and their physical offsets."""

    root: Path
    file: RowFile
    group: int
    rows: Array
    stored: Array
    offsets: Array

    def read(self, rows: Array) -> pa.Table:
        """Return some of them, with the topic that the path of the file says."""
        with open_parquet(self.root, self.file) as opened:
            table = opened.read_row_group(self.group).take(arrow(rows))
        return table.append_column("topic", repeated(self.file.topic, len(table)))


def _spots(root: Path, file: RowFile, offsets: Array) -> Iterator[_MatchingRows]:
    """Find the rows of a file that have one of these physical offsets."""
    names = ["storeTimestamp", "commitLogOffset"]
    for group, rows, table in _groups_with(root, file, "commitLogOffset", offsets, names):
        stored = ints(_in_microseconds(table["storeTimestamp"]))
        yield _MatchingRows(root, file, group, rows, stored, ints(table["commitLogOffset"]))


def _groups_with(
    root: Path, file: RowFile | KeyFile, column: str, wanted: Array, names: Sequence[str]
) -> Iterator[tuple[int, Array, pa.Table]]:
    """Yield the row groups of a file that have one of some numbers, ascending, in a column.

    Each comes with its number, its rows that have one, and other columns of these rows.
    """
    with open_parquet(root, file) as opened:
        for group, (least, most) in enumerate(row_group_bounds(opened.metadata, column)):
            if _holds_one(wanted, least, most):
                numbers = ints(opened.read_row_group(group, [column])[column])
                rows = np.flatnonzero(np.isin(numbers, wanted))
                if len(rows):
                    yield group, rows, opened.read_row_group(group, list(names)).take(arrow(rows))


def _holds_one(wanted: Array, least: int, most: int) -> bool:
    """Tell whether one of some numbers, ascending, lies from `least` to `most`."""
    at = int(np.searchsorted(wanted, least))
    return at < len(wanted) and int(wanted[at]) <= most


def _in_microseconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())


def _archived(row: Mapping[str, Any]) -> ArchivedMessage:
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
        born_timestamp=row["bornTimestamp"] // 1000,
        born_host=row["bornHost"],
        store_timestamp=row["storeTimestamp"] // 1000,
        store_host=row["storeHost"],
        reconsume_times=row["reconsumeTimes"],
        prepared_transaction_offset=row["preparedTransactionOffset"],
        store_host_bytes=encode_host(row["storeHost"]),
    )
    return ArchivedMessage(message, row["brokerName"])
