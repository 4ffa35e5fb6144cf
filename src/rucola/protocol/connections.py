"""Connected clients, and administrative requests that a broker forwards to a client.

A broker answers codes 203, 204, 328 and 46. It forwards 307 and 309 to the client in the header, the latter with the
record of the message as body. INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) becomes one GET_CONSUMER_STATUS_FROM_CLIENT
(221) for each member of a group. Maps keyed by queues are not standard JSON; functions here encode and decode them.
Fields are in alphabetical order, as in fastjson.

Corresponds to the classes of these names in org.apache.rocketmq.common.protocol of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, Final

import msgspec
from msgspec import field

from rucola import fastjson
from rucola.domain.queue import MessageQueue
from rucola.domain.subscription import SubscriptionData
from rucola.errors import RemoteProtocolError
from rucola.protocol.body import Body, decode_object
from rucola.protocol.command import Header
from rucola.protocol.queue import from_key, to_key

MAX_STATUS_SIZE: Final = 2 * 1024 * 1024
"""Bytes of a client's status: some ten thousand queues."""
_STATUS_ENTRY: Final = re.compile(rb"(\{[^{}]{1,1000}\}):(-?[0-9]{1,19})")

CR_SUCCESS = "CR_SUCCESS"
CR_LATER = "CR_LATER"
CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
"""Values of `consume_result`; Java clients have further ones."""


class GetConsumerConnectionListRequestHeader(Header, kw_only=True):
    consumer_group: str


class GetProducerConnectionListRequestHeader(Header, kw_only=True):
    producer_group: str


class CheckClientRequestBody(Body, kw_only=True):
    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None


class GetConsumerRunningInfoRequestHeader(Header, kw_only=True):
    consumer_group: str
    client_id: str
    # Whether to include the member's stack traces.
    jstack_enable: bool | str = "false"


class ConsumeMessageDirectlyRequestHeader(Header, kw_only=True):
    """`msg_id` is an offsetMsgId; the broker sets `broker_name` when it forwards."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class ConsumeMessageDirectlyResult(Body, kw_only=True):
    auto_commit: bool = True
    consume_result: str | None = None
    # Whether the listener consumes in order.
    order: bool = False
    remark: str | None = None
    # Milliseconds; the spelling is Apache's.
    spent_time_mills: int = 0


class GetConsumerStatusRequestHeader(Header, kw_only=True):
    """`client_addr` is a client id, despite its name; None for all members."""

    topic: str
    group: str
    client_addr: str | None = None


class ProcessQueueInfo(Body, kw_only=True):
    """The process queue of an assigned queue. Times in milliseconds, 0 for never; `droped` is Apache's spelling."""

    cached_msg_count: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_min_offset: int = 0
    # Bodies of the cached messages, in MiB.
    cached_msg_size_in_mi_b: int = field(name="cachedMsgSizeInMiB", default=0)
    # The next offset to commit.
    commit_offset: int = 0
    # Revoked by a rebalance.
    droped: bool = False
    last_consume_timestamp: int = 0
    # The last renewal of the queue lock.
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    locked: bool = False
    # Delivered in order and not committed yet.
    transaction_msg_count: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_min_offset: int = 0
    try_unlock_times: int = 0


class ConsumeStatus(Body, kw_only=True):
    """Rates of a consumer on one topic: `rt` fields in milliseconds, `tps` fields per second."""

    # In the last hour; the other fields are of the last minute.
    consume_failed_msgs: int = 0
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)


class ConsumerRunningInfo(Body, kw_only=True):
    # Stack traces, only on request.
    jstack: str | None = None
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    properties: dict[str, str] = {}
    # By topic.
    status_table: dict[str, ConsumeStatus] = {}
    subscription_set: list[SubscriptionData] = []

    @property
    def subscriptions(self) -> frozenset[tuple[str, str]]:
        """Topics and expressions, which all members of a group should have in common."""
        return frozenset((data.topic, data.sub_string) for data in self.subscription_set)


