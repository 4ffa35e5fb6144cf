"""Messages in memory: Message and MessageExt(BrokerInner, Batch) of org.apache.rocketmq.common.message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, cast

import msgspec

from rucola.errors import InvalidMessage
from rucola.message import ids, properties, sysflag

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")


class HasProperties:
    """Mixin of attributes that are stored in `properties`."""

    __slots__ = ()
    properties: dict[str, str]

    @property
    def tags(self) -> str | None:
        """The tag, by which consumers filter."""
        return self.properties.get(properties.TAGS)

    @tags.setter
    def tags(self, tags: str | None) -> None:
        if tags is not None and not isinstance(tags, str):
            raise InvalidMessage(f"tags are {tags!r}: they must be a str")
        self._set(properties.TAGS, tags)

    @property
    def keys(self) -> str | None:
        """The keys by which the message can be queried, separated by spaces."""
        return self.properties.get(properties.KEYS)

    @keys.setter
    def keys(self, keys: str | Iterable[str] | None) -> None:
        if keys is not None and not isinstance(keys, str):
            words = tuple(keys) if isinstance(keys, Iterable) else (keys,)
            if not all(isinstance(word, str) for word in words) or isinstance(keys, bytes):
                raise InvalidMessage(f"keys are {keys!r}: they must be a str, or several of them")
            keys = properties.KEY_SEPARATOR.join(words)
        self._set(properties.KEYS, keys)

    @property
    def unique_key(self) -> str | None:
        """The id that the producer assigned, see `ids.unique_id`."""
        return self.properties.get(properties.UNIQ_KEY)

    @unique_key.setter
    def unique_key(self, unique_key: str | None) -> None:
        self._set(properties.UNIQ_KEY, unique_key)

    @property
    def delay_level(self) -> int:
        """The delay level, counted from 1 (see `delay`); 0 without delay."""
        text = self.properties.get(properties.DELAY, "0")
        try:
            return int(text)
        except ValueError:
            raise InvalidMessage(
                f"property {properties.DELAY} is {text!r}; it must be a number", subject=properties.DELAY
            ) from None

    @delay_level.setter
    def delay_level(self, level: int) -> None:
        if not isinstance(level, int) or level < 0:
            raise InvalidMessage(f"the delay level is {level!r}: it must be an int, 0 for no delay or 1 and more")
        self._set(properties.DELAY, str(level) if level else None)

    def _set(self, name: str, value: str | None) -> None:
        if value:
            self.properties[name] = value
        else:
            self.properties.pop(name, None)


class Message(HasProperties):
    """A message to be sent. Raises InvalidMessage for values of other types.

    `tags`, `keys`, `unique_key` and `delay_level` are stored in `properties`. `flag` is a 32-bit number of the
    application. `body_flags` are the bits of sysFlag of a body that is already compressed; it is then sent as it is,
    and not in a batch.
    """

    __slots__ = ("body", "body_flags", "flag", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: dict[str, str] | None = None,
        flag: int = 0,
        body_flags: int = 0,
    ) -> None:
        self.topic = topic
        self.body = body
        self.body_flags = body_flags
        self.properties: dict[str, str] = dict(properties) if properties else {}
        for name, value in self.properties.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidMessage(f"property {name!r} is {value!r}: names and values must be str")
        self.flag = flag
        if tags is not None:
            self.tags = tags
        if keys is not None:
            self.keys = keys

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, body={len(self.body)} bytes, "
            f"properties={self.properties!r}, flag={self.flag})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self.topic, self.body, self.properties, self.flag, self.body_flags) == (
            other.topic,
            other.body,
            other.properties,
            other.flag,
            other.body_flags,
        )

    __hash__ = None  # type: ignore[assignment]  # messages are mutable


@dataclass(slots=True)
class MessageExt(HasProperties, Generic[V]):
    """A decoded record. Hosts are `address:port`, times ms since 1970; `stored_size` and `body_crc` are as stored.

    `MessageExt[Order]` has values of this type, see `value`.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    body_crc: int
    stored_size: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    store_host_bytes: bytes = field(repr=False)
    body_error: str | None = None
    """Why `body` could not be decompressed and is as stored; otherwise None."""
    value: V = field(default=cast(Any, None), repr=False, compare=False)
    """The decoded body, if the consumer has the option `value`, see `rucola.client.values`."""

    @property
    def body_flags(self) -> int:
        """The `body_flags` of a copy of this message."""
        return sysflag.body_flags(self.sys_flag) if self.body_error else 0

    @property
    def offset_msg_id(self) -> str:
        """The address of the record, see `ids`."""
        return ids.offset_msg_id(self.store_host_bytes, self.physical_offset)

    @property
    def msg_id(self) -> str:
        """The unique key if there is one, else `offset_msg_id`."""
        return self.unique_key or self.offset_msg_id


def _parsed(message: MessageExt) -> dict[str, str]:
    found = _properties_slot.__get__(message)
    if found.__class__ is not dict:
        found = properties.parse(found)
        _properties_slot.__set__(message, found)
    return cast(dict[str, str], found)


# `record.decode` sets the encoded properties, which are parsed when they are first read: most consumers read none.
_properties_slot: Any = MessageExt.__dict__["properties"]
setattr(MessageExt, "properties", property(_parsed, _properties_slot.__set__))  # noqa: B010 - no attribute for mypy


def add_properties(message: MessageExt, encoded: bytes) -> None:
    """Add properties to a decoded record, without parsing the others."""
    found = _properties_slot.__get__(message)
    if found.__class__ is dict:
        found.update(properties.parse(encoded))
    else:
        _properties_slot.__set__(message, b"%b\x02%b" % (found, encoded))


class MessageInner(msgspec.Struct, gc=False):
    """A message that a broker puts into its store.

    `born_host` has 8 or 20 bytes. The last three fields are the input of dispatch: tags hash, unique key and raw KEYS.
    They must agree with `properties`, from which a rebuild reads them.
    """

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    tags_code: int = 0
    unique_key: str | None = None
    keys: str | None = None


class MessageInnerBatch(msgspec.Struct):
    """Messages of one client that a broker puts together, as columns of equal length, see `MessageInner`."""

    topics: list[str]
    queue_ids: list[int]
    flags: list[int]
    bodies: list[bytes]
    properties: list[bytes]
    sys_flags: list[int]
    born_timestamps: list[int]
    reconsume_times: list[int]
    born_host: bytes
    tags_codes: list[int]
    unique_keys: Sequence[str | None]
    keys: Sequence[str | None]
