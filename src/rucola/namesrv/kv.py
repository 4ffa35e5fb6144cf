"""KVConfig: text under a namespace and a key, kept in one small file.

The file is `kvConfig.json` in Apache's shape, `{"configTable":{"namespace":{"key":"value"}}}`, written anew at every
change. Without a path the table lives in memory only.

Answers to `KVConfigManager` of Apache RocketMQ 4.9.8. Deliberate difference: a file that cannot be read keeps the
server from starting, where Apache goes on with an empty table and overwrites the file at the next change.
"""

from __future__ import annotations

from pathlib import Path

from rucola.errors import ConfigError, RemoteProtocolError
from rucola.files import replace_file
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.kv import KVConfigSerializeWrapper


class KVConfig:
    """The key-value table."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._namespaces: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file, if there is one. ConfigError when it is no table."""
        if self._path is None or not self._path.exists():
            return
        try:
            self._namespaces = decode_body(KVConfigSerializeWrapper, self._path.read_bytes()).config_table
        except (OSError, RemoteProtocolError) as error:
            raise ConfigError(f"{self._path} is no key-value table ({error}): mend it or move it away") from None

    def get(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def namespace(self, name: str) -> dict[str, str] | None:
        """The keys and values of a namespace; None where nothing was ever put into it."""
        table = self._namespaces.get(name)
        return None if table is None else dict(table)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. ConfigError when it could not be kept in the file."""
        self._namespaces.setdefault(namespace, {})[key] = value
        self._keep()

    def delete(self, namespace: str, key: str) -> None:
        """Take a value out; the namespace stays, as Apache's does. ConfigError as with `put`."""
        if self._namespaces.get(namespace, {}).pop(key, None) is not None:
            self._keep()

    def _keep(self) -> None:
        if self._path is None:
            return
        try:
            replace_file(self._path, encode_body(KVConfigSerializeWrapper(config_table=self._namespaces)))
        except OSError as error:
            raise ConfigError(f"{self._path}: the key-value table cannot be written: {error.strerror}") from None
