"""Sending side of a replay: rows are sent in order per queue, rate-limited, and recorded in the ledger.

Rows arrive in log order, with the queues interleaved, and are sent in chunks of at most `CHUNK_ROWS`, whose batches are
encoded together, without an object per message. The queues of a chunk are sent concurrently, each by `OrderedSender`,
and a queue waits for its rows in the chunk before. A completed chunk's acknowledgements are written to the ledger.

All messages of a source queue go to one queue of the target topic (see `rucola.client.select_by_id`). A failed request
is retried for half a minute, unless it was refused for good. A retry may store a message twice, under the same unique
key. With OpenTelemetry, messages are objects, so that each can get the context of its send.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from rucola.client import Message, Producer, SendResult
from rucola.client.producer.ordered_sender import OrderedSender
from rucola.client.producer.queue_selectors import select_by_id
from rucola.client.producer.send_request import MAX_COUNT, MAX_SIZE, SendRequest, build_encoded_request
from rucola.errors import MQError, RemotingError
from rucola.spark.jobs.replay_ledger import Ack, AckWriter, QueueProgress, SourceQueue, open_for_sending
from rucola.spark.shared_files import SharedPiece
from rucola.spark.source.array_conversions import Array, arrow, bools, ints
from rucola.spark.source.grouping import Groups
from rucola.spark.source.options import SinkOptions
from rucola.spark.source.row_messages import encode_parts, message_of, rows_of

if TYPE_CHECKING:
    from rucola.client.otel import Telemetry

T = TypeVar("T")

QUEUE_COLUMNS: Final = ("brokerName", "topic", "queueId")
_ROW_COLUMNS: Final = ("commitLogOffset", "body", "properties", "flag", "msgId", "bodyError", "sysFlag")
COLUMNS: Final = QUEUE_COLUMNS + _ROW_COLUMNS

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
        """Rows per chunk: at most 0.1 s of them, to keep low rates smooth."""
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
    With `otel`, sends have spans by the providers of the process that sends: a worker's, if there are workers.
    """

    run: str
    ledger: Path
    target: SinkOptions
    rates: Sequence[float] | None = None
    token: SharedPiece | None = None
    otel: bool = False

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
            telemetry = self._telemetry()
            try:
                return asyncio.run(self._send(batches, partition, limiter, writer, acks.reached, telemetry))
            finally:
                if telemetry is not None:
                    telemetry.flush()

    def _telemetry(self) -> Telemetry | None:
        if not self.otel:
            return None
        from rucola.client.otel import Telemetry

        return Telemetry()

    async def _send(
        self,
        batches: Iterator[pa.RecordBatch],
        partition: int,
        limiter: RateLimiter,
        writer: AckWriter,
        reached: Mapping[SourceQueue, QueueProgress],
        telemetry: Telemetry | None,
    ) -> int:
        # Chunks are recorded in the order in which they were started, so the ledger never has a later range of a queue
        # without the earlier one. After the first error no new chunk is started; those in flight are still recorded.
        sent = 0
        in_flight: deque[asyncio.Task[list[Ack]]] = deque()

        async def complete() -> int:
            acks = [ack for ack in await in_flight[0] if ack.count]
            in_flight.popleft()
            await asyncio.to_thread(writer.write, acks)
            return sum(ack.count for ack in acks)

        async with Producer(self.target.producer_group, self.target.name_server, trace=telemetry) as producer:
            sender = _ChunkSender(producer, self.target.topic, partition)
            try:
                async with aclosing(_prefetch(_chunks(batches, limiter.chunk_rows, reached))) as chunks:
                    async for chunk in chunks:
                        await limiter.acquire(len(chunk.rows))
                        in_flight.append(asyncio.create_task(sender.send(chunk)))
                        if len(in_flight) >= MAX_CHUNKS_IN_FLIGHT:
                            sent += await complete()
                        if sender.error is not None:
                            break
                while in_flight:
                    sent += await complete()
            finally:
                for sending in in_flight:
                    sending.cancel()
                await asyncio.gather(*in_flight, return_exceptions=True)
        if sender.error is not None:
            raise RemotingError(f"{sender.error}. Acknowledged messages are recorded in {self.ledger}")
        return sent


