"""Tiered store: the messages of queues before the log's first one, read from the lake.

`MessageStore` has what the log has; the methods here, with the same names, count the lake's messages as well. They wait
for the lake only for what the log does not have, and without tieredReads for nothing.

    pull, or receive by POP, of an offset        `get_old` finds it in a chunk that was read, or has one read; until the
    before the log's first                       listeners are called, it is held (see `pull_request_hold`, `pop_hold`)
    POP's message that is to be delivered again  `record` likewise; until then it waits (see `delivery.pop`)
    first offset, times                          the lake is asked; the first message of a queue is remembered

Chunks, of consecutive messages of a queue, are kept up to `CACHE_SIZE` bytes; a pull from one has the next one read. A
queue has one read at a time, for which all of its pulls wait, since the chunk may have what they need. After a failed
one, the listeners are called `RETRY_S` later, to try again. Where the log has a message, it is read from the log: a
chunk ends there. An offset that neither has, since its message was lost before it was archived, is moved to the next
one that there is.

Corresponds to `TieredMessageStore` of Apache RocketMQ 5. Deliberate differences: the tier is the lake, which any engine
reads; search by time and first offsets cover both without a gap.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from rucola import refusals
from rucola.access import Refused
from rucola.broker.lake_reader import LakeReader
from rucola.broker.message_filter import ALL_MESSAGES, MessageFilter
from rucola.errors import ConfigError, MQError, StoreError
from rucola.message import properties
from rucola.message.record import peek
from rucola.slices import in_slices
from rucola.store.config import GetMessageStatus, GetResult, QueryResult, StoreConfig
from rucola.store.message_store import MessageStore
from rucola.tiered_reads import (
    Chunk,
    FindFirst,
    FindKey,
    FindOffset,
    FindTime,
    Place,
    Places,
    ReadQueue,
    ReadRecord,
    Records,
    Request,
)

CACHE_SIZE: Final = 64 << 20
RETRY_S: Final = 1.0

R = TypeVar("R", Chunk, Places, Records)
T = TypeVar("T")


class _Cached:
    """Messages of a queue from offset `begin` up to `end`."""

    __slots__ = ("begin", "codes", "end", "positions", "queue", "records")

    def __init__(self, queue: tuple[str, int], chunk: Chunk) -> None:
        self.queue = queue
        self.begin = chunk.begin
        self.positions = memoryview(chunk.positions).cast("q")
        self.codes = memoryview(chunk.codes).cast("q")
        self.end = chunk.begin + len(self.codes)
        self.records = chunk.records

    def record(self, queue_offset: int) -> bytes:
        number = queue_offset - self.begin
        return bytes(self.records[self.positions[number] : self.positions[number + 1]])


_BEGIN: Final = attrgetter("begin")


class _Gap(NamedTuple):
    """The lake has no message of a queue from `begin` on, before `end`."""

    begin: int
    end: int


class NotRead(MQError):
    """A message of the lake that has to be read first."""


class TieredStore:
    """Belongs to the event loop. Without a `reader`, the messages of the log.

    `listeners` get topic and id of a queue of which something was read, or could not be.
    """

    def __init__(self, store: MessageStore, reader: LakeReader | None = None, timeout_ms: int = 5000) -> None:
        self._store = store
        self.reader = reader
        self.listeners: list[Callable[[str, int], None]] = []
        self.cached_size = 0
        self._timeout_s = timeout_ms / 1000
        self._firsts: dict[tuple[str, int], Place] = {}
        """The first messages of queues in lake and log; the time is -1 if there is none yet."""
        self._chunks: dict[tuple[str, int], list[_Cached]] = {}
        self._by_use: OrderedDict[_Cached, None] = OrderedDict()
        self._gaps: dict[tuple[str, int], _Gap] = {}
        self._reading: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._removals = 0
        """Queues that were removed: what was asked for before is not kept."""

    @property
    def failures(self) -> int:
        """The number of requests that the lake did not answer."""
        return 0 if self.reader is None else self.reader.failures

    async def close(self) -> None:
        for task in self._reading.values():
            task.cancel()
        self._reading.clear()
        if self.reader is not None:
            await self.reader.close()

    # -- messages ------------------------------------------------------------------------------------------------------

    def get(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int, wanted: MessageFilter, max_bytes: int
    ) -> GetResult | None:
        """Return what `MessageStore.get` does, from lake or log; None if the lake is to be read first."""
        accepts = None if wanted.codes is None else wanted.codes.__contains__
        result = self._store.get(
            topic, queue_id, queue_offset, max_count, max_bytes=max_bytes, accepts=accepts, matches=wanted.matches
        )
        if self.reader is None or result.status is not GetMessageStatus.OFFSET_TOO_SMALL:
            return result
        return self.get_old(result, topic, queue_id, queue_offset, max_count, wanted, max_bytes)

    def get_old(
        self,
        result: GetResult,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        wanted: MessageFilter,
        max_bytes: int | None = None,
    ) -> GetResult | None:
        """Return what `get` does, of an offset before the log's first, for which the log has this result."""
        queue, begin, end = (topic, queue_id), result.min_offset, result.max_offset
        queue_offset = max(queue_offset, 0)
        known = self._known(queue, queue_offset)
        if known is None:
            return None
        if isinstance(known, _Gap):
            return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, known.end, begin, end, b"", 0)
        if known.end < begin:
            self._known(queue, known.end)  # before it is wanted
        config = self._store.config
        max_count = min(max_count, config.max_transfer_count_on_message_in_memory)
        if max_bytes is None:
            max_bytes = config.max_transfer_bytes_on_message_in_memory
        found = _select(known, queue_offset, begin, max_count, max_bytes, wanted)
        return GetResult(*found[:2], begin, end, *found[2:])

    def record(self, topic: str, queue_id: int, queue_offset: int) -> bytes | None:
        """Return the record at an offset of a queue, None if there is none. Raises NotRead."""
        if not self._is_tiered(topic, queue_id, queue_offset):
            units = self._store.units(topic, queue_id, queue_offset, 1)
            return self._store.record_at(units[0][0]) if units else None
        known = self._known((topic, queue_id), queue_offset)
        if known is None:
            raise NotRead(f"{topic}-{queue_id}: the message at queue offset {queue_offset} is in the lake")
        return None if isinstance(known, _Gap) else known.record(queue_offset)

    async def read_record(self, topic: str, queue_id: int, queue_offset: int) -> bytes | None:
        """Return the record at an offset of a queue. Raises Refused."""

        async def read() -> bytes | None:
            while True:
                try:
                    return self.record(topic, queue_id, queue_offset)
                except NotRead:
                    await asyncio.wait([self._reading[topic, queue_id]])

        return await self._in_time(read())

    def _known(self, queue: tuple[str, int], queue_offset: int) -> _Cached | _Gap | None:
        """Return what is known of an offset, None if it is to be read first.

        Of chunks that overlap, only the last one to begin is looked at.
        """
        chunks = self._chunks.get(queue, ())
        number = bisect_right(chunks, queue_offset, key=_BEGIN) - 1
        if number >= 0 and queue_offset < chunks[number].end:
            self._by_use.move_to_end(chunks[number])
            return chunks[number]
        gap = self._gaps.get(queue)
        if gap is not None and gap.begin <= queue_offset < gap.end:
            return gap
        self._start_read(queue, queue_offset)
        return None

    def _start_read(self, queue: tuple[str, int], queue_offset: int) -> None:
        if self.reader is not None and queue not in self._reading:
            self._reading[queue] = asyncio.get_running_loop().create_task(self._read(queue, queue_offset))

    async def _read(self, queue: tuple[str, int], queue_offset: int) -> None:
        """Read the first place of a queue, for the answers to pulls, and a chunk."""
        # All before this offset was in the lake before it left the log. Messages of it that the result lacks are lost.
        begin, removals = self._store.min_offset(*queue), self._removals
        try:
            await self._find_first(*queue)
            chunk = await self._request(ReadQueue(*queue, queue_offset), Chunk)
        except StoreError:
            await asyncio.sleep(RETRY_S)
        else:
            if removals == self._removals and chunk.begin == queue_offset:
                self._keep(_Cached(queue, chunk))
            elif removals == self._removals:
                self._gaps[queue] = _Gap(queue_offset, begin if chunk.begin < 0 else min(chunk.begin, begin))
        finally:
            self._reading.pop(queue, None)
        for listener in self.listeners:
            listener(*queue)

    def _keep(self, chunk: _Cached) -> None:
        insort(self._chunks.setdefault(chunk.queue, []), chunk, key=_BEGIN)
        self._by_use[chunk] = None
        self.cached_size += len(chunk.records)
        while self.cached_size > CACHE_SIZE and len(self._by_use) > 1:
            oldest, _ = self._by_use.popitem(last=False)
            self.cached_size -= len(oldest.records)
            chunks = self._chunks[oldest.queue]
            chunks.remove(oldest)
            if not chunks:
                del self._chunks[oldest.queue]

    def remove_queue(self, topic: str, queue_id: int) -> None:
        """Forget what is known of a deleted queue: one of the same name has other messages at its offsets."""
        queue = (topic, queue_id)
        for chunk in self._chunks.pop(queue, ()):
            del self._by_use[chunk]
            self.cached_size -= len(chunk.records)
        self._gaps.pop(queue, None)
        self._firsts.pop(queue, None)
        self._removals += 1

    async def record_at(self, physical_offset: int) -> bytes | None:
        store = self._store
        if self.reader is None or not 0 <= physical_offset < store.min_physical_offset:
            return store.record_at(physical_offset)
        found = (await self._ask(ReadRecord(physical_offset), Records)).records
        return found[0] if found else None

    async def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, before: int) -> QueryResult:
        store = self._store
        found = await in_slices(store.query_steps(topic, key, max_count, begin_ms, end_ms, before))
        missing = min(max_count, store.config.max_msgs_num_batch) - len(found.records)
        log_begin = store.min_physical_offset
        if self.reader is None or missing <= 0 or not log_begin:
            return found
        first = store.record_at(log_begin)
        if first is not None and peek(first).store_timestamp < begin_ms:
            return found
        request = FindKey(topic, key, missing, begin_ms, end_ms, min(before, log_begin))
        older = (await self._ask(request, Records)).records
        return found._replace(
            records=[*older, *found.records],
            physical_offsets=[*(peek(record).physical_offset for record in older), *found.physical_offsets],
        )

    # -- places --------------------------------------------------------------------------------------------------------

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the first message in lake or log. Raises Refused, as all of these methods."""
        return (await self._first(topic, queue_id)).queue_offset

    def known_min_offset(self, topic: str, queue_id: int, begin: int) -> int:
        """Return `min_offset` as far as it is known; `begin` is the log's."""
        first = self._firsts.get((topic, queue_id))
        return begin if first is None else min(first.queue_offset, begin)

    def first_offset(self, topic: str, queue_id: int) -> int | None:
        """Return `min_offset`, None if the lake is to be asked first."""
        if (topic, queue_id) not in self._firsts and self._is_tiered(topic, queue_id, 0):
            self._start_read((topic, queue_id), 0)
            return None
        return self.known_min_offset(topic, queue_id, self._store.min_offset(topic, queue_id))

    async def earliest_store_time(self, topic: str, queue_id: int) -> int:
        first = await self._first(topic, queue_id)
        is_tiered = self._is_tiered(topic, queue_id, first.queue_offset)
        return first.store_timestamp if is_tiered else self._store.earliest_store_time(topic, queue_id)

    async def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        if not self._is_tiered(topic, queue_id, queue_offset):
            return self._store.store_time(topic, queue_id, queue_offset)
        found = (await self._ask(FindOffset(topic, queue_id, queue_offset), Places)).places
        return found[0].store_timestamp if found else -1

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        store, begin = self._store, self._store.min_offset(topic, queue_id)
        if self._is_tiered(topic, queue_id, begin - 1) and timestamp_ms >= 0:
            first_ms = store.store_time(topic, queue_id, begin)
            if first_ms < 0 or timestamp_ms <= first_ms:
                found = (await self._ask(FindTime(topic, queue_id, timestamp_ms, begin), Places)).places
                if first_ms >= 0 and not any(each.store_timestamp >= timestamp_ms for each in found):
                    found = [*found, Place(begin, first_ms)]
                if found:
                    return _nearest(found, timestamp_ms)
        return store.offset_by_time(topic, queue_id, timestamp_ms)

    async def _first(self, topic: str, queue_id: int) -> Place:
        return await self._in_time(self._find_first(topic, queue_id))

    async def _find_first(self, topic: str, queue_id: int) -> Place:
        queue, begin = (topic, queue_id), self._store.min_offset(topic, queue_id)
        first = self._firsts.get(queue)
        if first is None or first.store_timestamp < 0:
            first = Place(begin, self._store.store_time(topic, queue_id, begin))
            if self._is_tiered(topic, queue_id, 0):
                removals = self._removals
                found = (await self._request(FindFirst(topic, queue_id), Places)).places
                # Without any, the log's first message then stays the first one when it leaves the log.
                first = min(*found, first, key=attrgetter("queue_offset"))
                if removals == self._removals:
                    self._firsts[queue] = first
        return first

    def _is_tiered(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        return self.reader is not None and 0 <= queue_offset < self._store.min_offset(topic, queue_id)

    async def _ask(self, request: Request, kind: type[R]) -> R:
        return await self._in_time(self._request(request, kind))

    async def _request(self, request: Request, kind: type[R]) -> R:
        """Return the result of a request, whenever it comes. Raises StoreError."""
        assert self.reader is not None
        result = await asyncio.shield(self.reader.ask(request))
        assert isinstance(result, kind)
        return result

    async def _in_time(self, result: Awaitable[T]) -> T:
        """Wait for a result until tieredReadTimeout. Raises Refused."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await result
        except TimeoutError:
            raise Refused(refusals.LAKE_NOT_READ, why=f"no result after {self._timeout_s:g} s") from None
        except StoreError as error:
            raise Refused(refusals.LAKE_NOT_READ, why=error) from None


def lake_of(config: StoreConfig) -> tuple[Path, str]:
    """Return the directory with the archive progress, and the name of the store there.

    Raises ConfigError if messages could be missing.
    """
    path = config.archive_progress_path
    if not config.delete_only_archived or path is None:
        raise ConfigError(
            "tieredReads=true needs deleteOnlyArchived=true: otherwise messages can leave the log that the lake does "
            "not have",
            subject="tieredReads",
        )
    if (path.parent.name, path.name) != ("_rucola", "progress.json"):
        raise ConfigError(
            "tieredReads=true needs archiveProgressPath=<directory>/_rucola/progress.json, of the lake or of "
            f"`archive --progress`, and not {path}",
            subject="archiveProgressPath",
        )
    return path.parent.parent, config.archive_name or str(Path(config.store_path_root_dir).absolute())


def _select(
    chunk: _Cached, queue_offset: int, end: int, max_count: int, max_bytes: int, wanted: MessageFilter
) -> tuple[GetMessageStatus, int, bytes, int]:
    """Return what `read_batch` does: (status, offset to continue from, records one after the other, their number)."""
    positions, first, last = chunk.positions, queue_offset - chunk.begin, min(chunk.end, end) - chunk.begin
    if wanted == ALL_MESSAGES:
        fitting = bisect_right(positions, positions[first] + max_bytes, first) - 1
        last = min(last, first + max_count, max(fitting, first + 1))
        records = bytes(chunk.records[positions[first] : positions[last]])
        return GetMessageStatus.FOUND, chunk.begin + last, records, last - first
    found: list[bytes] = []
    total = 0
    for number in range(first, last):
        if wanted.codes is not None and chunk.codes[number] not in wanted.codes:
            continue
        record = chunk.record(chunk.begin + number)
        if wanted.matches is not None and not wanted.matches(_properties_of(record)):
            continue
        if found and (len(found) >= max_count or total + len(record) > max_bytes):
            last = number
            break
        found.append(record)
        total += len(record)
    status = GetMessageStatus.FOUND if found else GetMessageStatus.NO_MATCHED_MESSAGE
    return status, chunk.begin + last, b"".join(found), len(found)


def _properties_of(record: bytes) -> dict[str, str]:
    outline = peek(record)
    return properties.parse(record[outline.properties_begin : outline.properties_end])


def _nearest(places: list[Place], timestamp_ms: int) -> int:
    """Return the offset of the first or last of two, as `ConsumeQueue.nearest_offset` chooses."""
    before, after = places[0], places[-1]
    is_before_nearer = timestamp_ms - before.store_timestamp <= after.store_timestamp - timestamp_ms
    return (before if is_before_nearer else after).queue_offset
