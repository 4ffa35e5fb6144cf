"""Signatures of requests: HMAC-SHA1 over the ext fields and the body.

The signed content is the values of all ext fields in the order of their names, without separators, followed by the
body. The signature is base64 text in the ext field `Signature`:

    ext fields   AccessKey=RocketMQ  queueId=0  topic=Orders        body   hello
    content      RocketMQ0Ordershello

Names, request code and time are not signed, so a peer that can read a request can replay it; TLS or signatures of
version 2 (`rucola.acl.challenge`; docs/access-control.md, "Replay") prevent that.

`_UNIQUE_KEY_QUERY`, the field that marks a query by unique key, is excluded: clients before 4.9.4 add it after they
signed. Later clients of Apache include it, so verification accepts both.

Corresponds to `AclUtils`, `AclSigner` and `PlainAccessValidator` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from hmac import compare_digest
from operator import itemgetter
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - its name
"""A temporary token, signed like any other field and not interpreted."""
SIGNATURE: Final = "Signature"
SIGNATURE_NUMBER: Final = "SignatureNumber"
CREDENTIAL_FIELDS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, SIGNATURE_NUMBER})
"""Ext fields that must never be passed on to a third party, which could replay the request."""
UNIQUE_MSG_QUERY_FLAG: Final = "_UNIQUE_KEY_QUERY"

_BLOCK_SIZE: Final = 64


class Signer:
    """Computes signatures with one secret key, copying the two SHA-1 states of HMAC: twice as fast as `hmac.digest`."""

    __slots__ = ("_inner", "_key", "_outer")

    def __init__(self, secret_key: str) -> None:
        key = self._key = secret_key.encode("utf-8", "surrogatepass")
        if len(key) > _BLOCK_SIZE:
            key = hashlib.sha1(key, usedforsecurity=False).digest()
        key = key.ljust(_BLOCK_SIZE, b"\0")
        # SHA-1 is part of the protocol; HMAC does not depend on its resistance to collisions.
        # HMAC is H(outer + H(inner + content)): both blocks depend on the key alone, so their states are computed once.
        self._inner = hashlib.sha1(bytes(byte ^ 0x36 for byte in key), usedforsecurity=False)
        self._outer = hashlib.sha1(bytes(byte ^ 0x5C for byte in key), usedforsecurity=False)

    def sign(self, fields: Mapping[str, str], body: bytes) -> str:
        return self._signature(signed_text(fields), body).decode("ascii")

    def verifies(self, text: bytes, body: bytes | memoryview, signature: str) -> bool:
        """Verify a signature in constant time."""
        return compare_digest(self._signature(text, body), signature.encode("utf-8", "replace"))

    def sign_content(self, content: bytes) -> str:
        """Return the signature of version 2: HMAC-SHA256."""
        return b2a_base64(hmac.digest(self._key, content, "sha256"), newline=False).decode("ascii")

    def verifies_content(self, content: bytes, signature: str) -> bool:
        return compare_digest(self.sign_content(content).encode("ascii"), signature.encode("utf-8", "replace"))

    def sign_call(self, date_time: str) -> bytes:
        """Return the signature of a gRPC call: HMAC-SHA1 over its time."""
        return hmac.digest(self._key, date_time.encode(), "sha1")

    def proof(self, challenge: bytes, access_key: str) -> bytes:
        """Return a replication peer's proof: HMAC-SHA256, which no request's signature can equal."""
        return hmac.digest(self._key, challenge + access_key.encode("utf-8", "surrogatepass"), "sha256")

    def __repr__(self) -> str:
        return "Signer(...)"

    def _signature(self, text: bytes, body: bytes | memoryview) -> bytes:
        inner = self._inner.copy()
        inner.update(text)
        if body:
            inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)


def signed_text(fields: Mapping[str, str]) -> bytes:
    """Return the signed content before the body. Field orders are cached: requests of one code have equal fields."""
    names = tuple(fields)
    values_of = _orders.get(names)
    if values_of is None:
        values_of = _values_getter([name for name in names if name not in (SIGNATURE, UNIQUE_MSG_QUERY_FLAG)])
        if len(_orders) >= MAX_ORDERS:
            _orders.clear()
        if len(names) <= MAX_NAMES and sum(map(len, names)) <= MAX_NAMES_LENGTH:
            _orders[names] = values_of
    return "".join(values_of(fields)).encode("utf-8", "surrogatepass")


def other_signed_text(fields: Mapping[str, str]) -> bytes | None:
    """Return the text that later clients of Apache sign; None if it is the same."""
    if UNIQUE_MSG_QUERY_FLAG not in fields:
        return None
    names = ordered(name for name in fields if name != SIGNATURE)
    return "".join([fields[name] for name in names]).encode("utf-8", "surrogatepass")


MAX_ORDERS: Final = 1000
MAX_NAMES: Final = 64
MAX_NAMES_LENGTH: Final = 1024
"""Characters of all names together; longer ones, which no client sends, are not cached."""

_orders: dict[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]] = {}


def _values_getter(names: Iterable[str]) -> Callable[[Mapping[str, str]], tuple[str, ...]]:
    sequence = ordered(names)
    if len(sequence) >= 2:
        return itemgetter(*sequence)  # returns a tuple, in C
    return lambda fields: tuple(fields[name] for name in sequence)


def ordered(names: Iterable[str]) -> list[str]:
    """Return names in Java's order, by UTF-16 units; it differs beyond U+FFFF."""
    return sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
