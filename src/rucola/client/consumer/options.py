"""ConsumeOptions: how a PushConsumer consumes. Apache's names stand beside those that differ.

Answers to the settings of `DefaultMQPushConsumer` of Apache RocketMQ 4.9.8, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Protocol

import msgspec

from rucola.client.consumer.allocation import Strategy, average
from rucola.client.consumer.process_queue import PullLimits
from rucola.client.consumer.pull_consumer import PULL_BATCH_SIZE
from rucola.errors import ConfigError
from rucola.message import MessageExt


class MessageModel(Enum):
    """Whether a message goes to one member of the group or to each. The names are Apache's."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(Enum):
    """The starting point of a group in a queue without a committed offset (table in `consumer.assignment`)."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumeTrace(Protocol):
    """What a consumer tells of what it consumes, see `trace`."""

    def consuming(self, group: str, messages: Sequence[MessageExt]) -> AbstractContextManager[None]:
        """A listener consumes these messages within the context; an error that leaves it is told."""


class ConsumeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a PushConsumer, each a keyword of its own there. ConfigError for a number that makes no sense."""

    message_model: MessageModel = MessageModel.CLUSTERING
    orderly: bool = False
    """One alone of each queue is in hand, in the order of the queue: MessageListenerOrderly."""
    consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp_ms: int | None = None
    """For CONSUME_FROM_TIMESTAMP; half an hour before the queue is taken up where it is not given."""
    strategy: Strategy = average
    """How the group shares queues, see `rucola.client.consumer.allocation`; all its members need the same one."""
    concurrency: int = 20
    """How many calls of the listener run at a time: consumeThreadMax."""
    pull_batch_size: int = PULL_BATCH_SIZE
    limits: PullLimits = PullLimits()
    """How much is held of each queue."""
    max_reconsume_times: int | None = None
    """How often a message is tried again. None: 16 times, in order without end."""
    local_retry_ms: float = 5000
    """When a message is tried again here that no broker takes back."""
    suspend_current_queue_ms: float = 1000
    """In order, how long a queue rests after a failure: suspendCurrentQueueTimeMillis."""
    consume_timeout_ms: float = 15 * 60 * 1000
    """Side by side, how long the application may have a message in hand before it comes again elsewhere."""
    offsets_root: str | Path | None = None
    """In broadcasting, the directory of the offsets; `~/.rocketmq_offsets` where it is not given."""
    trace: ConsumeTrace | None = None
    """Is told of every call of the listener."""

    def __post_init__(self) -> None:
        for name, kind in (
            ("message_model", MessageModel), ("consume_from", ConsumeFromWhere), ("limits", PullLimits),
        ):  # fmt: skip
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigError(f"{name} is {value!r}: it must be a {kind.__name__}")
        if self.offsets_root is not None and not isinstance(self.offsets_root, (str, Path)):
            raise ConfigError(f"offsets_root is {self.offsets_root!r}: it must be the path of a directory")
        for name, least in (("concurrency", 1), ("pull_batch_size", 1), ("max_reconsume_times", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}: it must be {least} or more")

    @property
    def broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING
