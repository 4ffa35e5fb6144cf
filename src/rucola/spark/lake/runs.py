"""Runs that write: a directory tells later runs that one may have left files which no table names.

Without a lock, an earlier run may still be active. It is taken for dead after `_DEAD_AFTER_S`, and must
not commit any longer after half of that.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rucola.errors import StoreError
from rucola.spark.lake.storage import Storage

_DEAD_AFTER_S: Final = 6 * 24 * 60 * 60


class Run:
    """A run of this process; `directories` has one for each run that has not ended."""

    def __init__(self, storage: Storage, directories: str) -> None:
        self._storage = storage
        self._directories = directories
        self.id = uuid.uuid4().hex
        self.directory = f"{directories}/{self.id}"
        self._began_s: float | None = None

    def begin(self) -> None:
        """Create the directory, before the run writes any other file."""
        if self._began_s is None:
            self._began_s = time.monotonic()
            started = f"{self.directory}/started"
            with self._storage.writing(started) as stream:
                stream.touch() if isinstance(stream, Path) else stream.write(b"")
            self._storage.sync([started])

    def check_age(self) -> None:
        """Raise StoreError if others may soon take the run for dead; call it before a commit."""
        if self._began_s is not None and time.monotonic() - self._began_s > _DEAD_AFTER_S / 2:
            where = self._storage.location
            raise StoreError(f"{where}: the run took so long that others take it for dead; archive in parts")

    def end(self) -> None:
        """Delete the directory, once a table names all files of the run."""
        self._storage.delete_directory(self.directory)
        self._began_s = None

    def recover(self, delete_orphans: Callable[[float], None], *, is_locked: bool) -> None:
        """Delete what dead runs have left: with the lock every other one, without it those that began long ago.

        `delete_orphans` gets the time in seconds since 1970 before which files must be written.
        """
        began: dict[str, float] = {}
        for file in self._storage.files(self._directories):
            run = file.path.removeprefix(f"{self._directories}/").partition("/")[0]
            began[run] = max(file.written, began.get(run, 0))
        latest = math.inf if is_locked else time.time() - _DEAD_AFTER_S
        dead = [run for run, since in began.items() if since < latest]
        if dead:
            delete_orphans(latest)
            for run in dead:
                self._storage.delete_directory(f"{self._directories}/{run}")
