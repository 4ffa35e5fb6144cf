"""The AsyncAPI document of a router: topics, received and sent messages, and the JSON schemas of their values."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

VERSION = "3.0.0"
_SCHEMAS = "#/components/schemas/"


class Operation(NamedTuple):
    """What a router does with a topic; `value` is a type, a codec, or None for bytes."""

    action: str
    """`receive` or `send`."""
    name: str
    topic: str
    value: Any
    summary: str
    binding: dict[str, Any]
    """What is RocketMQ's: group, filter, tags."""


def document(title: str, version: str, operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the document, for a JSON encoder."""
    channels: dict[str, Any] = {}
    described: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for one in operations:
        name, message = _message(one.value, schemas)
        channel = channels.setdefault(one.topic, {"address": one.topic, "messages": {}})
        channel["messages"][name] = message
        pointer = f"#/channels/{one.topic}"
        key, number = f"{one.action}_{one.name}", 2
        while key in described:
            key, number = f"{one.action}_{one.name}_{number}", number + 1
        described[key] = {
            "action": one.action,
            "channel": {"$ref": pointer},
            "messages": [{"$ref": f"{pointer}/messages/{name}"}],
            **({"summary": one.summary} if one.summary else {}),
            **({"x-rocketmq": one.binding} if one.binding else {}),
        }
    return {
        "asyncapi": VERSION,
        "info": {"title": title, "version": version},
        "channels": channels,
        "operations": described,
        "components": {"schemas": schemas},
    }


def summary_of(handler: object) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(handler) or "").partition("\n\n")[0].split())


def _message(value: Any, schemas: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if value in (None, bytes):
        return "bytes", {"contentType": "application/octet-stream"}
    if value is str:
        return "text", {"contentType": "text/plain", "payload": {"type": "string"}}
    name = getattr(value, "__name__", None) or type(value).__name__
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        schema = value.model_json_schema(ref_template=_SCHEMAS + "{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = schema
        payload = {"$ref": _SCHEMAS + name}
    elif hasattr(value, "decode"):
        return name, {"title": f"as {name} encodes it"}
    else:
        (payload,), components = msgspec.json.schema_components([value], ref_template=_SCHEMAS + "{name}")
        schemas.update(components)
    return name, {"contentType": "application/json", "payload": payload}
