"""Consumer groups, as operators ask about them and change them.

DELETE_SUBSCRIPTIONGROUP (207), RESET_CONSUMER_CLIENT_OFFSET (220), INVOKE_BROKER_TO_RESET_OFFSET (222),
QUERY_CONSUME_TIME_SPAN (303), QUERY_CORRECTION_OFFSET (308), CLONE_GROUP_OFFSET (314) and GET_BROKER_CONSUME_STATS
(317). How far one group has come is asked with GET_CONSUME_STATS, see `topic`.

To reset a group, an operator sends 222 to a broker. The broker works out a queue offset for each of the topic's queues
and sends them with 220 to every client of the group, which begins there anew and commits. Clients in C++ cannot read
maps whose keys are objects; they get a list.

Answers to the classes of these names in org.apache.rocketmq.common of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import msgspec

from rucola import fastjson
from rucola.errors import RemoteProtocolError
from rucola.protocol.body import Body, decode_object
from rucola.protocol.command import Header
from rucola.protocol.queue import MessageQueue, from_key, to_key
from rucola.protocol.topic import ConsumeStats, consume_stats_from, consume_stats_members

LATEST = -1
"""A `timestamp` that asks for the end of each queue."""


SYSTEM_GROUPS = {
    "TOOLS_CONSUMER": False,
    "FILTERSRV_CONSUMER": False,
    "SELF_TEST_C_GROUP": False,
    "CID_ONS-HTTP-PROXY": True,
    "CID_ONSAPI_PULL": True,
    "CID_ONSAPI_PERMISSION": True,
    "CID_ONSAPI_OWNER": True,
}
"""Groups that every broker has, and whether they may consume by broadcast."""


class DeleteSubscriptionGroupRequestHeader(Header, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP: the group's settings, and its offsets where that is asked for."""

    group_name: str
    remove_offset: bool | str = "false"


class ResetOffsetRequestHeader(Header, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET and RESET_CONSUMER_CLIENT_OFFSET.

    `timestamp` is a store time in milliseconds, or LATEST. Without `is_force` no queue goes forward, only back.
    RocketMQ 5 knows a `queue_id` with an `offset` as well: then only that queue moves, and to that number.
    """

    topic: str
    group: str
    timestamp: int
    is_force: bool | str = "false"
    queue_id: int | None = None
    offset: int | None = None


class CloneGroupOffsetRequestHeader(Header, kw_only=True):
    """CLONE_GROUP_OFFSET: give `dest_group` the offsets of `src_group`, on one topic or all.

    `offline` asks not to look at what the group subscribes to now.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | str = "false"


class QueryConsumeTimeSpanRequestHeader(Header, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN."""

    topic: str
    group: str


class QueryCorrectionOffsetRequestHeader(Header, kw_only=True):
    """QUERY_CORRECTION_OFFSET. `filter_groups` has commas between names."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class GetConsumeStatsInBrokerRequestHeader(Header, kw_only=True):
    """GET_BROKER_CONSUME_STATS: of all topics, or of ordered ones only."""

    is_order: bool | str = "false"


class QueueTimeSpan(Body, kw_only=True):
    """Times in one queue, in milliseconds: of the oldest and the newest message and of the last one consumed.

    `delay_time` is how long the next one has waited. The `…_str` are for people, `2013-01-01#05:15:00:000`.
    """

    consume_time_stamp: int = 0
    consume_time_stamp_str: str = ""
    delay_time: int = 0
    max_time_stamp: int = 0
    max_time_stamp_str: str = ""
    message_queue: MessageQueue
    min_time_stamp: int = 0
    min_time_stamp_str: str = ""


class QueryConsumeTimeSpanBody(Body, kw_only=True):
    """The body of QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueryCorrectionOffsetBody(Body, kw_only=True):
    """The body of QUERY_CORRECTION_OFFSET: queue offsets by queue id."""

    correction_offsets: dict[int, int] = {}


class ConsumeStatsList(msgspec.Struct, kw_only=True):
    """All groups of a broker: for each, one ConsumeStats a topic. The body of GET_BROKER_CONSUME_STATS."""

    broker_addr: str = ""
    groups: dict[str, list[ConsumeStats]] = {}
    total_diff: int = 0


def encode_offset_table(offsets: dict[MessageQueue, int], *, as_list: bool = False) -> bytes:
    """The body of 220 and of the answer to 222; `as_list` is what C++ clients read."""
    if not as_list:
        return fastjson.dumps({"offsetTable": {to_key(queue): offset for queue, offset in offsets.items()}})
    rows = [
        {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
        for queue, offset in offsets.items()
    ]
    return fastjson.dumps({"offsetTable": rows})


def decode_offset_table(data: bytes) -> dict[MessageQueue, int]:
    """Queue offsets by queue, sorted; RemoteProtocolError where the body is something else."""
    table = decode_object(data, "ResetOffsetBody").get("offsetTable") or {}
    if not isinstance(table, dict):
        raise RemoteProtocolError(f"offsetTable: expected an object, found {type(table).__name__}")
    try:
        return dict(sorted((from_key(key), int(offset)) for key, offset in table.items()))
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"offsetTable: {error}") from None


def encode_consume_stats_list(stats: ConsumeStatsList) -> bytes:
    """The body of GET_BROKER_CONSUME_STATS."""
    groups = [{group: list(map(consume_stats_members, topics))} for group, topics in stats.groups.items()]
    return fastjson.dumps({"brokerAddr": stats.broker_addr, "consumeStatsList": groups, "totalDiff": stats.total_diff})


def decode_consume_stats_list(data: bytes) -> ConsumeStatsList:
    """All groups of a broker; RemoteProtocolError where the body is something else."""
    members = decode_object(data, "ConsumeStatsList")
    found = ConsumeStatsList(broker_addr=str(members.get("brokerAddr", "")))
    try:
        found.total_diff = int(members.get("totalDiff", 0))
        for entry in members.get("consumeStatsList") or []:
            for group, topics in entry.items():
                found.groups[str(group)] = [consume_stats_from(topic) for topic in topics]
    except (AttributeError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"ConsumeStatsList: {error}") from None
    return found
