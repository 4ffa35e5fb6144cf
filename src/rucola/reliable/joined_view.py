"""Joined view of one message: stub, receipts and `done` rows, and its copies at brokers and in an archive.

`look_up` queries the brokers; `join` derives where the message is and what happens next. `failures` names parts that
did not respond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from rucola.admin import AdminClient
from rucola.domain.queue import MessageQueue
from rucola.errors import MQError, TopicNotFound
from rucola.message import MessageExt
from rucola.message.topics import dlq_topic, retry_topic
from rucola.reliable import operations
from rucola.reliable.operations import MessageView, ReceiptView, StubView
from rucola.reliable.schema import NEW, SENT, VOID

LOG: Final = "log"
ARCHIVE: Final = "archive"


class StoredCopy(msgspec.Struct, frozen=True, rename="camel"):
    """One copy of a message in a broker's log or in an archive; a resent message has several with one id."""

    origin: str
    topic: str
    """The message's topic, or a retry or dead letter topic."""
    store_host: str
    queue_id: int
    queue_offset: int
    offset_msg_id: str
    store_timestamp: int
    reconsume_times: int


class GroupPlace(msgspec.Struct, frozen=True, rename="camel"):
    """Where a message is for one consumer group, and what happens there next."""

    group: str
    place: str
    next: str


class Brokers(msgspec.Struct, frozen=True):
    """Copies of a message at brokers. `backlog` has the messages before it by group, negative if passed."""

    copies: list[StoredCopy]
    backlog: dict[str, int]
    failures: dict[str, str]
    """Reason for a missing response, by server."""


class JoinedView(msgspec.Struct, frozen=True, rename="camel"):
    message: MessageView
    copies: list[StoredCopy]
    groups: list[GroupPlace]
    where: str
    next: str
    failures: dict[str, str]


def groups_of(message: MessageView) -> list[str]:
    awaiting = message.stub.awaiting if message.stub is not None else ()
    return sorted({*awaiting, *(receipt.group for receipt in message.receipts), *message.done})


def topics_of(topic: str, message: MessageView) -> list[str]:
    return [topic, *(name for group in groups_of(message) for name in (retry_topic(group), dlq_topic(group)))]


async def look_up(namesrv: str, message_id: str, topic: str, message: MessageView) -> Brokers:
    """Find the copies of a message at brokers, and the backlogs of its groups."""
    found = Brokers([], {}, {})

    async def find_copies(admin: AdminClient, topic: str) -> None:
        try:
            result = await admin.messages.query_by_unique_key(topic, message_id)
        except TopicNotFound:
            return  # the topic does not exist, so it holds no copy
        except MQError as error:
            found.failures["brokers"] = str(error)
            return
        found.failures.update({address: str(error) for address, error in result.failures.items()})
        found.copies.extend(copy_of(copy, LOG) for copy in result.messages)

    async def find_backlog(admin: AdminClient, group: str, stub: StubView) -> None:
        if stub.broker is None or stub.queue_id is None or stub.queue_offset is None:
            return
        try:
            stats = await admin.groups.consume_stats(group, topic)
        except MQError:
            return  # the group has never consumed, or the failure is reported with the copies
        offsets = stats.offset_table.get(MessageQueue(topic, stub.broker, stub.queue_id))
        if offsets is not None:
            found.backlog[group] = stub.queue_offset - offsets.consumer_offset

    async with AdminClient(namesrv) as admin:
        queries = [find_copies(admin, topic) for topic in topics_of(topic, message)]
        if message.stub is not None:
            queries += [find_backlog(admin, group, message.stub) for group in message.stub.awaiting]
        await asyncio.gather(*queries)
    return found


def copy_of(message: MessageExt, origin: str) -> StoredCopy:
    return StoredCopy(
        origin, message.topic, message.store_host, message.queue_id, message.queue_offset, message.offset_msg_id,
        message.store_timestamp, message.reconsume_times,
    )  # fmt: skip