class _Chunk:
    """Rows by queue: the rows of `queues[k]`, in order, from edges[k] to edges[k+1]. `numbers` name them in errors."""

    def __init__(self, rows: pa.RecordBatch, numbers: Array, queues: Sequence[SourceQueue], edges: Array) -> None:
        self.rows = rows
        self._numbers = numbers
        self.queues = [(queue, range(*ends)) for queue, ends in zip(queues, pairwise(edges.tolist()), strict=True)]
        self.offsets = ints(rows["commitLogOffset"])
        self._unique_keys = rows["msgId"].to_pylist()
        parts = encode_parts(rows.select(_ROW_COLUMNS))
        _, positions, self._parts = parts.buffers()
        self._positions = np.frombuffer(positions, np.int32, len(parts) + 1)
        self._alone = np.flatnonzero(~bools(parts.is_valid()))

    def requests(self, rows: range, topic: str) -> Iterator[range]:
        """Split rows by request."""
        begin, max_count = rows.start, 1 if topic.startswith("%") else MAX_COUNT
        while begin < rows.stop:
            largest = np.searchsorted(self._positions, self._positions[begin] + MAX_SIZE, "right") - 1
            next_alone = self._alone[np.searchsorted(self._alone, begin) :][:1]
            end = min(begin + max_count, rows.stop, int(largest), *next_alone.tolist())
            yield range(begin, max(end, begin + 1))
            begin = max(end, begin + 1)

    def batch(self, rows: Sequence[int], topic: str) -> SendRequest:
        """Return the request of several consecutive rows."""
        begin, end = rows[0], rows[-1] + 1
        first, last = self._positions[begin], self._positions[end]
        return build_encoded_request(topic, self._parts[first:last].to_pybytes(), self._unique_keys[begin:end])

    def message(self, row: int, topic: str, partition: int) -> Message:
        """Return the message of one row. InvalidMessage."""
        (fields,) = rows_of(self.rows.slice(row, 1).select(_ROW_COLUMNS))
        return message_of(fields, topic, int(self._numbers[row]), partition)


def _chunks(
    batches: Iterator[pa.RecordBatch], chunk_rows: int, reached: Mapping[SourceQueue, QueueProgress]
) -> Iterator[_Chunk]:
    """Yield the rows that no broker has acknowledged yet, by queue."""
    for batch in batches:
        for begin in range(0, batch.num_rows, chunk_rows):
            part = batch.slice(begin, chunk_rows)
            groups = Groups(pa.Table.from_batches([part]), QUEUE_COLUMNS)
            queues = [SourceQueue(*key.values()) for key in groups.keys.to_pylist()]
            after = np.array([reached.get(queue, QueueProgress()).physical_offset for queue in queues], np.int64)
            is_left = ints(part["commitLogOffset"]) > after[groups.codes]
            order = groups.order[is_left[groups.order]]
            edges = np.searchsorted(groups.codes[order], np.arange(len(queues) + 1))
            yield _Chunk(part.take(arrow(order)), begin + order, queues, edges)


async def _prefetch(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """Yield items while a thread computes the next one."""
    upcoming = asyncio.create_task(asyncio.to_thread(next, items, None))
    # `next` runs in a thread because it reads files, which would block the requests in flight.
    try:
        while (item := await upcoming) is not None:
            upcoming = asyncio.create_task(asyncio.to_thread(next, items, None))
            yield item
    finally:
        await asyncio.wait([upcoming])  # its thread cannot be interrupted


class _ChunkSender:
    """Sender of chunks that keeps each source queue in order; `error` is the first failure, which ends all queues."""

    def __init__(self, producer: Producer, topic: str | None, partition: int) -> None:
        self.error: MQError | None = None
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._sender = OrderedSender(producer, _RETRIES_MS)
        # Locks are taken in the order of the calls, and so of the chunks.
        self._locks: dict[SourceQueue, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def send(self, chunk: _Chunk) -> list[Ack]:
        """Send a chunk; return what of each queue was acknowledged."""
        return await asyncio.gather(*(self._in_order(chunk, *each) for each in chunk.queues))

    async def _in_order(self, chunk: _Chunk, queue: SourceQueue, rows: range) -> Ack:
        ack = Ack(*queue, -1, 0)
        async with self._locks[queue]:
            try:
                if self.error is None:
                    async for stored in self._send(chunk, queue, rows):
                        ack = stored
            except MQError as error:
                self.error = self.error or error
        return ack

    async def _send(self, chunk: _Chunk, queue: SourceQueue, rows: range) -> AsyncGenerator[Ack, None]:
        """Yield the growing acknowledgement of rows of one queue. Raises MQError at the first that is not stored."""
        topic = self._topic or queue.topic
        target = select_by_id(queue.queue_id, queue.broker_name)(await self._producer.queues(topic))

        async def attempt(request: Sequence[int]) -> list[SendResult]:
            if len(request) == 1:
                return [await self._producer.send(chunk.message(request[0], topic, self._partition), target)]
            if self._producer.options.trace is not None:
                messages = (chunk.message(row, topic, self._partition) for row in request)
                return await self._producer.send_batch(messages, target)
            return await self._producer.send_encoded(chunk.batch(request, topic), target)

        count = unsafe = 0
        async for sent, found in self._sender.send_requests(chunk.requests(rows, topic), attempt, topic):
            if isinstance(found, MQError):
                raise found
            count += len(sent)
            unsafe += 0 if found[0].is_ok else len(sent)  # the messages of a request have one status
            yield Ack(*queue, int(chunk.offsets[sent[-1]]), count, unsafe, str(target))
