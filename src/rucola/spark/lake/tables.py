"""Iceberg tables of a lake (format version 2) and their embedded catalog.

    rucola.messages    the columns of the data source, partitioned by day(storeTimestamp) and topic
    rucola.keys        the key index (see `key_index`)
    topics.<topic>     messages of one topic, with decoded bodies (see `topic_tables`)

The catalog is SQLite, `<lake>/_rucola/catalog.db`, with one row for each table: the path of its metadata. Any engine
that commits through it, or reads the metadata, sees a whole commit or nothing; `metadata/version-hint.text` names the
messages' metadata to engines that are given the directory.

The progress of each store and live broker is a property `rucola.progress.<name>` of `rucola.messages`, set by the
commit of its messages. Other engines may compact the tables and expire snapshots in between: properties survive both.

pyiceberg repeats a refused commit on the table as it has become, which would archive messages twice. Here it does not
(`commit.retry.num-retries`): `commit` looks at what the table has become first.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import date
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import pyarrow.parquet as pq

from rucola.errors import ConfigError, MQError, StoreCorrupt, StoreError, missing_extra
from rucola.files import check_inside, local_path, open_inside, replace_file, sync_directory, temporary_path
from rucola.spark.lake.data_files import MAX_LONG, MESSAGES, first_line, partition_directory
from rucola.spark.lake.key_index import ENTRY
from rucola.spark.lake.snapshot import (
    METADATA_DIRECTORY,
    TOPICS_DIRECTORY,
    ArchiveProgress,
    KeyFile,
    RowFile,
    Snapshot,
    check_exists,
    lake_damage,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot as TableSnapshot

Value: TypeAlias = int | str | None

KEPT_SNAPSHOTS: Final = 20
"""Snapshots that expiry leaves; it begins with half as many more. A commit writes all of them, which is its cost."""

PROGRESS: Final = "rucola.progress."
"""Begin of the properties with the progress of a store or live broker."""
_EPOCH: Final = date(1970, 1, 1).toordinal()
_MESSAGES_TABLE: Final = "rucola.messages"
_KEYS_TABLE: Final = "rucola.keys"
_PROPERTIES: Final = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.previous-versions-max": "10",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.update.isolation-level": "snapshot",
    "write.delete.isolation-level": "snapshot",
    "write.metadata.metrics.column.body": "counts",
}
_OWN_NAME: Final = re.compile(r"[0-9a-f]{10}(?:[0-9a-f]{22})?-\d{5}\.parquet")
"""Data files that the archive wrote, in this format or, with ten digits, before it."""
_METADATA_GRACE_MS: Final = 10 * 60 * 1000
"""How long metadata that no snapshot needs is kept for readers that are planning."""
_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.glusterfs"}
)


class LakeInUse(StoreError):
    """Another run holds the lock of the lake, or has changed what this one is based on."""


class TopicTableError(StoreError):
    """A table of a topic that cannot be continued; the archive of its messages is complete."""


def catalog_path(root: Path) -> Path:
    """Return the path of a lake's catalog."""
    return root / METADATA_DIRECTORY / "catalog.db"


def read_snapshot(root: str | Path) -> Snapshot:
    """Read the current snapshot. Raises StoreError if there is no lake, StoreCorrupt if its metadata is damaged."""
    root = local_path(root).absolute()
    check_exists(root)
    # Without the files of messages, which may be many, and are checked where they are opened.
    check_inside(root, lambda name: name in (METADATA_DIRECTORY, "metadata"))
    with open_tables(root) as tables:
        return tables.snapshot() if tables is not None else Snapshot()


