"""Searching a store for messages: by topic and queue, tag, key, store time and text in the body.

The work is narrowed as far as the question allows:

    with a key and a topic      the index leads to the few messages with that hash, where it reaches (see below)
    with a topic                the ConsumeQueues lead to its messages; units whose tags code is another's are passed
                                over; the store time is searched for by halving, as it rises in a queue
    otherwise                   the whole log is read, from the file before that in which the time begins

`exhaustive` reads the whole log in any case: so are found messages that no unit leads to (half and rolled-back ones,
what is not dispatched yet) and keys in an index that lags behind or is damaged.

An index hit stands for whole seconds and for all keys with its hash, so every condition is compared with the message
itself. Bodies are compared after decompression: text as its bytes in UTF-8, an expression on the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rucola.errors import StoreCorrupt
from rucola.message import MessageExt
from rucola.message.compression import decompress
from rucola.message.hashing import tags_code
from rucola.message.record import decode, peek
from rucola.message.topics import DUE_TIME_TOPICS
from rucola.store.reader import StoreReader
from rucola.store.scan import RecordRun

Progress = Callable[[int, int], None]

_FOREVER = (1 << 63) - 1
_INDEX_HITS = 1 << 31
_STEP = 4096


@dataclass(slots=True)
class SearchQuery:
    """What to look for; a message has to meet all that is given. Times are in milliseconds, `end_ms` not included."""

    topic: str | None = None
    queue_id: int | None = None
    tag: str | None = None
    key: str | None = None
    begin_ms: int = 0
    end_ms: int = _FOREVER
    text: str | None = None
    pattern: re.Pattern[bytes] | None = None
    exhaustive: bool = False

    def fits(self, message: MessageExt) -> bool:
        """Tell whether a message, with its body as stored, is an answer."""
        return (
            self.topic in (None, message.topic)
            and self.queue_id in (None, message.queue_id)
            and self.tag in (None, message.tags)
            and self.begin_ms <= message.store_timestamp < self.end_ms
            and (self.key is None or self.key in (message.unique_key, *(message.keys or "").split(" ")))
            and self._fits_body(message)
        )

    def _fits_body(self, message: MessageExt) -> bool:
        if self.text is None and self.pattern is None:
            return True
        body = decompress(message.body, message.sys_flag)
        if self.text is not None and self.text.encode() not in body:
            return False
        return self.pattern is None or self.pattern.search(body) is not None


def grep(reader: StoreReader, question: SearchQuery, progress: Progress | None = None) -> Iterator[MessageExt]:
    """Yield the messages that answer, each once, their bodies as stored.

    They come in the order of the log; by queue, and in the order of the queue, where the ConsumeQueues were used.
    `progress` is told (done, in all) of bytes of the log, or of units. Raises StoreCorrupt at damage that is met.
    """
    if question.topic is None or question.exhaustive:
        yield from _in_log(reader, question, progress)
    elif question.key is not None and _index_reaches_everything(reader):
        yield from _by_index(reader, question)
    else:
        yield from _in_queues(reader, question, progress)


def _by_index(reader: StoreReader, question: SearchQuery) -> Iterator[MessageExt]:
    assert question.topic is not None
    assert question.key is not None
    # Every file is asked about all of its time: the window is whole seconds there, and compared below.
    hits = reader.index.query(question.topic, question.key, _INDEX_HITS)
    for physical_offset in sorted(set(hits)):
        if physical_offset >= reader.min_physical_offset:
            message = _record(reader, physical_offset)
            if question.fits(message):
                yield message


def _index_reaches_everything(reader: StoreReader) -> bool:
    """Tell whether the index begins with the log and goes on to its last message with keys, as far as can be told.

    Behind the message that was indexed last there may be only messages without keys.
    """
    files = reader.index.files
    if not files or files[0].begin_physical_offset > reader.min_physical_offset:
        return False
    return all(
        message.unique_key is None and message.keys is None
        for message in reader.walk(_next_record(reader, reader.index.end_physical_offset))
    )


def _next_record(reader: StoreReader, physical_offset: int) -> int:
    return physical_offset + reader.record(physical_offset).store_size


def _in_queues(reader: StoreReader, question: SearchQuery, progress: Progress | None) -> Iterator[MessageExt]:
    names = [name for name in reader.queues() if name[0] == question.topic and question.queue_id in (None, name[1])]
    ranges = {name: reader.queues()[name] for name in names}
    total, done = sum(end - begin for begin, end in ranges.values()), 0
    code = tags_code(question.tag) if question.tag is not None and question.topic not in DUE_TIME_TOPICS else None
    for (topic, queue_id), (begin, end) in sorted(ranges.items()):
        first = _first_in_time(reader, topic, queue_id, begin, end, question.begin_ms)
        done += first - begin
        for step in range(first, end, _STEP):
            units = reader.units(topic, queue_id, step, min(step + _STEP, end))
            wanted = units if code is None else units[units["tags_code"] == code]
            for physical_offset in wanted["physical_offset"].tolist():
                message = _record(reader, physical_offset)
                if question.fits(message):
                    yield message
            done += len(units)
            if progress is not None:
                progress(done, total)


def _first_in_time(reader: StoreReader, topic: str, queue_id: int, begin: int, end: int, begin_ms: int) -> int:
    """Return the first queue offset whose message was stored at `begin_ms` or later, less a margin.

    Store times rise along a queue except where a clock was set back; a thousand messages make up for a small step.
    """
    low, high = begin, end
    while begin_ms > 0 and low < high:
        middle = (low + high) // 2
        (physical_offset,) = reader.units(topic, queue_id, middle, middle + 1)["physical_offset"].tolist()
        if _record(reader, physical_offset).store_timestamp < begin_ms:
            low = middle + 1
        else:
            high = middle
    return max(low - 1000, begin)


def _in_log(reader: StoreReader, question: SearchQuery, progress: Progress | None) -> Iterator[MessageExt]:
    begin = _begin_in_time(reader, question.begin_ms)
    total = sum(file.size for file in reader.commit_log_files if file.begin >= begin)
    for item in reader.runs(begin):
        if not isinstance(item, RecordRun):
            if item.damage is not None:
                file = max(file for file in reader.commit_log_files if file.begin <= item.physical_offset)
                raise StoreCorrupt(file.path, item.physical_offset - file.begin, item.damage)
            break
        in_time = (item.store_timestamps >= question.begin_ms) & (item.store_timestamps < question.end_ms)
        for position in item.positions[in_time].tolist():
            outline = peek(item.file.map, position)
            if question.topic in (None, outline.topic) and question.queue_id in (None, outline.queue_id):
                message = decode(item.file.map, position, decompress=False, check_crc=False)
                if question.fits(message):
                    yield message
        if progress is not None:
            progress(item.end - begin, total)
    if progress is not None:
        progress(total, total)


def _begin_in_time(reader: StoreReader, begin_ms: int) -> int:
    """Return where the file before that begins whose first message is not younger; clocks may have been set back."""
    files = reader.commit_log_files
    for number in range(len(files) - 1, 0, -1):
        first = next(reader.runs(files[number].begin))
        if isinstance(first, RecordRun) and int(first.store_timestamps[0]) <= begin_ms:
            return files[number - 1].begin
    return reader.min_physical_offset


def _record(reader: StoreReader, physical_offset: int) -> MessageExt:
    return reader.record(physical_offset, decompress=False)
