"""Bodies that are JSON documents: typed structs, read tolerantly and written as fastjson would.

A subject declares its bodies as `Body` structs, camelCase on the wire. Bodies whose maps are keyed by objects
(`offsetTable` of the statistics) cannot be structs; their subject converts what `rucola.fastjson` reads.

Answers to `RemotingSerializable` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from rucola import fastjson
from rucola.errors import RemoteProtocolError


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """Base of every JSON body. A field without a default must be there; unknown members are ignored."""


B = TypeVar("B", bound=Body)

_decoders: dict[type[Body], msgspec.json.Decoder[Any]] = {}


def decode_body(body_type: type[B], data: bytes) -> B:
    """The body as its struct; numbers in quotes and bare integer keys are taken as numbers.

    RemoteProtocolError names the member that is missing or cannot be read.
    """
    decoder = _decoders.get(body_type)
    if decoder is None:
        decoder = _decoders[body_type] = msgspec.json.Decoder(body_type, strict=False)
    try:
        typed: B = decoder.decode(data)
        return typed
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # not plain JSON, or a null in the place of a default
    return to_body(body_type, fastjson.loads(data))


def to_body(body_type: type[B], value: Any) -> B:
    """The struct of a JSON value that was read already, such as a config file's."""
    try:
        return msgspec.convert(_plain(value), body_type, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"body {body_type.__name__}: {error}") from None


def encode_body(body: Body, *, quote_keys: bool = False) -> bytes:
    """The struct as compact JSON, members in the order of its fields, None left out.

    Integer keys stand without quotes, as fastjson writes them, unless `quote_keys` asks for what every JSON reader
    takes.
    """
    members = _without_nulls(msgspec.to_builtins(body))
    return msgspec.json.encode(members) if quote_keys else fastjson.dumps(members)


def decode_object(data: bytes, what: str) -> dict[Any, Any]:
    """A JSON object that no struct describes; RemoteProtocolError where it is something else."""
    value = fastjson.loads(data)
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"body {what}: expected an object, found {type(value).__name__}")
    return value


def _without_nulls(value: Any) -> Any:
    """The value without members that are null, which is how fastjson leaves a default in its place."""
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """The value as JSON has it: without nulls, and with every bare integer key as text."""
    if isinstance(value, dict):
        return {
            str(key) if isinstance(key, int) else key: _plain(member)
            for key, member in value.items()
            if member is not None
        }
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
