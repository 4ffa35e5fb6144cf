"""Iceberg tables of a lake (format version 2), and commits to them.

    rucola.messages    the columns of the data source, partitioned by day(storeTimestamp) and topic
    rucola.keys        the key index (see `key_index`)
    topics.<topic>     messages of one topic, with decoded bodies (see `topic_tables`)

Any engine that commits through their catalog (see `catalogs`), or reads the metadata, sees a whole commit or nothing.
In a directory with the embedded catalog, `metadata/version-hint.text` names the messages' metadata to engines that are
given the directory.

The progress of each store and live broker is a property `rucola.progress.<name>` of `rucola.messages`, set by the
commit of its messages. Other engines may compact the tables and expire snapshots in between: properties survive both.

pyiceberg repeats a refused commit on the table as it has become, which would archive messages twice. Here it does not
(`commit.retry.num-retries`): `commit` looks at what the table has become first.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec
import pyarrow.parquet as pq

from rucola.errors import ConfigError, MQError, StoreCorrupt, StoreError, missing_extra
from rucola.files import check_inside, is_remote, local_path, open_inside, replace_file
from rucola.spark.lake.catalogs import (
    CommitRefused,
    EmbeddedTables,
    catalog_path,
    create_embedded,
    open_catalog,
    open_embedded,
)
from rucola.spark.lake.data_files import MAX_LONG, MESSAGES, first_line, partition_directory
from rucola.spark.lake.key_index import ENTRY
from rucola.spark.lake.snapshot import (
    KEYS_DIRECTORY,
    METADATA_DIRECTORY,
    TOPICS_DIRECTORY,
    ArchiveProgress,
    KeyFile,
    RowFile,
    Snapshot,
    check_exists,
    lake_damage,
)
from rucola.spark.lake.storage import Directory, ObjectStore, Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot as TableSnapshot

Value: TypeAlias = int | str | None

KEPT_SNAPSHOTS: Final = 20
"""Snapshots that expiry leaves; it begins with half as many more. A commit writes all of them, which is its cost."""

PROGRESS: Final = "rucola.progress."
"""Begin of the properties with the progress of a store or live broker."""
_FORGOTTEN: Final = "rucola.forgotten."
"""Begin of the properties with the entry of a removed file, by its name. Expiry keeps these files."""
ARCHIVED: Final = "archived"
"""The tag of the snapshot of the last archive run or compaction, which has the same rows. Expiry keeps it."""
_FORMAT: Final = "rucola.format"
_OWN_FORMAT: Final = 1
"""The format of the lake, a property of its tables; those without it have this one."""
_TOPIC: Final = "rucola.topic"
"""The topic of a table, whose name may be another one."""
_EPOCH: Final = date(1970, 1, 1).toordinal()
_MESSAGES_TABLE: Final = "rucola.messages"
_KEYS_TABLE: Final = "rucola.keys"
_SORTED_BY: Final = {
    _MESSAGES_TABLE: ("brokerName", "commitLogOffset"),
    _KEYS_TABLE: ("hash", "date", "commitLogOffset"),
}
"""The order in which compactions write files, declared for those of other engines."""
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
_OWN_NAME: Final = re.compile(r"[0-9a-f]{10}(?:[0-9a-f]{22})?-(?:\d{5}-[0-9a-f]{32}-)?\d{5}\.parquet")
"""Data files that the archive wrote, in this format or, with ten digits, before it."""
_METADATA_GRACE_MS: Final = 10 * 60 * 1000
"""How long metadata that no snapshot needs is kept for readers that are planning."""
_UNLOCKED_GRACE_MS: Final = 60 * 60 * 1000
"""The same where other runs may be about to commit theirs."""
_FIRST_METADATA: Final = ("00000-", "v1.")
"""Begins of the name of a new table's metadata."""


class LakeInUse(StoreError):
    """Another run holds the lock of the lake, or has changed what this one is based on."""


