"""Stored copies of a message at brokers, shown next to its stub and receipts."""

from __future__ import annotations

import msgspec

from rucola.admin import AdminClient
from rucola.errors import TopicNotFound
from rucola.message.topics import dlq_topic
from rucola.reliable.operations import StubView


class StoredCopy(msgspec.Struct, frozen=True):
    """One copy of a message at a broker; a resent message has several copies with one id."""

    topic: str
    queue_id: int
    queue_offset: int
    offset_msg_id: str
    store_timestamp: int


async def stored_copies(namesrv: str, stub: StubView) -> list[StoredCopy]:
    """Find the copies in the message's topic and in the dead letter topics of the groups that it awaits."""
    found: list[StoredCopy] = []
    async with AdminClient(namesrv) as admin:
        for topic in [stub.topic, *map(dlq_topic, stub.awaiting)]:
            try:
                answer = await admin.messages.query_by_unique_key(topic, stub.message_id)
            except TopicNotFound:
                continue  # the topic does not exist, so it holds no copy
            found += [
                StoredCopy(topic, copy.queue_id, copy.queue_offset, copy.offset_msg_id, copy.store_timestamp)
                for copy in answer.messages
            ]
    return found
