"""The AsyncAPI document of a router: topics, received and sent messages, and the JSON schemas of their values."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
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
    """Return the document, for a JSON encoder. Different types of one name, also on several topics, have numbers."""
    operations = list(operations)
    payloads, schemas = _payloads([one.value for one in operations])
    channels: dict[str, Any] = {}
    described: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for one, payload in zip(operations, payloads, strict=True):
        base, message = _message(one.value, payload)
        name, number = base, 2
        while messages.setdefault(name, message) != message:
            name, number = f"{base}_{number}", number + 1
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


def _message(value: Any, payload: Any) -> tuple[str, dict[str, Any]]:
    if value in (None, bytes):
        return "bytes", {"contentType": "application/octet-stream"}
    if value is str:
        return "text", {"contentType": "text/plain", "payload": {"type": "string"}}
    name = getattr(value, "__name__", None) or type(value).__name__
    if payload is None:
        return name, {"title": f"as {name} encodes it"}
    return name, {"contentType": "application/json", "payload": payload}


def _payloads(values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return a schema for each value, None for bytes, text and codecs, and the components that they refer to."""
    # All at once: then different types of one name get names of their own.
    models = [one for one in values if _is_model(one)]
    plain = [
        one for one in values if one not in (None, bytes, str) and not _is_model(one) and not hasattr(one, "decode")
    ]
    found, schemas = msgspec.json.schema_components(plain, ref_template=_SCHEMAS + "{name}")
    plain_payloads = iter(found)
    if models:
        from pydantic.json_schema import models_json_schema

        by_model, defined = models_json_schema(
            [(one, "validation") for one in models], ref_template=_SCHEMAS + "{model}"
        )
        if schemas.keys() & defined["$defs"].keys():
            by_model, defined = models_json_schema(
                [(one, "validation") for one in models], ref_template=_SCHEMAS + "pydantic.{model}"
            )
            defined["$defs"] = {f"pydantic.{name}": schema for name, schema in defined["$defs"].items()}
        schemas |= defined["$defs"]
    return [
        by_model[one, "validation"] if _is_model(one) else next(plain_payloads) if one in plain else None
        for one in values
    ], schemas


def _is_model(value: Any) -> bool:
    """Whether a value is a model of pydantic."""
    return isinstance(value, type) and hasattr(value, "model_json_schema")
