"""ProducerOptions: the settings of a Producer.

Corresponds to the settings of `DefaultMQProducer` of Apache RocketMQ 4.9.8, whose defaults these are.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypedDict

import msgspec

from rucola.client.arguments import check_options
from rucola.client.producer.send_request import COMPRESS_THRESHOLD, MAX_MESSAGE_SIZE, SendResult
from rucola.client.trace_hooks import check_trace
from rucola.client.values import ValueType
from rucola.message import Message, MessageExt
from rucola.message.delay import MAX_DELAY_LEVEL
from rucola.message.message import V
from rucola.protocol.codes import RequestCode

RETRY_TIMES = 2


class CompletedSend(msgspec.Struct, frozen=True):
    """A request whose messages were stored; `properties` and `body` are as sent."""

    group: str
    code: RequestCode
    topic: str
    body: bytes
    properties: str
    results: list[SendResult]
    """One result for each message of the request, in order."""
    address: str
    region_id: str
    """The broker's region, from its response."""
    trace_on: bool
    """Whether the broker has tracing enabled."""
    begin_ms: int
    """When the request was sent, in milliseconds since 1970."""
    cost_ms: int


class SendTrace(Protocol):
    """Receives the completed sends and transactions of a producer, see `rucola.client.trace`.

    A method `instrument`, if there is one, gets the producer when it is made, see `rucola.client.otel`.
    """

    def send_completed(self, send: CompletedSend) -> None:
        """Called after a request whose messages were stored."""

    def transaction_ended(
        self, group: str, message: Message | MessageExt, address: str, state: str, *, from_check: bool
    ) -> None:
        """Called after the outcome of a transaction, `state`, was sent to the broker at `address`."""


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a Producer, each of which is a keyword argument there."""

    retry_times: int = RETRY_TIMES
    """The number of retries after the first attempt: retryTimesWhenSendFailed."""
    compress_threshold: int = COMPRESS_THRESHOLD
    """Bodies of at least this many bytes are compressed, unless they do not shrink: compressMsgBodyOverHowmuch."""
    max_message_size: int = MAX_MESSAGE_SIZE
    """The largest body, or encoded batch, in bytes: maxMessageSize."""
    max_delay_level: int = MAX_DELAY_LEVEL
    """The number of the brokers' delay levels (messageDelayLevel); messages of a higher level are rejected."""
    retry_another_broker_when_not_store_ok: bool = False
    """Whether a message that was stored with another status than SEND_OK is sent to another broker as well."""
    latency_fault_tolerance: bool = False
    """Whether slow and failing brokers are avoided for a while, see `latency_faults`: sendLatencyFaultEnable."""
    linger_ms: float | None = None
    """How long a message waits for others, to share a request, see `accumulator` (Kafka's linger.ms). None: not at all;
    0: for those that are sent in the same iteration of the event loop."""
    trace: SendTrace | None = None
    """Receives completed sends and transactions."""
    value: ValueType | None = None
    """The type of values that `message` encodes, or a codec, see `rucola.client.values`."""

    def __post_init__(self) -> None:
        check_options(self)
        check_trace(self.trace, "send_completed")


class ProducerKeywords(TypedDict, Generic[V], total=False):
    """ProducerOptions as keyword arguments, for editors and type checkers."""

    retry_times: int
    compress_threshold: int
    max_message_size: int
    max_delay_level: int
    retry_another_broker_when_not_store_ok: bool
    latency_fault_tolerance: bool
    linger_ms: float | None
    trace: SendTrace | None
    value: ValueType[V] | None
