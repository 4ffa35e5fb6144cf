"""Sending side of a replay: rows are sent in order per queue, rate-limited, and recorded in the ledger.

Rows arrive in log order, with the queues interleaved. Chunks of at most `CHUNK_ROWS` are sorted by queue and encoded in
a background thread. The queues of a chunk are sent concurrently, the requests of one queue sequentially, so that it
keeps its order. A completed chunk's acknowledgements are written to the ledger.

All messages of a source queue go to one queue of the target topic (see `rucola.client.select_by_id`). A failed request
is retried for half a minute, unless it was refused for good. A retry may store a message twice, under the same unique
key.
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
from rucola.client.producer.ordered_sender import with_retries
from rucola.client.producer.queue_selectors import select_by_id
from rucola.client.producer.send_request import MAX_COUNT, MAX_MESSAGE_SIZE
from rucola.errors import MQError, RemotingError
from rucola.message.topics import RETRY_PREFIX
from rucola.spark.jobs.replay_ledger import Ack, AckWriter, QueueProgress, SourceQueue, open_for_sending
from rucola.spark.shared_files import SharedPiece
from rucola.spark.source.array_conversions import Array, arrow, ints
from rucola.spark.source.message_encoding import EncodedMessages, encode_rows
from rucola.spark.source.options import SinkOptions
from rucola.spark.source.row_messages import message_of

T = TypeVar("T")
SendTask: TypeAlias = "asyncio.Task[tuple[Ack, MQError | None]]"
"""Sends the rows of one queue in a chunk; returns the acknowledged part and the error that ended it."""

COLUMNS: Final = (
    "brokerName",
    "topic",
    "queueId",
    "commitLogOffset",
    "body",
    "properties",
    "flag",
    "msgId",
    "bodyError",
    "sysFlag",
)

CHUNK_ROWS: Final = 4096

MAX_CHUNKS_IN_FLIGHT: Final = 2
"""With one, throughput halves: a chunk ends with single requests of its longest queue while other queues are idle."""

_RETRIES_MS: Final = 30_000


class RateLimiter:
    """Limiter of messages per second; unlimited if `per_second` is None."""

    def __init__(
        self,
        per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._sleep = sleep
        # Time at which the next messages may be sent.
        self._due = clock()

    @property
    def chunk_rows(self) -> int:
        """Rows per chunk: at most those of 0.1 s, to keep low rates smooth."""
        return CHUNK_ROWS if self._per_second is None else min(max(int(self._per_second / 10), 1), CHUNK_ROWS)

    async def acquire(self, count: int) -> None:
        """Wait until `count` more messages may be sent. Idle time earns no credit for a later burst."""
        if self._per_second is None:
            return
        now = self._clock()
        if now < self._due:
            await self._sleep(self._due - now)
        self._due = max(self._due, now) + count / self._per_second


@dataclass(frozen=True)
class ResendTask:
    """Sender of one run's partitions, pickled to Spark tasks or called in this process.

    `run` is part of the names of its files in the ledger; `rates` are the messages per second of each partition.
    """

    run: str
    ledger: Path
    target: SinkOptions
    rates: Sequence[float] | None = None
    token: SharedPiece | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the rows of a partition in a Spark task; yield one row with the number of messages sent."""
        task = TaskContext.get()
        assert task is not None, "must be called in a Spark task"
        # attemptNumber() restarts at 0 when Spark repeats a stage; taskAttemptId() is unique in the session, and with
        # it the name of the .acks file, which is created exclusively.
        sent = self.send(batches, task.partitionId(), task.taskAttemptId())
        yield pa.RecordBatch.from_pydict({"sent": [sent]})

    def send(self, batches: Iterator[pa.RecordBatch], partition: int = 0, attempt: int = 0) -> int:
        """Send a partition's rows without acknowledgement; return their number.

        Raises RemotingError if one is rejected.
        """
        if self.token is not None:
            self.token.check()
        with open_for_sending(self.ledger, f"{self.run}-{partition:05d}-{attempt}") as (writer, acks):
            limiter = RateLimiter(None if self.rates is None else self.rates[partition])
            return asyncio.run(self._send(batches, partition, limiter, writer, acks.reached))

    async def _send(
        self,
        batches: Iterator[pa.RecordBatch],
        partition: int,
        limiter: RateLimiter,
        writer: AckWriter,
        reached: Mapping[SourceQueue, QueueProgress],
    ) -> int:
        # Chunks are recorded in the order in which they were started, so the ledger never has a later range of a queue
        # without the earlier one. After the first error no new chunk is started; those in flight are still recorded.
        sent, errors = 0, list[MQError]()
        in_flight: deque[list[SendTask]] = deque()

        async def complete(chunk: list[SendTask]) -> int:
            done = await asyncio.gather(*chunk)
            acks = [ack for ack, _ in done if ack.count]
            errors.extend(error for _, error in done if error is not None)
            await asyncio.to_thread(writer.write, acks)
            return sum(ack.count for ack in acks)

        async with Producer(self.target.producer_group, self.target.name_server) as producer:
            sender = _OrderedSender(producer, self.target.topic, partition)
            async with (
                aclosing(_prefetch(_chunks(batches, limiter.chunk_rows, reached))) as chunks,
                _cancel_on_exit(in_flight),
            ):
                async for chunk in chunks:
                    await limiter.acquire(chunk.rows.num_rows)
                    in_flight.append(sender.start(chunk))
                    if len(in_flight) >= MAX_CHUNKS_IN_FLIGHT:
                        sent += await complete(in_flight.popleft())
                    if errors:
                        break
                while in_flight:
                    sent += await complete(in_flight.popleft())
        if errors:
            raise RemotingError(f"{errors[0]}. Acknowledged messages are recorded in {self.ledger}")
        return sent


