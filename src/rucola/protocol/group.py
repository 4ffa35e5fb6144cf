"""Administration of consumer groups: codes 207, 220, 222, 303, 308, 314 and 317.

A reset starts with request 222 to a broker, which computes an offset for each queue of the topic and sends them with
request 220 to every member, which continues there and commits. C++ clients cannot decode maps keyed by objects; they
receive a list.

Corresponds to the classes of these names in org.apache.rocketmq.common of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

import msgspec

from rucola.domain.queue import MessageQueue
from rucola.domain.statistics import ConsumeStatsList, QueueTimeSpan
from rucola.errors import RemoteProtocolError
from rucola.protocol.body import Body, decode_object
from rucola.protocol.command import Header
from rucola.protocol.queue import from_key
from rucola.protocol.topic import by_queue_steps, consume_stats_from, consume_stats_steps


class DeleteSubscriptionGroupRequestHeader(Header, kw_only=True):
    """Delete a group, and its consumer offsets if `remove_offset`."""

    group_name: str
    remove_offset: bool | str = "false"


class ResetOffsetRequestHeader(Header, kw_only=True):
    """Reset to a store time or LATEST, only backwards without `is_force`. With `queue_id`, reset it to `offset`."""

    topic: str
    group: str
    # Milliseconds since 1970, or LATEST.
    timestamp: int
    is_force: bool | str = "false"
    # RocketMQ 5 only; None for all queues.
    queue_id: int | None = None
    offset: int | None = None


class CloneGroupOffsetRequestHeader(Header, kw_only=True):
    """Copy offsets on one topic or all. Without `offline`, only topics with subscribed members."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | str = "false"


class QueryConsumeTimeSpanRequestHeader(Header, kw_only=True):
    topic: str
    group: str


class QueryCorrectionOffsetRequestHeader(Header, kw_only=True):
    """Smallest offsets of groups not in `filter_groups`; 2^63 - 1 if `compare_group` is below it."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class GetConsumeStatsInBrokerRequestHeader(Header, kw_only=True):
    """All topics, or with `is_order` the ordered ones."""

    is_order: bool | str = "false"


class QueryConsumeTimeSpanBody(Body, kw_only=True):
    consume_time_span_set: list[QueueTimeSpan] = []


class QueryCorrectionOffsetBody(Body, kw_only=True):
    """Offsets by queue id."""

    correction_offsets: dict[int, int] = {}


def reset_table_steps(offsets: Mapping[MessageQueue, int], *, as_list: bool = False) -> Generator[None, None, bytes]:
    """Encode the body of request 220 and response 222 in small steps; `as_list` for C++ clients."""
    if not as_list:
        return b'{"offsetTable":%b}' % (yield from by_queue_steps(offsets))
    rows: list[bytes] = []
    for queue, offset in offsets.items():
        row = {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
        rows.append(msgspec.json.encode(row))
        yield
    return b'{"offsetTable":[%b]}' % b",".join(rows)


def decode_offset_table(data: bytes) -> dict[MessageQueue, int]:
    """Return offsets by queue, sorted. RemoteProtocolError if malformed."""
    table = decode_object(data, "ResetOffsetBody").get("offsetTable") or {}
    if not isinstance(table, dict):
        raise RemoteProtocolError(f"offsetTable: expected an object, found {type(table).__name__}")
    try:
        return dict(sorted((from_key(key), int(offset)) for key, offset in table.items()))
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"offsetTable: {error}") from None


def consume_stats_list_steps(stats: ConsumeStatsList) -> Generator[None, None, bytes]:
    """Encode the response body in small steps (see `rucola.slices`)."""
    groups: list[bytes] = []
    for group, topics in stats.groups.items():
        encoded: list[bytes] = []
        for topic in topics:
            encoded.append((yield from consume_stats_steps(topic)))
        groups.append(b"{%b:[%b]}" % (msgspec.json.encode(group), b",".join(encoded)))
        yield
    parts = msgspec.json.encode(stats.broker_addr), b",".join(groups), stats.total_diff
    return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d}' % parts


def decode_consume_stats_list(data: bytes) -> ConsumeStatsList:
    """Decode the statistics of all groups. RemoteProtocolError if malformed."""
    members = decode_object(data, "ConsumeStatsList")
    stats = ConsumeStatsList(broker_addr=str(members.get("brokerAddr", "")))
    try:
        stats.total_diff = int(members.get("totalDiff", 0))
        for entry in members.get("consumeStatsList") or []:
            for group, topics in entry.items():
                stats.groups[str(group)] = [consume_stats_from(topic) for topic in topics]
    except (AttributeError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"ConsumeStatsList: {error}") from None
    return stats
