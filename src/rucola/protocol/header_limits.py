"""Limits of received headers, and errors for headers that are refused undecoded.

A header up to MAX_TOLERANT_HEADER cannot exceed the limits of its ext fields. A longer one must be plain JSON, and its
ext fields are counted: undeclared ones become text in Python, at 0.6 µs per nested byte and 1 µs per field.
"""

from __future__ import annotations

import re
from contextlib import suppress
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

import msgspec

from rucola.errors import RemoteProtocolError

MAX_TOLERANT_HEADER: Final = 4 * 1024
"""Maximum bytes for the tolerant parser: 2 ms. Clients send headers below 2 KB, in plain JSON."""

MAX_EXT_FIELDS: Final = 1024
"""Apache's largest headers have about 30."""

MAX_NESTED_SIZE: Final = 4 * 1024
"""Bytes of all objects and arrays in ext fields, in a header above MAX_TOLERANT_HEADER. Clients send none."""

BINARY_HEAD: Final = Struct(">hBhii")
"""Code, language, version, opaque, flag."""

EXCERPT: Final = 1024
"""Bytes at either end of a JSON header that are searched for its opaque."""

_OPAQUE = re.compile(rb'"opaque":([0-9]{1,10})\b')
_FLAG = re.compile(rb'"flag":([0-9]{1,10})\b')
"""Clients write these members before or after the ext fields."""


class HeaderError(RemoteProtocolError):
    """An unreadable header, with its opaque (None if unreadable, too) and flag."""

    def __init__(self, why: str, opaque: int | None = None, flag: int = 0) -> None:
        self.opaque = opaque
        self.flag = flag
        super().__init__(why)


def refused(header: bytes, serializer: int, why: str) -> HeaderError:
    """Return the error for a header, or its two ends, with its opaque and flag if found undecoded."""
    opaque: int | None = None
    flag = 0
    with suppress(struct_error, ValueError):
        if serializer:
            _, _, _, opaque, flag = BINARY_HEAD.unpack_from(header, 0)
        else:
            for part in (header[-EXCERPT:], header[:EXCERPT]):
                if found := _OPAQUE.findall(part):
                    opaque = int(found[-1])
                    flag = int((_FLAG.findall(part) or [0])[-1])
                    break
    return HeaderError(why, opaque, flag)


def too_many_fields(count: int) -> str:
    return f"a header of {count} or more ext fields; the limit is {MAX_EXT_FIELDS} (MAX_EXT_FIELDS)"


_Scalar = str | int | float | bool | None


class _Members(msgspec.Struct):
    code: _Scalar = None
    ext: dict[str, msgspec.Raw] | None = msgspec.field(name="extFields", default=None)
    flag: _Scalar = None
    language: _Scalar = None
    opaque: _Scalar = None
    remark: _Scalar = None
    version: _Scalar = None


_decode_members = msgspec.json.Decoder(_Members).decode


def members_of_long(header: bytes) -> dict[str, Any]:
    """Return the members, ext fields raw, of a long header. HeaderError if not plain JSON, or beyond a limit."""
    try:
        members = _decode_members(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            members = _decode_members(str(header, "utf-8", "replace"))
        except (msgspec.MsgspecError, RecursionError) as error:
            why = (
                f"a JSON header of {len(header)} bytes that is not plain JSON ({error}); the limit for other forms is "
                f"{MAX_TOLERANT_HEADER} bytes (MAX_TOLERANT_HEADER)"
            )
            raise refused(header, 0, why) from None
    ext = members.ext or {}
    if len(ext) > MAX_EXT_FIELDS:
        raise refused(header, 0, too_many_fields(len(ext)))
    nested = sum(len(view) for value in ext.values() if (view := memoryview(value))[0] in b"[{")
    if nested > MAX_NESTED_SIZE:
        why = f"a header with {nested} bytes of objects and arrays as ext fields; the limit is {MAX_NESTED_SIZE}"
        raise refused(header, 0, f"{why} (MAX_NESTED_SIZE)")
    return msgspec.structs.asdict(members) | {"extFields": ext}
