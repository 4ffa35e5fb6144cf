"""Relocation: a lake that was moved or copied gets the paths of its new directory.

Iceberg's metadata has absolute paths. Metadata, lists of manifests and manifests of all snapshots are written again,
under new names; then one transaction of the catalog makes them the current ones. No file with messages is opened.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from pyiceberg.io import InputFile
from pyiceberg.manifest import ManifestFile, read_manifest_list, write_manifest, write_manifest_list
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from rucola.errors import MQError, StoreCorrupt
from rucola.files import local_path, open_inside
from rucola.spark.lake.catalogs import catalog_path
from rucola.spark.lake.data_files import first_line
from rucola.spark.lake.local_io import LocalFileIO
from rucola.spark.lake.snapshot import check_exists, lake_damage
from rucola.spark.lake.storage import Directory
from rucola.spark.lake.writer import open_lake, prepared

_FILE_PATH: Final = 1
_MANIFEST_PATH: Final = 0
_MANIFEST_LENGTH: Final = 1
"""Positions of the fields of data files and manifests that change."""

_MESSAGES: Final = ("rucola", "messages")
_READ: Final = "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables"
_CHANGE: Final = (
    "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = NULL "
    "WHERE table_namespace = ? AND table_name = ?"
)


def relocate(directory: str | Path) -> str:
    """Give a lake that was moved or copied the paths of this directory, and return the former one.

    Can be repeated after a crash. Raises StoreError if there is no lake, LakeInUse if a run is writing, StoreCorrupt if
    a file is missing or damaged.
    """
    root = local_path(directory).resolve()
    check_exists(root)
    with prepared(root):
        former = _relocate(root, catalog_path(root))
    with open_lake(root):  # which checks the files, and names the metadata to other engines
        return former


def _relocate(root: Path, catalog: Path) -> str:
    try:
        os.close(open_inside(root, catalog))
        with closing(sqlite3.connect(catalog, timeout=30)) as connection:
            places = {(namespace, name): place for namespace, name, place in connection.execute(_READ).fetchall()}
            former = Path(places[_MESSAGES].removeprefix("file://")).parents[1]
            if former != root:
                move = _Move(Directory(former), Directory(root))
                changes = [(move.table(place), *name) for name, place in places.items()]
                with connection:
                    connection.executemany(_CHANGE, changes)
            return str(former)
    except MQError:
        raise
    except Exception as error:
        raise lake_damage(catalog, 0, f"the lake cannot get the paths of {root}: {first_line(error)}") from error


class _MovedIO(LocalFileIO):
    """Access to files by their former paths."""

    def __init__(self, moved: Callable[[str], str]) -> None:
        super().__init__()
        self._moved = moved

    def new_input(self, location: str) -> InputFile:
        return super().new_input(self._moved(location))


class _Move:
    """Metadata of tables, written again with the paths of another directory."""

    def __init__(self, former: Directory, new: Directory) -> None:
        self._former = former
        self._new = new
        self._io = _MovedIO(self._path)
        self._manifests: dict[str, ManifestFile] = {}

    def _path(self, place: str) -> str:
        path = self._former.relative(place) or self._new.relative(place)
        if path is None:
            why = f"its tables name {place}, which is not in {self._former.location}"
            raise StoreCorrupt(self._new.location, 0, why)
        return self._new.place(path)

    def table(self, place: str) -> str:
        """Write the metadata of a table, and return its path."""
        metadata = FromInputFile.table_metadata(self._io.new_input(place))
        location = str(Path(self._path(place)).parents[1])
        lists = {each.snapshot_id: self._manifest_list(metadata, location, each) for each in metadata.snapshots}
        moved = {
            "location": location,
            "snapshots": [
                each.model_copy(update={"manifest_list": lists[each.snapshot_id]}) for each in metadata.snapshots
            ],
            "metadata_log": [],
            "statistics": [],
            "partition_statistics": [],
        }
        version = int(Path(place).name.partition("-")[0]) + 1
        written = f"{location}/metadata/{version:05d}-{uuid.uuid4()}.metadata.json"
        ToOutputFile.table_metadata(metadata.model_copy(update=moved), self._io.new_output(written))
        return written

    def _manifest_list(self, metadata: TableMetadata, location: str, snapshot: Snapshot) -> str:
        written = f"{location}/metadata/snap-{snapshot.snapshot_id}-0-{uuid.uuid4()}.avro"
        old = read_manifest_list(self._io.new_input(snapshot.manifest_list))
        manifests = [self._manifest(metadata, location, each) for each in old]
        with write_manifest_list(
            2,
            self._io.new_output(written),
            snapshot.snapshot_id,
            snapshot.parent_snapshot_id,
            snapshot.sequence_number,
            "deflate",
        ) as writer:
            writer.add_manifests(manifests)
        return written

    def _manifest(self, metadata: TableMetadata, location: str, old: ManifestFile) -> ManifestFile:
        found = self._manifests.get(old.manifest_path)
        if found is None:
            output = self._io.new_output(f"{location}/metadata/{uuid.uuid4()}-m0.avro")
            spec = metadata.specs()[old.partition_spec_id]
            with write_manifest(2, spec, metadata.schema(), output, old.added_snapshot_id or 0, "deflate") as writer:
                for entry in old.fetch_manifest_entry(self._io, discard_deleted=False):
                    entry.data_file[_FILE_PATH] = self._path(entry.data_file.file_path)
                    writer.add_entry(entry)
            found = self._manifests[old.manifest_path] = ManifestFile(*(old[field] for field in range(len(old))))
            found[_MANIFEST_PATH] = output.location
            found[_MANIFEST_LENGTH] = len(output)
        return found
