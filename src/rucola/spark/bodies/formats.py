"""Decoders by name: `TOPIC=FORMAT[:SCHEMA]`, where the schema is a file or the URL of a registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from rucola.errors import ConfigError
from rucola.spark.bodies import registry
from rucola.spark.bodies.decoded import Decoder
from rucola.spark.bodies.json_bodies import JsonBodies
from rucola.spark.bodies.json_schemas import struct_type

_REGISTERED: Final = {
    "json": registry.registered_json,
    "avro": registry.registered_avro,
    "protobuf": registry.registered_protobuf,
}


def parse_decoding(text: str) -> tuple[str, Decoder]:
    """Return topic and decoder of `TOPIC=FORMAT[:SCHEMA]`. Raises ConfigError."""
    topic, _, rest = text.partition("=")
    name, colon, schema = rest.partition(":")
    if not topic or name not in _REGISTERED or (colon and not schema):
        raise ConfigError(
            f"{text!r} does not say how to decode a topic; write TOPIC=json|avro|protobuf[:SCHEMA], where SCHEMA is a "
            f"file or the URL of a schema registry",
            subject="--decode",
        )
    if schema.startswith(("http://", "https://")):
        return topic, registry.RegisteredBodies(registry.Registry(schema), _REGISTERED[name])
    if not schema:
        if name != "json":
            raise ConfigError(
                f"{text!r} needs a schema; write {topic}={name}:SCHEMA, with a file or the URL of a schema registry",
                subject="--decode",
            )
        return topic, JsonBodies()
    return topic, _with_file(name, schema)


def _with_file(name: str, schema: str) -> Decoder:
    file, _, message = schema.partition("#") if name == "protobuf" else (schema, "", "")
    path = Path(file)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the schema {path} cannot be read: {error.strerror}", subject=path) from error
    if name == "protobuf":
        from rucola.spark.bodies.protobuf_bodies import descriptor_set

        return descriptor_set(path, data, message or None)
    try:
        parsed: Any = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"the schema {path} is not JSON: {error}", subject=path) from error
    if name == "avro":
        from rucola.spark.bodies.avro_bodies import AvroBodies

        return AvroBodies(parsed)
    return JsonBodies(struct_type(parsed))
