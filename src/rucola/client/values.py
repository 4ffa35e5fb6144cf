"""Values: Python objects as bodies of messages, by the option `value` of producers and consumers.

    value=Order     JSON of a type of msgspec (Struct, dataclass, TypedDict, dict, …), or of a pydantic model
    value=codec     any object with the methods of ValueCodec, for example for Avro or Protobuf

A producer makes messages with `producer.message(topic, value)`; a consumer decodes them as `message.value`. An invalid
body is not delivered but retried, as if a listener had failed, up to the dead letter queue, with a warning each time.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from rucola.errors import ConfigError, InvalidBody, InvalidMessage
from rucola.message.message import MessageExt, V


@runtime_checkable
class ValueCodec(Protocol[V]):
    """Codec that converts values to bodies and back. An exception means that value or body is invalid."""

    def encode(self, value: V) -> bytes:
        """Return the body of a message with this value."""

    def decode(self, body: bytes) -> V:
        """Return the value of a body."""


ValueType: TypeAlias = type[V] | ValueCodec[V]


class JsonCodec:
    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def encode(self, value: Any) -> bytes:
        body = msgspec.json.encode(value)
        self._decoder.decode(body)  # rejects values of other types before they are sent
        return body

    def decode(self, body: bytes) -> Any:
        return self._decoder.decode(body)


class ModelCodec:
    def __init__(self, model: Any) -> None:
        self._model = model

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, self._model):
            raise TypeError(f"expected {self._model.__name__}, got {type(value).__name__}")
        text: str = value.model_dump_json()
        return text.encode()

    def decode(self, body: bytes) -> Any:
        return self._model.model_validate_json(body)


class Values:
    def __init__(self, value: ValueType | None) -> None:
        self._name = getattr(value, "__name__", None) or type(value).__name__
        self._codec = None if value is None else codec_of(value)

    @property
    def is_used(self) -> bool:
        """Whether the client has the option."""
        return self._codec is not None

    def encode(self, topic: str, value: Any) -> bytes:
        """Return the body for a value. ConfigError without the option; InvalidMessage for another kind of value."""
        if self._codec is None:
            raise ConfigError("this producer has no option `value`: pass value=, such as a dataclass, or send bytes")
        try:
            return self._codec.encode(value)
        except Exception as error:
            raise InvalidMessage(f"a message for topic {topic}: {value!r} is no {self._name}: {error}") from error

    def decode(self, message: MessageExt) -> None:
        """Set `message.value`, if the client has the option. InvalidBody names the message and what is wrong."""
        if self._codec is None:
            return
        if message.body_error is not None:
            raise InvalidBody(f"message {message.msg_id} of topic {message.topic}: {message.body_error}")
        try:
            message.value = self._codec.decode(message.body)
        except Exception as error:
            raise InvalidBody(
                f"the body of message {message.msg_id} of topic {message.topic} is no {self._name}: {error}"
            ) from error


def codec_of(value: ValueType) -> ValueCodec:
    """Return the codec for the option `value`. ConfigError for anything else."""
    if hasattr(value, "model_validate_json"):
        return ModelCodec(value)
    if not isinstance(value, type) and isinstance(value, ValueCodec):
        return value
    try:
        return JsonCodec(value)
    except TypeError as error:
        raise ConfigError(
            f"value is {value!r}: it must be a type that msgspec knows, a pydantic model, or an object with encode and "
            f"decode ({error})"
        ) from None
