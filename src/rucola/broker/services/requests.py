"""Requests to the services that move messages: structs, since one is created per request."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from rucola.domain.subscription import SUB_ALL, TAG


class PublishRequest(Struct, gc=False):
    """A message, or a batch of messages, whose body `rucola.message.batch` describes."""

    topic: str
    queue_id: int
    """Negative: any queue."""
    body: bytes
    properties: bytes = b""
    """As in a record (`rucola.message.properties.join`). For a batch, those that all its messages get."""
    flag: int = 0
    """The application's."""
    sys_flag: int = 0
    born_timestamp: int = 0
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    """None: the group's, for a message of a retry topic."""
    producer_group: str = ""
    default_topic: str = "TBW102"
    """For a topic that does not exist: the one that it is created from, and its number of queues."""
    default_topic_queue_nums: int = 4
    unit_mode: bool = False


class FetchRequest(Struct, gc=False):
    """Messages of one queue for a consumer group. Fields in the order of `speed.UsualFetch`."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_messages: int
    commit_offset: int | None = None
    """A consumer offset to commit."""
    wait_ms: int | None = None
    """How long to wait for a message; None: not at all."""
    expression: str | None = None
    """None: the one of the group's last heartbeat, which must have this `sub_version` or a newer one."""
    expression_type: str = TAG
    sub_version: int = 0


class PopRequest(Struct, gc=False):
    """Messages of a topic for a consumer group, each of which nobody else gets for `invisible_ms`."""

    group: str
    topic: str
    max_messages: int
    invisible_ms: int
    queue_id: int = -1
    """Negative: all queues."""
    wait_ms: int = 0
    """How long to wait for a message."""
    begins_at_end: bool = False
    """Whether a group without an offset begins at the end of a queue, not at its first message."""
    is_ordered: bool = False
    """Whether a message waits until the earlier ones of its message group are acked."""
    attempt_id: str | None = None
    """Of a receive; the same one again gets the same messages, for an answer that was lost."""
    expression: str = SUB_ALL
    expression_type: str = TAG
    client: str = ""
    """Who holds the messages."""
    is_renewed: bool = False
    """Whether `client` is the id of a member of the group, which holds the messages only while it is connected."""


class RetryRequest(NamedTuple):
    """A message that a group failed to consume."""

    group: str
    physical_offset: int
    delay_level: int = 0
    """0: the level after the last retry's. Negative: no retry, but a dead letter."""
    max_reconsume_times: int | None = None
    """None: the group's."""
    unit_mode: bool = False
    msg_id: str | None = None
    """The message's id, if known: after a crash, another one can be at `physical_offset`."""