class TopicTableError(StoreError):
    """A table of a topic that cannot be continued; the archive of its messages is complete."""


def read_snapshot(root: str | Path, catalog: str | None = None, *, keys: bool = True) -> Snapshot:
    """Read the current snapshot, with the files of the key index unless they are not needed.

    Raises StoreError if there is no lake, StoreCorrupt if its metadata is damaged.
    """
    if catalog is None:
        root = local_path(root).absolute()
        check_exists(root)
        # Without the files of messages, which may be many, and are checked where they are opened.
        check_inside(root, lambda name: name in (METADATA_DIRECTORY, "metadata"))
    with open_tables(root, catalog, reads=True) as tables:
        return tables.snapshot(keys=keys) if tables is not None else Snapshot(storage=Directory(Path(root)))


@contextmanager
def open_tables(
    root: str | Path, catalog: str | None = None, *, creates: bool = False, reads: bool = False
) -> Iterator[Tables | None]:
    """Open the tables of a lake, without a catalog those of the embedded one; with `reads` they are only read.

    None if a directory with the embedded catalog has no tables yet and is not to be changed. Raises ConfigError without
    pyiceberg or if the catalog cannot be used, StoreError if it has no lake, StoreCorrupt for damaged metadata.
    """
    try:
        from pyiceberg.exceptions import NoSuchTableError
    except ModuleNotFoundError as error:
        raise ConfigError(missing_extra(error, "lake")) from error
    if catalog is not None:
        with _tables_in(catalog, root, creates=creates) as found:
            yield found
        return
    root = local_path(root).resolve()  # which may be named by a link, while the tables have absolute paths
    path = catalog_path(root)
    if not creates and (path.parent / "snapshot.json").exists():  # also of an adoption that was killed
        raise StoreError(
            f"{root} is a lake of an earlier version; `rucola pipeline compact --lake {root}` makes it a table",
            subject=root,
        )
    storage = Directory(root)
    try:
        os.close(open_inside(root, path))
    except FileNotFoundError:
        _check_unused(storage)
        if not creates:
            yield None
            return
    opened: Catalog | EmbeddedTables | None = None
    tables: Tables | None = None
    try:
        try:
            if creates:
                create_embedded(root, path)
            opened = EmbeddedTables(path) if reads else open_embedded(root, path)
            tables = Tables(storage, cast("Catalog", opened), creates=creates, is_embedded=True)
        except NoSuchTableError:
            _check_unused(storage)
        except FileNotFoundError as error:
            raise _missing(storage, error) from error
        except MQError:
            raise
        except Exception as error:
            raise lake_damage(path, 0, f"the file cannot be read: {first_line(error)}") from error
        yield tables
    finally:
        if opened is not None:
            opened.close()


@contextmanager
def _tables_in(name: str, root: str | Path, *, creates: bool) -> Iterator[Tables]:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    url = str(root)
    is_url = is_remote(url)
    storage: Storage = ObjectStore(url.rstrip("/")) if is_url else Directory(local_path(root).resolve())
    catalog = open_catalog(name, storage)
    try:
        if is_url:
            storage = ObjectStore.of(storage.location, catalog.properties)
        try:
            tables = Tables(storage, catalog, creates=creates, is_embedded=False)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise StoreError(
                f"the catalog {name} has no lake; `rucola pipeline archive --catalog {name}` makes one", subject=name
            ) from error
        except MQError:
            raise
        except Exception as error:
            raise StoreError(
                f"the lake {url} in the catalog {name} cannot be used: {first_line(error)}", subject=name
            ) from error
        yield tables
    finally:
        catalog.close()


def _check_unused(storage: Storage) -> None:
    """Raise StoreCorrupt if a lake without tables in its catalog has had a commit."""
    for file in storage.files("metadata"):
        name = file.path.rpartition("/")[2]
        if name.endswith(".metadata.json") and not name.startswith(_FIRST_METADATA):
            why = f"the table rucola.messages is missing in its catalog, but the lake holds {file.path}"
            raise lake_damage(storage.location, 0, why)


