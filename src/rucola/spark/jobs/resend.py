"""Resending of a partition's rows: queue by queue in order, at a pace, with a ledger of what was acknowledged.

Rows come in the order of their log, of several queues in turn. A chunk of them is ordered by queue and encoded in
columns (see `encoding`). The queues of a chunk are sent concurrently, the messages of each in requests one after the
other, so that a queue stays in order whatever fails. Two chunks are in flight, while the next rows are read and encoded
in a thread. Small messages share a request (SEND_BATCH_MESSAGE), large ones go alone, compressed.

All messages of a source queue go to one queue of the target topic: to the one of the same broker and id if there is
such a queue, else to the one its id leads to. A request that fails is tried again for half a minute, since replays are
long and brokers are restarted meanwhile. A message may so be stored twice; its unique key tells.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from rucola.client import MessageQueue, Producer, SendResult, SendStatus
from rucola.client.producer.send_request import MAX_MESSAGE_SIZE
from rucola.errors import MQError, RemotingError
from rucola.message.topics import RETRY_PREFIX
from rucola.spark.jobs.replay_ledger import Ack, AckWriter, Reached, SourceQueue, open_for_sending
from rucola.spark.source.arrays import Array, arrow, ints
from rucola.spark.source.encoding import EncodedMessages, encode_rows
from rucola.spark.source.options import SinkOptions
from rucola.spark.source.row_messages import message_of

T = TypeVar("T")
Sending: TypeAlias = "asyncio.Task[tuple[Ack, MQError | None]]"
"""The rows of one queue in a chunk: what was acknowledged of them, and what ended them before the last one."""

COLUMNS: Final = ("brokerName", "topic", "queueId", "commitLogOffset", "body", "properties", "flag", "msgId")
"""What is sent of a message, and where it was."""

CHUNK_ROWS: Final = 4096
MOST_CHUNKS: Final = 2
"""Chunks in flight, so that no queue waits for the end of the others. Alone, a chunk takes twice as long: it ends with
one request at a time, of its last queue."""
MESSAGES_PER_REQUEST: Final = 128

_TRIES: Final = 9
_FIRST_PAUSE_S: Final = 0.1


class Pace:
    """Limit of messages a second; without one, none wait."""

    def __init__(
        self,
        per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    @property
    def chunk_rows(self) -> int:
        """How many rows to send at once: a tenth of a second's."""
        return CHUNK_ROWS if self._per_second is None else min(max(int(self._per_second / 10), 1), CHUNK_ROWS)

    async def let(self, count: int) -> None:
        """Wait until `count` more messages may go. Time in which nothing was sent is not made up for."""
        if self._per_second is None:
            return
        now = self._clock()
        if now < self._due:
            await self._sleep(self._due - now)
        self._due = max(self._due, now) + count / self._per_second


