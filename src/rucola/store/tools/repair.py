"""A sound copy of a damaged store. The source is only read.

What stays as it was: every sound record, byte for byte, at its physical offset, so that offsetMsgIds stay valid; its
place in its queue, so that the offsets of consumers mean what they meant; a log without damage altogether.

What takes the place of damage:

    a hole in a file           records of the same size together, so that the log can be walked by anybody. First a
                               stand-in for every message that was lost there, as far as its place in a queue is known:
                               an empty message of that topic, queue and queueOffset with a property REPAIRED that says
                               why. Consumers of a tag never see it; the others get it in place of what was lost. The
                               rest is filled with records that are marked as rolled back, which no queue and no
                               index leads to, at most 4 MiB each.
    a hole to a file's end     stand-ins, and a blank
    behind the last sound record    nothing: there the log ends
    one field that can be known     is put right (see `salvage` and `places`)

ConsumeQueues and index are built from the new log. The checkpoint vouches for all of it, and there is no `abort`, so
Rucola and Apache's broker open the copy as after a clean stop. Config files are taken over byte by byte; where one is
broken its .bak takes its place. The copy gets its name when all of it is on disk, not before.

Answers to nothing in Apache RocketMQ, which passes over damage in old files and cuts the log at damage in new ones.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rucola import fastjson
from rucola.errors import RemoteProtocolError, StoreCorrupt, StoreError
from rucola.files import replace_file, sync_directory
from rucola.message import MessageInner, properties, sysflag
from rucola.message.record import BLANK_MAGIC, FRAME, MIN_RECORD_SIZE, encode, peek
from rucola.store.checkpoint import Checkpoint
from rucola.store.commit_log import BLANK_SIZE
from rucola.store.config import StoreConfig
from rucola.store.index import IndexFile, index_paths
from rucola.store.mapped_file import MappedFile, file_name
from rucola.store.tools.queue_reconstruction import Reconstruction, RecordLocation, SurvivingUnits, reconstruct_queues
from rucola.store.tools.rebuild import Progress, RebuildResult, build, detect_config
from rucola.store.tools.salvage import Hole, SalvagedLog, salvage

REPAIRED: Final = "REPAIRED"
"""The property of every record that a repair put in place of a lost one; its value says what was wrong."""
HOLE_TOPIC: Final = "REPAIRED"
"""The topic of the records that only fill a hole, cut to its first letters in a very small one."""

_MAX_FILLER: Final = 4 << 20
_SMALLEST: Final = MIN_RECORD_SIZE + 1


@dataclass(slots=True)
class LostRange:
    """Bytes of the source that are not in the copy: physical offsets, why, and messages as "topic|queueId|queueOffset".

    A message is named where its place in a queue is known. Those between others of their queue, or known to the
    ConsumeQueues, always are.
    """

    begin: int
    end: int
    why: str
    messages: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RepairResult:
    """What a repair did. Physical offsets throughout; `clean` where the copy's log is that of the source."""

    source: Path
    out: Path
    begin: int
    end: int
    kept: int
    rebuilt: RebuildResult
    left_out: list[LostRange] = field(default_factory=list)
    mended: list[tuple[int, str]] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """Queues in which messages had to move up, because a lost place could not be kept."""
    config: list[str] = field(default_factory=list)
    """Config files that were restored or left out, in words."""

    @property
    def lost(self) -> int:
        """How many messages are known to be lost."""
        return sum(len(one.messages) for one in self.left_out)

    @property
    def clean(self) -> bool:
        """Whether there was nothing to repair in the log."""
        return not (self.left_out or self.mended or self.moved)


