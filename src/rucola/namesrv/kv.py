"""The key-value table: text by namespace and key, in one small file.

The file is `kvConfig.json` in Apache's format, `{"configTable":{"namespace":{"key":"value"}}}`, and is replaced at
every change. Without a path the table is kept in memory only.

Corresponds to `KVConfigManager` of Apache RocketMQ 4.9.8. Deliberate difference: if the file cannot be read, the name
server does not start. Apache continues with an empty table and overwrites the file at the next change.
"""

from __future__ import annotations

from pathlib import Path

from rucola.errors import ConfigError, RemoteProtocolError
from rucola.files import replace_file
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.kv import KVConfigSerializeWrapper


class KVConfig:
    """The key-value table. Belongs to the event loop of its server."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._namespaces: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file, if there is one. Raises ConfigError if it is no table."""
        if self._path is None or not self._path.exists():
            return
        try:
            self._namespaces = decode_body(KVConfigSerializeWrapper, self._path.read_bytes()).config_table
        except (OSError, RemoteProtocolError) as error:
            raise ConfigError(f"{self._path} is no key-value table ({error}): repair it or move it away") from None

    def get(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def namespace(self, name: str) -> dict[str, str] | None:
        """Return the keys and values of a namespace; None if nothing was ever put into it."""
        table = self._namespaces.get(name)
        return None if table is None else dict(table)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises ConfigError if the file cannot be written."""
        self._namespaces.setdefault(namespace, {})[key] = value
        self._write()

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value; its namespace stays, as with Apache. Raises ConfigError if the file cannot be written."""
        if self._namespaces.get(namespace, {}).pop(key, None) is not None:
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            replace_file(self._path, encode_body(KVConfigSerializeWrapper(config_table=self._namespaces)))
        except OSError as error:
            raise ConfigError(f"{self._path}: the key-value table cannot be written: {error.strerror}") from None
