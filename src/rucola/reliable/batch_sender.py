"""Batch sender: sends claimed stubs to brokers in as few requests as their order allows.

    with a sharding key     to the queue with the key's unconfirmed messages, else to the one that
                            SelectMessageQueueByHash selects; requests to one queue are sequential, and a failure stops
                            the later messages of its key, as does a queue that no route has
    without sharding key    to any queue, in concurrent requests of up to 128 messages

Requests are packed, and refused ones repeated message by message, as in `rucola.client.producer.ordered_sender`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from sqlalchemy import Row

from rucola.client import MessageQueue, Producer, SendResult, select_by_hash
from rucola.client.producer.ordered_sender import OrderedSender
from rucola.client.producer.send_request import MAX_COUNT
from rucola.errors import BrokerError, InvalidMessage, MQError, SendFailed, TopicNotFound
from rucola.outages import Outages
from rucola.reliable.outbox import message_of
from rucola.reliable.policy import Policy
from rucola.reliable.schema import CONFIRMED, MANUAL, SENT
from rucola.reliable.stub_claims import KeyQueues, Outcome

logger = logging.getLogger(__name__)

CONCURRENCY = 16
ERROR_LENGTH = 1000
QUEUE_AWAY_RETRIES = 4
"""A stub without its queue waits as after this many failures; by default 8 s."""
QUEUE_AWAY = (
    "it is not in the route, and keys have unconfirmed messages in it, for which their later messages wait: bring it "
    "back, or `confirm`, `void` or `resend` them"
)


class QueueAway(NamedTuple):
    """A queue for which stubs wait, `since` a loop time, because it is not in the route."""

    since: float
    error: str


class BatchSender:
    def __init__(self, producer: Producer, policy: Policy) -> None:
        self._producer = producer
        self._policy = policy
        self._outages = Outages(logger)
        self._away: dict[MessageQueue, QueueAway] = {}

    async def send(
        self, rows: Sequence[Row[Any]], deadline: float, stopped_keys: Set[str], key_queues: KeyQueues
    ) -> SentBatch:
        """Send claimed stubs in the given order.

        Stubs stay unsent if their request has not started by `deadline`, a loop time, or if their key is in
        `stopped_keys`, those that failed in the batch before. `key_queues` are the queues of keys with unconfirmed
        messages.
        """
        run = SentBatch(self._producer, self._policy, deadline, stopped_keys)
        streams: dict[tuple[str, MessageQueue | None], list[Row[Any]]] = {}
        queues = {topic: await self._queues_of(topic) for topic in {row.topic for row in rows if row.shard_key}}
        self._note_returned(queues)
        for row in rows:
            queue = None
            if row.shard_key is not None:
                of_topic = queues[row.topic]
                if isinstance(of_topic, MQError):
                    run.failed(row, of_topic)
                    continue
                key = row.topic, row.shard_key
                queue = key_queues.get(key) or select_by_hash(row.shard_key)(of_topic)
                if queue not in of_topic:
                    run.without_queue(row, self._note_away(queue))
                    self._producer.instance.refresh_route_soon(row.topic)
                    continue
                run.key_queues[key] = queue
            streams.setdefault((row.topic, queue), []).append(row)
        async with asyncio.TaskGroup() as group:
            for (_, queue), stream in streams.items():
                step = len(stream) if queue is not None else MAX_COUNT
                for begin in range(0, len(stream), step):
                    group.create_task(run.in_order(stream[begin : begin + step], queue))
        return run

    async def _queues_of(self, topic: str) -> Sequence[MessageQueue] | MQError:
        try:
            return await self._producer.queues(topic)
        except MQError as error:
            return error

    def _note_away(self, queue: MessageQueue) -> QueueAway:
        self._outages.failed(f"queue {queue}", QUEUE_AWAY)
        found = QueueAway(asyncio.get_running_loop().time(), f"queue {queue}: {QUEUE_AWAY}"[:ERROR_LENGTH])
        return self._away.setdefault(queue, found)

    def _note_returned(self, queues: Mapping[str, Sequence[MessageQueue] | MQError]) -> None:
        for queue in list(self._away):
            of_topic = queues.get(queue.topic, ())
            if not isinstance(of_topic, MQError) and queue in of_topic:
                del self._away[queue]
                self._outages.succeeded(f"queue {queue}")


class SentBatch:
    """One batch, on one event loop: the outcome of its stubs, and its conclusions about brokers.

    `key_queues` are the queues of its keys. `queue_away` is the one of them that is missing for longest. `error` is the
    last failure.
    """

    def __init__(self, producer: Producer, policy: Policy, deadline: float, stopped_keys: Set[str]) -> None:
        self._sender = OrderedSender(producer, in_flight=CONCURRENCY)
        self._policy = policy
        self._deadline = deadline
        self._stopped_keys = set(stopped_keys)
        self.unsent_keys: set[str] = set()
        self.key_queues: dict[tuple[str, str], MessageQueue] = {}
        self.outcomes: list[Outcome] = []
        self.answered = 0
        self.unreached = 0
        self.unrouted = 0
        self.error = ""
        self.queue_away: QueueAway | None = None

    async def in_order(self, rows: list[Row[Any]], queue: MessageQueue | None) -> None:
        """Send the rows of a queue; if no broker is reached, leave the remaining ones unsent."""
        is_reached = True

        def may_send(row: Row[Any]) -> bool:
            is_due = is_reached and asyncio.get_running_loop().time() >= self._deadline
            if is_reached and not is_due and row.shard_key not in self._stopped_keys:
                return True
            # Due at once, or together with the failed stub before it.
            self._leave(row, 0 if is_due else self._policy.retry_wait_ms(row.sends))
            return False

        async for sent, found in self._sender.send(rows, message_of, queue, may_send):
            if isinstance(found, MQError):
                is_reached = isinstance(found, (BrokerError, InvalidMessage))
                for row in sent:
                    self.failed(row, found)
            else:
                for row, result in zip(sent, found, strict=True):
                    self._stored(row, result)

    def _stored(self, row: Row[Any], result: SendResult) -> None:
        self.answered += 1
        is_settled = result.is_ok and row.awaiting == ","
        self.outcomes.append(
            Outcome(
                row.seq,
                row.status,
                CONFIRMED if is_settled else SENT,
                result.queue.broker_name,
                result.queue.queue_id,
                result.queue_offset,
                None if is_settled else self._policy.confirm_wait_ms(row.sends),
            )
        )

    def failed(self, row: Row[Any], error: MQError) -> None:
        """Record a failed send; the message may still be stored, unless it is invalid or was refused."""
        self.error = str(error)[:ERROR_LENGTH]
        attempts = [failure for _, failure in error.attempts] if isinstance(error, SendFailed) else [error]
        if any(isinstance(failure, (BrokerError, InvalidMessage)) for failure in attempts):
            self.answered += 1
        elif any(isinstance(failure, TopicNotFound) for failure in attempts):
            self.unrouted += 1
        else:
            self.unreached += 1
        if row.shard_key is not None:
            self._stopped_keys.add(row.shard_key)
            self.unsent_keys.add(row.shard_key)
        is_hopeless = isinstance(error, InvalidMessage)
        status = MANUAL if is_hopeless else row.status
        wait_ms = 1 if is_hopeless else self._policy.retry_wait_ms(row.sends)
        self.outcomes.append(Outcome(row.seq, row.status, status, wait_ms=wait_ms, error=self.error))

    def without_queue(self, row: Row[Any], away: QueueAway) -> None:
        """Leave a stub and the later ones of its key unsent until its queue is in the route again."""
        self.queue_away = min(away, self.queue_away or away)
        self._stopped_keys.add(row.shard_key)
        self._leave(row, self._policy.retry_wait_ms(QUEUE_AWAY_RETRIES), away.error)

    def _leave(self, row: Row[Any], wait_ms: int, error: str | None = None) -> None:
        """Leave a stub to a later batch, without counting a send."""
        if row.shard_key is not None:
            self.unsent_keys.add(row.shard_key)
        self.outcomes.append(Outcome(row.seq, row.status, row.status, wait_ms=wait_ms, error=error, is_unsent=True))
