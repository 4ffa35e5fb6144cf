"""Checks that driver and tasks see the same files and not those of another machine; they raise DirectoryNotShared.

A task compares a piece of a file as the driver sees it with its own: of a token that the driver has just written
(`share`), or of the log that is to be read. The driver compares the rows that Spark's writer has written with the rows
in the files that it finds (`write_parquet`).
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rucola.errors import DirectoryNotShared, StoreError
from rucola.files import open_file, open_inside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PIECE_SIZE: Final = 4096
"""Maximum bytes of a log that a task compares."""

_NAME: Final = "token"
_TOKEN_SIZE: Final = 16


@dataclass(frozen=True)
class SharedPiece:
    """A piece of a file as the driver sees it; pickled to tasks."""

    path: Path
    position: int
    size: int
    digest: bytes

    @classmethod
    def of(cls, path: Path, position: int, size: int) -> SharedPiece:
        """Read a piece of a file. Raises OSError."""
        return cls(path, position, size, _digest(path, position, size))

    def check(self) -> None:
        """Raise DirectoryNotShared unless this process sees the same bytes."""
        try:
            found = _digest(self.path, self.position, self.size)
        except (OSError, StoreError):
            found = b""
        if found != self.digest:
            raise not_shared(self.path.parent, socket.gethostname())


def _digest(path: Path, position: int, size: int) -> bytes:
    with open(open_file(path), "rb") as file:
        file.seek(position)
        return hashlib.sha256(file.read(size)).digest()


def not_shared(directory: Path | str, where: str = "a worker") -> DirectoryNotShared:
    """Return the error for a directory that a worker does not share with the driver."""
    return DirectoryNotShared(
        f"{directory} on {where} is not the driver's: mount one file system at this path on the driver "
        "and all workers, or run the job on the machine that has the directory"
    )


@contextmanager
def share(directory: Path) -> Iterator[SharedPiece]:
    """Write a token to a directory, which tasks check before they use it; remove it at the end."""
    path = directory / _NAME
    descriptor = open_inside(directory, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(descriptor, os.urandom(_TOKEN_SIZE))
        os.fsync(descriptor)  # a network file system shows it to others from here on
    finally:
        os.close(descriptor)
    try:
        yield SharedPiece.of(path, 0, _TOKEN_SIZE)
    finally:
        path.unlink(missing_ok=True)


def write_parquet(rows: DataFrame, directory: Path, *, mode: str = "error") -> int:
    """Write rows by Spark's own writer; return their number, or raise DirectoryNotShared if some are not found."""
    import pyarrow.parquet as pq
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - imported here, because lookups need no Spark

    def held() -> int:
        return sum(pq.read_metadata(path).num_rows for path in directory.rglob("*.parquet"))

    before = held() if mode == "append" else 0
    # Tasks count what they write, in the stage that writes it, so that a repeated task does not count twice.
    counted = Observation()
    rows.observe(counted, F.count(F.lit(1)).alias("rows")).write.mode(mode).parquet(str(directory))
    written = int(counted.get.get("rows") or 0)
    if held() - before != written:
        raise not_shared(directory)
    return written
