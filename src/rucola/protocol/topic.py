"""Configuration and statistics of topics and consumer groups on a broker.

Fields are in alphabetical order, as in fastjson, so configuration files are identical to Apache's.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import msgspec

from rucola import slices
from rucola.errors import RemoteProtocolError
from rucola.protocol.body import Body, decode_object
from rucola.protocol.command import Header
from rucola.protocol.queue import MessageQueue, from_key, to_key_json

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4

SINGLE_TAG = "SINGLE_TAG"
MULTI_TAG = "MULTI_TAG"
TOPIC_FILTER_TYPES = (SINGLE_TAG, MULTI_TAG)
"""4.9.8 ignores the difference."""

TOPIC_FLAG_UNIT = 1
TOPIC_FLAG_UNIT_SUB = 2
"""Bits of `topic_sys_flag`: topics of deployments with several units."""


def perm_text(perm: int) -> str:
    """Return a permission as mqadmin prints it, such as `RW-`."""
    return f"{'R' if perm & PERM_READ else '-'}{'W' if perm & PERM_WRITE else '-'}{'X' if perm & PERM_INHERIT else '-'}"


class TopicConfig(Body, kw_only=True):
    # GET_BROKER_CONSUME_STATS can select ordered topics.
    order: bool = False
    # Sum of PERM_READ, PERM_WRITE and PERM_INHERIT.
    perm: int = PERM_READ | PERM_WRITE
    read_queue_nums: int = 16
    topic_filter_type: str = SINGLE_TAG
    topic_name: str
    topic_sys_flag: int = 0
    write_queue_nums: int = 16

    def __str__(self) -> str:
        """Return Java's text, which remarks contain."""
        return (
            f"TopicConfig [topicName={self.topic_name}, readQueueNums={self.read_queue_nums}, "
            f"writeQueueNums={self.write_queue_nums}, perm={perm_text(self.perm)}, "
            f"topicFilterType={self.topic_filter_type}, topicSysFlag={self.topic_sys_flag}, "
            f"order={'true' if self.order else 'false'}]"
        )


class SubscriptionGroupConfig(Body, kw_only=True):
    """A group. One with a large backlog reads from broker id `which_broker_when_consume_slowly`."""

    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    # Kept and reported; no broker of 4.9 evaluates it.
    consume_from_min_enable: bool = True
    group_name: str
    # Whether members are notified when the membership changes.
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class DataVersion(Body, kw_only=True):
    """The version of a table: a counter, and the time of the last change (ms)."""

    counter: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(counter=self.counter + 1, timestamp=now_ms)

    @property
    def token(self) -> str:
        """The version as text, for `TableVersionHeader`."""
        return f"{self.timestamp}:{self.counter}"


class TableVersionHeader(Header, kw_only=True):
    """The version of a slave's table in the request, of the master's in the response.

    Rucola's own, in requests 21, 43 and 201, which Apache ignores: equal versions get no body, and 43 only offsets that
    changed in between. 45 has no version: any value requests `TableCopyHeader`.
    """

    table_version: str | None = None


class TableCopyHeader(TableVersionHeader, kw_only=True):
    """Rucola's own response to 43 and 45: also begin and end of the log after the table was read."""

    log_epoch: int | None = None
    log_begin: int | None = None
    log_end: int | None = None


class TopicConfigSerializeWrapper(Body, kw_only=True):
    """config/topics.json, response body 21, part of a registration."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = {}


class SubscriptionGroupWrapper(Body, kw_only=True):
    """config/subscriptionGroup.json and response body 201."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class CreateTopicRequestHeader(Header, kw_only=True):
    topic: str
    # Ignored by brokers.
    default_topic: str = "TBW102"
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = SINGLE_TAG
    topic_sys_flag: int = 0
    order: bool | str = "false"


class TopicRequestHeader(Header, kw_only=True):
    topic: str


class GetConsumeStatsRequestHeader(Header, kw_only=True):
    consumer_group: str
    topic: str | None = None


class TopicOffset(Body, kw_only=True):
    """The ends of a queue, and its newest store time (ms); 0 if empty."""

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class OffsetWrapper(Body, kw_only=True):
    """The end of a queue, and a group's offset and last consumed store time."""

    broker_offset: int = 0
    consumer_offset: int = 0
    # Milliseconds since 1970, 0 for none.
    last_timestamp: int = 0


class ConsumeStats(Body, kw_only=True):
    """A group's offsets by queue, and its messages per second. Not standard JSON."""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetWrapper] = {}


_encode = msgspec.json.Encoder().encode


def topic_stats_steps(offsets: dict[MessageQueue, TopicOffset]) -> Generator[None, None, bytes]:
    """Encode the response body of GET_TOPIC_STATS_INFO in small steps (see `rucola.slices`)."""
    return b'{"offsetTable":%b}' % (yield from by_queue_steps(offsets))


def encode_topic_stats(offsets: dict[MessageQueue, TopicOffset]) -> bytes:
    return slices.run(topic_stats_steps(offsets))


def decode_topic_stats(data: bytes) -> dict[MessageQueue, TopicOffset]:
    """Decode the ends of a topic's queues. RemoteProtocolError if malformed."""
    return _unkeyed(decode_object(data, "TopicStatsTable").get("offsetTable"), TopicOffset)


def consume_stats_steps(stats: ConsumeStats) -> Generator[None, None, bytes]:
    """Encode the response body of GET_CONSUME_STATS in small steps (see `rucola.slices`)."""
    table = yield from by_queue_steps(stats.offset_table)
    return b'{"consumeTps":%b,"offsetTable":%b}' % (msgspec.json.encode(stats.consume_tps), table)


def encode_consume_stats(stats: ConsumeStats) -> bytes:
    return slices.run(consume_stats_steps(stats))


def by_queue_steps(table: Mapping[MessageQueue, Body | int]) -> Generator[None, None, bytes]:
    """Encode a map by queue in small steps: a topic may have thousands of queues."""
    parts: list[bytes] = []
    for queue, value in table.items():
        parts.append(b"%b:%b" % (to_key_json(queue), _encode(value)))
        yield
    return b"{%b}" % b",".join(parts)


def decode_consume_stats(data: bytes) -> ConsumeStats:
    """Decode the offsets of a group. RemoteProtocolError if malformed."""
    return consume_stats_from(decode_object(data, "ConsumeStats"))


def consume_stats_from(members: dict[Any, Any]) -> ConsumeStats:
    """Convert a decoded object. RemoteProtocolError if malformed."""
    return ConsumeStats(
        consume_tps=_convert(members.get("consumeTps") or 0.0, float),
        offset_table=_unkeyed(members.get("offsetTable"), OffsetWrapper),
    )


def _unkeyed(table: Any, value_type: type[Any]) -> dict[MessageQueue, Any]:
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise RemoteProtocolError(f"offsetTable: expected an object, found {type(table).__name__}")
    return {from_key(key): _convert(value, value_type) for key, value in table.items()}


def _convert(value: Any, value_type: type[Any]) -> Any:
    try:
        return msgspec.convert(value, value_type, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"statistics: {error}") from None