class Tables:
    """The two tables of a lake, made by `open_tables`."""

    def __init__(self, storage: Storage, catalog: Catalog, *, creates: bool, is_embedded: bool) -> None:
        self.storage = storage
        self.is_embedded = is_embedded
        self.catalog = catalog
        self._read: dict[str, list[tuple[int, DataFile]]] = {}
        is_checked = True
        # Not created if it exists, since that writes metadata that nothing needs.
        if creates and not catalog.table_exists(_MESSAGES_TABLE):
            try:
                _check_unused(storage)
            except OSError:
                is_checked = False  # the catalog may give credentials with a table only
            catalog.create_namespace_if_not_exists("rucola")
            if not catalog.table_exists(_KEYS_TABLE):
                self._create(_KEYS_TABLE, ENTRY, storage.place(KEYS_DIRECTORY))
            self._create(_MESSAGES_TABLE, MESSAGES, storage.location)
        self.keys, self.messages = catalog.load_table(_KEYS_TABLE), catalog.load_table(_MESSAGES_TABLE)
        found = self.messages.location().rstrip("/")
        if found != storage.location:
            if is_embedded:
                raise _moved(storage, found)
            raise ConfigError(f"the lake of this catalog is {found}, and not {storage.location}", subject=found)
        if isinstance(storage, ObjectStore):  # a catalog may give credentials for the table alone
            self.storage = ObjectStore.of(storage.url, self.messages.io.properties)
        if (lake_format := self.messages.properties.get(_FORMAT, "1")) != str(_OWN_FORMAT):
            raise StoreError(
                f"the lake {found} has format {lake_format}, and this Rucola reads {_OWN_FORMAT}: use the Rucola that "
                "wrote it, or a newer one",
                subject=found,
            )
        if not is_checked:
            try:
                _check_unused(self.storage)
            except StoreCorrupt:
                if self.messages.current_snapshot() is None:  # else another run has begun the lake
                    catalog.drop_table(_MESSAGES_TABLE)
                    raise
        if len(self.messages.specs()) > 1:
            raise StoreError(f"another engine has changed the partitions of {found}, which is not supported")

    def _create(
        self, name: str | tuple[str, str], schema: pa.Schema, location: str, others: Mapping[str, str] = {}
    ) -> None:
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.table.name_mapping import create_mapping_from_schema
        from pyiceberg.table.sorting import SortField, SortOrder
        from pyiceberg.transforms import DayTransform, IdentityTransform

        own = pyarrow_to_schema(schema)
        fields = []
        if name != _KEYS_TABLE:
            time_id = own.find_field("storeTimestamp").field_id
            fields.append(PartitionField(time_id, 1000, DayTransform(), "storeTimestamp_day"))
        if name == _MESSAGES_TABLE:
            fields.append(PartitionField(own.find_field("topic").field_id, 1001, IdentityTransform(), "topic"))
        mapping = create_mapping_from_schema(own).model_dump_json()
        properties = {**_PROPERTIES, _FORMAT: str(_OWN_FORMAT), **others, "schema.name-mapping.default": mapping}
        sorted_by = _SORTED_BY.get(name, ()) if isinstance(name, str) else ()
        order = SortOrder(
            *(SortField(own.find_field(column).field_id, transform=IdentityTransform()) for column in sorted_by)
        )
        self.catalog.create_table_if_not_exists(
            name, own, location, PartitionSpec(*fields), order, properties=properties
        )

    def topic(self, topic: str, schema: pa.Schema | None = None) -> Table | None:
        """Return the table of one topic. With a schema it is made if it is missing, otherwise the result is None."""
        name = ("topics", topic if self.is_embedded else topic_table_name(topic))
        if not self.catalog.table_exists(name):
            if schema is None:
                return None
            self.catalog.create_namespace_if_not_exists("topics")
            if self.is_embedded:
                path = f"{TOPICS_DIRECTORY}/{partition_directory(topic, None).partition('/')[0]}"
            else:  # buckets of tables permit it there, as they do the key index
                path = f"{METADATA_DIRECTORY}/{TOPICS_DIRECTORY}/{name[1]}"
            self._create(name, schema, self.storage.place(path), {_TOPIC: topic})
        table = self.catalog.load_table(name)
        self.directory(table)
        if table.properties.get(_TOPIC, topic) != topic:
            raise StoreError(f"the table {'.'.join(name)} is that of the topic {table.properties[_TOPIC]}")
        return table

    def directory(self, table: Table) -> str:
        """Return the path of a topic's table."""
        path = self.storage.relative(table.location().rstrip("/"))
        if path is None:
            raise _moved(self.storage, table.location())
        return path

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
            self.row_file(file) for file in self._files(self.messages, newer, number) if file.partition[1] == topic
        ]
        return sorted(files, key=lambda file: (file.day or "", file.least))

    def snapshot(self, *, keys: bool = True) -> Snapshot:
        """Read the list of files, with or without those of the key index, and the progress."""
        current = self.messages.current_snapshot()
        return Snapshot(
            0 if current is None else current.sequence_number or 0,
            tuple(self.row_file(file) for file in self.files(self.messages)),
            tuple(self._key_file(file) for file in self.files(self.keys)) if keys else (),
            self.progress(),
            self.storage,
            tuple(
                msgspec.json.decode(value, type=RowFile)
                for key, value in self.messages.properties.items()
                if key.startswith(_FORGOTTEN)
            ),
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
            raise _missing(self.storage, error) from error
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
            raise _missing(self.storage, error) from error
        except Exception as error:
            raise _unreadable(manifest.manifest_path, error) from error
        if files and manifest.content != ManifestContent.DATA:
            raise StoreError(
                f"{self.storage.location} has row-level deletes by another engine, which are not supported"
            )
        return files

    def _relative(self, file: DataFile) -> str:
        path = self.storage.relative(file.file_path)
        if path is None:
            raise _moved(self.storage, file.file_path)
        return path

    def row_file(self, file: DataFile) -> RowFile:
        """Return the entry of a file of messages."""
        path, day, topic = self._relative(file), file.partition[0], file.partition[1]
        iso = None if day is None else date.fromordinal(_EPOCH + day).isoformat()
        physical, queue = (_bounds(file, self.messages, column) for column in ("commitLogOffset", "queueOffset"))
        brokers = range_of(file, self.messages, "brokerName")
        return RowFile(path, topic, iso, file.record_count, file.file_size_in_bytes, *physical, *queue, brokers)

    def _key_file(self, file: DataFile) -> KeyFile:
        path = self._relative(file)
        run = path.rpartition("/")[2].rpartition("-")[0]
        return KeyFile(path, run, file.record_count, file.file_size_in_bytes, *_bounds(file, self.keys, "hash"))

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(
        self,
        table: Table,
        added: Sequence[DataFile],
        replaces: Collection[str] = (),
        progress: Mapping[str, ArchiveProgress] | None = None,
        others: Mapping[str, str] | None = None,
    ) -> None:
        """Add files and set the progress and other properties, at once.

        A commit of messages gets the tag `ARCHIVED`. Raises LakeInUse if another writer has archived
        messages of the same names, or replaced the same files.
        """
        from pyiceberg.exceptions import ValidationException
        from pyiceberg.table.update.snapshot import ManageSnapshots

        properties = {PROGRESS + name: msgspec.json.encode(each).decode() for name, each in (progress or {}).items()}
        properties |= others or {}
        before = {key: table.properties.get(key) for key in properties}
        while True:
            snapshot_id = None
            try:
                replaced = [file for file in self.files(table) if self._relative(file) in replaces] if replaces else []
                if len(replaced) != len(replaces):
                    raise LakeInUse(f"another writer has replaced files of {self.storage.location}")
                with table.transaction() as transaction:
                    if properties:
                        transaction.set_properties(properties)
                    update = transaction.update_snapshot()
                    # Also without files: of two commits that begin with the same snapshot, only one is accepted.
                    with update.overwrite() if replaced else update.merge_append() as producer:
                        snapshot_id = producer.snapshot_id
                        for file in replaced:
                            producer.delete_data_file(file)
                        for file in added:
                            producer.append_data_file(file)
                    if table is self.messages:
                        # Last: a transaction keeps the first condition of a kind, which must be that of the branch.
                        ManageSnapshots(transaction).create_tag(snapshot_id, ARCHIVED).commit()
                return
            except (StoreError, MemoryError):
                raise
            except Exception as error:
                # Never repeated blindly: the commit may have been accepted, and only its answer been lost.
                self._refresh(table, error)
                if any(snapshot.snapshot_id == snapshot_id for snapshot in table.metadata.snapshots):
                    return
                if not isinstance(error, CommitRefused | ValidationException):
                    raise StoreError(f"{self.storage.location}: the commit failed: {first_line(error)}") from error
                if {key: table.properties.get(key) for key in properties} != before:
                    raise LakeInUse(
                        f"another run has archived into {self.storage.location}; run this one again"
                    ) from error

    def _refresh(self, table: Table, cause: Exception) -> None:
        try:
            table.refresh()
        except Exception as error:
            raise StoreError(
                f"{self.storage.location}: it is unknown whether the commit was accepted ({first_line(cause)}; "
                f"{first_line(error)}); the next run continues from what the catalog then has"
            ) from cause

    def forget(self, paths: Collection[str]) -> None:
        """Remove row files, without deleting them, and remember their entries."""
        forgotten = {
            _FORGOTTEN + file.path.rpartition("/")[2]: msgspec.json.encode(file).decode()
            for file in self.snapshot().rows
            if file.path in paths
        }
        self.commit(self.messages, (), paths, others=forgotten)

    def data_file(self, table: Table, path: str, partition: Sequence[Value]) -> DataFile:
        """Return the entry of a file for a commit. Raises FileNotFoundError."""
        with self.storage.reading(path) as source:
            size = source.stat().st_size if isinstance(source, Path) else source.size()
            return _data_file(table, self.storage.place(path), size, pq.read_metadata(source), partition)

    def write_hint(self) -> None:
        """Name the messages' current metadata to engines that are given the directory."""
        assert isinstance(self.storage, Directory)
        stem = Path(self.messages.metadata_location).name.removesuffix(".metadata.json").encode()
        hint = self.storage.root / "metadata" / "version-hint.text"
        if not hint.exists() or hint.read_bytes() != stem:
            replace_file(hint, stem)

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
            try:
                self._expire(table, expired)
            except CommitRefused:
                return  # another run has changed the table; the next one expires
            self._delete_metadata(
                table, min(keep_replaced_ms, _METADATA_GRACE_MS) if self.is_embedded else _UNLOCKED_GRACE_MS
            )

    def _expire(self, table: Table, expired: Sequence[TableSnapshot]) -> None:
        before = self._manifests(table, expired)
        table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in expired]).commit()
        left = self._manifests(table, table.metadata.snapshots)
        unused = [manifest for path, manifest in before.items() if path not in left]
        if unused:
            used = {file.file_path for file in self._files(table, left.values())}
            for place in {file.file_path for file in self._files(table, unused)} - used:
                path = self.storage.relative(place)
                if path is not None:
                    self._delete(path)

    def _delete_metadata(self, table: Table, grace_ms: int) -> None:
        """Delete metadata that is not reachable: of expired snapshots, and of commits that were refused or killed."""
        reachable = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
        reachable |= {snapshot.manifest_list for snapshot in table.metadata.snapshots}
        reachable |= self._manifests(table, table.metadata.snapshots).keys()
        latest = time.time() - grace_ms / 1000
        directory = self.storage.relative(f"{table.location().rstrip('/')}/metadata") or "metadata"
        for file in self.storage.files(directory):
            if (
                file.path.endswith((".avro", ".json"))
                and self.storage.place(file.path) not in reachable
                and file.written <= latest
            ):
                self.storage.delete(file.path)

    def delete_orphans(self, written_before: float) -> None:
        """Delete data files that no snapshot names, written before a time in seconds since 1970."""
        self._delete_unnamed((self.keys, self.messages), ("data", f"{KEYS_DIRECTORY}/data"), written_before)

    def delete_orphans_of(self, table: Table, written_before: float) -> None:
        """Delete files of a topic's table that no snapshot names, as `delete_orphans` does."""
        self._delete_unnamed((table,), (f"{self.directory(table)}/data",), written_before)

    def _delete_unnamed(self, tables: Sequence[Table], directories: Sequence[str], written_before: float) -> None:
        named = {
            file.file_path
            for table in tables
            for file in self._files(table, self._manifests(table, table.metadata.snapshots).values())
        }
        for file in (file for directory in directories for file in self.storage.files(directory)):
            if file.written < written_before and self.storage.place(file.path) not in named:
                self._delete(file.path)

    def _delete(self, path: str) -> None:
        """Delete a data file, unless another engine has written it, or it was removed by `forget`."""
        name = path.rpartition("/")[2]
        if _OWN_NAME.fullmatch(name) and _FORGOTTEN + name not in self.messages.properties:
            self.storage.delete(path)


