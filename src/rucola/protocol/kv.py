"""The name server's key-value table: PUT_KV_CONFIG (100), GET_KV_CONFIG (101), DELETE_KV_CONFIG (102) and
GET_KVLIST_BY_NAMESPACE (219).

A value is text under a namespace and a key. The namespace ORDER_TOPIC_CONFIG holds, for each ordered topic, how many
queues it has on which broker: `broker-a:4;broker-b:4`.
"""

from __future__ import annotations

from rucola.protocol.body import Body
from rucola.protocol.command import Header

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class PutKVConfigRequestHeader(Header, kw_only=True):
    """PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


class KVConfigRequestHeader(Header, kw_only=True):
    """GET_KV_CONFIG and DELETE_KV_CONFIG."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header, kw_only=True):
    """The value that GET_KV_CONFIG asked for."""

    value: str


class GetKVListByNamespaceRequestHeader(Header, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str


class KVTable(Body, kw_only=True):
    """One namespace: the body of GET_KVLIST_BY_NAMESPACE, and of the answer to REGISTER_BROKER."""

    table: dict[str, str] = {}


class KVConfigSerializeWrapper(Body, kw_only=True):
    """Every namespace: the file `kvConfig.json`."""

    config_table: dict[str, dict[str, str]] = {}
