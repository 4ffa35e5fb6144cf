"""Settings and statistics of topics: headers, and bodies with maps by queue."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import msgspec

from rucola.domain.queue import MessageQueue, TopicOffset
from rucola.domain.statistics import ConsumeStats, OffsetWrapper
from rucola.domain.topic import SINGLE_TAG
from rucola.errors import RemoteProtocolError
from rucola.protocol.body import decode_object
from rucola.protocol.command import Header
from rucola.protocol.queue import from_key, to_key_json


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


_encode = msgspec.json.Encoder().encode


def topic_stats_steps(offsets: dict[MessageQueue, TopicOffset]) -> Generator[None, None, bytes]:
    """Encode the response body of GET_TOPIC_STATS_INFO in small steps (see `rucola.slices`)."""
    return b'{"offsetTable":%b}' % (yield from by_queue_steps(offsets))


def decode_topic_stats(data: bytes) -> dict[MessageQueue, TopicOffset]:
    """Decode the ends of a topic's queues. RemoteProtocolError if malformed."""
    return _unkeyed(decode_object(data, "TopicStatsTable").get("offsetTable"), TopicOffset)


def consume_stats_steps(stats: ConsumeStats) -> Generator[None, None, bytes]:
    """Encode the response body of GET_CONSUME_STATS in small steps (see `rucola.slices`)."""
    table = yield from by_queue_steps(stats.offset_table)
    return b'{"consumeTps":%b,"offsetTable":%b}' % (msgspec.json.encode(stats.consume_tps), table)


def by_queue_steps(table: Mapping[MessageQueue, msgspec.Struct | int]) -> Generator[None, None, bytes]:
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