def topic_table_name(topic: str) -> str:
    """Return the name of a topic's table in a catalog that may permit lower-case letters, digits and `_` only."""
    plain = re.sub("[^a-z0-9]+", "_", topic.lower()).strip("_")
    return (
        topic if re.fullmatch("[a-z0-9][a-z0-9_]*", topic) else f"{plain}_{zlib.crc32(topic.encode()):08x}".strip("_")
    )


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


def _data_file(table: Table, place: str, size: int, footer: pq.FileMetaData, partition: Sequence[Value]) -> DataFile:
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema = table.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, table.properties), parquet_path_to_id_mapping(schema)
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=place,
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def partition_of(topic: str, day: str | None) -> list[Value]:
    """Return the partition of messages of a topic and UTC day."""
    return [None if day is None else date.fromisoformat(day).toordinal() - _EPOCH, topic]


def range_of(file: DataFile, table: Table, column: str) -> tuple[Any, Any] | None:
    """Return a range that contains the values of a column in a file, inclusive; None if unknown."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    field = table.schema().find_field(column)
    assert isinstance(field.field_type, PrimitiveType)
    least, most = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    if least is None or most is None:
        return None
    return from_bytes(field.field_type, least), from_bytes(field.field_type, most)


def _bounds(file: DataFile, table: Table, column: str) -> tuple[int, int]:
    """Return a range that contains the integers of a column in a file."""
    return range_of(file, table, column) or (0, MAX_LONG)


def _missing(storage: Storage, error: FileNotFoundError) -> StoreCorrupt:
    found = re.search("(?:[a-z0-9]+:/)?/[^']*", error.filename or str(error))
    place = found[0] if found else "?"
    return lake_damage(place, 0, "the file is missing") if storage.relative(place) else _moved(storage, place)


def _moved(storage: Storage, place: str) -> StoreCorrupt:
    former = re.sub(f"(/{KEYS_DIRECTORY})?/metadata/[^/]*$", "", place)
    if not isinstance(storage, Directory):
        return StoreCorrupt(storage.location, 0, f"the catalog has a table at {former}, which is not of this lake")
    why = (
        f"this is a lake of {former}, and its tables have absolute paths; move it back, or give it its new path with "
        f"`rucola lake relocate --lake {storage.location}`"
    )
    return StoreCorrupt(storage.location, 0, why)


def _unreadable(path: str, error: Exception) -> StoreCorrupt:
    return lake_damage(path, 0, f"the file cannot be read: {first_line(error)}")
