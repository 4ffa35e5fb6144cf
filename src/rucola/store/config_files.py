"""Config files: the broker's small tables as JSON files under `config/`.

    config/topics.json  subscriptionGroup.json  consumerOffset.json  delayOffset.json  consumerFilter.json
           queueLocks.json (Rucola only)

The JSON is fastjson's: integer map keys without quotes, one tab per level. `<name>.bak` next to each file has its
content before the last change. A file is replaced atomically (see `rucola.files`); reading falls back to the .bak if
the file is missing or no JSON, as Apache's broker may leave it.

Corresponds to `ConfigManager` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rucola import fastjson
from rucola.errors import RemoteProtocolError, StoreCorrupt
from rucola.files import read_inside, replace_file
from rucola.store.epoch_file import EPOCH_FILE

COORDINATION: Final = "coordination"
"""Name of the file that entitles a broker to be elected by its log (`rucola.coordination.incarnation`)."""


def config_path(store: Path, name: str) -> Path:
    return store / "config" / f"{name}.json"


def read_config(path: Path) -> Any:
    """Return the value of a config file or its .bak; None without either, StoreCorrupt if none can be read."""
    damage: StoreCorrupt | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            data = read_inside(candidate.parent, candidate)
            if data.strip():
                return fastjson.loads(data)
            damage = damage or StoreCorrupt(candidate, 0, "the file is empty")
        except FileNotFoundError:
            continue
        except RemoteProtocolError as error:
            damage = damage or StoreCorrupt(candidate, 0, f"not JSON as fastjson writes it: {error}")
    if damage is not None:
        raise damage
    return None


def write_config(path: Path, value: Any) -> None:
    """Replace a changed value, durably, and keep the previous one in .bak. Raises OSError; then nothing is changed."""
    replace_file(path, fastjson.dumps_pretty(value).encode())


class ConfigFile:
    """A config file that a broker rewrites from several threads: the last prepared write wins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = itertools.count(1)
        self._written = 0
        """The number of the last completed write. Guarded by `_lock`."""
        self._lock = threading.Lock()

    def read(self) -> Any:
        return read_config(self.path)

    def prepare_write(self, value: Callable[[], Any]) -> Callable[[], None]:
        """Return a function, for any thread, that writes a value unless one prepared later is already written.

        Call this method in the order of the values. `value` is called by the function and must always return the same.
        """
        number = next(self._numbers)

        def write() -> None:
            with self._lock:
                if number > self._written:
                    write_config(self.path, value())
                    self._written = number

        return write


def remove_temporary_files(store: Path) -> None:
    """Delete the temporary files that a crash left. The caller must hold the directory lock."""
    for path in temporary_files(store):
        path.unlink()


def temporary_files(store: Path) -> list[Path]:
    """Return the temporary files of config files, and of the epoch file, that exist now."""
    return sorted([*(store / "config").glob("*.tmp"), *store.glob(f"{EPOCH_FILE}.*tmp")])
