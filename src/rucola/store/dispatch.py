"""From a record to the units and entries that lead to it.

A record is on its way to consumers when it has its unit in the ConsumeQueue of its topic and queue id; it is found by
key when its keys are in the index: its unique key first, then each word of KEYS. Prepared and rolled-back
transaction messages get no unit, rolled-back ones no entries either.

Records are dispatched in the order of the log and in batches. The keys of a large batch are hashed and chained by
numpy, all at once; those of a few messages one by one, which is faster for them.

The tags code of a unit is the hash of the tag, except in SCHEDULE_TOPIC_XXXX and rmq_sys_wheel_timer, where it is the
time at which the message is due: as its delay level has it there, as its property TIMER_OUT_MS says here.

Answers to DefaultMessageStore.{CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex} and
CommitLog.checkMessageAndReturnSize of org.apache.rocketmq.store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from rucola.errors import InvalidMessage
from rucola.message import properties, sysflag
from rucola.message.delay import due_time_ms
from rucola.message.hashing import index_hash, index_hashes, string_hash, tags_code
from rucola.message.record import Buffer, peek
from rucola.message.topics import DUE_TIME_TOPICS, TIMER_TOPIC
from rucola.store.consume_queue import ConsumeQueue, pack_unit
from rucola.store.index import Index, index_key
from rucola.store.mapped_file import MappedFileQueue

DispatchRequest = tuple[str, int, int, int, int, int, int, int, str | None, str | None, bytes]
"""What leads to a message that was put: (topic, queue id, queue offset, physical offset, size, store timestamp,
sysFlag, tags code, unique key, KEYS, properties)."""

QueueUnits = tuple[int, list[bytes], list[int], list[int]]
"""Units that follow each other: (queue offset of the first, units, their tags codes, bytes of their records)."""

Entries = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Of an index: (hashes, physical offsets, store timestamps), all of shape (n,)."""

TopicArrivals = tuple[list[ConsumeQueue], list[int], list[int]]
"""What came to a topic: (queues that got something, where one may be twice; tags codes of the units, those of a queue
in their order; bytes of their records). It is told by topic: where each message has a queue of its own, to tell of each
takes longer than to write its unit."""

ArrivalListener = Callable[[Mapping[str, TopicArrivals]], None]
"""Is told of everything that came, by topic, when it can be read."""

MAX_TAGS_CODE: Final = (1 << 63) - 1

_BATCH_FROM: Final = 8
_NOTHING: Final[TopicArrivals] = ([], [], [])


class ConsumeQueues(dict[tuple[str, int], ConsumeQueue]):
    """All ConsumeQueues by (topic, queue id). Asking for one that is not there makes it, without a file yet."""

    def __init__(self, directory: Path, file_size: int) -> None:
        super().__init__()
        self.directory = directory
        self.file_size = file_size
        self._topics: dict[str, TopicQueues] = {}

    def of_topic(self, topic: str) -> TopicQueues:
        """Return the queues of a topic by their ids."""
        queues = self._topics.get(topic)
        if queues is None:
            queues = self._topics[topic] = TopicQueues(self, topic)
        return queues

    def __delitem__(self, name: tuple[str, int]) -> None:
        super().__delitem__(name)
        self._topics.pop(name[0], None)

    def __missing__(self, name: tuple[str, int]) -> ConsumeQueue:
        topic, queue_id = name
        check_queue_name(topic, queue_id)
        files = MappedFileQueue(self.directory / topic / str(queue_id), self.file_size, [])
        queue = self[name] = ConsumeQueue(topic, queue_id, files)
        return queue

    def count_within_new_queues(self, batch: Sequence[DispatchRequest], count: int) -> int:
        """Return how many messages of `batch` come before the one for which more than `count` queues would be new."""
        new: set[tuple[str, int]] = set()
        for number, item in enumerate(batch):
            name = item[:2]
            if name not in self and not item[6] & sysflag.TRANSACTION_PREPARED:
                new.add(name)
                if len(new) > count:
                    return number
        return len(batch)