@contextmanager
def open_tables(root: Path, *, creates: bool = False) -> Iterator[Tables | None]:
    """Open the tables of a lake; None if it has none yet and is not to be changed.

    Raises ConfigError without pyiceberg, StoreCorrupt for damaged metadata.
    """
    root = root.resolve()  # which may be named by a link, while the tables have absolute paths
    path = catalog_path(root)
    if not creates and (path.parent / "snapshot.json").exists():  # also of an adoption that was killed
        raise StoreError(
            f"{root} is a lake of an earlier version; `rucola pipeline compact --lake {root}` makes it a table",
            subject=root,
        )
    try:
        os.close(open_inside(root, path))
    except FileNotFoundError:
        _check_unused(root)
        if not creates:
            yield None
            return
    try:
        from pyiceberg.exceptions import NoSuchTableError
    except ModuleNotFoundError as error:
        raise ConfigError(missing_extra(error, "lake")) from error
    catalog = None
    try:
        try:
            if creates:
                _create_catalog(root, path)
            catalog = _catalog(root, path)
            tables = Tables(root, catalog, creates=creates)
        except NoSuchTableError:
            _check_unused(root)
            tables = None
        except FileNotFoundError as error:
            raise _missing(root, error) from error
        except MQError:
            raise
        except Exception as error:
            raise lake_damage(path, 0, f"the file cannot be read: {first_line(error)}") from error
        yield tables
    finally:
        if catalog is not None:
            catalog.close()


def _check_unused(root: Path) -> None:
    """Raise StoreCorrupt if a lake without tables in its catalog has had a commit."""
    for path in root.glob("metadata/*.metadata.json"):
        if not path.name.startswith("00000-"):
            why = f"the table rucola.messages is missing, but the lake holds {path.relative_to(root)}"
            raise lake_damage(catalog_path(root), 0, why)


