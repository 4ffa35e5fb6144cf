"""JSON bodies as typed structs: decoded leniently, encoded exactly as fastjson does.

A subject module declares its bodies as `Body` structs, with camelCase names on the wire. A body with a map keyed by
objects (`offsetTable` of the statistics) cannot be a struct; its subject module converts the result of
`rucola.fastjson`.

Corresponds to `RemotingSerializable` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
import msgspec.inspect

from rucola import fastjson
from rucola.errors import RemoteProtocolError

MAX_JSON_BODY_SIZE: Final = 256 * 1024
"""Limit of a request's JSON body in bytes, unless the server has a setting of its own."""


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """The base of JSON bodies.

    A field without a default is required; unknown members are ignored.
    """


B = TypeVar("B", bound=Body)

_decoders: dict[type[Body], msgspec.json.Decoder[Any]] = {}


def decode_body(body_type: type[B], data: bytes, max_tolerant_size: int | None = None) -> B:
    """Return a body as its struct; accept quoted numbers, and integers without quotes as keys.

    RemoteProtocolError names the member that is missing or malformed, or `max_tolerant_size` for a larger body that is
    not plain JSON.
    """
    decoder = _decoders.get(body_type)
    if decoder is None:
        decoder = _decoders[body_type] = msgspec.json.Decoder(body_type, strict=False)
    try:
        typed: B = decoder.decode(data)
        return typed
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # no standard JSON, or a null for a field with a default: the slow path decodes it or raises
    return to_body(body_type, fastjson.loads(data, max_tolerant_size))


def decode_request(body_type: type[B], data: bytes, max_size: int = MAX_JSON_BODY_SIZE) -> B:
    """Return the body of a request at a server: `decode_body` within limits.

    Others wait for the decoding. RemoteProtocolError for more than `max_size` bytes, or more than
    `fastjson.MAX_TOLERANT_SIZE` that are not plain JSON.
    """
    if len(data) > max_size:
        raise RemoteProtocolError(
            f"body {body_type.__name__}: {len(data)} bytes; the limit is {max_size} (maxJsonBodySize)"
        )
    return decode_body(body_type, data, fastjson.MAX_TOLERANT_SIZE)


def decode_strictly(body_type: type[B], data: bytes) -> B:
    """Return a large body of plain JSON as its struct, without the slow path.

    RemoteProtocolError for any other body.
    """
    try:
        return msgspec.json.decode(data, type=body_type, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"body {body_type.__name__} of {len(data)} bytes: {error}") from None


def to_body(body_type: type[B], value: Any) -> B:
    """Return the struct of a decoded JSON value, such as a configuration file's."""
    try:
        return msgspec.convert(_plain(value), body_type, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"body {body_type.__name__}: {error}") from None


def encode_body(body: Body, *, quote_keys: bool = False) -> bytes:
    """Return a struct as compact JSON, members in the order of its fields, without None.

    Integer keys have no quotes, as fastjson writes them; `quote_keys` makes the document standard JSON. A type whose
    fields can be neither None nor maps with integer keys is encoded directly, which takes a fortieth of the time.
    """
    if _is_plain_type(type(body)):
        return _encode_plain(body)
    members = _without_nulls(msgspec.to_builtins(body))
    return msgspec.json.encode(members) if quote_keys else fastjson.dumps(members)


def decode_object(data: bytes, what: str) -> dict[Any, Any]:
    """Return a JSON object that has no struct.

    RemoteProtocolError, which names `what`, for any other value.
    """
    value = fastjson.loads(data)
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"body {what}: expected an object, found {type(value).__name__}")
    return value


_encode_plain: Final = msgspec.json.Encoder().encode


@lru_cache(maxsize=256)
def _is_plain_type(body_type: Any) -> bool:
    """Return whether a type's plain encoding is fastjson's: no None, only text map keys."""
    return _is_plain_info(msgspec.inspect.type_info(body_type))


def _is_plain_info(info: msgspec.inspect.Type) -> bool:
    match info:
        case msgspec.inspect.StructType():
            return all(_is_plain_info(field.type) for field in info.fields)
        case msgspec.inspect.ListType():
            return _is_plain_info(info.item_type)
        case msgspec.inspect.DictType():
            return isinstance(info.key_type, msgspec.inspect.StrType) and _is_plain_info(info.value_type)
        case msgspec.inspect.UnionType():
            return all(map(_is_plain_info, info.types))
    return isinstance(
        info, msgspec.inspect.StrType | msgspec.inspect.IntType | msgspec.inspect.BoolType | msgspec.inspect.FloatType
    )


def _without_nulls(value: Any) -> Any:
    """Return a value without null members, as fastjson writes it."""
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """Return a value without null members and with integer keys as text, for msgspec."""
    if isinstance(value, dict):
        return {
            str(key) if isinstance(key, int) else key: _plain(member)
            for key, member in value.items()
            if member is not None
        }
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