class TopicQueues(dict[int, ConsumeQueue]):
    """Those of one topic, by queue id: to find one by a number takes a third of the time that it takes by a pair.

    One that was not asked for before is taken from `ConsumeQueues`.
    """

    def __init__(self, queues: ConsumeQueues, topic: str) -> None:
        super().__init__()
        self._queues = queues
        self._topic = topic

    def __missing__(self, queue_id: int) -> ConsumeQueue:
        queue = self[queue_id] = self._queues[self._topic, queue_id]
        return queue


def check_queue_name(topic: str, queue_id: int) -> None:
    """Raise InvalidMessage unless a queue of this name can have a directory."""
    if not topic or "/" in topic or "\0" in topic or topic in (".", "..") or queue_id < 0:
        raise InvalidMessage(f"there can be no queue {queue_id} of topic {topic!r}")


class Dispatcher:
    """Writes units and entries. `index` is None where the store keeps none."""

    def __init__(self, queues: ConsumeQueues, index: Index | None, delay_levels: Sequence[int]) -> None:
        self.queues = queues
        self.index = index
        self.delay_levels = delay_levels
        self._is_spread = False
        """Whether most messages of the last batch were for different queues, as those of the next will be."""

    def dispatch(
        self, batch: Sequence[DispatchRequest], on_arrival: ArrivalListener | None = None
    ) -> set[ConsumeQueue]:
        """Write what leads to the records of `batch`, in order, and return the queues that got units.

        Raises OSError where the disk has no room; then a part may be written, which only `recovery` sets right.
        """
        touched = self.add_units(batch, on_arrival)
        if self.index is not None:
            self.add_entries(batch)
        return touched

    def add_units(
        self, batch: Sequence[DispatchRequest], on_arrival: ArrivalListener | None = None
    ) -> set[ConsumeQueue]:
        """Write the ConsumeQueue units of `batch`; see `dispatch`."""
        if self._is_spread or len(batch) == 1:
            arrived = self._add_each(batch)
        else:
            arrived = {}
            for (topic, queue_id), (queue_offset, units, codes, sizes) in self.units_by_queue(batch).items():
                queue = self.queues[topic, queue_id]
                queue.append(queue_offset, b"".join(units))
                came = arrived.setdefault(topic, ([], [], []))
                came[0].append(queue)
                came[1].extend(codes)
                came[2].extend(sizes)
        touched: set[ConsumeQueue] = set()
        for queues, _, _ in arrived.values():
            touched.update(queues)
        self._is_spread = 2 * len(touched) > len(batch)
        if on_arrival is not None and arrived:
            on_arrival(arrived)
        return touched

    def _add_each(self, batch: Iterable[DispatchRequest]) -> dict[str, TopicArrivals]:
        """Write units one by one: where most are for different queues, sorting them by queue first takes longer."""
        arrived: dict[str, TopicArrivals] = {}
        last_topic, is_due, came = "", False, _NOTHING
        queues: dict[int, ConsumeQueue] = {}
        for topic, queue_id, queue_offset, physical_offset, size, stored_ms, sys_flag, code, _, _, pairs in batch:
            if sys_flag & sysflag.TRANSACTION_PREPARED:
                continue
            if topic != last_topic:
                last_topic = topic
                is_due, queues = topic in DUE_TIME_TOPICS, self.queues.of_topic(topic)
                came = arrived.setdefault(topic, ([], [], []))
            if is_due:
                code = self._due_time(topic, pairs, stored_ms, code)
            queue = queues[queue_id]
            queue.append_one(queue_offset, physical_offset, size, code)
            came[0].append(queue)
            came[1].append(code)
            came[2].append(size)
        return arrived

    def units_by_queue(self, batch: Iterable[DispatchRequest]) -> dict[tuple[str, int], QueueUnits]:
        """Return the units of `batch`, by queue; of one queue the messages must follow each other."""
        groups: dict[tuple[str, int], QueueUnits] = {}
        group: QueueUnits | None = None
        last_topic, last_id, is_due = "", -1, False
        for topic, queue_id, queue_offset, physical_offset, size, stored_ms, sys_flag, code, _, _, pairs in batch:
            if sys_flag & sysflag.TRANSACTION_PREPARED:
                continue
            if group is None or topic is not last_topic or queue_id != last_id:
                last_topic, last_id = name = (topic, queue_id)
                is_due = topic in DUE_TIME_TOPICS
                group = groups.get(name)
                if group is None:
                    group = groups[name] = (queue_offset, [], [], [])
            if is_due:
                code = self._due_time(topic, pairs, stored_ms, code)
            group[1].append(pack_unit(physical_offset, size, code))
            group[2].append(code)
            group[3].append(size)
        return groups

    def add_entries(self, batch: Sequence[DispatchRequest], skip: int = 0) -> None:
        """Write the index entries of `batch`, except the first `skip`, which are there already."""
        assert self.index is not None
        if len(batch) < _BATCH_FROM:
            for item in batch:
                keys = _keys_of(item)
                self.index.put([index_hash(index_key(item[0], key)) for key in keys[skip:]], item[3], item[5])
                skip = max(skip - len(keys), 0)
        else:
            hashes, physical_offsets, store_timestamps = index_entries_of(batch)
            self.index.put_many(hashes[skip:], physical_offsets[skip:], store_timestamps[skip:])

    def _due_time(self, topic: str, stored_properties: bytes, store_timestamp: int, tags_code: int) -> int:
        """When a message of a topic that is ordered by that is due; its tags code for one without a delay level."""
        pairs = properties.parse(stored_properties)
        if topic == TIMER_TOPIC:
            return min(_number(pairs.get(properties.TIMER_OUT_MS, "")), MAX_TAGS_CODE)
        level = _number(pairs.get(properties.DELAY, ""))
        return due_time_ms(self.delay_levels, level, store_timestamp) if level > 0 else tags_code


