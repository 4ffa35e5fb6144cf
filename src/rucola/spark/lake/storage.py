"""Files of a lake, in a directory or in an object store. Their paths are relative to the lake's location.

A storage is pickled to Spark's tasks, which read and write without a catalog. An object store is accessed as by
pyiceberg's FileIO: with properties of the catalog, or else with those of the environment, the profile or the machine.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from rucola.files import make_directory, open_file, size_inside, sync_directory
from rucola.system_calls import sync_all

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

Stream: TypeAlias = "Path | pa.NativeFile"
"""What pyarrow reads a file from, or writes it to."""

_LISTED: Final = 100
"""From this number of files on, one listing costs less than a request for each file."""
_IO_PROPERTIES: Final = ("s3.", "gcs.", "adls.", "hdfs.", "client.")
"""Prefixes of the properties for access to files. Those of the catalog itself are not pickled to tasks."""


class StoredFile(NamedTuple):
    """A file, and when it was written, in seconds since 1970."""

    path: str
    written: float


class Storage(ABC):
    """The files below a location."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The location in the metadata of tables."""

    def place(self, path: str) -> str:
        """Return what names a file in the metadata of tables."""
        return f"{self.location}/{path}"

    def relative(self, place: str) -> str | None:
        """Return the path of a file that metadata names, None outside of the location."""
        inside, begin, path = place.removeprefix("file://").partition(f"{self.location}/")
        return None if inside or not begin or ".." in path.split("/") else path

    @abstractmethod
    def reading(self, path: str) -> AbstractContextManager[Stream]:
        """Open a file. Raises FileNotFoundError."""

    @abstractmethod
    def writing(self, path: str) -> AbstractContextManager[Stream]:
        """Create a file. `sync` makes it durable."""

    @abstractmethod
    def sync(self, paths: Iterable[str]) -> None:
        """Make files durable that this or another process has written. Raises FileNotFoundError."""

    @abstractmethod
    def sizes(self, paths: Iterable[str]) -> Mapping[str, int]:
        """Return the sizes of the files that exist."""

    @abstractmethod
    def files(self, directory: str) -> Iterator[StoredFile]:
        """Yield all files below a directory, which may be missing."""

    @abstractmethod
    def file_system(self, paths: Iterable[str]) -> tuple[FileSystem, list[str]]:
        """Return Arrow's file system, and the names that files have there."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file, which may be missing."""

    @abstractmethod
    def delete_directory(self, directory: str) -> None:
        """Delete a directory, which may be missing."""


@dataclass(frozen=True)
class Directory(Storage):
    """Files in a directory of this machine, or of a file system that several machines share."""

    root: Path

    @property
    def location(self) -> str:
        return str(self.root)

    @contextmanager
    def reading(self, path: str) -> Iterator[Stream]:
        yield self.root / path

    @contextmanager
    def writing(self, path: str) -> Iterator[Stream]:
        make_directory((self.root / path).parent)
        yield self.root / path

    def sync(self, paths: Iterable[str]) -> None:
        synced = [self.root / path for path in paths]
        for path in synced:
            sync_file(path)
        for directory in {path.parent for path in synced}:
            sync_directory(directory)

    def sizes(self, paths: Iterable[str]) -> Mapping[str, int]:
        found = {}
        for path in paths:
            with suppress(FileNotFoundError):
                found[path] = size_inside(self.root, self.root / path)
        return found

    def files(self, directory: str) -> Iterator[StoredFile]:
        for parent, _, names in os.walk(self.root / directory):
            for path in (Path(parent) / name for name in names):
                with suppress(FileNotFoundError):
                    yield StoredFile(str(path.relative_to(self.root)), path.lstat().st_mtime)

    def file_system(self, paths: Iterable[str]) -> tuple[FileSystem, list[str]]:
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), [self.place(path) for path in paths]

    def delete(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def delete_directory(self, directory: str) -> None:
        shutil.rmtree(self.root / directory, ignore_errors=True)


@dataclass(frozen=True)
class ObjectStore(Storage):
    """Files in an object store, by its URL. A file is durable once it is written, and seen as a whole or not at all."""

    url: str
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, url: str, properties: Mapping[str, Any]) -> ObjectStore:
        """Make the storage with those of a catalog's properties that concern files."""
        chosen = [(key, str(value)) for key, value in properties.items() if key.startswith(_IO_PROPERTIES)]
        return cls(url, tuple(sorted(chosen)))

    @property
    def location(self) -> str:
        return self.url

    def file_system(self, paths: Iterable[str]) -> tuple[FileSystem, list[str]]:
        files, key = self._at("")
        return files, [f"{key}/{path}" for path in paths]

    def _at(self, path: str) -> tuple[FileSystem, str]:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        scheme, netloc, key = PyArrowFileIO.parse_location(self.place(path))
        return _file_system(scheme, netloc, self.properties), key.rstrip("/")

    @contextmanager
    def reading(self, path: str) -> Iterator[Stream]:
        files, key = self._at(path)
        with files.open_input_file(key) as stream:
            yield stream

    @contextmanager
    def writing(self, path: str) -> Iterator[Stream]:
        files, key = self._at(path)
        with files.open_output_stream(key) as stream:
            yield stream

    def sync(self, paths: Iterable[str]) -> None:
        pass

    def sizes(self, paths: Iterable[str]) -> Mapping[str, int]:
        from pyarrow.fs import FileType

        files, key = self._at("")
        wanted = [f"{key}/{path}" for path in paths]
        infos = files.get_file_info(wanted) if len(wanted) < _LISTED else self._list("")
        return {info.path.removeprefix(f"{key}/"): info.size for info in infos if info.type == FileType.File}

    def files(self, directory: str) -> Iterator[StoredFile]:
        from pyarrow.fs import FileType

        _, key = self._at("")
        for info in self._list(directory):
            if info.type == FileType.File:
                yield StoredFile(info.path.removeprefix(f"{key}/"), info.mtime.timestamp())

    def _list(self, directory: str) -> Any:
        from pyarrow.fs import FileSelector

        files, key = self._at(directory)
        return files.get_file_info(FileSelector(key, allow_not_found=True, recursive=True))

    def delete(self, path: str) -> None:
        from pyarrow.fs import FileType

        files, key = self._at(path)
        try:
            files.delete_file(key)
        except FileNotFoundError:
            pass
        except OSError:
            # pyarrow then creates an empty object for the directory, which a bucket of tables refuses.
            if files.get_file_info(key).type != FileType.NotFound:
                raise

    def delete_directory(self, directory: str) -> None:
        for file in self.files(directory):
            self.delete(file.path)


@lru_cache
def _file_system(scheme: str, netloc: str, properties: tuple[tuple[str, str], ...]) -> FileSystem:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, netloc)


def storage_of(root: Path | Storage) -> Storage:
    """Return the storage of a lake that is given by its directory."""
    return Directory(root) if isinstance(root, Path) else root


def sync_file(path: Path) -> None:
    """Fsync a file that another process or library has written."""
    descriptor = open_file(path)
    try:
        sync_all(descriptor)
    finally:
        os.close(descriptor)