@dataclass(frozen=True)
class Resending:
    """The work of one run's partitions, pickled to Spark's tasks or done in this process.

    `rates` are the messages a second of each partition, if limited.
    """

    run: str
    ledger: Path
    target: SinkOptions
    rates: Sequence[float] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the rows of a partition in a task of Spark. Yields how many were sent."""
        task = TaskContext.get()
        assert task is not None, "this runs in a task"
        # Attempts are counted anew if Spark repeats a stage, these numbers are not.
        sent = self.send(batches, task.partitionId(), task.taskAttemptId())
        yield pa.RecordBatch.from_pydict({"sent": [sent]})

    def send(self, batches: Iterator[pa.RecordBatch], partition: int = 0, attempt: int = 0) -> int:
        """Send the rows of a partition that were not acknowledged before, and return how many these are.

        Raises RemotingError if a message was not taken; what was acknowledged until then is in the ledger.
        """
        with open_for_sending(self.ledger, f"{self.run}-{partition:05d}-{attempt}") as (writer, acks):
            pace = Pace(None if self.rates is None else self.rates[partition])
            return asyncio.run(self._send(batches, partition, pace, writer, acks.reached))

    async def _send(
        self,
        batches: Iterator[pa.RecordBatch],
        partition: int,
        pace: Pace,
        writer: AckWriter,
        reached: Mapping[SourceQueue, Reached],
    ) -> int:
        sent, errors = 0, list[MQError]()
        in_flight: deque[list[Sending]] = deque()

        async def settle(chunk: list[Sending]) -> int:
            """Wait for the end of a chunk and write its acknowledgements down; return how many these are."""
            done = await asyncio.gather(*chunk)
            acks = [ack for ack, _ in done if ack.count]
            errors.extend(error for _, error in done if error is not None)
            await asyncio.to_thread(writer.write, acks)
            return sum(ack.count for ack in acks)

        async with Producer(self.target.producer_group, self.target.name_server) as producer:
            sender = _Sender(producer, self.target.topic, partition)
            async with aclosing(_ahead(_chunks(batches, pace.chunk_rows, reached))) as chunks, _ended(in_flight):
                async for chunk in chunks:
                    await pace.let(chunk.rows.num_rows)
                    in_flight.append(sender.start(chunk))
                    if len(in_flight) >= MOST_CHUNKS:
                        sent += await settle(in_flight.popleft())
                    if errors:
                        break
                while in_flight:
                    sent += await settle(in_flight.popleft())
        if errors:
            raise RemotingError(f"{errors[0]}. What was acknowledged stands in {self.ledger}")
        return sent


@asynccontextmanager
async def _ended(in_flight: Iterable[list[Sending]]) -> AsyncIterator[None]:
    """Cancel what is in flight when the block is left."""
    try:
        yield
    finally:
        left = [sending for chunk in in_flight for sending in chunk]
        for sending in left:
            sending.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@dataclass(frozen=True)
class Chunk:
    """Rows that are sent together, ordered by queue and then as they came, with the bounds of each queue."""

    rows: pa.RecordBatch
    encoded: EncodedMessages
    bounds: Mapping[SourceQueue, tuple[int, int]]


def chunk_of(rows: pa.RecordBatch, reached: Mapping[SourceQueue, Reached]) -> Chunk:
    """Return those rows as a chunk that no broker has acknowledged yet."""
    queues, codes = queues_in(rows)
    begins = np.array([reached.get(queue, Reached()).physical_offset for queue in queues], np.int64)
    left = np.flatnonzero(ints(rows["commitLogOffset"]) > begins[codes])
    order = left[np.argsort(codes[left], kind="stable")]
    rows = rows.take(arrow(order))
    edges = np.searchsorted(codes[order], np.arange(len(queues) + 1)).tolist()
    bounds = {queue: bound for queue, bound in zip(queues, pairwise(edges), strict=True) if bound[0] < bound[1]}
    return Chunk(rows, encode_rows(rows), bounds)


def queues_in(rows: pa.RecordBatch) -> tuple[list[SourceQueue], Array]:
    """Return the queues of these rows, and for each row the index of its queue there."""
    names, topics = rows["brokerName"].dictionary_encode(), rows["topic"].dictionary_encode()
    ids = ints(rows["queueId"]).astype(np.int64)
    both = ints(names.indices).astype(np.int64) * max(len(topics.dictionary), 1) + ints(topics.indices)
    found, first, codes = np.unique(both << 32 | ids, return_index=True, return_inverse=True)
    del found
    some = rows.select(["brokerName", "topic", "queueId"]).take(arrow(first)).to_pylist()
    return [SourceQueue(row["brokerName"], row["topic"], row["queueId"]) for row in some], codes


def _chunks(
    batches: Iterator[pa.RecordBatch], chunk_rows: int, reached: Mapping[SourceQueue, Reached]
) -> Iterator[Chunk]:
    for batch in batches:
        for begin in range(0, batch.num_rows, chunk_rows):
            yield chunk_of(batch.slice(begin, chunk_rows), reached)


async def _ahead(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """Yield items, of which the next is made in a thread meanwhile."""
    upcoming = asyncio.create_task(asyncio.to_thread(next, items, None))
    try:
        while (item := await upcoming) is not None:
            upcoming = asyncio.create_task(asyncio.to_thread(next, items, None))
            yield item
    finally:
        await asyncio.wait([upcoming])  # its thread cannot be interrupted


class _Sender:
    """Sends chunks, the rows of each source queue in order."""

    def __init__(self, producer: Producer, topic: str | None, partition: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._last: dict[SourceQueue, Sending] = {}

    def start(self, chunk: Chunk) -> list[Sending]:
        """Start to send a chunk: each queue when the rows of the chunk before are acknowledged."""
        for queue in chunk.bounds:
            self._last[queue] = asyncio.create_task(self._send_after(self._last.get(queue), chunk, queue))
        return [self._last[queue] for queue in chunk.bounds]

    async def _send_after(self, before: Sending | None, chunk: Chunk, queue: SourceQueue) -> tuple[Ack, MQError | None]:
        """Return what was acknowledged of a queue's rows, and what ended them before the last one."""
        if before is not None:
            _, error = await before
            if error is not None:
                return Ack(queue, -1, 0), error
        return await self._send_in_order(chunk, queue)

    async def _send_in_order(self, chunk: Chunk, queue: SourceQueue) -> tuple[Ack, MQError | None]:
        reached, count, unsafe, target = -1, 0, 0, None
        topic = self._topic or queue.topic
        first, last = chunk.bounds[queue]
        offsets = chunk.rows["commitLogOffset"]
        try:
            target = _target(queue, await self._producer.queues(topic))
            may_share = not topic.startswith(RETRY_PREFIX)
            for begin, end, is_batched in _requests(chunk.encoded, first, last, may_share):
                send = self._batch if is_batched else self._alone
                results = await _persist(partial(send, chunk, begin, end, target))
                reached, count = offsets[end - 1].as_py(), end - first
                unsafe += sum(result.status is not SendStatus.SEND_OK for result in results)
        except MQError as error:
            return Ack(queue, reached, count, unsafe, str(target)), error
        return Ack(queue, reached, count, unsafe, str(target)), None

    async def _batch(self, chunk: Chunk, begin: int, end: int, target: MessageQueue) -> list[SendResult]:
        encoded = chunk.encoded
        body = bytes(encoded.data[encoded.offsets[begin] : encoded.offsets[end]])
        return await self._producer.send_encoded(body, encoded.unique_keys[begin:end], target)

    async def _alone(self, chunk: Chunk, begin: int, end: int, target: MessageQueue) -> list[SendResult]:
        (row,) = chunk.rows.slice(begin, 1).to_pylist(maps_as_pydicts="lossy")
        return [await self._producer.send(message_of(row, target.topic, begin, self._partition), target)]


