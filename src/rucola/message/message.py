"""A message in memory, in three classes by who holds it.

`Message` is what a user sends, `MessageInner` what a broker puts into its store, several at once as a
`MessageInnerBatch`, `MessageExt` a stored record read back.

Answers to Message, MessageExtBrokerInner, MessageExtBatch and MessageExt of org.apache.rocketmq.common.message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from rucola.errors import InvalidMessage
from rucola.message import ids, properties


class HasProperties:
    """Views on `properties`, where tags, keys and the unique key have their only place."""

    __slots__ = ()
    properties: dict[str, str]

    @property
    def tags(self) -> str | None:
        """The tag by which consumers choose; None without one."""
        return self.properties.get(properties.TAGS)

    @tags.setter
    def tags(self, tags: str | None) -> None:
        self._set(properties.TAGS, tags)

    @property
    def keys(self) -> str | None:
        """The keys by which the message can be found, separated by blanks; None without any."""
        return self.properties.get(properties.KEYS)

    @keys.setter
    def keys(self, keys: str | Iterable[str] | None) -> None:
        joined = keys if keys is None or isinstance(keys, str) else properties.KEY_SEPARATOR.join(keys)
        self._set(properties.KEYS, joined)

    @property
    def unique_key(self) -> str | None:
        """The id that the producer gave to the message, see `ids.unique_id`."""
        return self.properties.get(properties.UNIQ_KEY)

    @unique_key.setter
    def unique_key(self, unique_key: str | None) -> None:
        self._set(properties.UNIQ_KEY, unique_key)

    @property
    def delay_level(self) -> int:
        """The delay level from 1, see `delay`; 0 for a message without delay."""
        text = self.properties.get(properties.DELAY, "0")
        try:
            return int(text)
        except ValueError:
            raise InvalidMessage(f"property {properties.DELAY} is {text!r}; it must be a number") from None

    @delay_level.setter
    def delay_level(self, level: int) -> None:
        self._set(properties.DELAY, str(level) if level else None)

    def _set(self, name: str, value: str | None) -> None:
        if value:
            self.properties[name] = value
        else:
            self.properties.pop(name, None)


class Message(HasProperties):
    """What a user sends: a topic, a body of bytes, and properties.

    `tags`, `keys`, `unique_key` and `delay_level` are views on `properties`. `flag` is the application's own 32-bit
    number, carried and never read by the system.
    """

    __slots__ = ("body", "flag", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: dict[str, str] | None = None,
        flag: int = 0,
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties: dict[str, str] = dict(properties) if properties else {}
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
        return (self.topic, self.body, self.properties, self.flag) == (
            other.topic,
            other.body,
            other.properties,
            other.flag,
        )

    __hash__ = None  # type: ignore[assignment]  # a message can be changed


@dataclass(slots=True)
class MessageExt(HasProperties):
    """A record read back: the message and everything that the store knows about it.

    `body` is decompressed unless `decode` was told not to; `stored_size` is the size of the body in the record and
    `body_crc` that of the bytes there. Hosts are `address:port`, times milliseconds since 1970.
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

    @property
    def offset_msg_id(self) -> str:
        """The address of the record: the broker's host and the physical offset."""
        return ids.offset_msg_id(self.store_host_bytes, self.physical_offset)

    @property
    def msg_id(self) -> str:
        """The id that users see: the producer's unique key where there is one, else `offset_msg_id`."""
        return self.unique_key or self.offset_msg_id


class MessageInner(msgspec.Struct, gc=False):
    """What a broker puts into its store.

    `body` and `properties` are bytes as they will lie on disk; the hosts are 8 or 20 bytes. The last three say what
    dispatch needs, so that nothing is parsed twice: the tag's hash for the ConsumeQueue unit, the unique key and the
    raw KEYS string for the index. They must agree with `properties`, which is what a rebuild reads.
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
    """Messages that a broker puts into one queue, all or none, in columns: what is not a sequence holds for each.

    The sequences have one length and the meaning of the fields of `MessageInner`.
    """

    topic: str
    queue_id: int
    bodies: Sequence[bytes | memoryview]
    properties: Sequence[bytes]
    flags: Sequence[int]
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    tags_codes: Sequence[int]
    unique_keys: Sequence[str | None]
    keys: Sequence[str | None]
