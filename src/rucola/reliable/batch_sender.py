"""Batch sender: sends claimed stubs to brokers in as few requests as their order allows.

    with a sharding key     to the queue with the key's unconfirmed messages, else to the one that
                            SelectMessageQueueByHash selects; requests to one queue are sequential, and a failure stops
                            the later messages of its key, as does a queue that no route has
    without sharding key    to any queue, in concurrent requests of up to 128 messages

A refused request is repeated message by message, so that one invalid message does not block the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple

from sqlalchemy import Row

from rucola.client import Message, MessageQueue, Producer, SendResult, select_by_hash
from rucola.errors import BrokerError, InvalidMessage, MQError, SendFailed, TopicNotFound
from rucola.message import properties
from rucola.reliable.outbox import message_of
from rucola.reliable.policy import Policy
from rucola.reliable.schema import CONFIRMED, MANUAL, SENT
from rucola.reliable.stub_claims import KeyQueues, Outcome

REQUEST_COUNT = 128
REQUEST_SIZE = 1 << 20
CONCURRENCY = 16
ERROR_LENGTH = 1000
QUEUE_AWAY_RETRIES = 4
"""A stub without its queue waits as after this many failures; by default 8 s."""


class BatchResult(NamedTuple):
    """Outcomes of a batch. `is_away`: no broker was reached, see `error`; `is_unrouted`: no topic had a route."""

    outcomes: list[Outcome]
    unsent_keys: Set[str]
    key_queues: KeyQueues
    is_away: bool
    is_unrouted: bool
    error: str


class BatchSender:
    def __init__(self, producer: Producer, policy: Policy) -> None:
        self._producer = producer
        self._policy = policy

    async def send(
        self, rows: Sequence[Row[Any]], deadline: float, stopped_keys: Set[str], key_queues: KeyQueues
    ) -> BatchResult:
        """Send claimed stubs in the given order.

        Stubs stay unsent if their request has not started by `deadline`, a loop time, or if their key is in
        `stopped_keys`, those that failed in the batch before. `key_queues` are the queues of keys with unconfirmed
        messages.
        """
        run = _BatchRun(self._producer, self._policy, deadline, stopped_keys)
        streams: dict[tuple[str, MessageQueue | None], list[Row[Any]]] = {}
        used: dict[tuple[str, str], MessageQueue] = {}
        queues = {topic: await self._queues_of(topic) for topic in {row.topic for row in rows if row.shard_key}}
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
                    run.without_queue(row, queue)
                    self._producer.instance.refresh_route_soon(row.topic)
                    continue
                used[key] = queue
            streams.setdefault((row.topic, queue), []).append(row)
        in_parallel = asyncio.Semaphore(CONCURRENCY)

        async def limited(requests: list[list[Row[Any]]], queue: MessageQueue | None) -> None:
            async with in_parallel:
                await run.in_order(requests, queue)

        async with asyncio.TaskGroup() as group:
            for (_, queue), stream in streams.items():
                requests = list(_requests(stream))
                for part in [requests] if queue is not None else [[request] for request in requests]:
                    group.create_task(limited(part, queue))
        is_silent = run.answered == 0
        is_away, is_unrouted = is_silent and run.unreached > 0, is_silent and run.unrouted > 0
        return BatchResult(run.outcomes, run.unsent_keys, used, is_away, is_unrouted, run.error)

    async def _queues_of(self, topic: str) -> Sequence[MessageQueue] | MQError:
        try:
            return await self._producer.queues(topic)
        except MQError as error:
            return error


class _BatchRun:
    """State of one batch, used on one event loop."""

    def __init__(self, producer: Producer, policy: Policy, deadline: float, stopped_keys: Set[str]) -> None:
        self._producer = producer
        self._policy = policy
        self._deadline = deadline
        self._stopped_keys = set(stopped_keys)
        self.unsent_keys: set[str] = set()
        self.outcomes: list[Outcome] = []
        self.answered = 0
        self.unreached = 0
        self.unrouted = 0
        self.error = ""

    async def in_order(self, requests: list[list[Row[Any]]], queue: MessageQueue | None) -> None:
        """Send requests sequentially; if one reaches no broker, leave the remaining ones unsent."""
        is_reached = True
        for rows in requests:
            if not is_reached:
                self._unsent(rows)
            elif asyncio.get_running_loop().time() >= self._deadline:
                self._unsent(rows, is_due=True)
            else:
                is_reached = await self._request(rows, queue)

    async def _request(self, rows: list[Row[Any]], queue: MessageQueue | None) -> bool:
        rows = self._without_stopped_keys(rows)
        if not rows:
            return True
        messages = [message_of(row) for row in rows]
        try:
            results = await self._send(messages, queue)
        except (BrokerError, InvalidMessage) as error:
            if len(rows) > 1:  # find the refused message by sending each one alone
                for row in rows:
                    if not await self._request([row], queue):
                        return False
            else:
                self.failed(rows[0], error)
            return True
        except MQError as error:
            for row in rows:
                self.failed(row, error)
            return False
        for row, result in zip(rows, results, strict=True):
            self._stored(row, result)
        return True

    async def _send(self, messages: list[Message], queue: MessageQueue | None) -> Sequence[SendResult]:
        if len(messages) == 1:
            return [await self._producer.send(messages[0], queue)]
        return await self._producer.send_batch(messages, queue)

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

    def without_queue(self, row: Row[Any], queue: MessageQueue) -> None:
        """Leave a stub and the later ones of its key unsent until its queue is in the route again."""
        self._stopped_keys.add(row.shard_key)
        self.unsent_keys.add(row.shard_key)
        error = f"queue {queue} has unconfirmed messages of its key and is not in the route"
        wait_ms = self._policy.retry_wait_ms(QUEUE_AWAY_RETRIES)
        self.outcomes.append(Outcome(row.seq, row.status, row.status, wait_ms=wait_ms, error=error, is_unsent=True))

    def _without_stopped_keys(self, rows: list[Row[Any]]) -> list[Row[Any]]:
        """Return the rows that do not follow a failed stub of the same key, leaving the others unsent."""
        stopped = [row for row in rows if row.shard_key in self._stopped_keys]
        self._unsent(stopped)
        return [row for row in rows if row.shard_key not in self._stopped_keys] if stopped else rows

    def _unsent(self, rows: Sequence[Row[Any]], *, is_due: bool = False) -> None:
        """Leave stubs to a later batch, due at once or together with the failed stub before them."""
        for row in rows:
            if row.shard_key is not None:
                self.unsent_keys.add(row.shard_key)
            wait_ms = 0 if is_due else self._policy.retry_wait_ms(row.sends)
            self.outcomes.append(Outcome(row.seq, row.status, row.status, wait_ms=wait_ms, is_unsent=True))


def _requests(rows: Sequence[Row[Any]]) -> Iterator[list[Row[Any]]]:
    """Split rows, in order, into requests; messages with WAIT or to retry and dead letter topics are alone."""
    request: list[Row[Any]] = []
    size = 0
    for row in rows:
        is_alone = f'"{properties.WAIT}"' in row.properties or row.topic.startswith("%")
        if request and (is_alone or len(request) == REQUEST_COUNT or size + len(row.body) > REQUEST_SIZE):
            yield request
            request, size = [], 0
        if is_alone:
            yield [row]
        else:
            request.append(row)
            size += len(row.body)
    if request:
        yield request
