"""Tiered store: the messages of queues before the log's first one, read from the lake.

`MessageStore` has what the log has; the methods here, with the same names, count the lake's messages as well. They wait
for the lake only for what the log does not have, and without tieredReads for nothing.

    pull of an offset before the log's first     `get` finds it in a chunk that was read, or has one read; until
                                                 `on_read` the pull is held (see `pull_request_hold`)
    first offset, times                          the lake is asked; the first message of a queue is remembered

Chunks, of consecutive messages of a queue, are kept up to `CACHE_SIZE` bytes; a pull from one has the next one read. A
queue has one read at a time, for which all of its pulls wait, since the chunk may have what they need. Where the log
has a message, it is read from the log: a chunk ends there. An offset that neither has, since its message was lost
before it was archived, is moved to the next one that there is.

Corresponds to `TieredMessageStore` of Apache RocketMQ 5. Deliberate differences: the tier is the lake, which any engine
reads; search by time and first offsets cover both without a gap.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from rucola import refusals
from rucola.access import Refused
from rucola.broker.lake_reader import LakeReader
from rucola.broker.message_filter import ALL_MESSAGES, MessageFilter
from rucola.errors import ConfigError, StoreError
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
    Result,
)

CACHE_SIZE: Final = 64 << 20

R = TypeVar("R", Places, Records)


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


_BEGIN: Final = attrgetter("begin")


class _Gap(NamedTuple):
    """The lake has no message of a queue from `begin` on, before `end`."""

    begin: int
    end: int


class TieredStore:
    """Belongs to the event loop. Without a `reader`, the messages of the log."""

    def __init__(
        self,
        store: MessageStore,
        reader: LakeReader | None = None,
        timeout_ms: int = 5000,
        on_read: Callable[[str, int], None] = lambda topic, queue_id: None,
    ) -> None:
        self._store = store
        self.reader = reader
        self._timeout_s = timeout_ms / 1000
        self._on_read = on_read
        self._firsts: dict[tuple[str, int], Place] = {}
        self._chunks: dict[tuple[str, int], list[_Cached]] = {}
        self._by_use: OrderedDict[_Cached, None] = OrderedDict()
        self._gaps: dict[tuple[str, int], _Gap] = {}
        self._reading: set[tuple[str, int]] = set()
        self.cached_size = 0

    @property
    def failures(self) -> int:
        """The number of requests that the lake did not answer."""
        return 0 if self.reader is None else self.reader.failures

    async def close(self) -> None:
        if self.reader is not None:
            await self.reader.close()

    # -- messages ------------------------------------------------------------------------------------------------------

    def get(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int, wanted: MessageFilter
    ) -> GetResult | None:
        """Return what `MessageStore.get` would, of an offset before the log's first; None if it is to be read first."""
        queue, (begin, end) = (topic, queue_id), self._store.queue_ends(topic, queue_id) or (0, 0)
        queue_offset = max(queue_offset, 0)
        known = self._known(queue, queue_offset)
        if known is None:
            self._read(topic, queue_id, queue_offset)
            return None
        if isinstance(known, _Gap):
            return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, known.end, begin, end, b"", 0)
        self._by_use.move_to_end(known)
        if known.end < begin and self._known(queue, known.end) is None:
            self._read(topic, queue_id, known.end)  # before it is wanted
        config = self._store.config
        max_count = min(max_count, config.max_transfer_count_on_message_in_memory)
        max_bytes = config.max_transfer_bytes_on_message_in_memory
        found = _select(known, queue_offset, begin, max_count, max_bytes, wanted)
        return GetResult(*found[:2], begin, end, *found[2:])

    def _known(self, queue: tuple[str, int], queue_offset: int) -> _Cached | _Gap | None:
        """Return what is known of an offset; of chunks that overlap, only the last one to begin is looked at."""
        chunks = self._chunks.get(queue, ())
        number = bisect_right(chunks, queue_offset, key=_BEGIN) - 1
        if number >= 0 and queue_offset < chunks[number].end:
            return chunks[number]
        gap = self._gaps.get(queue)
        return gap if gap is not None and gap.begin <= queue_offset < gap.end else None

    def _read(self, topic: str, queue_id: int, queue_offset: int) -> None:
        queue = (topic, queue_id)
        if self.reader is None or queue in self._reading:
            return
        self._reading.add(queue)
        if queue not in self._firsts:  # for the answers to pulls
            self.reader.ask(FindFirst(topic, queue_id)).add_done_callback(lambda found: self._know_first(queue, found))
        # All before this offset was in the lake before it left the log. Messages of it that the result lacks are lost.
        begin = self._store.min_offset(topic, queue_id)

        def done(result: asyncio.Future[Result]) -> None:
            self._reading.remove(queue)
            if result.exception() is not None:
                return  # the pulls are answered at their deadline
            chunk = result.result()
            assert isinstance(chunk, Chunk)
            if chunk.begin == queue_offset:
                self._keep(_Cached(queue, chunk))
            else:
                following = begin if chunk.begin < 0 else min(chunk.begin, begin)
                self._gaps[queue] = _Gap(queue_offset, following)
            self._on_read(topic, queue_id)

        self.reader.ask(ReadQueue(topic, queue_id, queue_offset)).add_done_callback(done)

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
        first = store.record_at(log_begin)
        if self.reader is None or missing <= 0 or not log_begin:
            return found
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
        first = await self._first(topic, queue_id)
        begin = self._store.min_offset(topic, queue_id)
        return begin if first is None else min(first.queue_offset, begin)

    def known_min_offset(self, topic: str, queue_id: int, begin: int) -> int:
        """Return `min_offset` as far as it is known; `begin` is the log's."""
        first = self._firsts.get((topic, queue_id))
        return begin if first is None else min(first.queue_offset, begin)

    async def earliest_store_time(self, topic: str, queue_id: int) -> int:
        first = await self._first(topic, queue_id)
        if first is None or first.queue_offset >= self._store.min_offset(topic, queue_id):
            return self._store.earliest_store_time(topic, queue_id)
        return first.store_timestamp

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

    async def _first(self, topic: str, queue_id: int) -> Place | None:
        queue = (topic, queue_id)
        if not self._is_tiered(topic, queue_id, 0) or queue in self._firsts:
            return self._firsts.get(queue)
        found = (await self._ask(FindFirst(topic, queue_id), Places)).places
        if found:  # otherwise it may have one later
            self._firsts[queue] = found[0]
        return found[0] if found else None

    def _know_first(self, queue: tuple[str, int], result: asyncio.Future[Result]) -> None:
        if result.exception() is None:
            found = result.result()
            assert isinstance(found, Places)
            if found.places:
                self._firsts[queue] = found.places[0]

    def _is_tiered(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        return self.reader is not None and 0 <= queue_offset < self._store.min_offset(topic, queue_id)

    async def _ask(self, request: Request, kind: type[R]) -> R:
        assert self.reader is not None
        try:
            result = await asyncio.wait_for(asyncio.shield(self.reader.ask(request)), self._timeout_s)
        except TimeoutError:
            raise Refused(refusals.LAKE_NOT_READ, why=f"no result after {self._timeout_s:g} s") from None
        except StoreError as error:
            raise Refused(refusals.LAKE_NOT_READ, why=error) from None
        assert isinstance(result, kind)
        return result


def lake_of(config: StoreConfig) -> tuple[Path, str]:
    """Return the lake, and the name of the store there. Raises ConfigError if messages could be missing."""
    path = config.archive_progress_path
    if not config.delete_only_archived or path is None:
        raise ConfigError(
            "tieredReads=true needs deleteOnlyArchived=true: otherwise messages can leave the log that the lake does "
            "not have",
            subject="tieredReads",
        )
    if (path.parent.name, path.name) != ("_rucola", "progress.json"):
        raise ConfigError(
            f"tieredReads=true reads the lake of archiveProgressPath, and {path} is not <lake>/_rucola/progress.json",
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
        record = bytes(chunk.records[positions[number] : positions[number + 1]])
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
