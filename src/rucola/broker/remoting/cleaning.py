"""Deleting by hand: TRIGGER_DELETE_FILES (27), DELETE_EXPIRED_COMMITLOG (329), CLEAN_EXPIRED_CONSUMEQUEUE (306),
CLEAN_UNUSED_TOPIC (316).

The first two let files of the log that are old enough go within cleanResourceInterval, whatever the hour; the answer
does not wait for that. The others remove at once the ConsumeQueues of topics that are gone, once all their messages
have left the log.

Answers to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate difference: Apache removes the empty
queues of every topic. A queue that is removed begins at 0 again, and a group that had read it to the end would be
taken beyond the next messages; so a topic that exists keeps its queues, of which no more than one file stays anyway.
CLEAN_UNUSED_TOPIC removes the queues of deleted topics there though the log has their messages, and a recovery after a
crash would bring them back; here they stay as long as their messages.
"""

from __future__ import annotations

import asyncio

from rucola.broker.tables.topics import TopicConfigTable
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Answer, Connection, Processor, Reply
from rucola.store.message_store import MessageStore


class CleaningProcessor:
    """Passes on to the store what operators want deleted."""

    def __init__(self, store: MessageStore, topics: TopicConfigTable) -> None:
        self._store = store
        self._topics = topics

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.TRIGGER_DELETE_FILES: self.delete_expired_commitlog,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired_commitlog,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_consumequeues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_consumequeues,
        }

    def delete_expired_commitlog(self, connection: Connection, command: RemotingCommand) -> Reply:
        self._store.request_manual_deletion()
        return command.response(ResponseCode.SUCCESS)

    async def clean_consumequeues(self, connection: Connection, command: RemotingCommand) -> Answer:
        for topic, queue_id in self._store.queues():
            if self._topics.get(topic) is None and not self._topics.is_system_topic(topic):
                self._store.delete_queue(topic, queue_id)
                await asyncio.sleep(0)  # there may be thousands
        return command.response(ResponseCode.SUCCESS)
