"""Settings by name, with a data version, in a config file: what topics and consumer groups have in common.

Every change raises the data version and calls `on_change`, which schedules a write. The text of each entry is kept, so
that a write of 10,000 entries only joins them.

Corresponds to what `TopicConfigManager` and `SubscriptionGroupManager` of Apache RocketMQ 4.9.8 have in common.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from rucola import fastjson
from rucola.domain.topic import DataVersion
from rucola.message.topics import is_lmq
from rucola.store.config_files import ConfigFile

C = TypeVar("C", bound=Struct)
W = TypeVar("W", bound=Struct)

MAX_CHANGES: Final = 4096
"""The last changes that `changes_since` knows by name."""


class SettingsTable(Generic[C, W]):
    """A table whose file, and response with all entries, is a `whole`: a DataVersion, and the entries by name.

    `lmq` returns the settings of a light message queue, which is not in the table; None without enableLmq.
    """

    def __init__(
        self, path: Path, whole: type[W], on_change: Callable[[], None], lmq: Callable[[str], C] | None
    ) -> None:
        self._file = ConfigFile(path)
        self.whole_type = whole
        _, self._member = msgspec.structs.fields(whole)
        self._on_change = on_change
        self._lmq = lmq
        self.data_version = DataVersion()
        self._table: Final[dict[str, C]] = {}
        self._encoded: Final[dict[str, str]] = {}
        """The text of each entry in the file."""
        self._changes: Final[deque[str]] = deque(maxlen=MAX_CHANGES)
        """The names that the last data versions changed, one each."""
        self.unwritten: Final[set[str]] = set()
        """Names that were added and are not in the file yet."""
        self.get: Callable[[str], C | None] = self._table.get if lmq is None else self._get_or_lmq
        """Return the settings of a name, or None. Bound directly to the dictionary: every send and pull calls it."""

    def __iter__(self) -> Iterator[C]:
        return iter(self._table.values())

    def whole(self) -> W:
        return self.whole_type(**{"data_version": self.data_version, self._member.name: self._table})

    def replace(self, whole: Any) -> None:
        """Replace everything by the table of a master, including the data version."""
        self._table.clear()
        self._encoded.clear()
        self._changes.clear()
        self._take(whole)
        self._on_change()

    def remove(self, name: str, now_ms: int) -> None:
        if self._table.pop(name, None) is not None:
            del self._encoded[name]
            self.unwritten.discard(name)
            self._changed(name, now_ms)

    def changes_since(self, version: DataVersion) -> dict[str, C] | None:
        """Return the entries added or replaced since a version of this table; None if it is too old."""
        if version == self.data_version:
            return {}
        count = self.data_version.counter - version.counter
        if not 0 < count <= len(self._changes):
            return None
        names = [self._changes[-number] for number in range(1, count + 1)]
        return {name: self._table[name] for name in names if name in self._table}

    def snapshot_writer(self) -> Callable[[], None]:
        unwritten = tuple(self.unwritten)
        entries = list(map(self._encoded.__getitem__, self._table))
        version = msgspec.to_builtins(self.data_version)

        def document() -> dict[str, Any]:
            return {"dataVersion": version, self._member.encode_name: fastjson.pretty_object(entries, level=1)}

        write = self._file.prepare_write(document)

        def persist() -> None:
            write()
            self.unwritten.difference_update(unwritten)

        return persist

    def _read(self) -> bool:
        """Load the file; return whether there is one. Raises StoreCorrupt if it cannot be parsed."""
        value = self._file.read()
        if value:
            self._take(fastjson.to_struct(self.whole_type, value))
        return bool(value)

    def _take(self, whole: Any) -> None:
        self._add(getattr(whole, self._member.name))
        self.data_version = whole.data_version

    def _get_or_lmq(self, name: str) -> C | None:
        found = self._table.get(name)
        return self._lmq(name) if found is None and self._lmq is not None and is_lmq(name) else found

    def _put(self, name: str, config: C, now_ms: int) -> None:
        if name not in self._table:
            self.unwritten.add(name)
        self._add({name: config})
        self._changed(name, now_ms)

    def _add(self, table: Mapping[str, C]) -> None:
        self._table.update(table)
        self._encoded.update((name, fastjson.pretty_entry(name, config, level=2)) for name, config in table.items())

    def _changed(self, name: str, now_ms: int) -> None:
        self._changes.append(name)
        self.data_version = self.data_version.next(now_ms)
        self._on_change()
