"""What a task of a replay does: send the messages of its rows, queue by queue in order, at a pace, and write down acks.

Rows come in the order of their log, of several queues in turn. A chunk of them is split by queue; the queues of a
chunk are sent side by side, the messages of each in requests one after the other, so that a queue stays in order
whatever fails. Small messages share a request (SEND_BATCH_MESSAGE), large ones go alone, compressed.

All messages of a source queue go to one queue of the target topic: to the one of the same broker and id where there is
such, else to the one its id leads to. A request that fails is tried again for half a minute, since replays are long
and brokers are restarted meanwhile. A message may so be stored twice; its unique key tells.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from rucola.client import Message, MessageQueue, Producer, SendResult, SendStatus
from rucola.client.parcel import COMPRESS_THRESHOLD
from rucola.errors import MQError, RemotingError
from rucola.message.topics import RETRY_PREFIX
from rucola.spark.ledger import Ack, Reached, SourceQueue, open_for_sending
from rucola.spark.options import SinkOptions
from rucola.spark.sink import message_of

COLUMNS: Final = ("brokerName", "topic", "queueId", "commitLogOffset", "body", "properties", "flag", "msgId")
"""What is sent of a message, and where it was."""

CHUNK_ROWS: Final = 512
MESSAGES_A_REQUEST: Final = 128

_TRIES: Final = 9
_FIRST_PAUSE_S: Final = 0.1


class Pace:
    """Lets through at most `per_second` messages a second, all that come without one."""

    def __init__(
        self,
        per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    @property
    def chunk_rows(self) -> int:
        """How many rows to send at once: a tenth of a second's."""
        return CHUNK_ROWS if self._per_second is None else min(max(int(self._per_second / 10), 1), CHUNK_ROWS)

    def let(self, count: int) -> None:
        """Wait until `count` more messages may go. Time in which nothing was sent is not made up for."""
        if self._per_second is None:
            return
        now = self._clock()
        if now < self._due:
            self._sleep(self._due - now)
        self._due = max(self._due, now) + count / self._per_second


@dataclass(frozen=True)
class Resending:
    """The work of the tasks of one run; made on the driver, and pickled to the workers.

    `rates` are the messages a second of each partition, if limited.
    """

    run: str
    ledger: Path
    target: SinkOptions
    rates: Sequence[float] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the rows of a partition, without those that were acknowledged before. Returns how many that were."""
        task = TaskContext.get()
        assert task is not None, "this runs in a task"
        partition = task.partitionId()
        sent = 0
        pace = Pace(None if self.rates is None else self.rates[partition])
        # Attempts are counted anew where Spark repeats a stage, these numbers are not.
        attempt = f"{self.run}-{partition:05d}-{task.taskAttemptId()}"
        with asyncio.Runner() as runner, open_for_sending(self.ledger, attempt) as (writer, acks):
            producer = runner.run(Producer(self.target.producer_group, self.target.name_server).__aenter__())
            try:
                sender = _Sender(producer, self.target.topic, partition)
                for batch in batches:
                    for begin in range(0, batch.num_rows, pace.chunk_rows):
                        rows = batch.slice(begin, pace.chunk_rows).to_pylist(maps_as_pydicts="lossy")
                        left = [row for row in rows if _is_left(row, acks.reached)]
                        pace.let(len(left))
                        found, errors = runner.run(sender.send(left))
                        writer.write(found)
                        sent += sum(ack.count for ack in found)
                        if errors:
                            raise RemotingError(f"{errors[0]}. What was acknowledged stands in {self.ledger}")
            finally:
                runner.run(producer.close())
        yield pa.RecordBatch.from_pydict({"sent": [sent]})


class _Sender:
    """Sends rows, those of each source queue in order."""

    def __init__(self, producer: Producer, topic: str | None, partition: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition

    async def send(self, rows: Sequence[dict[str, Any]]) -> tuple[list[Ack], list[MQError]]:
        """Send rows; return what was acknowledged of each queue, and what ended the others before their last row."""
        by_queue: dict[SourceQueue, list[dict[str, Any]]] = {}
        for row in rows:
            by_queue.setdefault(_queue_of(row), []).append(row)
        done = await asyncio.gather(*(self._send_in_order(queue, each) for queue, each in by_queue.items()))
        return [ack for ack, _ in done if ack.count], [error for _, error in done if error is not None]

    async def _send_in_order(self, queue: SourceQueue, rows: list[dict[str, Any]]) -> tuple[Ack, MQError | None]:
        reached, count, unsafe, target = -1, 0, 0, None
        try:
            target = _target(queue, await self._producer.queues(self._topic or queue.topic))
            messages = [message_of(row, self._topic, number, self._partition) for number, row in enumerate(rows)]
            for begin, end in _requests(messages):
                results = await _persist(partial(self._request, messages[begin:end], target))
                reached, count = rows[end - 1]["commitLogOffset"], end
                unsafe += sum(result.status is not SendStatus.SEND_OK for result in results)
        except MQError as error:
            return Ack(queue, reached, count, unsafe, str(target)), error
        return Ack(queue, reached, count, unsafe, str(target)), None

    async def _request(self, messages: list[Message], target: MessageQueue | None) -> list[SendResult]:
        if len(messages) == 1:
            return [await self._producer.send(messages[0], target)]
        return await self._producer.send_batch(messages, target)


async def _persist(request: Callable[[], Awaitable[list[SendResult]]]) -> list[SendResult]:
    """Make a request until it is answered well; RemotingError when it was not for half a minute."""
    for attempt in range(_TRIES - 1):
        try:
            return await request()
        except RemotingError:
            await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)
    return await request()


def _requests(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Cut messages of one topic into requests, each from begin to end."""
    begin = 0
    while begin < len(messages):
        end = begin
        while end < len(messages) and end - begin < MESSAGES_A_REQUEST and _may_share(messages[end]):
            end += 1
        yield begin, max(end, begin + 1)
        begin = max(end, begin + 1)


def _may_share(message: Message) -> bool:
    return len(message.body) < COMPRESS_THRESHOLD and not message.topic.startswith(RETRY_PREFIX)


def _target(queue: SourceQueue, targets: Sequence[MessageQueue]) -> MessageQueue:
    for target in targets:
        if (target.broker_name, target.queue_id) == (queue.broker_name, queue.queue_id):
            return target
    return targets[queue.queue_id % len(targets)]


def _queue_of(row: dict[str, Any]) -> SourceQueue:
    return SourceQueue(row["brokerName"], row["topic"], row["queueId"])


def _is_left(row: dict[str, Any], reached: dict[SourceQueue, Reached]) -> bool:
    return bool(row["commitLogOffset"] > reached.get(_queue_of(row), Reached()).physical_offset)
