"""Local files for pyiceberg, on disk once they are closed. Loads neither pyarrow.dataset nor pandas, as its own do."""

from __future__ import annotations

import io
import os
from pathlib import Path

from pyiceberg.io import FileIO, InputFile, OutputFile

from rucola.files import make_directory, open_file, sync_directory
from rucola.system_calls import sync_all


class LocalFileIO(FileIO):
    """Access to the metadata of a lake."""

    def new_input(self, location: str) -> InputFile:
        """Return the file at a path."""
        return _LocalFile(location)

    def new_output(self, location: str) -> OutputFile:
        """Return the file at a path, which is going to be written."""
        return _LocalFile(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete the file at a path."""
        _path(location if isinstance(location, str) else location.location).unlink()


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://"))


class _LocalFile(InputFile, OutputFile):
    def __len__(self) -> int:
        return _path(self.location).stat().st_size

    def exists(self) -> bool:
        return _path(self.location).exists()

    def open(self, seekable: bool = True) -> io.BufferedReader:
        return _path(self.location).open("rb")

    def to_input_file(self) -> _LocalFile:
        return self

    def create(self, overwrite: bool = False) -> _DurableWriter:
        return _DurableWriter(_path(self.location), os.O_TRUNC if overwrite else os.O_EXCL)


class _DurableWriter(io.BufferedWriter):
    def __init__(self, path: Path, flag: int) -> None:
        make_directory(path.parent)
        super().__init__(io.FileIO(open_file(path, os.O_WRONLY | os.O_CREAT | flag), "w"))
        self._directory = path.parent

    def close(self) -> None:
        try:
            if not self.closed:
                self.flush()
                sync_all(self.fileno())
                sync_directory(self._directory)
        finally:
            super().close()