def _create_catalog(root: Path, path: Path) -> None:
    kind = _file_system(root)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"{root} is on a network file system ({kind}), which cannot hold the catalog of a lake: SQLite needs the "
            f"locks of one machine. Archive into a directory on a local disk",
            subject=root,
        )
    if path.exists():
        return
    # Complete before it has its name: readers may come at any time.
    temporary = temporary_path(path)
    os.close(open_inside(root, temporary, os.O_RDWR | os.O_CREAT))
    with closing(sqlite3.connect(temporary)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    _catalog(root, temporary, creates=True).close()
    temporary.replace(path)
    sync_directory(path.parent)


def _catalog(root: Path, path: Path, *, creates: bool = False) -> SqlCatalog:
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import URL

    properties = {
        "uri": URL.create("sqlite", database=str(path), query={"timeout": "30"}).render_as_string(),
        "warehouse": str(root),
        "py-io-impl": "rucola.spark.lake.local_io.LocalFileIO",
        "init_catalog_tables": str(creates).lower(),
    }
    return SqlCatalog("rucola", **properties)


def _file_system(root: Path) -> str:
    """Return the type of the file system that a path is on, "" where the system does not tell."""
    found, kind = "", ""
    with suppress(FileNotFoundError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mount, own, *_ = line.encode().decode("unicode_escape").split(" ", 3)
            if Path(mount) in (root, *root.parents) and len(mount) >= len(found):
                found, kind = mount, own
    return kind


class Tables:
    """The two tables of a lake, made by `open_tables`."""

    def __init__(self, root: Path, catalog: SqlCatalog, *, creates: bool) -> None:
        self.root = root
        self._catalog = catalog
        self._read: dict[str, list[tuple[int, DataFile]]] = {}
        if creates:
            if not catalog.table_exists(_MESSAGES_TABLE):
                _check_unused(root)
            catalog.create_namespace_if_not_exists("rucola")
            self._create(_KEYS_TABLE, ENTRY, root / METADATA_DIRECTORY / "keys")
            self._create(_MESSAGES_TABLE, MESSAGES, root)
        self.keys, self.messages = catalog.load_table(_KEYS_TABLE), catalog.load_table(_MESSAGES_TABLE)
        if Path(self.messages.location()) != root:
            raise _moved(root, Path(self.messages.location()))
        if len(self.messages.specs()) > 1:
            raise StoreError(f"another engine has changed the partitions of {root}, which is not supported")

    def _create(self, name: str | tuple[str, str], schema: pa.Schema, location: Path) -> None:
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.table.name_mapping import create_mapping_from_schema
        from pyiceberg.transforms import DayTransform, IdentityTransform

        own = pyarrow_to_schema(schema)
        fields = []
        if name != _KEYS_TABLE:
            time_id = own.find_field("storeTimestamp").field_id
            fields.append(PartitionField(time_id, 1000, DayTransform(), "storeTimestamp_day"))
        if name == _MESSAGES_TABLE:
            fields.append(PartitionField(own.find_field("topic").field_id, 1001, IdentityTransform(), "topic"))
        mapping = create_mapping_from_schema(own).model_dump_json()
        properties = {**_PROPERTIES, "schema.name-mapping.default": mapping}
        self._catalog.create_table_if_not_exists(
            name, own, str(location), PartitionSpec(*fields), properties=properties
        )

    def topic(self, topic: str, schema: pa.Schema | None = None) -> Table | None:
        """Return the table of one topic. With a schema it is made if it is missing, otherwise the result is None."""
        name = ("topics", topic)
        if not self._catalog.table_exists(name):
            if schema is None:
                return None
            self._catalog.create_namespace_if_not_exists("topics")
            directory, _ = partition_directory(topic, None).split("/")
            self._create(name, schema, self.root / TOPICS_DIRECTORY / directory)
        table = self._catalog.load_table(name)
        if self.root not in Path(table.location()).parents:
            raise _moved(self.root, Path(table.location()))
        return table

    # -- reading -------------------------------------------------------------------------------------------------------

    def progress(self, table: Table | None = None) -> dict[str, ArchiveProgress]:
        """Return the archive progress of each store and live broker, by name, or that of a topic's table."""
        return {
            key.removeprefix(PROGRESS): msgspec.json.decode(value, type=ArchiveProgress)
            for key, value in (table or self.messages).properties.items()
            if key.startswith(PROGRESS)
        }

    def row_files_after(self, number: int, topic: str) -> list[RowFile]:
        """Return the files of a topic's messages that snapshots after `number`, a sequence number, have added."""
        snapshot = self.messages.current_snapshot()
        if snapshot is None:
            return []
        manifests = self._manifests(self.messages, [snapshot]).values()
        newer = [each for each in manifests if (each.sequence_number or 0) > number]
        files = [
            self._row_file(file) for file in self._files(self.messages, newer, number) if file.partition[1] == topic
        ]
        return sorted(files, key=lambda file: (file.day or "", file.least))

    def snapshot(self) -> Snapshot:
        """Read the list of files and the progress."""
        current = self.messages.current_snapshot()
        return Snapshot(
            0 if current is None else current.sequence_number or 0,
            tuple(self._row_file(file) for file in self.files(self.messages)),
            tuple(self._key_file(file) for file in self.files(self.keys)),
            self.progress(),
        )

    def paths(self, table: Table) -> list[str]:
        """Return the paths of a table's live data files, as `commit` replaces them."""
        return [self._relative(file) for file in self.files(table)]

    def files(self, table: Table) -> list[DataFile]:
        """Return the live data files of a table."""
        snapshot = table.current_snapshot()
        return [] if snapshot is None else self._files(table, self._manifests(table, [snapshot]).values())

    def _manifests(self, table: Table, snapshots: Sequence[TableSnapshot]) -> dict[str, ManifestFile]:
        try:
            return {each.manifest_path: each for snapshot in snapshots for each in snapshot.manifests(table.io)}
        except FileNotFoundError as error:
            raise _missing(self.root, error) from error
        except Exception as error:
            raise _unreadable(snapshots[-1].manifest_list, error) from error

    def _files(self, table: Table, manifests: Collection[ManifestFile], after: int = -1) -> list[DataFile]:
        """Return the files of manifests, of those whose sequence number is greater than `after`."""
        found: list[DataFile] = []
        for manifest in manifests:
            # A manifest never changes.
            files = self._read.get(manifest.manifest_path)
            if files is None:
                files = self._read[manifest.manifest_path] = self._read_manifest(table, manifest)
            found += [file for number, file in files if number > after]
        return found

    def _read_manifest(self, table: Table, manifest: ManifestFile) -> list[tuple[int, DataFile]]:
        from pyiceberg.manifest import ManifestContent

        try:
            entries = manifest.fetch_manifest_entry(table.io)
            files = [(entry.sequence_number or 0, entry.data_file) for entry in entries]
        except FileNotFoundError as error:
            raise _missing(self.root, error) from error
        except Exception as error:
            raise _unreadable(manifest.manifest_path, error) from error
        if files and manifest.content != ManifestContent.DATA:
            raise StoreError(f"{self.root} has row-level deletes by another engine, which are not supported")
        return files

    def _relative(self, file: DataFile) -> str:
        path = Path(file.file_path.removeprefix("file://"))
        if self.root not in path.parents or ".." in path.parts:
            raise _moved(self.root, path)
        return str(path.relative_to(self.root))

    def _row_file(self, file: DataFile) -> RowFile:
        path, day, topic = self._relative(file), file.partition[0], file.partition[1]
        iso = None if day is None else date.fromordinal(_EPOCH + day).isoformat()
        bounds = (_bounds(file, self.messages, column) for column in ("commitLogOffset", "queueOffset"))
        return RowFile(path, topic, iso, file.record_count, file.file_size_in_bytes, *chain.from_iterable(bounds))

    def _key_file(self, file: DataFile) -> KeyFile:
        path = self._relative(file)
        run = Path(path).name.rpartition("-")[0]
        return KeyFile(path, run, file.record_count, file.file_size_in_bytes, *_bounds(file, self.keys, "hash"))

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(
        self,
        table: Table,
        added: Sequence[tuple[Path, Sequence[Value]]],
        replaces: Collection[str] = (),
        progress: Mapping[str, ArchiveProgress] | None = None,
        others: Mapping[str, str] | None = None,
    ) -> None:
        """Add files, each with its partition, and set the progress and other properties, at once.

        Raises LakeInUse if another writer has archived messages of the same names, or replaced the same files.
        """
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        files = [_data_file(table, path, partition) for path, partition in added]
        properties = {PROGRESS + name: msgspec.json.encode(each).decode() for name, each in (progress or {}).items()}
        properties |= others or {}
        before = {key: table.properties.get(key) for key in properties}
        while True:
            snapshot_id = None
            try:
                replaced = [file for file in self.files(table) if self._relative(file) in replaces] if replaces else []
                if len(replaced) != len(replaces):
                    raise LakeInUse(f"another writer has replaced files of {self.root}")
                with table.transaction() as transaction:
                    if properties:
                        transaction.set_properties(properties)
                    update = transaction.update_snapshot()
                    # Also without files: of two commits that begin with the same snapshot, only one is accepted.
                    with update.overwrite() if replaced else update.merge_append() as producer:
                        snapshot_id = producer.snapshot_id
                        for file in replaced:
                            producer.delete_data_file(file)
                        for file in files:
                            producer.append_data_file(file)
                return
            except (StoreError, MemoryError):
                raise
            except Exception as error:
                # Never repeated blindly: the commit may have been accepted, and only its answer been lost.
                table.refresh()
                if any(snapshot.snapshot_id == snapshot_id for snapshot in table.metadata.snapshots):
                    return
                if not isinstance(error, CommitFailedException | ValidationException):
                    raise StoreError(f"{self.root}: the commit failed: {first_line(error)}") from error
                if {key: table.properties.get(key) for key in properties} != before:
                    raise LakeInUse(f"another run has archived into {self.root}; run this one again") from error

    def write_hint(self) -> None:
        """Name the messages' current metadata to engines that are given the directory."""
        stem = Path(self.messages.metadata_location).name.removesuffix(".metadata.json")
        replace_file(self.root / "metadata" / "version-hint.text", stem.encode())

    # -- maintenance ---------------------------------------------------------------------------------------------------

    def expire(self, keep_replaced_ms: int) -> None:
        """Expire snapshots, and delete files that none needs any longer.

        Of snapshots that only messages were added to, `KEPT_SNAPSHOTS` are left. Files that a compaction has replaced
        are kept for `keep_replaced_ms`.
        """
        for table in (self.keys, self.messages):
            self.expire_table(table, keep_replaced_ms)

    def expire_table(self, table: Table, keep_replaced_ms: int) -> None:
        """Expire snapshots of one table."""
        expired = _expirable(table, keep_replaced_ms)
        if expired:
            self._expire(table, expired)
            self._delete_metadata(table, min(keep_replaced_ms, _METADATA_GRACE_MS))

    def _expire(self, table: Table, expired: Sequence[TableSnapshot]) -> None:
        before = self._manifests(table, expired)
        table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in expired]).commit()
        left = self._manifests(table, table.metadata.snapshots)
        unused = [manifest for path, manifest in before.items() if path not in left]
        if unused:
            used = {file.file_path for file in self._files(table, left.values())}
            for path in {file.file_path for file in self._files(table, unused)} - used:
                self._delete(path)

    def _delete_metadata(self, table: Table, grace_ms: int) -> None:
        """Delete metadata that is not reachable: of expired snapshots, and of commits that were refused or killed."""
        reachable = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
        reachable |= {snapshot.manifest_list for snapshot in table.metadata.snapshots}
        reachable |= self._manifests(table, table.metadata.snapshots).keys()
        latest = time.time() - grace_ms / 1000
        for path in (Path(table.location()) / "metadata").iterdir():
            if path.suffix in (".avro", ".json") and str(path) not in reachable and path.stat().st_mtime <= latest:
                path.unlink(missing_ok=True)

    def delete_orphans(self) -> None:
        """Delete files that runs which were killed have written and no snapshot names."""
        patterns = ("data/*/*/*.parquet", "topic=*/date=*/*.parquet", f"{METADATA_DIRECTORY}/keys/*.parquet")
        self._delete_unnamed((self.keys, self.messages), self.root, patterns)

    def delete_orphans_of(self, table: Table) -> None:
        """Delete files of a topic's table that no snapshot names."""
        self._delete_unnamed((table,), Path(table.location()), ("data/*/*.parquet",))

    def _delete_unnamed(self, tables: Sequence[Table], directory: Path, patterns: Sequence[str]) -> None:
        named = {
            file.file_path
            for table in tables
            for file in self._files(table, self._manifests(table, table.metadata.snapshots).values())
        }
        for path in (path for pattern in patterns for path in directory.glob(pattern)):
            if str(path) not in named:
                self._delete(str(path))

    def _delete(self, path: str) -> None:
        """Delete a data file, unless another engine has written it or it is not in the lake."""
        own = Path(path)
        if self.root in own.parents and ".." not in own.parts and _OWN_NAME.fullmatch(own.name):
            own.unlink(missing_ok=True)


