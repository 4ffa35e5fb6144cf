"""JSON bodies as typed structs: decoded leniently, encoded exactly as fastjson does.

A body with a map keyed by objects (`offsetTable`) cannot be a struct; its module converts the result of
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


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """A JSON body. A field without a default is required; unknown members are ignored."""


B = TypeVar("B", bound=msgspec.Struct)

_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {}


def decode_body(body_type: type[B], data: bytes, max_tolerant_size: int | None = None) -> B:
    """Decode a body leniently. RemoteProtocolError for a malformed one, or a tolerantly parsed one above the limit."""
    decoder = _decoders.get(body_type)
    if decoder is None:
        decoder = _decoders[body_type] = msgspec.json.Decoder(body_type, strict=False)
    try:
        typed: B = decoder.decode(data)
        return typed
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # not standard JSON, or a null for a field with a default: the slow path decodes it or raises
    return fastjson.to_struct(body_type, fastjson.loads(data, max_tolerant_size))


def decode_request(body_type: type[B], data: bytes, max_size: int = MAX_JSON_BODY_SIZE) -> B:
    """Decode a request's body at a server, within limits. RemoteProtocolError if it exceeds them."""
    if len(data) > max_size:
        raise RemoteProtocolError(
            f"body {body_type.__name__}: {len(data)} bytes; the limit is {max_size} (maxJsonBodySize)"
        )
    return decode_body(body_type, data, fastjson.MAX_TOLERANT_SIZE)


def decode_strictly(body_type: type[B], data: bytes) -> B:
    """Decode a large body of plain JSON without the slow path. RemoteProtocolError for any other."""
    try:
        return msgspec.json.decode(data, type=body_type, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(
            f"body {body_type.__name__} of {len(data)} bytes: {error}", subject=body_type.__name__
        ) from None


def encode_body(body: msgspec.Struct, *, quote_keys: bool = False) -> bytes:
    """Return compact JSON in field order, without None; integer keys are unquoted unless `quote_keys`."""
    if _is_plain_type(type(body)):
        return _encode_plain(body)
    members = _without_nulls(msgspec.to_builtins(body))
    return msgspec.json.encode(members) if quote_keys else fastjson.dumps(members)


def decode_object(data: bytes, what: str) -> dict[Any, Any]:
    """Decode a JSON object that has no struct. RemoteProtocolError, with `what`, for any other value."""
    value = fastjson.loads(data)
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"body {what}: expected an object, found {type(value).__name__}", subject=what)
    return value


_encode_plain: Final = msgspec.json.Encoder().encode


@lru_cache(maxsize=256)
def _is_plain_type(body_type: Any) -> bool:
    """Whether msgspec encodes the type as fastjson does: no None, no integer keys."""
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
        info,
        msgspec.inspect.StrType
        | msgspec.inspect.IntType
        | msgspec.inspect.BoolType
        | msgspec.inspect.FloatType
        | msgspec.inspect.BytesType,
    )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
