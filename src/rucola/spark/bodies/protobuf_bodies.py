"""Protobuf bodies, decoded by descriptors that protoc or a registry has made.

Enums are their names, unsigned 64-bit integers decimals. Messages that contain themselves, `Any`, `Struct` and the like
are strings of JSON. Numbers of fields identify columns, so that a renamed field stays one column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from rucola.errors import ConfigError
from rucola.spark.bodies.decoded import TIMESTAMP, Decoded, column, decode_each, usable

_Convert: TypeAlias = Callable[[Any], Any]

_WELL_KNOWN: Final = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
}
_KINDS: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
_WRAPPERS: Final = frozenset(each.full_name for each in wrappers_pb2.DESCRIPTOR.message_types_by_name.values())
_MAX_DEPTH: Final = 20


def descriptor_set(path: Path, data: bytes, message: str | None) -> ProtobufBodies:
    """Return the decoder of a message of a serialized FileDescriptorSet, by default of its last file's only message."""
    how = f"write it with `protoc --include_imports --descriptor_set_out={path.stem}.desc {path.stem}.proto`"
    files = FileDescriptorSet()
    try:
        files.ParseFromString(data)
    except DecodeError as error:
        raise ConfigError(f"{path} is not a serialized FileDescriptorSet; {how}", subject=path) from error
    if not files.file:
        raise ConfigError(f"{path} has no file descriptors; {how}", subject=path)
    if message is None:
        found = [each.name for each in files.file[-1].message_type]
        if len(found) != 1:
            names = ", ".join(found) or "none"
            raise ConfigError(
                f"{path} has not one message but {names}; name that of the bodies, as in {path.name}#package.Message",
                subject=path,
            )
        message = ".".join(filter(None, (files.file[-1].package, found[0])))
    try:
        return ProtobufBodies(_pool(files.file).FindMessageTypeByName(message))
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path} has no message {message}, or an import of it is missing", subject=path) from error


def registered(files: Sequence[FileDescriptorProto]) -> Callable[[bytes], tuple[ProtobufBodies, int]]:
    """Return a function from a body to its decoder and its begin; the last of the files has its message.

    A body begins with the path of indices to its message: their count and the indices, as zigzag varints; 0 alone is
    the first message.
    """
    pool = _pool(files)
    name = files[-1].name
    made: dict[tuple[int, ...], ProtobufBodies] = {}

    def decoder_of(body: bytes) -> tuple[ProtobufBodies, int]:
        count, position = _varint(body, 0)
        path = []
        for _ in range(min(count, len(body))):
            index, position = _varint(body, position)
            path.append(index)
        key = tuple(path) or (0,)
        if key not in made:
            outer: Any = pool.FindFileByName(name)
            types = [*outer.message_types_by_name.values()]
            for index in key:
                chosen = types[index]
                types = chosen.nested_types
            made[key] = ProtobufBodies(chosen)
        return made[key], position

    return decoder_of


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
    raise ValueError("an index of the message is too long")


def _pool(files: Iterable[FileDescriptorProto]) -> descriptor_pool.DescriptorPool:
    """Return a pool of files that come after their imports, except for Google's own."""
    pool = descriptor_pool.DescriptorPool()
    added = set[str]()
    for file in files:
        for name in file.dependency:
            if name in _WELL_KNOWN and name not in added:
                known = FileDescriptorProto()
                _WELL_KNOWN[name].CopyToProto(known)
                pool.Add(known)
                added.add(name)
        if file.name not in added:
            pool.Add(file)
            added.add(file.name)
    return pool


class ProtobufBodies:
    """Messages of one type."""

    def __init__(self, message: Descriptor) -> None:
        self._message = GetMessageClass(message)
        kind, self._convert = _message_of(message, ())
        if kind is None:
            raise ConfigError(f"the message {message.full_name} has no fields", subject=message.full_name)
        self._kind = kind

    def decode(self, bodies: pa.BinaryArray, known: pa.StructType | None) -> Decoded:
        """Decode a batch without nulls."""
        return decode_each(bodies, self._kind, self._decode)

    def _decode(self, body: bytes) -> dict[str, Any]:
        value: dict[str, Any] = self._convert(self._message.FromString(body))
        return value


def _message_of(message: Descriptor, open_names: tuple[str, ...]) -> tuple[pa.DataType | None, _Convert]:
    name = message.full_name
    if name == timestamp_pb2.Timestamp.DESCRIPTOR.full_name:
        return TIMESTAMP, lambda value: value.seconds * 1_000_000 + value.nanos // 1000
    if name in _WRAPPERS:
        kind, convert = _single(message.fields_by_name["value"], open_names)
        return kind, lambda value: convert(value.value)
    if name in open_names or message.file.name in _WELL_KNOWN or len(open_names) > _MAX_DEPTH:
        return pa.string(), lambda value: MessageToJson(value, indent=None)
    inner = (*open_names, name)
    fields, conversions = [], {}
    for each in message.fields:
        kind, convert = _field(each, inner)
        if kind is not None:
            fields.append(column(each.name, kind, number=each.number))
            conversions[each.name] = convert
    chosen = pa.struct(usable(fields, []))
    if not chosen.num_fields:
        return None, lambda value: None
    read = [(each.name, conversions[each.name]) for each in chosen]
    return chosen, lambda value: {name: convert(value) for name, convert in read}


def _field(each: FieldDescriptor, open_names: tuple[str, ...]) -> tuple[pa.DataType | None, _Convert]:
    """Return the type of a field, and the conversion of its message to its value."""
    name = each.name
    if each.message_type is not None and each.message_type.GetOptions().map_entry:
        entries: Mapping[str, FieldDescriptor] = each.message_type.fields_by_name
        key_kind, key = _single(entries["key"], open_names)
        kind, convert = _single(entries["value"], open_names)
        if kind is None:
            return None, convert
        return pa.map_(key_kind, kind), lambda message: [
            (key(one), convert(other)) for one, other in getattr(message, name).items()
        ]
    kind, convert = _single(each, open_names)
    if kind is None:
        return None, convert
    if each.is_repeated:
        return pa.list_(kind), lambda message: [convert(value) for value in getattr(message, name)]
    if each.has_presence:
        return kind, lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return kind, lambda message: convert(getattr(message, name))


def _single(each: FieldDescriptor, open_names: tuple[str, ...]) -> tuple[pa.DataType | None, _Convert]:
    if each.message_type is not None:
        return _message_of(each.message_type, open_names)
    if each.enum_type is not None:
        names = {number: value.name for number, value in each.enum_type.values_by_number.items()}
        return pa.string(), lambda value: names.get(value, str(value))
    if each.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary(), _same
    return _KINDS[each.cpp_type], _same


def _same(value: Any) -> Any:
    return value