def _expirable(table: Table, keep_replaced_ms: int) -> list[TableSnapshot]:
    from pyiceberg.table.snapshots import Operation

    now_ms = time.time_ns() // 1_000_000
    snapshots = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    appends = [each.summary is None or each.summary.operation == Operation.APPEND for each in snapshots]
    # Everything before a snapshot that replaced files long ago, and behind that old snapshots before an append.
    cut = max(
        (
            number
            for number, snapshot in enumerate(snapshots)
            if not appends[number] and snapshot.timestamp_ms + keep_replaced_ms <= now_ms
        ),
        default=0,
    )
    old = [number for number in range(cut, len(snapshots) - KEPT_SNAPSHOTS) if appends[number + 1]]
    numbers = [*range(cut), *(old if cut or 2 * len(old) >= KEPT_SNAPSHOTS else ())]
    return [snapshots[number] for number in numbers if snapshots[number].snapshot_id not in named]


def _data_file(table: Table, path: Path, partition: Sequence[Value]) -> DataFile:
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema = table.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        pq.read_metadata(path), compute_statistics_plan(schema, table.properties), parquet_path_to_id_mapping(schema)
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=str(path),
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        file_size_in_bytes=path.stat().st_size,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def partition_of(topic: str, day: str | None) -> list[Value]:
    """Return the partition of messages of a topic and UTC day."""
    return [None if day is None else date.fromisoformat(day).toordinal() - _EPOCH, topic]


def _bounds(file: DataFile, table: Table, column: str) -> tuple[int, int]:
    """Return a range that contains the integers of a column in a file."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType

    number = table.schema().find_field(column).field_id

    def bound(values: Mapping[int, bytes] | None, default: int) -> int:
        found = (values or {}).get(number)
        return default if found is None else int(from_bytes(LongType(), found))

    return bound(file.lower_bounds, 0), bound(file.upper_bounds, MAX_LONG)


def _missing(root: Path, error: FileNotFoundError) -> StoreCorrupt:
    found = re.search("/[^']*", error.filename or str(error))
    path = Path(found[0] if found else "?")
    return lake_damage(path, 0, "the file is missing") if root in path.parents else _moved(root, path)


def _moved(root: Path, path: Path) -> StoreCorrupt:
    return lake_damage(catalog_path(root), 0, f"it names {path}, because a lake cannot be moved or copied")


def _unreadable(path: str, error: Exception) -> StoreCorrupt:
    return lake_damage(Path(path), 0, f"the file cannot be read: {first_line(error)}")
