"""Catalogs of lakes: the embedded one, which is SQLite, and those of pyiceberg's configuration.

The embedded catalog is `<lake>/_rucola/catalog.db`, with one row for each table: the path of its metadata. A lake in an
object store, or on a file system that machines share, needs a catalog that they share, too: REST, SQL, Hive or Glue. It
is given by its name in pyiceberg's configuration (`.pyiceberg.yaml`, variables `PYICEBERG_CATALOG__<NAME>__…`), which
also has credentials and other properties, or by its URI.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from rucola.errors import ConfigError
from rucola.files import open_inside, sync_directory, temporary_path
from rucola.spark.lake.data_files import first_line
from rucola.spark.lake.snapshot import METADATA_DIRECTORY
from rucola.spark.lake.storage import Directory

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import CommitTableResponse, Table

    from rucola.spark.lake.storage import Storage

C = TypeVar("C", bound="Catalog")

_LOCAL_IO: Final = {"py-io-impl": "rucola.spark.lake.local_io.LocalFileIO"}
_PLACE: Final = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"
_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.glusterfs"}
)


class CommitRefused(Exception):
    """The catalog has refused a commit, which may yet be in the table: a proxy that repeats a request meets its own.

    It takes the place of CommitFailedException, for which pyiceberg deletes the metadata of the commit.
    """


def catalog_path(root: Path) -> Path:
    """Return the path of a lake's embedded catalog."""
    return root / METADATA_DIRECTORY / "catalog.db"


def open_catalog(catalog: str, storage: Storage) -> Catalog:
    """Open a catalog by its name in pyiceberg's configuration or by its URI, for a lake in this storage.

    Raises ConfigError if it cannot be used, or the URI has a password.
    """
    from pyiceberg.catalog import load_catalog

    properties = _LOCAL_IO if isinstance(storage, Directory) else {}
    name, uri = ("rucola", catalog) if "://" in catalog else (catalog, None)
    if uri is not None:
        if urlsplit(uri).password is not None:
            raise ConfigError(
                "the URI of the catalog has a password, which other users of this machine can see: give the catalog a "
                "name in .pyiceberg.yaml, and its URI there"
            )
        properties = {**properties, "uri": uri}
    try:
        return _refusing(load_catalog(name, **properties))
    except Exception as error:
        raise ConfigError(
            f"the catalog {catalog} cannot be used: {first_line(error)}; give its URI, or a name with properties in "
            ".pyiceberg.yaml",
            subject=catalog,
        ) from error


def create_embedded(root: Path, path: Path) -> None:
    """Create the embedded catalog unless it exists. Raises ConfigError on a network file system."""
    kind = _file_system(root)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"{root} is on a network file system ({kind}), which cannot hold the catalog of a lake: SQLite needs the "
            f"locks of one machine. Archive into a directory on a local disk, or name a catalog",
            subject=root,
        )
    if path.exists():
        return
    # Complete before it has its name: readers may come at any time.
    temporary = temporary_path(path)
    os.close(open_inside(root, temporary, os.O_RDWR | os.O_CREAT))
    with closing(sqlite3.connect(temporary)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    open_embedded(root, temporary, creates=True).close()
    temporary.replace(path)
    sync_directory(path.parent)


def open_embedded(root: Path, path: Path, *, creates: bool = False) -> SqlCatalog:
    """Open the embedded catalog, whose tables are created only with `creates`."""
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import URL

    properties = {
        "uri": URL.create("sqlite", database=str(path), query={"timeout": "30"}).render_as_string(),
        "warehouse": str(root),
        **_LOCAL_IO,
        "init_catalog_tables": str(creates).lower(),
    }
    return _refusing(SqlCatalog("rucola", **properties))


def _refusing(catalog: C) -> C:
    """Let a catalog raise CommitRefused."""
    from pyiceberg.exceptions import CommitFailedException

    def commit_table(*arguments: Any) -> CommitTableResponse:
        try:
            return type(catalog).commit_table(catalog, *arguments)
        except CommitFailedException as error:
            raise CommitRefused(str(error)) from error

    catalog.commit_table = commit_table  # type: ignore[method-assign, assignment]
    return catalog


class EmbeddedTables:
    """The tables of the embedded catalog, to be read: half of the CPU time of opening a lake is loading SQLAlchemy."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=30)

    def load_table(self, identifier: str | tuple[str, str]) -> Table:
        """Return a table. Raises NoSuchTableError."""
        from pyiceberg.exceptions import NoSuchTableError
        from pyiceberg.serializers import FromInputFile
        from pyiceberg.table import Table

        from rucola.spark.lake.local_io import LocalFileIO

        name = identifier if isinstance(identifier, tuple) else tuple(identifier.split("."))
        found = self._connection.execute(_PLACE, name).fetchone()
        if found is None:
            raise NoSuchTableError(f"the table {'.'.join(name)} does not exist")
        metadata = FromInputFile.table_metadata(LocalFileIO().new_input(found[0]))
        return Table(name, metadata, found[0], LocalFileIO(), cast("Catalog", self))

    def close(self) -> None:
        self._connection.close()


def _file_system(root: Path) -> str:
    """Return the type of the file system that a path is on, "" where the system does not tell."""
    found, kind = "", ""
    with suppress(FileNotFoundError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mount, own, *_ = line.encode().decode("unicode_escape").split(" ", 3)
            if Path(mount) in (root, *root.parents) and len(mount) >= len(found):
                found, kind = mount, own
    return kind
