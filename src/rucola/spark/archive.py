"""Archive: append, verify and read archived messages.

    archive = Archive("/srv/lake")
    archive.by_key(["order-4711"]).messages                        # without Spark
    archive.scan(topics=["Orders"]).rows(spark)                    # a DataFrame
    with archive.open() as writer:                                 # under the archive's lock
        writer.append(batches)
        writer.commit({"broker-a": progress})                      # messages and progress in one commit

Jobs accept the path of an archive in its place; one in a catalog is given as `Archive(location, catalog)`.

An archive is a lake (`rucola.spark.lake`). No other module imports the lake's modules, so that one module has to
change for another table format. Importing it starts no Java runtime.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rucola.errors import ConfigError, missing_extra
from rucola.files import is_remote, local_path
from rucola.message import MessageExt
from rucola.message.ids import parse_offset_msg_id
from rucola.presentation import END_OF_TIMES_MS
from rucola.spark.lake import lookup, parquet_files, record_columns
from rucola.spark.lake.archived_queues import ArchivedQueue
from rucola.spark.lake.lookup import DEFAULT_LIMIT, ArchivedMessage, SearchResult, has_key, messages_of
from rucola.spark.lake.parquet_files import FilePiece
from rucola.spark.lake.reader import read_lake
from rucola.spark.lake.snapshot import ArchiveProgress, RowFile, Snapshot, check_files, is_lake
from rucola.spark.lake.staging import ReadTask, StagedMessages, stage_in_process, stage_in_spark
from rucola.spark.lake.status import ArchivedTopic, TableStatus, table_status
from rucola.spark.lake.storage import ObjectStore, Storage
from rucola.spark.lake.tables import LakeInUse, TopicTableError, read_snapshot
from rucola.spark.lake.writer import AddedFiles, LakeWriter, open_lake
from rucola.spark.source.array_conversions import Array, ints, scalar

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset
    from pyspark.sql import DataFrame, SparkSession

    from rucola.spark.bodies import Decoder
    from rucola.spark.lake.compaction import CompactionResult
    from rucola.spark.lake.removal import LostMessages
    from rucola.spark.lake.topic_tables import DerivedTopic

__all__ = [
    "ALL_DAYS",
    "DEFAULT_LIMIT",
    "Archive",
    "ArchivePart",
    "ArchiveProgress",
    "ArchiveScan",
    "ArchiveWriter",
    "ArchivedMessage",
    "ArchivedQueue",
    "ArchivedTopic",
    "LakeInUse",
    "SearchResult",
    "StagedMessages",
    "TableStatus",
    "TopicTableError",
    "has_key",
    "messages_of",
    "object_store",
]

ALL_DAYS: Final = ("", "9999")
"""A range of ISO dates, inclusive, that contains every date."""

_LIST_SIZE: Final = 500
_MAX_PUSHED_OFFSETS: Final = 1000
"""Limit of physical offsets in a pushed filter; a longer list would cost more than the pages it skips."""


class Archive:
    """The archived messages in one directory or object store, which need not exist until messages are appended.

    `catalog` is a name in pyiceberg's configuration or a URI; without it, the archive is in a directory of this machine
    that has the embedded catalog. An object store, by its URL, needs a catalog. Appending writes copies of the progress
    below `progress_directory` for brokers with deleteOnlyArchived; by default, the embedded catalog's are in the
    archive, and there are no others.

    Reading raises StoreError if there is no archive, StoreCorrupt if a file is missing, unreadable or truncated.
    """

    def __init__(
        self, path: str | Path | Archive, catalog: str | None = None, *, progress_directory: str | Path | None = None
    ) -> None:
        if isinstance(path, Archive):
            vars(self).update(vars(path))
            return
        if catalog is None and progress_directory is not None:
            raise ConfigError("an archive without a catalog has the copies of its progress in its own directory")
        is_url = catalog is not None and is_remote(path)
        self.path: str | Path = str(path).rstrip("/") if is_url else local_path(path).absolute()
        """The directory, or the URL of an object store."""
        self.catalog = catalog
        self.progress_directory = None if progress_directory is None else local_path(progress_directory).absolute()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def exists(self) -> bool:
        """Whether the directory is an archive; with a catalog, which is queried at the first read, always."""
        return self.catalog is not None or is_lake(Path(self.path))

    def _snapshot(self) -> Snapshot:
        return read_snapshot(self.path, self.catalog)

    def progress(self) -> Mapping[str, ArchiveProgress]:
        """Return the archive progress of each store and live broker, by name."""
        return self._snapshot().progress

    def status(self) -> TableStatus:
        """Return what the archive holds, by topic, without opening a file of messages."""
        return table_status(self.path, self.catalog)

    def verify(self) -> None:
        """Raise StoreCorrupt for a file of messages that is missing or truncated."""
        snapshot = self._snapshot()
        check_files(snapshot.storage, snapshot.rows)

    def scan(
        self,
        topics: Collection[str] | Callable[[str], bool] | None = None,
        days: tuple[str, str] = ALL_DAYS,
        *,
        keys: Collection[str] | None = None,
        offset_msg_id: str | None = None,
    ) -> ArchiveScan:
        """Plan to read the messages that the archive has now.

        The result has all messages that meet the conditions, and may have others of the same files, except of other
        topics. `topics` are names or a condition, `days` UTC dates, inclusive. InvalidMessage for a wrong id.
        """
        snapshot = read_snapshot(self.path, self.catalog, keys=keys is not None)
        files = [file for file in snapshot.rows if _is_topic(file.topic, topics) and days[0] <= file.date <= days[1]]
        offsets: list[int] | None = None
        if keys is not None:
            where = lookup.candidate_offsets(snapshot, keys)
            files = lookup.files_with_offsets(files, where)
            offsets = sorted({offset for file in files for offset in where[file.topic, file.date].tolist()})
        if offset_msg_id is not None:
            # Ranges of physical offsets of several brokers may overlap.
            _, physical_offset = parse_offset_msg_id(offset_msg_id)
            files = [file for file in files if file.least <= physical_offset <= file.most]
            offsets = [physical_offset]
        return ArchiveScan(snapshot.storage, tuple(files), offsets, snapshot.progress)

    def by_key(
        self,
        keys: Iterable[str],
        *,
        most: int = DEFAULT_LIMIT,
        unique: bool | None = None,
        topics: Collection[str] | None = None,
        days: tuple[str, str] = ALL_DAYS,
        matches: Callable[[MessageExt], bool] = lambda _: True,
    ) -> SearchResult:
        """Return the newest `most` messages with one of the keys as key or unique key, without Spark.

        With `unique`, True compares unique keys only, False keys only.
        """
        snapshot = self._snapshot()
        return lookup.by_key(snapshot, keys, most=most, unique=unique, topics=topics, days=days, matches=matches)

    def by_offset_msg_id(self, offset_msg_id: str) -> ArchivedMessage | None:
        """Return the message with this offsetMsgId, or None, without Spark. InvalidMessage for a wrong id."""
        return lookup.by_offset_msg_id(self._snapshot(), offset_msg_id)

    def stored_between(self, topic: str, begin_ms: int, end_ms: int) -> Iterator[list[ArchivedMessage]]:
        """Yield lists of the messages of a topic stored from `begin_ms` to `end_ms`, inclusive, without Spark."""
        snapshot = self._snapshot()
        first, last = _day(begin_ms), _day(end_ms)
        files = [file for file in snapshot.rows if file.topic == topic and first <= file.date <= last]
        return lookup.stored_between(snapshot.storage, files, begin_ms, end_ms, _LIST_SIZE)

    @contextmanager
    def open(self, *, progress: Callable[[int, int], None] | None = None) -> Iterator[ArchiveWriter]:
        """Open the archive for appending: create it if needed, lock it, delete what a killed run has left.

        `progress` gets how many files of an archive of an earlier version are part of its table, and their number.

        ConfigError if the directory cannot be an archive, LakeInUse if another run is writing, StoreError if other
        users can change it or it contains links, StoreCorrupt if any of its files is missing or truncated.
        """
        directory = self.progress_directory
        with open_lake(self.path, self.catalog, progress_directory=directory, progress=progress) as lake:
            yield ArchiveWriter(lake)

    def compact(self, **options: Any) -> CompactionResult:
        """Merge small files (see `rucola.spark.lake.compaction.run`)."""
        from rucola.spark.lake import compaction

        return compaction.run(self.path, self.catalog, progress_directory=self.progress_directory, **options)

    def derive(self, decoders: Mapping[str, Decoder], **options: Any) -> list[DerivedTopic]:
        """Add new messages to the tables of single topics (see `rucola.spark.lake.topic_tables.derive`)."""
        from rucola.spark.lake import topic_tables

        return topic_tables.derive(self.path, decoders, self.catalog, **options)

    def messages_of_files(self, names: Sequence[str]) -> list[LostMessages]:
        """Return what the archive knows of the messages in files, given as errors name them, without opening any."""
        from rucola.spark.lake import removal

        return removal.messages_of_files(self.path, self.catalog, names)

    def forget(self, lost: Sequence[LostMessages]) -> None:
        """Go on without the messages of damaged files (see `rucola.spark.lake.removal.forget`)."""
        from rucola.spark.lake import removal

        removal.forget(self.path, self.catalog, lost, progress_directory=self.progress_directory)

    def serve_catalog(self, host: str = "127.0.0.1", port: int = 0) -> AbstractContextManager[tuple[str, int]]:
        """Serve the catalog to other engines (see `rucola.spark.lake.rest_catalog.serve_catalog`)."""
        from rucola.spark.lake import rest_catalog

        if self.catalog is not None:
            raise ConfigError("other engines use the catalog of this lake as it is", subject=self.catalog)
        return rest_catalog.serve_catalog(Path(self.path), host, port)

    def relocate(self) -> str:
        """Give an archive that was moved or copied its new paths (see `rucola.spark.lake.relocation.relocate`)."""
        if self.catalog is not None:
            raise ConfigError("a lake in a catalog stays where it is", subject=self.catalog)
        try:
            from rucola.spark.lake import relocation
        except ModuleNotFoundError as error:
            raise ConfigError(missing_extra(error, "lake")) from error
        return relocation.relocate(self.path)

    def reindex(self, **options: Any) -> int:
        """Rebuild the key index from the messages (see `rucola.spark.lake.compaction.reindex`)."""
        from rucola.spark.lake import compaction

        return compaction.reindex(self.path, self.catalog, **options)


@dataclass(frozen=True)
class ArchiveScan:
    """Messages of one commit of an archive, made by `Archive.scan`; later commits do not change them."""

    _storage: Storage
    _files: tuple[RowFile, ...]
    _offsets: Sequence[int] | None
    progress: Mapping[str, ArchiveProgress]
    """The archive progress of the same commit, by store or live broker."""

    @cached_property
    def size(self) -> int:
        """The estimated bytes of the messages' records."""
        return parquet_files.estimate_size(self._storage, self._files)

    def rows(self, session: SparkSession) -> DataFrame:
        """Return a DataFrame with the columns of the data source, and `date`."""
        rows = read_lake(session, self._storage, self._files)
        if self._offsets is None or len(self._offsets) > _MAX_PUSHED_OFFSETS:
            return rows
        return rows.where(rows["commitLogOffset"].isin(*self._offsets))

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the messages."""
        return frozenset(file.topic for file in self._files)

    def batches(self, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns `names`, without Spark."""
        return parquet_files.read_rows(self._storage, self._files, names)

    def dataset(self) -> Dataset:
        """Return an Arrow dataset with the columns of the data source, for engines that read these."""
        from rucola.spark.lake.arrow_dataset import dataset_of

        return dataset_of(self._storage, self._files)

    def parts(self, least: int) -> list[ArchivePart]:
        """Divide the messages into parts of nearly equal size, at least `least` if there is enough to read."""
        parts = parquet_files.parts(self._files, least)
        return [ArchivePart(self._storage, part, self._offsets) for part in parts]

    def newest(self, names: Sequence[str], matches: Callable[[pa.RecordBatch], Array], most: int) -> SearchResult:
        """Return the newest messages whose rows match, without Spark; `matches` gets the columns `names`."""
        return lookup.newest(self._storage, self._files, names, matches, most)


