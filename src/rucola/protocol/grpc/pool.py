"""The types of Rucola's generated messages."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pool, duration_pb2, timestamp_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal import builder

POOL: Final = descriptor_pool.DescriptorPool()

for known in (duration_pb2, timestamp_pb2):
    POOL.AddSerializedFile(known.DESCRIPTOR.serialized_pb)


def build(module: dict[str, Any], file: bytes) -> FileDescriptor:
    """Define the messages and enums of a .proto file, which is encoded as a FileDescriptorProto, in a module."""
    descriptor: FileDescriptor = POOL.AddSerializedFile(file)
    builder.BuildMessageAndEnumDescriptors(descriptor, module)
    builder.BuildTopDescriptorsAndMessages(descriptor, module["__name__"], module)
    return descriptor
