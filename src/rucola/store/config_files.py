"""The small JSON files of a broker under `config/`.

    config/topics.json  subscriptionGroup.json  consumerOffset.json  delayOffset.json  consumerFilter.json

They are written by fastjson and read with its habits: integers as map keys without quotes, one tab a level. Beside
each lies `<name>.bak`, its content before the last change.

They are replaced as `rucola.files` says, so a power cut leaves a whole file; reading falls back to .bak where the file
is missing or no JSON, as Apache's broker may leave it.

Answers to org.apache.rocketmq.common.ConfigManager.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rucola import fastjson
from rucola.errors import RemoteProtocolError, StoreCorrupt
from rucola.files import replace_file


def config_path(store: Path, name: str) -> Path:
    """Return where the config file `name`, such as "topics", lies in a store directory."""
    return store / "config" / f"{name}.json"


def read_config(path: Path) -> Any:
    """Return the value in a config file or, where that is missing or broken, in its .bak; None where neither is.

    Raises StoreCorrupt when there is something and none of it can be read.
    """
    damage: StoreCorrupt | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            data = candidate.read_bytes()
            if data.strip():
                return fastjson.loads(data)
            damage = damage or StoreCorrupt(candidate, 0, "the file is empty")
        except FileNotFoundError:
            continue
        except RemoteProtocolError as error:
            damage = damage or StoreCorrupt(candidate, 0, f"no JSON as fastjson writes it: {error}")
    if damage is not None:
        raise damage
    return None


def write_config(path: Path, value: Any) -> None:
    """Replace the value in a config file, keeping the one before in .bak. Does nothing where it is the same.

    When this returns, the new content is on disk. Raises OSError; then the old content is still there.
    """
    replace_file(path, fastjson.dumps_pretty(value).encode())


class ConfigFile:
    """A config file that a running broker writes again and again, from any thread: what was asked for last stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = itertools.count(1)
        self._written = 0
        self._one_at_a_time = threading.Lock()

    def read(self) -> Any:
        """As `read_config`."""
        return read_config(self.path)

    def prepare_write(self, value: Callable[[], Any]) -> Callable[[], None]:
        """Return a call that does what `write_config` does, unless a value that was asked for later is there already.

        Make this call where values follow each other, and what it returns on any thread; `value`, which is called
        there, must always give the same.
        """
        number = next(self._numbers)

        def write() -> None:
            with self._one_at_a_time:
                if number > self._written:
                    write_config(self.path, value())
                    self._written = number

        return write


def remove_temporary_files(store: Path) -> None:
    """Remove what a crash left of config files that were being written. Nobody else may be writing there."""
    for path in (store / "config").glob("*.tmp"):
        path.unlink()