@dataclass(frozen=True)
class ArchivePart:
    """Messages that one task reads, made by `ArchiveScan.parts`."""

    _storage: Storage
    _pieces: tuple[FilePiece, ...]
    _offsets: Sequence[int] | None

    def batches(self, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns `names`, one batch per row group."""
        wanted = tuple(names)
        for piece in self._pieces:
            yield from parquet_files.read_piece(self._storage, piece, wanted, self._offsets)

    def records(self, name: str) -> Iterator[tuple[Array, pa.BinaryArray]]:
        """Yield physical offsets of one store or live broker, and the records for these places of its log.

        A record that would not fit into the place of the original is null.
        """
        for piece in self._pieces:
            names = ("brokerName", "storeSize", *record_columns.NAMES)
            for batch in parquet_files.read_piece(self._storage, piece, names, self._offsets):
                rows = batch.filter(pc.equal(batch["brokerName"], scalar(name)))
                if len(rows):
                    yield ints(rows["commitLogOffset"]), record_columns.encode_as_stored(rows, piece.file.topic)


class ArchiveWriter:
    """An archive that is open for one commit, made by `Archive.open`."""

    def __init__(self, lake: LakeWriter) -> None:
        self.path = lake.location
        self._lake = lake
        self._staged = StagedMessages()

    def progress(self) -> Mapping[str, ArchiveProgress]:
        """Return the archive progress of each store and live broker, by name."""
        return self._lake.progress()

    def append(self, batches: Iterable[pa.RecordBatch]) -> StagedMessages:
        """Write messages, with all columns, for the commit, and count them."""
        self._staged = stage_in_process(self._lake, batches)
        return self._staged

    def append_in_spark(self, tasks: DataFrame, read: ReadTask) -> StagedMessages:
        """Write messages as `append` does, in Spark; `read` makes the messages of a task from its rows."""
        self._staged = stage_in_spark(self._lake, tasks, read)
        return self._staged

    def commit(self, progress: Mapping[str, ArchiveProgress]) -> AddedFiles:
        """Publish the appended messages, their keys and the progress at once."""
        return self._lake.publish(self._staged.files, progress)


def _day(time_ms: int) -> str:
    """Return the UTC date of a time."""
    within = min(max(time_ms, 0), END_OF_TIMES_MS)
    return datetime.fromtimestamp(within / 1000, UTC).date().isoformat()


def _is_topic(topic: str, wanted: Collection[str] | Callable[[str], bool] | None) -> bool:
    if callable(wanted):
        return wanted(topic)
    return wanted is None or topic in wanted


def object_store(url: str) -> Storage:
    """Return a place in an object store, with the access that the environment, a profile or the machine gives."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL"))  # which Arrow does not read
    return ObjectStore.of(url.rstrip("/"), {"s3.endpoint": endpoint} if endpoint else {})