class _PlainRunningInfo(Body, kw_only=True):
    """The members that are standard JSON."""

    jstack: str | None = None
    properties: dict[str, str] = {}
    status_table: dict[str, ConsumeStatus] = {}
    subscription_set: list[SubscriptionData] = []


def encode_running_info(info: ConsumerRunningInfo) -> bytes:
    members: dict[str, Any] = {} if info.jstack is None else {"jstack": info.jstack}
    members["mqTable"] = {to_key(queue): msgspec.to_builtins(held) for queue, held in info.mq_table.items()}
    members["properties"] = info.properties
    members["statusTable"] = {topic: msgspec.to_builtins(status) for topic, status in info.status_table.items()}
    members["subscriptionSet"] = [msgspec.to_builtins(data) for data in info.subscription_set]
    return fastjson.dumps(members)


def decode_running_info(data: bytes) -> ConsumerRunningInfo:
    """Decode the state of a consumer. RemoteProtocolError if malformed."""
    members = decode_object(data, "ConsumerRunningInfo")
    queues = _table(members.pop("mqTable", None), "mqTable")
    plain = fastjson.to_struct(_PlainRunningInfo, members)
    return ConsumerRunningInfo(
        jstack=plain.jstack,
        mq_table=dict(
            sorted((from_key(key), fastjson.to_struct(ProcessQueueInfo, value)) for key, value in queues.items())
        ),
        properties=plain.properties,
        status_table=plain.status_table,
        subscription_set=plain.subscription_set,
    )


def encode_client_status(offsets: dict[MessageQueue, int]) -> bytes:
    """Encode a client's offset of each assigned queue."""
    return fastjson.dumps({"consumerTable": {}, "messageQueueTable": _keyed(offsets)})


def decode_client_status(data: bytes) -> dict[MessageQueue, int]:
    """Decode a client's offsets. RemoteProtocolError if malformed."""
    return _offsets(decode_object(data, "GetConsumerStatusBody").get("messageQueueTable"))


def client_status_steps(data: bytes) -> Generator[None, None, dict[MessageQueue, int]]:
    """Decode offsets in small steps, by matching entries: the tolerant parser takes seconds for a large body."""
    if len(data) <= fastjson.MAX_TOLERANT_SIZE:
        return decode_client_status(data)
    if len(data) > MAX_STATUS_SIZE:
        raise RemoteProtocolError(f"GetConsumerStatusBody of {len(data)} bytes; the limit is {MAX_STATUS_SIZE}")
    offsets: dict[MessageQueue, int] = {}
    for entry in _STATUS_ENTRY.finditer(data):
        try:
            offsets[msgspec.json.decode(entry[1], type=MessageQueue)] = int(entry[2])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"GetConsumerStatusBody at byte {entry.start()}: {error}") from None
        yield
    return offsets


def encode_consumer_status(clients: dict[str, dict[MessageQueue, int]]) -> bytes:
    """Encode offsets by client id."""
    table = {client_id: _keyed(offsets) for client_id, offsets in clients.items()}
    return fastjson.dumps({"consumerTable": table, "messageQueueTable": {}})


def decode_consumer_status(data: bytes) -> dict[str, dict[MessageQueue, int]]:
    """Decode offsets by client id. RemoteProtocolError if malformed."""
    table = _table(decode_object(data, "GetConsumerStatusBody").get("consumerTable"), "consumerTable")
    return {str(client_id): _offsets(offsets) for client_id, offsets in table.items()}


def _keyed(offsets: dict[MessageQueue, int]) -> dict[Any, int]:
    return {to_key(queue): offset for queue, offset in offsets.items()}


def _offsets(table: Any) -> dict[MessageQueue, int]:
    try:
        offsets = {from_key(key): int(offset) for key, offset in _table(table, "messageQueueTable").items()}
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"messageQueueTable: {error}") from None
    return dict(sorted(offsets.items()))


def _table(value: Any, name: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{name}: expected an object, found {type(value).__name__}")
    return value
