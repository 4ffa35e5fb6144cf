"""Repair: write an intact copy of a damaged store. The source is only read.

Every valid record keeps its bytes, its physical offset and its queue offset, so offsetMsgIds and consumer offsets stay
valid. The log of a store without damage is copied unchanged.

Nothing is inferred: a record that fails a check, or contradicts the other records of its queue, is listed and not
corrected (see `salvage` and `placeholders`). Lost bytes are replaced:

    a hole within a file       by records of the same total size, so that any broker can walk the log. First
                               placeholders for lost messages whose queue offset is known, so that all others keep
                               theirs: an empty message of the topic, queue and queueOffset with a property REPAIRED
                               that says why. Consumers that filter by tag never get it; others get it in place of the
                               lost message. The rest are fillers of at most 4 MiB, marked as rolled back, so that no
                               queue and no index points at them
    a hole up to a file's end  by placeholders and a blank
    everything after the last valid record    by zeros: the log ends there

For example, records of T-0 with queue offsets 3, 4 and 5 follow each other, and the one with 4 is damaged:

    before    record 3    damaged record                                      record 5
    after     record 3    placeholder 4 (REPAIRED)    filler (rolled back)    record 5

ConsumeQueues and index are built from the new log. The checkpoint covers all of it and there is no `abort`. Config
files are copied, or replaced by their .bak. Only `coordination.json` is left out: a copy that lacks messages must not
entitle its broker to be elected. The copy gets its final name only when all of it is on disk.

No counterpart in Apache RocketMQ, which skips damage in old files and cuts off the log at damage in new ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rucola import fastjson
from rucola.errors import RemoteProtocolError, StoreCorrupt, StoreError
from rucola.files import local_path, make_directory, replace_file, sync_directory
from rucola.message import MessageInner, properties, sysflag
from rucola.message.record import BLANK_MAGIC, FRAME, MIN_RECORD_SIZE, encode
from rucola.store.commit_log import BLANK_SIZE
from rucola.store.config import StoreConfig
from rucola.store.config_files import COORDINATION
from rucola.store.directory_lock import check_store_directory
from rucola.store.features import detect_multi_dispatch
from rucola.store.mapped_file import MappedFile, file_name
from rucola.store.multi_dispatch import MultiDispatch
from rucola.store.tools.placeholders import LostMessage, Plan, plan_placeholders
from rucola.store.tools.progress import ProgressCallback
from rucola.store.tools.rebuild import Builder, RebuildResult, build, detect_config, write_checkpoint
from rucola.store.tools.salvage import ZEROS, Hole, SalvagedLog, salvage
from rucola.system_calls import copy_bytes

REPAIRED: Final = "REPAIRED"
"""The property of placeholders and fillers; its value describes the damage."""
HOLE_TOPIC: Final = "REPAIRED"
"""The topic of fillers; in a very small hole only its first letters."""

_MAX_FILLER: Final = 4 << 20
"""A limit, since brokers and tools may load a record as a whole."""
_SMALLEST: Final = MIN_RECORD_SIZE + 1


@dataclass(slots=True)
class LostRange:
    """A range of physical offsets that the copy lacks, why, and the lost messages that are known.

    These are "topic|queueId|queueOffset"; after the end of the log they may be of an earlier recovery.
    """

    begin: int
    end: int
    why: str
    messages: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RepairResult:
    """The outcome of a repair: the fields of `rucola store repair --json`. Offsets are physical."""

    source: Path | str
    out: Path
    begin: int
    end: int
    kept: int
    rebuilt: RebuildResult
    left_out: list[LostRange] = field(default_factory=list)
    config: list[str] = field(default_factory=list)
    """Config files that were restored from their .bak or left out, as sentences."""

    @property
    def lost(self) -> int:
        """The number of messages that are known to be lost."""
        return sum(len(one.messages) for one in self.left_out)

    @property
    def clean(self) -> bool:
        """Whether there was nothing to repair in the log."""
        return not self.left_out


def repair(
    source: str | Path,
    out: str | Path,
    *,
    settings: StoreConfig | None = None,
    progress: ProgressCallback | None = None,
) -> RepairResult:
    """Write an intact copy of the store `source` to `out`, which must be missing or empty.

    Args:
        settings: file sizes and delay levels; by default the sizes of the existing files, or Apache's defaults.
        progress: called as the log is read, copied and dispatched.

    Raises StoreError if there is no log to repair or `out` is not empty, and OSError; then `out` does not exist.
    """
    source, out = local_path(source), local_path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StoreError(f"{out} is not empty; give a new directory", subject=out)
    if source.resolve() in (out.resolve(), *out.resolve().parents):
        raise StoreError(
            f"{out} is inside {source}, which a repair never changes; give a directory elsewhere", subject=out
        )
    check_store_directory(source)
    if (settings.multi_dispatch if settings else detect_multi_dispatch(source)) is not MultiDispatch.OFF:
        raise StoreError(
            f"{source} has light message queues, whose queue offsets a repair cannot keep; read its messages with "
            "`rucola store dump` or `grep`"
        )
    file_size = settings.mapped_file_size_commit_log if settings else 0
    found = salvage(source / "commitlog", file_size, _step(progress, 0))
    plan = plan_placeholders(found, source / "consumequeue")
    staging = out.with_name(out.name + ".tmp")
    if staging.exists():
        shutil.rmtree(staging)
    make_directory(staging / "commitlog")
    _write_log(source / "commitlog", staging / "commitlog", found, plan, _step(progress, 1))
    settings = settings or _detect_config(source)
    rebuilt = build(staging / "commitlog", staging, settings, _step(progress, 2))
    write_checkpoint(staging, found.last_timestamp, settings.max_hash_slot_num)
    kept = found.messages - (len(plan.holes) - len(found.holes))
    result = RepairResult(source, out, found.begin, found.end, kept, rebuilt)
    result.config = list(_copy_config(source / "config", staging / "config"))
    if out.exists():
        out.rmdir()
    staging.rename(out)
    sync_directory(out.parent)
    rebuilt.path = out
    result.left_out = list(_left_out(found, plan))
    return result


def complete(store: Path, end: int, why: str, settings: StoreConfig, *, builder: Builder = build) -> RepairResult:
    """Complete a new store in place, whose log has records at their physical offsets and zeros between them.

    `end` is the end of the log, unless a record is behind it. `why` is what the records that replace the zeros state.
    Raises StoreError if there is no log.
    """
    log = store / "commitlog"
    found = salvage(log, settings.mapped_file_size_commit_log, skips_older=False)
    found.holes = [hole._replace(why=why) if hole.why.startswith(ZEROS) else hole for hole in found.holes]
    while found.end < end:
        file_end = (found.end // found.file_size + 1) * found.file_size
        found.holes.append(Hole(found.end, min(file_end, end), why, found.last_timestamp))
        found.end = min(file_end, end)
    plan = plan_placeholders(found, store / "consumequeue")
    _write_log(log, log, found, plan, None)
    rebuilt = builder(log, store, settings, None)
    write_checkpoint(store, found.last_timestamp, settings.max_hash_slot_num)
    kept = found.messages - (len(plan.holes) - len(found.holes))
    return RepairResult(store, store, found.begin, found.end, kept, rebuilt, list(_left_out(found, plan)))


def _step(progress: ProgressCallback | None, number: int) -> ProgressCallback | None:
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, 3 * total)


def _left_out(found: SalvagedLog, plan: Plan) -> Iterator[LostRange]:
    for hole in plan.holes:
        yield LostRange(hole.begin, hole.end, hole.why, list(map(str, plan.lost.get(hole.begin, []))))
    after = list(map(str, plan.lost.get(found.end, [])))
    if found.tail is not None:
        yield LostRange(found.tail.begin, found.tail.end, f"after the end of the log: {found.tail.why}", after)
    elif after:
        yield LostRange(found.end, found.end, "after the end of the log: only ConsumeQueues have these messages", after)
    for physical_offset in found.skipped:
        why = "a record that is older than those before it: an earlier recovery had cut it off"
        yield LostRange(physical_offset, physical_offset, why)


# the log -------------------------------------------------------------------------------------------------------------


def _write_log(source: Path, target: Path, found: SalvagedLog, plan: Plan, progress: ProgressCallback | None) -> None:
    begins = range(found.begin, max(found.end, found.begin + 1), found.file_size)
    for number, begin in enumerate(begins, 1):
        end = begin + found.file_size
        if source == target and (source / file_name(begin)).exists():
            file = MappedFile.open(target / file_name(begin), writable=True, begin=begin)
        else:
            file = MappedFile.create(target / file_name(begin), found.file_size, begin=begin)
        try:
            if source != target and (source / file_name(begin)).exists():
                _copy(source / file_name(begin), file, min(end, found.end) - begin)
            for hole in plan.holes:
                if begin <= hole.begin < end:
                    _fill(file, hole, plan.placeholders.get(hole.begin, []), found)
            file.flush()
        finally:
            file.close()
        if progress is not None:
            progress(number, len(begins))
    sync_directory(target)


def _copy(path: Path, file: MappedFile, size: int) -> None:
    with MappedFile.open(path).opened() as source, file.opened() as target:
        copy_bytes(source, target, size)


def _fill(file: MappedFile, hole: Hole, placeholders: list[LostMessage], found: SalvagedLog) -> None:
    at, to_file_end = hole.begin, hole.end == file.end
    timestamp = hole.timestamp or found.first_timestamp
    host = found.store_host or bytes(8)
    # Placeholders with the reason, cut so that the following ones fit. The bytes after the last one must have room for
    # a filler or a blank; otherwise they become part of it.
    rest = BLANK_SIZE if to_file_end else _SMALLEST
    needed = [MIN_RECORD_SIZE + len(lost.queue[0].encode()) for lost in placeholders]
    for number, lost in enumerate(placeholders):
        left = hole.end - at
        size = min(needed[number] + len(_reason(hole)), left - sum(needed[number + 1 :]))
        if number == len(placeholders) - 1 and left - size < rest:
            size = left
        at += _put(file, at, _record(*lost.queue, lost.queue_offset, hole, at, size, timestamp, host))
    if to_file_end:
        file.map[at - file.begin : file.size] = bytes(file.end - at)
        if at < file.end:
            FRAME.pack_into(file.map, at - file.begin, file.end - at, BLANK_MAGIC)
        return
    # Or fillers. The last but one leaves room for the smallest record.
    while at < hole.end:
        size = hole.end - at
        if size > _MAX_FILLER:
            size = min(_MAX_FILLER, size - _SMALLEST)
        topic = HOLE_TOPIC[: size - MIN_RECORD_SIZE]
        at += _put(file, at, _record(topic, 0, None, hole, at, size, timestamp, host))


def _record(
    topic: str, queue_id: int, queue_offset: int | None, hole: Hole, at: int, size: int, timestamp: int, host: bytes
) -> bytes:
    """Return a placeholder for `queue_offset`, or without it a filler, padded to `size` bytes."""
    hosts = 2 * (len(host) - 8)
    room = size - MIN_RECORD_SIZE - hosts - len(topic.encode())
    if room < 0:  # IPv6 hosts that the hole has no room for
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


def _copy_config(source: Path, target: Path) -> Iterator[str]:
    """Copy every readable config file, and yield a sentence for each of the others."""
    names = sorted({path.name.removesuffix(".bak") for path in source.glob("*.json*") if path.suffix != ".tmp"})
    for name in names:
        if name == f"{COORDINATION}.json":
            yield f"{name} was left out: a broker with this copy has to follow a master before it is elected"
            continue
        content, before = _json(source / name), _json(source / f"{name}.bak")
        if content is None:
            outcome = "replaced by its .bak" if before else "left out, and so is its .bak"
            yield f"{name} is damaged and was {outcome}"
        if before is not None:
            replace_file(target / f"{name}.bak", before)
        if content is not None or before is not None:
            replace_file(target / name, content or before or b"")


def _json(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
        fastjson.loads(data)  # an empty file is no JSON
    except (OSError, RemoteProtocolError):
        return None
    return data


def _detect_config(source: Path) -> StoreConfig:
    try:
        return detect_config(source)
    except StoreCorrupt:
        return detect_config(source, index=False)
