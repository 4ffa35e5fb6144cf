"""Who is connected, and what a broker asks of a client for an operator.

GET_CONSUMER_CONNECTION_LIST (203), GET_PRODUCER_CONNECTION_LIST (204), GET_ALL_PRODUCER_INFO (328) and
CHECK_CLIENT_CONFIG (46) a broker answers itself. GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309) it
hands on to the client that is named, as they came, the second with the message's record as body;
INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) becomes one GET_CONSUMER_STATUS_FROM_CLIENT (221) to each client of a group.

A ConsumerRunningInfo's `mqTable` and the two tables of a consumer's status are keyed by queues, so those bodies have
functions of their own. Fields stand in the order in which fastjson writes them, which is alphabetical.

Answers to the classes of these names in org.apache.rocketmq.common.protocol of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

from rucola import fastjson
from rucola.errors import RemoteProtocolError
from rucola.protocol.body import Body, decode_object, to_body
from rucola.protocol.command import Header
from rucola.protocol.heartbeat import SubscriptionData
from rucola.protocol.queue import MessageQueue, from_key, to_key

CR_SUCCESS = "CR_SUCCESS"
CR_LATER = "CR_LATER"
CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
"""Values of `consume_result`: consumed, to be tried again, the listener failed. Java clients know some more."""


class GetConsumerConnectionListRequestHeader(Header, kw_only=True):
    """GET_CONSUMER_CONNECTION_LIST."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(Header, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class ClientConnection(Body, kw_only=True):
    """One client of a group. `version` is a number of Apache's `MQVersion`, 409 for V4_9_8."""

    client_addr: str
    client_id: str
    language: str
    version: int


class ConsumerConnection(Body, kw_only=True):
    """A consumer group's clients and what the group subscribes to, by topic."""

    connection_set: list[ClientConnection] = []
    consume_from_where: str = ""
    consume_type: str = ""
    message_model: str = ""
    subscription_table: dict[str, SubscriptionData] = {}


class ProducerConnection(Body, kw_only=True):
    """A producer group's clients."""

    connection_set: list[ClientConnection] = []


class ProducerInfo(Body, kw_only=True):
    """One client of a producer group; `last_update_timestamp` is the time of its last heartbeat."""

    client_id: str
    language: str
    last_update_timestamp: int
    remote_ip: str = field(name="remoteIP")
    version: int


class ProducerTableInfo(Body, kw_only=True):
    """Every producer group's clients: the body of GET_ALL_PRODUCER_INFO."""

    data: dict[str, list[ProducerInfo]] = {}


class CheckClientRequestBody(Body, kw_only=True):
    """The body of CHECK_CLIENT_CONFIG: a subscription that a consumer is about to use."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None


class GetConsumerRunningInfoRequestHeader(Header, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | str = "false"


class ConsumeMessageDirectlyRequestHeader(Header, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY. `msg_id` is an offsetMsgId; the broker adds its name."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class ConsumeMessageDirectlyResult(Body, kw_only=True):
    """What the client's listener made of the message."""

    auto_commit: bool = True
    consume_result: str | None = None
    order: bool = False
    remark: str | None = None
    spent_time_mills: int = 0


class GetConsumerStatusRequestHeader(Header, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS, which may name one client id, and GET_CONSUMER_STATUS_FROM_CLIENT."""

    topic: str
    group: str
    client_addr: str | None = None


class ProcessQueueInfo(Body, kw_only=True):
    """What a consumer holds of one queue. `droped` is spelt as Apache spells it. Times are 0 where nothing was yet."""

    cached_msg_count: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_size_in_mi_b: int = field(name="cachedMsgSizeInMiB", default=0)
    commit_offset: int = 0
    droped: bool = False
    last_consume_timestamp: int = 0
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    locked: bool = False
    transaction_msg_count: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_min_offset: int = 0
    try_unlock_times: int = 0


class ConsumeStatus(Body, kw_only=True):
    """How fast a consumer pulls and consumes a topic: response times in milliseconds, rates per second."""

    consume_failed_msgs: int = 0
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)


class ConsumerRunningInfo(Body, kw_only=True):
    """A consumer's inside: settings, subscriptions, queues, rates. Not a plain JSON document, see the module."""

    jstack: str | None = None
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    properties: dict[str, str] = {}
    status_table: dict[str, ConsumeStatus] = {}
    subscription_set: list[SubscriptionData] = []


class _PlainRunningInfo(Body, kw_only=True):
    """The part of a ConsumerRunningInfo that JSON can carry."""

    jstack: str | None = None
    properties: dict[str, str] = {}
    status_table: dict[str, ConsumeStatus] = {}
    subscription_set: list[SubscriptionData] = []


def encode_running_info(info: ConsumerRunningInfo) -> bytes:
    """The body of the answer to GET_CONSUMER_RUNNING_INFO."""
    members: dict[str, Any] = {} if info.jstack is None else {"jstack": info.jstack}
    members["mqTable"] = {to_key(queue): msgspec.to_builtins(held) for queue, held in info.mq_table.items()}
    members["properties"] = info.properties
    members["statusTable"] = {topic: msgspec.to_builtins(status) for topic, status in info.status_table.items()}
    members["subscriptionSet"] = [msgspec.to_builtins(data) for data in info.subscription_set]
    return fastjson.dumps(members)


def decode_running_info(data: bytes) -> ConsumerRunningInfo:
    """A consumer's inside; RemoteProtocolError where the body is something else."""
    members = decode_object(data, "ConsumerRunningInfo")
    queues = _table(members.pop("mqTable", None), "mqTable")
    plain = to_body(_PlainRunningInfo, members)
    return ConsumerRunningInfo(
        jstack=plain.jstack,
        mq_table=dict(sorted((from_key(key), to_body(ProcessQueueInfo, value)) for key, value in queues.items())),
        properties=plain.properties,
        status_table=plain.status_table,
        subscription_set=plain.subscription_set,
    )


def encode_client_status(offsets: dict[MessageQueue, int]) -> bytes:
    """The body of a client's answer to GET_CONSUMER_STATUS_FROM_CLIENT: its offset in every queue it has."""
    return fastjson.dumps({"consumerTable": {}, "messageQueueTable": _keyed(offsets)})


def decode_client_status(data: bytes) -> dict[MessageQueue, int]:
    """The offsets of a client; RemoteProtocolError where the body is something else."""
    return _offsets(decode_object(data, "GetConsumerStatusBody").get("messageQueueTable"))


def encode_consumer_status(clients: dict[str, dict[MessageQueue, int]]) -> bytes:
    """The body of a broker's answer to INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the offsets of clients, by client id."""
    table = {client_id: _keyed(offsets) for client_id, offsets in clients.items()}
    return fastjson.dumps({"consumerTable": table, "messageQueueTable": {}})


def decode_consumer_status(data: bytes) -> dict[str, dict[MessageQueue, int]]:
    """The offsets of clients by client id; RemoteProtocolError where the body is something else."""
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