def repair(
    source: str | Path,
    out: str | Path,
    *,
    settings: StoreConfig | None = None,
    progress: Progress | None = None,
) -> RepairResult:
    """Write a sound copy of the store `source` to `out`, which must not exist or be empty, and tell what was done.

    `settings` give file sizes and delay levels; without them sizes are those of the files that are there, which a
    damaged index may not tell (Apache's defaults then). Raises StoreError where there is nothing to repair or `out`
    is taken, and OSError; then `out` is not there.
    """
    source, out = Path(source), Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StoreError(f"{out} is not empty; give a new directory")
    if source.resolve() in (out.resolve(), *out.resolve().parents):
        raise StoreError(f"{out} lies in {source}, which a repair never changes; give a directory elsewhere")
    file_size = settings.mapped_file_size_commit_log if settings else 0
    found = salvage(source / "commitlog", file_size, _step(progress, 0))
    units = SurvivingUnits(source / "consumequeue")
    try:
        places = reconstruct_queues(found, units)
    finally:
        units.close()
    workshop = out.with_name(out.name + ".tmp")
    if workshop.exists():
        shutil.rmtree(workshop)
    (workshop / "commitlog").mkdir(parents=True)
    _write_log(source / "commitlog", workshop / "commitlog", found, places, _step(progress, 1))
    settings = settings or _sizes(source)
    rebuilt = build(workshop / "commitlog", workshop, settings, _step(progress, 2))
    _write_checkpoint(workshop, found, settings.max_hash_slot_num)
    result = RepairResult(source, out, found.begin, found.end, found.messages - len(places.strays), rebuilt)
    result.config = list(_copy_config(source / "config", workshop / "config"))
    if out.exists():
        out.rmdir()
    workshop.rename(out)
    sync_directory(out.parent)
    rebuilt.path = out
    _tell(result, found, places)
    return result


def _step(progress: Progress | None, number: int) -> Progress | None:
    """How far a repair is in one of its three steps, each of which goes through the whole log."""
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, 3 * total)


def _tell(result: RepairResult, found: SalvagedLog, places: Reconstruction) -> None:
    for hole in places.holes:
        messages = [str(place) for place in places.stand_ins.get(hole.begin, [])]
        result.left_out.append(LostRange(hole.begin, hole.end, hole.why, messages))
    if found.tail is not None:
        result.left_out.append(
            LostRange(found.tail.begin, found.tail.end, f"behind the end of the log: {found.tail.why}")
        )
    for physical_offset in found.passed_over:
        why = "a record that is older than those before it: an earlier recovery cut it off"
        result.left_out.append(LostRange(physical_offset, physical_offset, why))
    result.mended = [(at, why) for at, (_, why) in found.mended.items()]
    result.mended += [(said.physical_offset, f"it said {said}, and is {belongs}") for said, belongs in places.mended]
    result.mended.sort()
    for gap in places.gaps:
        result.moved.append(
            f"{gap} is lost and no hole could keep its place; what follows in its queue moved up by one"
        )


# the log -------------------------------------------------------------------------------------------------------------


def _write_log(
    source: Path, target: Path, found: SalvagedLog, places: Reconstruction, progress: Progress | None
) -> None:
    begins = range(found.begin, max(found.end, found.begin + 1), found.file_size)
    for number, begin in enumerate(begins, 1):
        end = begin + found.file_size
        file = MappedFile.create(target / file_name(begin), found.file_size, begin=begin)
        try:
            if (source / file_name(begin)).exists():
                _copy(source / file_name(begin), file, min(end, found.end) - begin)
            for at, (data, _) in found.mended.items():
                if begin <= at < end:
                    file.map[at - begin : at - begin + len(data)] = data
            for said, belongs in places.mended:
                if begin <= said.physical_offset < end:
                    _set_place(file, belongs)
            for hole in places.holes:
                if begin <= hole.begin < end:
                    _fill(file, hole, places.stand_ins.get(hole.begin, []), found)
            file.flush()
        finally:
            file.close()
        if progress is not None:
            progress(number, len(begins))
    sync_directory(target)


def _copy(path: Path, file: MappedFile, size: int) -> None:
    with MappedFile.open(path).opened() as source, file.opened() as target:
        position = 0
        while position < size and (count := os.sendfile(target, source, position, min(size - position, 1 << 30))):
            position += count


def _set_place(file: MappedFile, place: RecordLocation) -> None:
    """Write queue id, queueOffset and topic over those of the record that lies there, which takes that place."""
    position = place.physical_offset - file.begin
    (topic, queue_id), data = place.queue, file.map
    topic_at = peek(data, position).body_end + 1
    data[position + 12 : position + 16] = queue_id.to_bytes(4, "big")
    data[position + 20 : position + 28] = place.queue_offset.to_bytes(8, "big")
    data[position + 39] &= ~sysflag.TRANSACTION_PREPARED & 0xFF
    data[topic_at : topic_at + len(topic.encode())] = topic.encode()


