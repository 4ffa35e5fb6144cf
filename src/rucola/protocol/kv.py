"""The name server's key-value table: texts by namespace and key.

PUT_KV_CONFIG (100), GET_KV_CONFIG (101), DELETE_KV_CONFIG (102) and GET_KVLIST_BY_NAMESPACE (219). The namespace
ORDER_TOPIC_CONFIG holds the number of queues of each ordered topic by broker name: `broker-a:4;broker-b:4`.
"""

from __future__ import annotations

from rucola.protocol.body import Body
from rucola.protocol.command import Header

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""The namespace of ordered topics."""


class PutKVConfigRequestHeader(Header, kw_only=True):
    """PUT_KV_CONFIG: set the value of a key."""

    namespace: str
    key: str
    value: str


class KVConfigRequestHeader(Header, kw_only=True):
    """GET_KV_CONFIG and DELETE_KV_CONFIG."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header, kw_only=True):
    """The response to GET_KV_CONFIG."""

    value: str


class GetKVListByNamespaceRequestHeader(Header, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str


class KVTable(Body, kw_only=True):
    """The keys and values of one namespace.

    The response body of GET_KVLIST_BY_NAMESPACE, and of REGISTER_BROKER with the namespace ORDER_TOPIC_CONFIG.
    """

    table: dict[str, str] = {}


class KVConfigSerializeWrapper(Body, kw_only=True):
    """All namespaces: the file `kvConfig.json`."""

    config_table: dict[str, dict[str, str]] = {}