def join(message: MessageView, brokers: Brokers | None, archived: Iterable[StoredCopy] = ()) -> JoinedView:
    """Join the contents of tables, brokers (None if not queried) and archive."""
    is_complete = brokers is not None and not brokers.failures
    known = brokers or Brokers([], {}, {})
    in_log = {copy.offset_msg_id for copy in known.copies}
    copies = [*known.copies, *(copy for copy in archived if copy.offset_msg_id not in in_log)]
    copies.sort(key=lambda copy: (copy.store_timestamp, copy.offset_msg_id))
    groups = [_place(group, message, known, copies) for group in groups_of(message)]
    where = _where(message.stub, copies, groups, is_complete)
    if message.stub is not None:
        then = operations.next_step(message.stub)
    else:
        then = "nothing by a relay: there is no stub, so it was purged, or sent without an outbox"
    return JoinedView(message, copies, groups, where, then, known.failures)


def _place(group: str, message: MessageView, brokers: Brokers, copies: Sequence[StoredCopy]) -> GroupPlace:
    """Return the place for one group; recorded places precede inferred ones."""
    is_awaited = message.stub is not None and group in message.stub.awaiting
    # Retries and dead letters of a copy from before the last resend are obsolete.
    last_ms = max((copy.store_timestamp for copy in copies if not copy.topic.startswith("%")), default=0)
    later = [copy for copy in copies if copy.store_timestamp >= last_ms]
    retries = [copy for copy in later if copy.topic == retry_topic(group)]
    retried_ms = max((copy.store_timestamp for copy in retries), default=0)
    # A copy in the retry topic that is younger than the dead letter is the redriven one.
    dead = [copy for copy in later if copy.topic == dlq_topic(group) and copy.store_timestamp >= retried_ms]
    retried = max((copy.reconsume_times for copy in retries), default=0)
    receipt: ReceiptView | None = next((each for each in message.receipts if each.group == group), None)
    backlog = brokers.backlog.get(group)
    if group in message.done:
        then = "the next delivery or the relay's resend confirms it" if is_awaited else "nothing"
        return GroupPlace(group, "done", then)
    if message.stub is not None and message.stub.status == VOID:
        return GroupPlace(group, "void", "the group drops it when it is delivered")
    if receipt is not None and receipt.held_for_ms is not None:
        return GroupPlace(group, "in process by a worker", "the worker commits, or its lease ends")
    if dead:
        then = (
            f"nothing by itself: fix the consumer, then `rucola admin redriveDlq -g {group} --database URL` or `resend`"
        )
        return GroupPlace(group, f"dead letter, offset {dead[-1].queue_offset} of {dead[-1].topic}", then)
    if retried:
        return GroupPlace(group, f"failed and returned to the broker {retried} times", "the broker delivers again")
    if receipt is not None:
        return GroupPlace(group, "received, not done", "the broker delivers it again")
    if not is_awaited:
        return GroupPlace(group, "confirmed", "nothing")
    if backlog is not None and backlog >= 0:
        return GroupPlace(group, f"in the queue, {backlog} messages before it", "the group consumes it")
    if backlog is not None:
        return GroupPlace(group, "not received, and the group's offset has passed it", "the next check finds it lost")
    return GroupPlace(group, "not received", "nothing")


def _where(stub: StubView | None, copies: Sequence[StoredCopy], groups: Sequence[GroupPlace], is_complete: bool) -> str:
    parts = [f"{each.group}: {each.place}" for each in groups]
    in_topic = [copy for copy in copies if not copy.topic.startswith("%")]
    in_log = [copy for copy in in_topic if copy.origin == LOG]
    if in_log:
        parts.insert(0, f"stored {len(in_log)} times" if len(in_log) > 1 else "stored by a broker")
    elif in_topic:
        parts.insert(0, "in the archive" + ("; the brokers keep it no longer" if is_complete else ""))
    elif stub is not None and stub.status == NEW:
        parts.insert(0, "in the outbox only" if is_complete or not stub.sends else "in the outbox, perhaps stored")
    elif stub is not None and stub.status == SENT and is_complete:
        parts.insert(0, "in no broker's log, although a broker has answered its send")
    elif stub is not None and stub.broker is not None:
        parts.insert(0, "was stored by a broker")
    return "; ".join(parts)
