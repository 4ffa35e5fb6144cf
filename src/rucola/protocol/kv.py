"""The name server's key-value table: texts by namespace and key.

Codes 100 to 102 and 219.
"""

from __future__ import annotations

from rucola.protocol.body import Body
from rucola.protocol.command import Header


class PutKVConfigRequestHeader(Header, kw_only=True):
    namespace: str
    key: str
    value: str


class KVConfigRequestHeader(Header, kw_only=True):
    namespace: str
    key: str


class GetKVConfigResponseHeader(Header, kw_only=True):
    value: str


class GetKVListByNamespaceRequestHeader(Header, kw_only=True):
    namespace: str


class KVTable(Body, kw_only=True):
    """One namespace, also in the response to REGISTER_BROKER (ORDER_TOPIC_CONFIG)."""

    table: dict[str, str] = {}


class KVConfigSerializeWrapper(Body, kw_only=True):
    """All namespaces: the file `kvConfig.json`."""

    config_table: dict[str, dict[str, str]] = {}
