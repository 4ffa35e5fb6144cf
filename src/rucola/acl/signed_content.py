"""Signed content of received requests: access key, signature, and the text that was signed.

The signed text needs all ext fields as they were sent, so the header is decoded once more. Requests of one kind, a code
and a language, nearly always have the same names: after the first authentic one, a struct with a text field for each
name, in the signed order, decodes later ones, twice as fast as the general way, through a dictionary.

A header with other names does not fit the struct and is decoded the general way; no field is ever left out.
Unauthenticated peers make no structs, and there are at most MAX_KINDS of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from rucola.acl.signature import (
    ACCESS_KEY,
    MAX_NAMES,
    MAX_NAMES_LENGTH,
    SIGNATURE,
    SIGNATURE_NUMBER,
    UNIQUE_MSG_QUERY_FLAG,
    ordered,
    signed_text,
)
from rucola.protocol.command import RemotingCommand

MAX_KINDS: Final = 256
MAX_LANGUAGE: Final = 32

_values: Callable[[Any], tuple[str, ...]] = msgspec.structs.astuple

_Decode = Callable[[bytes], Any]
_kinds: dict[tuple[int, str], _Decode] = {}
_structs: dict[tuple[str, ...], _Decode] = {}


class SignedContent(msgspec.Struct, gc=False):
    """The user that a request names, and the content of its signature. A struct for speed."""

    access_key: str
    signature: str
    text: bytes
    """The signed content before the body; empty for a signature of version 2."""
    body: bytes | memoryview
    fields: Mapping[str, str] | None = None
    """All ext fields of a request that is of no known kind, and its code."""
    code: int = 0


def signed_content(command: RemotingCommand) -> SignedContent:
    """Return the signed content of a request, with an empty access key or signature if missing."""
    decode = _kinds.get((command.code, command.language))
    if decode is not None and command.ext is None:
        try:
            fields = decode(command.json_header).ext
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # other names, numbers or nulls
        else:
            values = _values(fields)
            text = "".join(values[:-1]).encode("utf-8", "surrogatepass")
            return SignedContent(fields.access_key, values[-1], text, command.body)
    found = command.signed_fields
    text = signed_text(found) if SIGNATURE_NUMBER not in found else b""
    return SignedContent(found.get(ACCESS_KEY, ""), found.get(SIGNATURE, ""), text, command.body, found, command.code)


def remember(command: RemotingCommand, fields: Mapping[str, str]) -> None:
    """Decode later requests like this authentic one in one pass."""
    names = tuple(ordered(name for name in fields if name not in (ACCESS_KEY, SIGNATURE)))
    if command.ext is not None or not {UNIQUE_MSG_QUERY_FLAG, SIGNATURE_NUMBER}.isdisjoint(names):
        return  # no JSON, signed in two ways, or in version 2
    if len(names) > MAX_NAMES or sum(map(len, names)) > MAX_NAMES_LENGTH or len(command.language) > MAX_LANGUAGE:
        return
    if not all(name.isascii() and name.isidentifier() for name in names):
        return  # no field of a struct can have such a name
    decode = _structs.get(names)
    if decode is None:
        if len(_structs) >= MAX_KINDS:
            return
        decode = _structs[names] = _decoder(names)
    if len(_kinds) < MAX_KINDS:
        _kinds[command.code, command.language] = decode


def _decoder(names: tuple[str, ...]) -> _Decode:
    # In the signed order, and the signature last: the first three values of AccessKey, queueId, topic and Signature are
    # the signed text.
    every = [
        ("access_key" if name == ACCESS_KEY else f"field{number}", str, msgspec.field(name=name))
        for number, name in enumerate(ordered((*names, ACCESS_KEY)))
    ]
    every.append(("signature", str, msgspec.field(name=SIGNATURE)))
    # Unknown fields are errors: a header with another field is decoded the general way, so that nothing is left
    # unsigned.
    fields = msgspec.defstruct("SignedFields", every, gc=False, forbid_unknown_fields=True)
    header = msgspec.defstruct("SignedHeader", [("ext", fields, msgspec.field(name="extFields"))], gc=False)
    return msgspec.json.Decoder(header).decode
