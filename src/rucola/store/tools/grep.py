"""Grep: search a store by topic, queue, tag, key, store time and body text.

    key and topic    the index finds the messages with that hash, if it covers the whole log
    topic            the ConsumeQueues list its messages; units with another tags code are skipped, and the start of the
                     time window is found by bisection, since store times rise along a queue
    otherwise        the whole log is read, from one file before the start of the time window; this includes stores
                     without ConsumeQueues (`rucola.store.diverged_tail`)

`exhaustive` always reads the whole log. It also finds messages without a unit (half messages, rolled-back ones, those
not dispatched yet) and keys that are missing from a damaged index.

Every condition is compared with the message itself. Bodies are compared after decompression, or as stored if it fails:
text as its UTF-8 bytes, a regular expression on the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rucola.message import MessageExt
from rucola.message.compression import read_body
from rucola.message.hashing import tags_code
from rucola.message.record import decode, peek
from rucola.message.topics import DUE_TIME_TOPICS
from rucola.store.directory_reader import StoreReader
from rucola.store.scan import RecordRun
from rucola.store.tools.progress import ProgressCallback

_FOREVER = (1 << 63) - 1
_INDEX_HITS = 1 << 31
_STEP = 4096


@dataclass(slots=True)
class SearchQuery:
    """The conditions of a search, all of which a message must meet. Times in milliseconds, `end_ms` exclusive."""

    topic: str | None = None
    queue_id: int | None = None
    tag: str | None = None
    key: str | None = None
    begin_ms: int = 0
    end_ms: int = _FOREVER
    text: str | None = None
    pattern: re.Pattern[bytes] | None = None
    exhaustive: bool = False

    def matches(self, message: MessageExt) -> bool:
        return (
            self.topic in (None, message.topic)
            and self.queue_id in (None, message.queue_id)
            and self.tag in (None, message.tags)
            and self.begin_ms <= message.store_timestamp < self.end_ms
            and (self.key is None or self.key in (message.unique_key, *(message.keys or "").split(" ")))
            and (not self.searches_bodies or self.match(body_of(message)) is not None)
        )

    @property
    def searches_bodies(self) -> bool:
        return self.text is not None or self.pattern is not None

    def match(self, body: bytes) -> tuple[int, int] | None:
        """Return the range of the first match in a body, the pattern's if there is one; None unless both match."""
        found: tuple[int, int] | None = None
        if self.text is not None:
            text = self.text.encode()
            begin = body.find(text)
            if begin < 0:
                return None
            found = begin, begin + len(text)
        if self.pattern is not None:
            match = self.pattern.search(body)
            return None if match is None else match.span()
        return found


def body_of(message: MessageExt) -> bytes:
    """Return the decompressed body of a message that has it as stored, or the stored one if it cannot be."""
    return read_body(message.body, message.sys_flag)[0]


def grep(reader: StoreReader, query: SearchQuery, progress: ProgressCallback | None = None) -> Iterator[MessageExt]:
    """Yield each matching message once, with its body as stored, in log order or queue by queue.

    `progress` gets (done, total) in bytes of the log or in units. Raises StoreCorrupt.
    """
    if query.topic is None or query.exhaustive or not any(first < end for first, end in reader.queues().values()):
        yield from _in_log(reader, query, progress)
    elif query.key is not None and _index_covers_log(reader):
        yield from _by_index(reader, query)
    else:
        yield from _in_queues(reader, query, progress)


def _by_index(reader: StoreReader, query: SearchQuery) -> Iterator[MessageExt]:
    assert query.topic is not None
    assert query.key is not None
    # Without a time window, which the index compares in whole seconds only; the query compares it exactly.
    hits = reader.index.query(query.topic, query.key, _INDEX_HITS)
    for physical_offset in sorted(set(hits)):
        if physical_offset >= reader.min_physical_offset:
            message = _record(reader, physical_offset)
            if query.matches(message):
                yield message


def _index_covers_log(reader: StoreReader) -> bool:
    """Return whether at most messages without keys follow the last indexed one, and the index starts with the log."""
    files = reader.index.files
    if not files or files[0].begin_physical_offset > reader.min_physical_offset:
        return False
    return all(
        message.unique_key is None and message.keys is None
        for message in reader.walk(_next_record(reader, reader.index.end_physical_offset))
    )


def _next_record(reader: StoreReader, physical_offset: int) -> int:
    return physical_offset + reader.record(physical_offset).store_size


def _in_queues(reader: StoreReader, query: SearchQuery, progress: ProgressCallback | None) -> Iterator[MessageExt]:
    names = [name for name in reader.queues() if name[0] == query.topic and query.queue_id in (None, name[1])]
    ranges = {name: reader.queues()[name] for name in names}
    total, done = sum(end - begin for begin, end in ranges.values()), 0
    code = tags_code(query.tag) if query.tag is not None and query.topic not in DUE_TIME_TOPICS else None
    # The units name the queue, which may be a further one of records of other topics.
    query = replace(query, topic=None, queue_id=None)
    for (topic, queue_id), (begin, end) in sorted(ranges.items()):
        first = _first_in_time(reader, topic, queue_id, begin, end, query.begin_ms)
        done += first - begin
        for step in range(first, end, _STEP):
            units = reader.units(topic, queue_id, step, min(step + _STEP, end))
            wanted = units if code is None else units[units["tags_code"] == code]
            for physical_offset in wanted["physical_offset"].tolist():
                message = _record(reader, physical_offset)
                if query.matches(message):
                    yield message
            done += len(units)
            if progress is not None:
                progress(done, total)


def _first_in_time(reader: StoreReader, topic: str, queue_id: int, begin: int, end: int, begin_ms: int) -> int:
    """Return the first queue offset in the time window, minus 1,000 in case a clock was set back."""
    low, high = begin, end
    while begin_ms > 0 and low < high:
        middle = (low + high) // 2
        (physical_offset,) = reader.units(topic, queue_id, middle, middle + 1)["physical_offset"].tolist()
        if _record(reader, physical_offset).store_timestamp < begin_ms:
            low = middle + 1
        else:
            high = middle
    return max(low - 1000, begin)


def _in_log(reader: StoreReader, query: SearchQuery, progress: ProgressCallback | None) -> Iterator[MessageExt]:
    begin = _begin_in_time(reader, query.begin_ms)
    total = sum(file.size for file in reader.commit_log_files if file.begin >= begin)
    for item in reader.runs(begin):
        if not isinstance(item, RecordRun):
            reader.check_end(item)
            break
        in_time = (item.store_timestamps >= query.begin_ms) & (item.store_timestamps < query.end_ms)
        for position in item.positions[in_time].tolist():
            outline = peek(item.file.map, position)
            if query.topic in (None, outline.topic) and query.queue_id in (None, outline.queue_id):
                message = decode(item.file.map, position, decompress=False, check_crc=False)
                if query.matches(message):
                    yield message
        if progress is not None:
            progress(item.end - begin, total)
    if progress is not None:
        progress(total, total)


def _begin_in_time(reader: StoreReader, begin_ms: int) -> int:
    """Return the scan's start: one file before the time window, in case a clock was set back."""
    files = reader.commit_log_files
    for number in range(len(files) - 1, 0, -1):
        first = next(reader.runs(files[number].begin))
        if isinstance(first, RecordRun) and int(first.store_timestamps[0]) <= begin_ms:
            return files[number - 1].begin
    return reader.min_physical_offset


def _record(reader: StoreReader, physical_offset: int) -> MessageExt:
    return reader.record(physical_offset, decompress=False)