@asynccontextmanager
async def _cancel_on_exit(in_flight: Iterable[list[SendTask]]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        left = [sending for chunk in in_flight for sending in chunk]
        for sending in left:
            sending.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@dataclass(frozen=True)
class Chunk:
    """Rows that are sent together, sorted by queue, then by log order; `bounds` is the row range of each queue."""

    rows: pa.RecordBatch
    encoded: EncodedMessages
    bounds: Mapping[SourceQueue, tuple[int, int]]


def make_chunk(rows: pa.RecordBatch, reached: Mapping[SourceQueue, QueueProgress]) -> Chunk:
    """Sort and encode the rows that no broker has acknowledged yet."""
    queues, codes = queue_codes(rows)
    begins = np.array([reached.get(queue, QueueProgress()).physical_offset for queue in queues], np.int64)
    # A stable sort by queue keeps the log order within each queue.
    left = np.flatnonzero(ints(rows["commitLogOffset"]) > begins[codes])
    order = left[np.argsort(codes[left], kind="stable")]
    rows = rows.take(arrow(order))
    edges = np.searchsorted(codes[order], np.arange(len(queues) + 1)).tolist()
    bounds = {queue: bound for queue, bound in zip(queues, pairwise(edges), strict=True) if bound[0] < bound[1]}
    return Chunk(rows, encode_rows(rows), bounds)


def queue_codes(rows: pa.RecordBatch) -> tuple[list[SourceQueue], Array]:
    """Return the distinct queues of these rows, and for each row its queue's index."""
    names, topics = rows["brokerName"].dictionary_encode(), rows["topic"].dictionary_encode()
    ids = ints(rows["queueId"]).astype(np.int64)
    # One int64 identifies a queue: (broker, topic) as a pair of dictionary codes above bit 32, the queue id below it.
    both = ints(names.indices).astype(np.int64) * max(len(topics.dictionary), 1) + ints(topics.indices)
    found, first, codes = np.unique(both << 32 | ids, return_index=True, return_inverse=True)
    del found
    some = rows.select(["brokerName", "topic", "queueId"]).take(arrow(first)).to_pylist()
    return [SourceQueue(row["brokerName"], row["topic"], row["queueId"]) for row in some], codes


def _chunks(
    batches: Iterator[pa.RecordBatch], chunk_rows: int, reached: Mapping[SourceQueue, QueueProgress]
) -> Iterator[Chunk]:
    for batch in batches:
        for begin in range(0, batch.num_rows, chunk_rows):
            yield make_chunk(batch.slice(begin, chunk_rows), reached)


async def _prefetch(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """Yield items while a thread computes the next one."""
    upcoming = asyncio.create_task(asyncio.to_thread(next, items, None))
    # `next` runs in a thread because it reads files and encodes messages, which would block the requests in flight.
    try:
        while (item := await upcoming) is not None:
            upcoming = asyncio.create_task(asyncio.to_thread(next, items, None))
            yield item
    finally:
        await asyncio.wait([upcoming])  # its thread cannot be interrupted


class _OrderedSender:
    """Sender of chunks that keeps each source queue in order; used by one event loop."""

    def __init__(self, producer: Producer, topic: str | None, partition: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        # The newest task of each queue, which the next chunk has to wait for.
        self._last: dict[SourceQueue, SendTask] = {}

    def start(self, chunk: Chunk) -> list[SendTask]:
        """Start one task per queue, which waits until the queue's rows in the previous chunk are acknowledged."""
        for queue in chunk.bounds:
            self._last[queue] = asyncio.create_task(self._send_after(self._last.get(queue), chunk, queue))
        return [self._last[queue] for queue in chunk.bounds]

    async def _send_after(
        self, previous: SendTask | None, chunk: Chunk, queue: SourceQueue
    ) -> tuple[Ack, MQError | None]:
        if previous is not None:
            _, error = await previous
            if error is not None:
                # Sending later rows would break the order of the queue, so the error stops all later chunks.
                return Ack(queue, -1, 0), error
        return await self._send_in_order(chunk, queue)

    async def _send_in_order(self, chunk: Chunk, queue: SourceQueue) -> tuple[Ack, MQError | None]:
        reached, count, unsafe, target = -1, 0, 0, None
        topic = self._topic or queue.topic
        first, last = chunk.bounds[queue]
        offsets = chunk.rows["commitLogOffset"]
        try:
            target = select_by_id(queue.queue_id, queue.broker_name)(await self._producer.queues(topic))
            may_share = not topic.startswith(RETRY_PREFIX)
            for begin, end, is_batched in _plan_requests(chunk.encoded, first, last, may_share):
                send = self._batch if is_batched else self._alone
                results = await with_retries(partial(send, chunk, begin, end, target), _RETRIES_MS)
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


def _plan_requests(encoded: EncodedMessages, begin: int, end: int, may_share: bool) -> Iterator[tuple[int, int, bool]]:
    """Split the rows [begin, end) of one queue into requests (first, end, is_batched), within the limits of a batch."""
    edges = np.flatnonzero(np.diff(encoded.is_batched[begin:end])) + 1
    for first, last in pairwise([begin, *(begin + edges).tolist(), end]):
        is_batched = may_share and bool(encoded.is_batched[first])
        while first < last:
            upto = min(first + MAX_COUNT, last) if is_batched else first + 1
            # Batched bodies are small, but properties may be large. Halving finds a size that fits in at most seven
            # steps, since a single message always does.
            while upto - first > 1 and encoded.offsets[upto] - encoded.offsets[first] > MAX_MESSAGE_SIZE:
                upto = (first + upto) // 2
            yield first, upto, is_batched
            first = upto
