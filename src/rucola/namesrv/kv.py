"""The key-value table: text by namespace and key, in one small file.

The file is `kvConfig.json` in Apache's format, `{"configTable":{"namespace":{"key":"value"}}}`, and is replaced at
every change. A file above maxKvSize or maxKvEntries is loaded, then only deletions and smaller values are accepted.

Corresponds to `KVConfigManager` of Apache RocketMQ 4.9.8. Deliberate difference: the name server does not start if the
file cannot be read. Apache continues with an empty table and overwrites the file at the next change.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rucola import refusals
from rucola.access import Refused
from rucola.errors import ConfigError, RemoteProtocolError
from rucola.files import replace_file
from rucola.namesrv.config import NamesrvConfig
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.kv import KVConfigSerializeWrapper


class KVConfig:
    """The key-value table, used on its server's event loop. `limits` returns the current settings."""

    def __init__(self, path: Path | None = None, limits: Callable[[], NamesrvConfig] = NamesrvConfig) -> None:
        self._path = path
        self._limits = limits
        self._namespaces: dict[str, dict[str, str]] = {}
        self._size = 0
        self._count = 0

    def load(self) -> None:
        """Read the file, if there is one. ConfigError if it is invalid."""
        if self._path is None or not self._path.exists():
            return
        try:
            self._namespaces = decode_body(KVConfigSerializeWrapper, self._path.read_bytes()).config_table
        except (OSError, RemoteProtocolError) as error:
            raise ConfigError(
                f"{self._path} is no key-value table ({error}): repair it or move it away", subject=self._path
            ) from None
        self._measure()

    def get(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def namespace(self, name: str) -> dict[str, str] | None:
        """Return a namespace's keys and values; None if it was never used."""
        table = self._namespaces.get(name)
        return None if table is None else dict(table)

    def known(self, namespace: str, key: str) -> str:
        """Return a value. Raises Refused if there is none."""
        if (value := self.get(namespace, key)) is None:
            raise Refused(refusals.NO_VALUE, namespace=namespace, key=key)
        return value

    def known_namespace(self, name: str) -> dict[str, str]:
        """Return a namespace's keys and values. Raises Refused if it was never used."""
        if (table := self.namespace(name)) is None:
            raise Refused(refusals.NO_NAMESPACE, namespace=name)
        return table

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Refused if the table would be too large, ConfigError if the file cannot be written."""
        table = self._namespaces.get(namespace)
        before = None if table is None else table.get(key)
        if before is not None:
            size, count = _size(value) - _size(before), 0
        else:
            size = _size(key) + _size(value) + (_size(namespace) if table is None else 0)
            count = 2 if table is None else 1
        if size > 0 or count > 0:
            self._make_room(size, count)
        self._namespaces.setdefault(namespace, {})[key] = value
        self._size += size
        self._count += count
        self._write()

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value; its namespace stays, as with Apache. ConfigError if the file cannot be written."""
        value = self._namespaces.get(namespace, {}).pop(key, None)
        if value is not None:
            self._size -= _size(key) + _size(value)
            self._count -= 1
            self._write()

    def _make_room(self, size: int, count: int) -> None:
        """Raise Refused unless the entry fits, removing empty namespaces if that helps."""
        limits = self._limits()
        if self._size + size > limits.max_kv_size or self._count + count > limits.max_kv_entries:
            self._namespaces = {name: table for name, table in self._namespaces.items() if table}
            self._measure()
        for key, found, limit in (
            ("maxKvSize", self._size + size, limits.max_kv_size),
            ("maxKvEntries", self._count + count, limits.max_kv_entries),
        ):
            if found > limit:
                what = "bytes" if key == "maxKvSize" else "values and namespaces"
                raise Refused(refusals.KV_BEYOND_LIMIT, found=found, what=what, limit=limit, key=key)

    def _measure(self) -> None:
        tables = self._namespaces.items()
        self._count = sum(1 + len(table) for _, table in tables)
        self._size = sum(_size(name) + sum(_size(key) + _size(table[key]) for key in table) for name, table in tables)

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            replace_file(self._path, encode_body(KVConfigSerializeWrapper(config_table=self._namespaces)))
        except OSError as error:
            raise ConfigError(
                f"{self._path}: the key-value table cannot be written: {error.strerror}", subject=self._path
            ) from None


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
