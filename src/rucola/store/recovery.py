"""Opening a store: finding the end of the log, and leading to every record again.

After a clean stop everything was dispatched and flushed. After a crash (`abort` is there) the tail of the log, the
ConsumeQueues and the index can each have lost what the others kept. The log decides; all else is rebuilt from it:

1. Where to begin. Up to the checkpoint everything is on disk, so the scan begins with the newest log file whose
   first record is not younger than it, less three seconds. After a clean stop only the last file is scanned.
2. Units that point behind that place are not believed, after a clean stop those that point behind the end of the
   log. They stay in their files until it is known what belongs there, so that queues that are whole are not written.
   Index files that the checkpoint does not vouch for are dropped after a crash. The last index file that stays says
   how far the index goes; a message of whose keys only some made it is recognised by its entries at the end.
3. The log is read from the earlier of the two places. Every sound record gets the unit and the entries that it
   lacks. The first record that is not sound is the end of the log: zeros, damage, or a queueOffset that does not go
   on where its queue stopped. The CRC ends with the body; a record whose properties have a sector of zeros, or end in
   zeros where nothing follows, was torn. What lies behind the end is erased, so that no old record can ever come to
   light again.
4. Where a queue does not go on as the log does (a deleted folder, a store with nothing but its log, units that a crash
   took from before the scan), all queues are rebuilt from the first record of the log.

A stop counts as clean when the queues say so, too: each ends with a unit that points at its own record, and together
they have as many units as the last file has records for them. A queue that was lost with its directory is noticed by
that as long as the last file has a message of it; later only `check` finds out. After a clean stop there is no torn
tail before the end of the last unit's record; after a crash there is none before the end of the last such record for
which the checkpoint vouches. Damage before that place is left as damage in any other file is: a body that has changed
is passed over, and where the way from record to record is lost, opening stops.

Damage before the place where the scan begins is left as it is, for `check` to report: it was on disk and has been
changed since.

A recovery that is interrupted starts again from the same facts, as `abort` is still there. A long one logs how far it
is.

Answers to CommitLog.{recoverNormally, recoverAbnormally} and ConsumeQueue.recover of org.apache.rocketmq.store.
Apache rebuilds only from the checkpoint's file on, loses the last index file for good and leaves what it cuts off on
disk.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message import sysflag
from rucola.message.record import FRAME
from rucola.store.checkpoint import Checkpoint
from rucola.store.consume_queue import ConsumeQueue, sync_names
from rucola.store.dispatch import ConsumeQueues, Dispatcher, DispatchRequest, read_dispatch_request
from rucola.store.index import Index
from rucola.store.mapped_file import MappedFile, MappedFileQueue
from rucola.store.scan import RecordRun, ScanEnd, scan, scan_file

log = logging.getLogger(__name__)

_SECTOR: Final = 512
"""What a disk writes whole or not at all."""

_NEVER: Final = 1 << 63
"""A physical offset that no record reaches."""

_STEP: Final = 256 << 20
"""So many bytes of the log are read between two lines that say how far a recovery is."""


class _Gap(Exception):
    """A queue does not end where its first record in the scan goes on."""


class Recovery:
    """One opening of a store. `run` returns the physical offset at which the log ends."""

    def __init__(
        self, files: MappedFileQueue, dispatcher: Dispatcher, checkpoint: Checkpoint, *, after_crash: bool
    ) -> None:
        self._files = files
        self._dispatcher = dispatcher
        self._queues: ConsumeQueues = dispatcher.queues
        self._index: Index | None = dispatcher.index
        self._checkpoint = checkpoint
        self.after_crash = after_crash
        """Whether anything may be less than it was when it was flushed; `run` can find that out."""
        self._sound_end = 0
        """Up to this physical offset the log was found sound; known in advance only after a clean stop."""
        self._vouched_end = 0
        """Before this physical offset everything was on disk once: damage is no torn tail."""
        self._records = 0
        """How many records of the last file must have units; known only after a clean stop."""
        self._next_line = 0
        """Behind this physical offset it is time to say how far the reading is."""

    def run(self) -> int:
        """Set everything right and return the end of the log. Raises StoreCorrupt, and OSError on a full disk."""
        if not self._files.files:
            self._forget_everything()
            return 0
        with _uncollected():
            return self._run()

    def _run(self) -> int:
        if self.after_crash:
            self._files.files[-1].mark_name_unsynced()
            sync_names(self._queues.directory)
        scan_begin = self._scan_begin()
        units_begin = self._units_begin(scan_begin)
        if not self.after_crash and not self._queues_are_sound(scan_begin):
            return self._run_as_after_crash()
        try:
            end = self._read(scan_begin, units_begin, *self._index_end())
        except _Gap as gap:
            log.warning("%s: %s; all ConsumeQueues are rebuilt from the log", self._files.directory, gap)
            for queue in self._queues.values():
                queue.rewind(0)
            end = self._read(scan_begin, self._files.begin, *self._index_end())
        if end < self._sound_end:
            return self._run_as_after_crash()
        self._files.truncate(end)
        for queue in self._queues.values():
            queue.rewind_to_physical_offset(end)
            queue.finish_rewind()
            queue.raise_min_offset(self._files.begin)
        self._index_again(end)
        return end

    def _queues_are_sound(self, scan_begin: int) -> bool:
        """Tell whether every queue ends with a unit that points at its own record, and none is missing."""
        queues = [queue for queue in self._queues.values() if queue.max_offset > queue.min_offset]
        if not all(queue.is_valid_at(queue.max_offset - 1, self._files) for queue in queues):
            return False
        return self._records == sum([queue.count_at_or_behind(scan_begin) for queue in queues])

    def _run_as_after_crash(self) -> int:
        """The stop was not as clean as it seemed."""
        log.warning("%s: queues and log contradict each other; recovering as after a crash", self._files.directory)
        self.after_crash, self._sound_end = True, 0
        return self._run()

    def _index_again(self, end: int) -> None:
        """Index files can have reached the disk before the log did. Drop those that lead beyond it, and make up for
        the messages before its end that went with them."""
        index = self._index
        if index is not None and index.files and index.end_physical_offset >= end:
            while index.files and index.end_physical_offset >= end:
                index.delete_from(len(index.files) - 1)
            self._read(end, _NEVER, *self._index_end())

    # -- where to begin -----------------------------------------------------------------------------------------------

    def _scan_begin(self) -> int:
        """Return the physical offset from which on the log is believed only as far as it is sound."""
        for file in reversed(self._files.files):
            first = _first_timestamp(file)
            if first is not None and (not self.after_crash or 0 < first <= self._checkpoint.min_timestamp):
                return file.begin
        return self._files.begin

    def _units_begin(self, scan_begin: int) -> int:
        """Drop units that cannot be relied on and return the physical offset from which on units are to be written."""
        queues = self._queues.values()
        if self.after_crash:
            self._vouched_end = max([self._vouched_end_of(queue, scan_begin) for queue in queues], default=0)
            for queue in queues:
                self._rewind(queue, scan_begin)
            begin = max([queue.max_physical_offset for queue in queues], default=-1)
            return scan_begin if begin >= 0 else self._files.begin
        self._vouched_end = begin = max([queue.max_physical_offset for queue in queues], default=-1)
        self._sound_end = end = self._end_of_clean_log(scan_begin)
        for queue in queues:
            queue.rewind_to_physical_offset(end)
        return max(min(begin, end), self._files.begin)

    def _rewind(self, queue: ConsumeQueue, scan_begin: int) -> None:
        """Drop the units that point at `scan_begin` or behind it, and those of which the disk has only a part.

        A unit may lie in two pages. Where only the second came, an address looks as if it lay some times 4 GiB before.
        """
        queue.rewind(queue.first_at_or_behind(scan_begin))
        while queue.max_offset > queue.min_offset:
            last = queue.max_offset - 1
            address = queue.unit(last)[0]
            if address >= self._files.begin:
                is_whole = address >> 32 >= scan_begin >> 32 or queue.is_valid_at(last, self._files)
            else:
                is_whole = last == queue.min_offset or queue.unit(last - 1)[0] < address
            if is_whole:
                return
            queue.rewind(last)
            queue.rewind(queue.first_at_or_behind(scan_begin))

    def _end_of_clean_log(self, scan_begin: int) -> int:
        """Return where the log ends, and count the records that must have units already."""
        self._records = 0
        for item in self._runs(scan_begin):
            if isinstance(item, RecordRun):
                count = int(np.searchsorted(item.positions, self._vouched_end - item.file.begin))
                self._records += int((item.heads["sys_flag"][:count] & sysflag.TRANSACTION_PREPARED == 0).sum())
            else:
                end = item.physical_offset
        return end

    def _vouched_end_of(self, queue: ConsumeQueue, scan_begin: int) -> int:
        """Return where the last record ends that has its unit in a queue and was on disk when the checkpoint was
        written; 0 where that is before the scan."""
        vouched_ms = self._checkpoint.min_timestamp
        for queue_offset in range(queue.max_offset - 1, queue.first_at_or_behind(scan_begin) - 1, -1):
            physical_offset, size, _ = queue.unit(queue_offset)
            if physical_offset >= scan_begin and (file := self._files.find(physical_offset)) is not None:
                # What came after the checkpoint may be much, and most of it says so at once.
                is_old = _store_timestamp(file, physical_offset - file.begin) <= vouched_ms
                if is_old and queue.is_valid_at(queue_offset, self._files):
                    return physical_offset + size
        return 0

    def _index_end(self) -> tuple[int, int]:
        """Drop index files that cannot be relied on; return the offset of the last message that is indexed, and how
        many entries it has."""
        index = self._index
        if index is None:
            return _NEVER, 0
        kept = 0
        if self.after_crash:
            safe = self._checkpoint.index_timestamp
            while kept < len(index.files) and index.files[kept].is_full and index.files[kept].end_timestamp <= safe:
                kept += 1
        else:
            kept = len(index.files)
            while kept and not index.files[kept - 1].has_valid_end():
                kept -= 1
        index.delete_from(kept)
        if not index.files or index.end_physical_offset < self._files.begin:
            return self._files.begin, 0
        last, there = index.end_physical_offset, 0
        for file in reversed(index.files):
            offsets = file.entries()["physical_offset"]
            others = (offsets != last).nonzero()[0]
            there += len(offsets) - (int(others[-1]) + 1 if len(others) else 0)
            if len(others):
                break
        return last, there

    def _forget_everything(self) -> None:
        """A store without a log has no messages. Raises StoreCorrupt where units say that there were some."""
        for queue in self._queues.values():
            if queue.max_offset > queue.min_offset:
                raise StoreCorrupt(
                    self._files.directory,
                    0,
                    f"there is no CommitLog, but {queue.topic}-{queue.queue_id} has {queue.max_offset} messages; is "
                    "its disk missing, or storePathCommitLog set to another place? To begin anew, run `rm -r` on "
                    "consumequeue/ and index/",
                )
            queue.truncate(0)
        if self._index is not None:
            self._index.delete_from(0)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self, scan_begin: int, units_begin: int, index_begin: int, entries_there: int) -> int:
        """Dispatch what is missing and return the end of the log.

        Units are written from `units_begin` on, entries from `index_begin` on, of which the first record has
        `entries_there` already. Before `scan_begin` damage is passed over, from there on it is the end.
        """
        begin = min(units_begin, index_begin)
        self._next_line = min(begin, scan_begin) + _STEP
        if begin < scan_begin:
            # A file before the scan is read from its beginning when its units are, and from a record otherwise.
            self._read_old(begin, scan_begin, units_begin, index_begin, entries_there)
        entries_there = entries_there if index_begin >= scan_begin else 0
        stop = None
        for item in self._runs(max(scan_begin, min(begin, self._sound_end))):
            if isinstance(item, ScanEnd):
                stop = item
                break
            torn = self._dispatch(item, units_begin, index_begin, entries_there, tail=True)
            if torn is not None:
                if torn.physical_offset < self._vouched_end:
                    raise self._lost_way(torn)
                stop = torn
                break
            if item.end > index_begin:
                entries_there = 0
        assert stop is not None
        if stop.damage is not None:
            log.warning("%s ends at %d: %s", self._files.directory, stop.physical_offset, stop.damage)
        return stop.physical_offset

    def _runs(self, begin: int) -> Iterator[RecordRun | ScanEnd]:
        """Scan, passing over bodies that have changed since they were on disk."""
        while True:
            for item in scan(self._files, begin):
                if isinstance(item, ScanEnd):
                    break
                yield item
            assert isinstance(item, ScanEnd)
            if item.damage is None or item.physical_offset >= self._vouched_end:
                yield item
                return
            run = next(scan(self._files, item.physical_offset, check_crc=False))
            if isinstance(run, ScanEnd):
                raise self._lost_way(run)
            log.warning("%s is damaged at %d: %s", self._files.directory, item.physical_offset, item.damage)
            one = RecordRun(run.file, run.positions[:1], run.heads[:1], run.store_timestamps[:1])
            yield one
            begin = one.end

    def _lost_way(self, stop: ScanEnd) -> StoreCorrupt:
        file = self._files.find(stop.physical_offset)
        assert file is not None
        return StoreCorrupt(
            file.path,
            stop.physical_offset - file.begin,
            f"{stop.damage}; this was on disk once, and so were messages behind it, so nothing is cut off here; run "
            "`rucola store check` on the directory, and `rucola store repair` to save what is whole",
        )

    def _read_old(self, begin: int, end: int, units_begin: int, index_begin: int, entries_there: int) -> None:
        """Dispatch from `begin` up to `end`, where a file begins. Nothing is cut here."""
        offset = begin
        while offset < end:
            file = self._files.find(offset)
            assert file is not None
            for item in scan_file(file, offset - file.begin, check_crc=False):
                if isinstance(item, RecordRun):
                    self._dispatch(item, units_begin, index_begin, entries_there, tail=False)
                    if item.end > index_begin:
                        entries_there = 0
                elif item.physical_offset < file.end:
                    if units_begin < end:
                        raise StoreCorrupt(
                            file.path,
                            item.physical_offset - file.begin,
                            f"{item.damage or 'the file ends here'}, but the log goes on in the next file, so the "
                            "ConsumeQueues cannot be rebuilt; run `rucola store check` on the directory",
                        )
                    log.warning("%s is damaged at %d: %s", file.path, item.physical_offset, item.damage)
            offset = file.end

    def _dispatch(
        self, run: RecordRun, units_begin: int, index_begin: int, entries_there: int, *, tail: bool
    ) -> ScanEnd | None:
        """Write what the records of a run lack. Returns a Stop at the first whose queueOffset does not fit."""
        self._say_how_far(run.end)
        units: list[DispatchRequest] = []
        entries: list[DispatchRequest] = []
        stop = None
        expected: dict[tuple[str, int], int] = {}
        begin = run.file.begin
        for position in run.positions.tolist():
            physical_offset = begin + position
            if physical_offset < units_begin and physical_offset < index_begin:
                continue
            try:
                item = read_dispatch_request(run.file.map, position)
            except InvalidMessage as error:
                if not tail:
                    raise StoreCorrupt(run.file.path, position, f"{error}; run `rucola store check`") from error
                stop = ScanEnd(physical_offset, str(error))
                break
            topic, queue_id, queue_offset, _, _, _, sys_flag, *_ = item
            if tail and self.after_crash and _is_torn(run.file, position, item):
                stop = ScanEnd(physical_offset, "the record has zeros where its properties should be")
                break
            if physical_offset >= units_begin and not sys_flag & sysflag.TRANSACTION_PREPARED:
                name = (topic, queue_id)
                if name not in expected:
                    expected[name] = self._expected(name, queue_offset, physical_offset, units_begin)
                if queue_offset == 0 and expected[name] > 0:
                    log.warning("%s-%d starts over; its topic was deleted and made anew", *name)
                    self._dispatcher.add_units(units)
                    units.clear()
                    self._queues[name].rewind(0)
                elif queue_offset != expected[name]:
                    why = f"queueOffset is {queue_offset} where {name[0]}-{name[1]} goes on with {expected[name]}"
                    if not tail:
                        raise StoreCorrupt(run.file.path, position, f"{why}; run `rucola store check` on the directory")
                    stop = ScanEnd(physical_offset, why)
                    break
                expected[name] = queue_offset + 1
                units.append(item)
            if physical_offset >= index_begin:
                entries.append(item)
        self._dispatcher.add_units(units)
        if self._index is not None and entries:
            self._dispatcher.add_entries(entries, entries_there if entries[0][3] == index_begin else 0)
        return stop

    def _say_how_far(self, physical_offset: int) -> None:
        if physical_offset >= self._next_line:
            self._next_line = physical_offset + _STEP
            files = self._files
            log.info("%s: read up to %d; the log ends before %d", files.directory, physical_offset, files.end)

    def _expected(self, name: tuple[str, int], queue_offset: int, physical_offset: int, units_begin: int) -> int:
        """Return the queue offset that the next record of a queue must have."""
        queue = self._queues.get(name)
        max_offset = queue.max_offset if queue is not None else 0
        if units_begin > self._files.begin and queue_offset not in (0, max_offset):
            raise _Gap(f"{name[0]}-{name[1]} ends with {max_offset} where the log goes on with {queue_offset}")
        if queue is not None and queue.files.files:
            return max_offset
        # What came before the first record of the log is gone, so a queue may begin anywhere.
        return queue_offset if self._files.begin > 0 else 0


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage while the block runs: a million records make none, and the looking would take a third of the
    time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _is_torn(file: MappedFile, position: int, item: DispatchRequest) -> bool:
    """Tell whether a part of a record's properties never came. Its CRC ends with the body and does not tell."""
    size, properties = item[4], item[-1]
    if b"\0" not in properties:
        return False
    end = position + size
    sectors = range((end - len(properties)) // _SECTOR * _SECTOR, end, _SECTOR)
    return any(not any(file.map[sector : sector + _SECTOR]) for sector in sectors) or (
        properties.endswith(b"\0") and not any(file.map[end : end + FRAME.size])
    )


def _store_timestamp(file: MappedFile, position: int) -> int:
    """Return what would be the store time of a record that begins there."""
    is_v6 = int.from_bytes(file.map[position + 36 : position + 40], "big") & sysflag.BORN_HOST_V6
    position += 68 if is_v6 else 56
    return int.from_bytes(file.map[position : position + 8], "big", signed=True)


def _first_timestamp(file: MappedFile) -> int | None:
    """Return the store time of the record with which a file begins, or None where none does."""
    for item in scan_file(file, 0, check_crc=False):
        if isinstance(item, RecordRun):
            return int(item.store_timestamps[0])
    return None
