"""ConsumeOptions: the settings of a PushConsumer, with Apache's names where they differ.

Corresponds to the settings of `DefaultMQPushConsumer` of Apache RocketMQ 4.9.8, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Generic, Protocol, TypedDict

import msgspec

from rucola.client.arguments import check_options
from rucola.client.consumer.process_queue import PullLimits
from rucola.client.consumer.pull_consumer import PULL_BATCH_SIZE
from rucola.client.trace_hooks import check_trace
from rucola.client.values import ValueType
from rucola.domain.allocation import Strategy, average
from rucola.errors import ConfigError
from rucola.message.message import MessageExt, V

MAX_INVISIBLE_MS = 30 * 86_400_000
"""The longest invisible time that brokers accept."""


class MessageModel(Enum):
    """Whether one or each member of the group consumes a message."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(Enum):
    """The start offset of a group without a committed offset (table in `start_offsets`)."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumeTrace(Protocol):
    """Records the deliveries of a consumer, see `rucola.client.trace`."""

    def consuming(self, group: str, messages: Sequence[MessageExt]) -> AbstractContextManager[None]:
        """Return a context in which a listener is called with these messages; an exception marks them as failed."""


class ConsumeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a PushConsumer, each of which is a keyword argument there. ConfigError for an invalid value."""

    message_model: MessageModel = MessageModel.CLUSTERING
    """Whether the group shares the messages, or each member gets all of them."""
    orderly: bool = False
    """Whether each queue is consumed in order, one delivery at a time: MessageListenerOrderly."""
    consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    """Where a group without committed offsets starts: consumeFromWhere."""
    consume_timestamp_ms: int | None = None
    """The time for CONSUME_FROM_TIMESTAMP; None means half an hour before the queue is assigned."""
    pop: bool = False
    """Whether the broker gives messages of all queues to any member, without a rebalance: see docs/pop.md."""
    strategy: Strategy = average
    """How queues are divided among members, see `rucola.domain.allocation`; the same for all members."""
    concurrency: int = 20
    """The number of concurrent calls of the listener: consumeThreadMax."""
    pull_batch_size: int = PULL_BATCH_SIZE
    """The most messages of one pull."""
    limits: PullLimits = PullLimits()
    """How much is pulled ahead of the application."""
    max_reconsume_times: int | None = None
    """The number of retries of a message. None means 16, and in order no limit."""
    local_retry_ms: float = 5000
    """The pause before a local retry, if the broker does not accept a message for a retry."""
    suspend_current_queue_ms: float = 1000
    """In order, how long a queue is suspended after a failure: suspendCurrentQueueTimeMillis."""
    consume_timeout_ms: float = 15 * 60 * 1000
    """Concurrently, how long a message may be in flight before it is retried: consumeTimeout.

    With `pop`, also in order, and from the receive on: the invisible time.
    """
    offsets_root: str | Path | None = None
    """With broadcasting, the directory of the offset files; None means `~/.rocketmq_offsets`."""
    discard_damaged_offsets: bool = False
    """With broadcasting, whether a damaged offset file is set aside, so that this member begins as a new one."""
    trace: ConsumeTrace | None = None
    """Records every call of the listener."""
    value: ValueType | None = None
    """The type of `message.value`, or a codec, see `rucola.client.values`; without it only the body is set."""

    def __post_init__(self) -> None:
        check_options(self, concurrency=1, pull_batch_size=1)
        for name, kind in (
            ("message_model", MessageModel), ("consume_from", ConsumeFromWhere), ("limits", PullLimits),
        ):  # fmt: skip
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigError(f"{name} is {value!r}: it must be a {kind.__name__}", subject=name)
        if self.offsets_root is not None and not isinstance(self.offsets_root, (str, Path)):
            raise ConfigError(
                f"offsets_root is {self.offsets_root!r}: it must be the path of a directory", subject="offsets_root"
            )
        if self.pop:
            self._check_pop()
        check_trace(self.trace, "consuming")

    @property
    def takes_locks(self) -> bool:
        """Whether a member locks the queues that it consumes."""
        return self.orderly and not self.broadcasting and not self.pop

    def _check_pop(self) -> None:
        if self.broadcasting:
            raise ConfigError("pop=True: the broker gives each message to one member, so use CLUSTERING", subject="pop")
        if self.consume_from is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            raise ConfigError(
                "pop=True: a group begins at the first offset or the last one; reset its offsets to a time instead",
                subject="consume_from",
            )
        if self.max_reconsume_times is not None:
            raise ConfigError(
                "pop=True: the broker counts retries; set retryMaxTimes of the group (rucola admin updateSubGroup)",
                subject="max_reconsume_times",
            )
        if not 1 <= self.consume_timeout_ms <= MAX_INVISIBLE_MS:
            raise ConfigError(
                f"consume_timeout_ms is {self.consume_timeout_ms}: with pop=True it must be 1 to {MAX_INVISIBLE_MS}",
                subject="consume_timeout_ms",
            )

    @property
    def broadcasting(self) -> bool:
        """Whether each member gets all messages."""
        return self.message_model is MessageModel.BROADCASTING


class ConsumeKeywords(TypedDict, Generic[V], total=False):
    """ConsumeOptions as keyword arguments, for editors and type checkers."""

    message_model: MessageModel
    orderly: bool
    consume_from: ConsumeFromWhere
    consume_timestamp_ms: int | None
    pop: bool
    strategy: Strategy
    concurrency: int
    pull_batch_size: int
    limits: PullLimits
    max_reconsume_times: int | None
    local_retry_ms: float
    suspend_current_queue_ms: float
    consume_timeout_ms: float
    offsets_root: str | Path | None
    discard_damaged_offsets: bool
    trace: ConsumeTrace | None
    value: ValueType[V] | None