async def _persist(request: Callable[[], Awaitable[list[SendResult]]]) -> list[SendResult]:
    """Make a request until it is answered well; RemotingError when it was not for half a minute."""
    for attempt in range(_TRIES - 1):
        try:
            return await request()
        except RemotingError:
            await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)
    return await request()


def _requests(encoded: EncodedMessages, begin: int, end: int, may_share: bool) -> Iterator[tuple[int, int, bool]]:
    """Cut the rows from `begin` to `end`, which are of one queue, into requests; say which of these are batches."""
    edges = np.flatnonzero(np.diff(encoded.is_batched[begin:end])) + 1
    for first, last in pairwise([begin, *(begin + edges).tolist(), end]):
        is_batched = may_share and bool(encoded.is_batched[first])
        while first < last:
            upto = min(first + MESSAGES_PER_REQUEST, last) if is_batched else first + 1
            # Properties may be as large as bodies; one message always fits.
            while upto - first > 1 and encoded.offsets[upto] - encoded.offsets[first] > MAX_MESSAGE_SIZE:
                upto = (first + upto) // 2
            yield first, upto, is_batched
            first = upto


def _target(queue: SourceQueue, targets: Sequence[MessageQueue]) -> MessageQueue:
    for target in targets:
        if (target.broker_name, target.queue_id) == (queue.broker_name, queue.queue_id):
            return target
    return targets[queue.queue_id % len(targets)]