def index_entries_of(batch: Sequence[DispatchRequest]) -> Entries:
    """Return the index entries of `batch`, in order."""
    keys, counts = index_keys_of(batch)
    topics, _, _, physical_offsets, _, stored_ms, *_ = zip(*batch, strict=False)
    if topics.count(topics[0]) == len(batch):
        before = np.full(len(keys), _hash_before_key(topics[0]), np.int32)
    else:
        before = np.array(list(map(_hash_before_key, topics)), np.int32).repeat(counts)
    places, times = (np.array(column, np.int64).repeat(counts) for column in (physical_offsets, stored_ms))
    return index_hashes(keys, before), places, times


def index_keys_of(batch: Sequence[DispatchRequest]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the keys of `batch`, in order, and how many each message has."""
    _, _, _, _, _, _, sys_flags, _, unique_keys, words, _ = zip(*batch, strict=False)
    both = list(chain.from_iterable(zip(unique_keys, words, strict=False)))
    keys = list(filter(None, both))
    if " " in "".join(keys) or any(map(_is_rolled_back, set(sys_flags))):
        lists = list(map(_keys_of, batch))
        return list(chain.from_iterable(lists)), np.array(list(map(len, lists)))
    if len(keys) == len(both):
        return keys, np.full(len(batch), 2)
    return keys, np.array(list(map(bool, both))).reshape(-1, 2).sum(1)


def _keys_of(item: DispatchRequest) -> list[str]:
    _, _, _, _, _, _, sys_flag, _, unique_key, words, _ = item
    if _is_rolled_back(sys_flag):
        return []
    keys = [unique_key] if unique_key else []
    if words:
        keys += [word for word in words.split(" ") if word]
    return keys


def _is_rolled_back(sys_flag: int) -> bool:
    return sysflag.transaction_state(sys_flag) == sysflag.TRANSACTION_ROLLBACK


@lru_cache(maxsize=8192)
def _hash_before_key(topic: str) -> int:
    """Return the hash of what an index hashes before a key of this topic."""
    return string_hash(index_key(topic, ""))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def read_dispatch_request(buffer: Buffer, position: int) -> DispatchRequest:
    """Return what was noted of a record when it was put.

    Raises InvalidMessage for what is no record, or a record that no queue can hold.
    """
    outline = peek(buffer, position)
    check_queue_name(outline.topic, outline.queue_id)
    stored = bytes(buffer[outline.properties_begin : outline.properties_end])
    pairs = properties.parse(stored)
    return (
        outline.topic,
        outline.queue_id,
        outline.queue_offset,
        outline.physical_offset,
        outline.size,
        outline.store_timestamp,
        outline.sys_flag,
        tags_code(pairs.get(properties.TAGS)),
        pairs.get(properties.UNIQ_KEY),
        pairs.get(properties.KEYS),
        stored,
    )