def _fill(file: MappedFile, hole: Hole, stand_ins: list[RecordLocation], found: SalvagedLog) -> None:
    """Write stand-ins and fillers over a hole, or a blank where it takes the rest of its file."""
    at, to_file_end = hole.begin, hole.end == file.end
    timestamp = hole.timestamp or found.first_timestamp
    host = found.store_host or bytes(8)
    rest = BLANK_SIZE if to_file_end else _SMALLEST
    needed = [MIN_RECORD_SIZE + len(place.queue[0].encode()) for place in stand_ins]
    for number, place in enumerate(stand_ins):
        left = hole.end - at
        size = min(needed[number] + len(_reason(hole)), left - sum(needed[number + 1 :]))
        if number == len(stand_ins) - 1 and left - size < rest:
            size = left
        at += _put(file, at, _record(*place.queue, place.queue_offset, hole, at, size, timestamp, host))
    if to_file_end:
        file.map[at - file.begin : file.size] = bytes(file.end - at)
        if at < file.end:
            FRAME.pack_into(file.map, at - file.begin, file.end - at, BLANK_MAGIC)
        return
    while at < hole.end:
        size = hole.end - at
        if size > _MAX_FILLER:
            size = min(_MAX_FILLER, size - _SMALLEST)
        topic = HOLE_TOPIC[: size - MIN_RECORD_SIZE]
        at += _put(file, at, _record(topic, 0, None, hole, at, size, timestamp, host))


def _record(
    topic: str, queue_id: int, queue_offset: int | None, hole: Hole, at: int, size: int, timestamp: int, host: bytes
) -> bytes:
    """Return a record of `size` bytes for a place in a queue, or without `queue_offset` one that nothing leads to.

    What is left of the size is the reason, padded with blanks, and for a filler zeros in its body.
    """
    hosts = 2 * (len(host) - 8)
    room = size - MIN_RECORD_SIZE - hosts - len(topic.encode())
    if room < 0:  # only where hosts are IPv6 and the hole has no room for them
        host, room = bytes(8), room + hosts
    reason = _reason(hole)
    property_size = room if queue_offset is not None else min(room, len(reason))
    message = MessageInner(
        topic=topic,
        queue_id=queue_id,
        body=bytes(room - property_size),
        properties=reason[:property_size].ljust(property_size),
        flag=0,
        sys_flag=sysflag.TRANSACTION_ROLLBACK if queue_offset is None else 0,
        born_timestamp=timestamp,
        born_host=host,
    )
    return encode(message, queue_offset or 0, at, timestamp, host)


def _reason(hole: Hole) -> bytes:
    printable = "".join(letter if letter.isprintable() else "?" for letter in hole.why)
    return properties.join({REPAIRED: printable})


def _put(file: MappedFile, at: int, record: bytes) -> int:
    file.map[at - file.begin : at - file.begin + len(record)] = record
    return len(record)


# the rest ------------------------------------------------------------------------------------------------------------


def _write_checkpoint(store: Path, found: SalvagedLog, index_slots: int) -> None:
    point = Checkpoint(store / "checkpoint")
    point.physic_timestamp = point.logics_timestamp = found.last_timestamp
    for path in index_paths(store / "index")[:-1]:  # all but the last are full
        file = IndexFile.open(path, index_slots)
        point.index_timestamp = file.end_timestamp
        file.file.close()
    point.write()


def _copy_config(source: Path, target: Path) -> Iterator[str]:
    """Take over every config file that can be read, and say what became of the others."""
    names = sorted({path.name.removesuffix(".bak") for path in source.glob("*.json*") if path.suffix != ".tmp"})
    for name in names:
        content, before = _json(source / name), _json(source / f"{name}.bak")
        if content is None:
            yield f"{name} was broken; {'its .bak takes its place' if before else 'it is left out, and so is its .bak'}"
        if before is not None:
            replace_file(target / f"{name}.bak", before)
        if content is not None or before is not None:
            replace_file(target / name, content or before or b"")


def _json(path: Path) -> bytes | None:
    """Return the bytes of a file that holds JSON as fastjson writes it, else None."""
    try:
        data = path.read_bytes()
        fastjson.loads(data)  # an empty file is no JSON
    except (OSError, RemoteProtocolError):
        return None
    return data


def _sizes(source: Path) -> StoreConfig:
    try:
        return detect_config(source)
    except StoreCorrupt:
        return detect_config(source, index=False)
