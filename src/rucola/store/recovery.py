"""Recovery: find the log's end when a store opens; dispatch what queues and index lack.

After a clean stop everything was dispatched and flushed. After a crash (`abort` exists) the tail of the log, the
ConsumeQueues and the index can each have lost data. The log decides; the others are rebuilt from it:

1. Choose the scan point: the newest log file whose first record is not younger than the checkpoint's time of the log
   minus three seconds, since the log up to it is on disk. After a clean stop it is the last file.
2. Rewind the queues, after a crash to the file chosen by the checkpoint's time of the queues in the same way, usually
   the scan point, after a clean stop to the end of the log. Their units stay in the files until the log confirms them,
   so that intact queues are not written to. After a crash, rewind the first index file that the checkpoint does not
   cover to the scan point, and delete later ones; delete it, too, if it lacks messages at its start. The end of the
   last one that stays shows how many keys of its message it has.
3. Read the log from the earlier of the two ends and write the missing units and entries. The first invalid record is
   the end of the log: zeros, damage, or a queueOffset that does not follow the last one of its queue. The CRC covers
   the body only, so a record is also torn if its properties contain a sector of zeros, or end in zeros with nothing
   after them. Erase everything after the end, so that no old record reappears when the log grows over it.
4. If the end of a queue does not match the log (a deleted directory, units before the scan point that were lost in the
   crash), or a file in the middle of a queue is missing, rebuild all queues from the first record of the log. Set the
   checkpoint's time of the queues to 0, and advance it with each log file: an interrupted rebuild goes on from there,
   and takes no queue for complete that is not.

For example, a crash with log files at 0, 1000 and 2000 (of 1,000 bytes), a checkpoint at 12:00:05, and first records
from 12:00:00, 12:00:01 and 12:00:04:

    scan from          1000      the first record at 2000 is later than 12:00:02
    queues             rewound to the first unit that points at 1000 or after it
    index              rewound to 1000; the disk did not get entries from the record at 900 on
    read from          900       entries from 900 on, units from 1000 on
    end of the log     2400      zeros; units and entries of records after 2400 are dropped

A stop is clean only if each queue ends with a unit that points at its record, and all queues together have as many
units as the last file has records for them. A deleted queue without a message there is found by `check` only.

Damage before the scan point is left for `check` to report. In the scan, damage is a torn tail only after the last
record that was certainly on disk: after a clean stop the last one with a unit, after a crash the last one whose unit
the checkpoint covers. Before that a changed body is skipped, and if the way to the next record is lost, opening raises
StoreCorrupt: nothing durable is cut off.

An interrupted recovery starts again, since `abort` still exists, and does not write units and entries again that it
finds, only the slots of the index. It scans what the checkpoint does not cover, usually one log file, at about a
gigabyte a second.

Corresponds to `CommitLog.recoverNormally`, `CommitLog.recoverAbnormally` and `ConsumeQueue.recover` of Apache RocketMQ
4.9.8. Deliberate differences: Apache rebuilds only from the checkpoint's file on, loses the last index file for good,
and leaves what it cuts off on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message import sysflag
from rucola.message.record import FRAME, MIN_RECORD_SIZE, Peek, peek
from rucola.store.checkpoint import Checkpoint
from rucola.store.consume_queue import (
    UNIT_SIZE,
    ConsumeQueue,
    check_queue_name,
    flush_queues,
    queue_offset_mismatch,
    sync_names,
)
from rucola.store.dispatch import CommitLogDispatcher, ConsumeQueues, index_keys, read_run
from rucola.store.dispatch_request import (
    DispatchRequest,
    dispatch_requests,
    read_dispatch_request,
    read_requests,
)
from rucola.store.index import Index, IndexFile
from rucola.store.mapped_file import MappedFile, MappedFileQueue, file_name
from rucola.store.multi_dispatch import MULTI_DISPATCH_NAME, MultiDispatch
from rucola.store.scan import RecordRun, ScanEnd, scan, scan_file
from rucola.system_calls import EXHAUSTED

log = logging.getLogger(__name__)

_SECTOR: Final = 512
"""The bytes that a disk writes atomically."""

_NEVER: Final = 1 << 63

_STEP: Final = 256 << 20
_UNITS_PER_CHECK: Final = 1 << 12
_MAX_UNITS: Final = 1 << 18


class _QueueGap(Exception):
    """The end of a queue does not match its first record in the scan."""


class Recovery:
    """The recovery of one store, in the owner's thread before anything else uses the files."""

    def __init__(
        self,
        files: MappedFileQueue,
        dispatcher: CommitLogDispatcher,
        checkpoint: Checkpoint,
        multi_dispatch: MultiDispatch,
        on_progress: Callable[[int, int], None],
        *,
        after_crash: bool,
    ) -> None:
        self._on_progress = on_progress
        self._files = files
        self._multi_dispatch = multi_dispatch
        self._dispatcher = dispatcher
        self._queues: ConsumeQueues = dispatcher.queues
        self._index: Index | None = dispatcher.index
        self._checkpoint = checkpoint
        self.after_crash = after_crash
        """Whether flushed data may be missing. `run` sets it if a stop turns out not to have been clean."""
        self._valid_end = 0
        """The end of the log that needs no scan; 0 after a crash."""
        self._durable_end = 0
        """The physical offset up to which the log was on disk once: damage before it is no torn tail."""
        self._expected_units = 0
        self._next_progress = 0
        self._units: dict[tuple[str, int], tuple[int, bytearray]] = {}
        """Units that `_dispatch_at_once` has not written yet: the queue offset of the first, and their bytes."""
        self._unit_count = 0

    def run(self) -> int:
        """Recover and return the log's end. Raises StoreCorrupt, and OSError if the disk is full."""
        if not self._files.files:
            self._reset_empty_store()
            return 0
        # The killed process may not have flushed the directory entries of its new files.
        if self.after_crash:
            self._files.files[-1].mark_name_unsynced()
            sync_names(self._queues.directory)
        scan_begin = self._scan_begin()
        units_begin = self._units_begin(scan_begin)
        if not self.after_crash and not self._queues_are_valid(scan_begin):
            return self._run_as_after_crash()
        try:
            self._check_gaps()
            end = self._read(scan_begin, units_begin, *self._index_end(scan_begin))
        except _QueueGap as gap:
            log.warning("%s: %s; all ConsumeQueues are rebuilt from the log", self._files.directory, gap)
            for queue in self._queues.values():
                queue.rewind(0)
            self._checkpoint.logics_timestamp = 0
            end = self._read(scan_begin, self._files.begin, *self._index_end(scan_begin))
        if end < self._valid_end:
            return self._run_as_after_crash()
        self._files.truncate(end)
        for queue in self._queues.values():
            queue.rewind_to_physical_offset(end)
            queue.finish_rewind()
            queue.raise_min_offset(self._files.begin)
        self._truncate_index(end)
        return end

    def _check_gaps(self) -> None:
        for queue in self._queues.values():
            if queue.gap is not None:
                raise _QueueGap(f"{queue.files.directory} lacks the file {file_name(queue.gap)}")

    def _queues_are_valid(self, scan_begin: int) -> bool:
        queues = [queue for queue in self._queues.values() if queue.max_offset > queue.min_offset]
        if not all(queue.is_valid_at(queue.max_offset - 1, self._files) for queue in queues):
            return False
        return self._expected_units == sum([queue.count_at_or_after(scan_begin) for queue in queues])

    def _run_as_after_crash(self) -> int:
        log.warning("%s: queues and log contradict each other; recovering as after a crash", self._files.directory)
        self.after_crash, self._valid_end = True, 0
        return self.run()

    def _truncate_index(self, end: int) -> None:
        """Delete index files with entries from `end` on, and index their earlier messages again."""
        index = self._index
        if index is not None and index.files and index.end_physical_offset >= end:
            while index.files and index.end_physical_offset >= end:
                index.delete_from(len(index.files) - 1)
            self._read(end, _NEVER, *self._index_end(end))

    # -- where to begin -----------------------------------------------------------------------------------------------

    def _scan_begin(self) -> int:
        return self._last_file(self._checkpoint.log_timestamp if self.after_crash else None)

    def _last_file(self, until_ms: int | None) -> int:
        """Return the start of the last file whose first record was stored by a time, or of the last with a record."""
        for file in reversed(self._files.files):
            first = _first_timestamp(file)
            if first is not None and (until_ms is None or 0 < first <= until_ms):
                return file.begin
        return self._files.begin

    def _units_begin(self, scan_begin: int) -> int:
        queues = self._queues.values()
        if self.after_crash:
            self._durable_end = max([self._durable_end_of(queue, scan_begin) for queue in queues], default=0)
            begin = self._last_file(self._checkpoint.queues_timestamp)
            for queue in queues:
                self._rewind(queue, begin)
            if max([queue.max_physical_offset for queue in queues], default=-1) >= 0:
                return begin
            self._checkpoint.logics_timestamp = 0
            return self._files.begin
        self._durable_end = begin = max([queue.max_physical_offset for queue in queues], default=-1)
        self._valid_end = end = self._end_of_clean_log(scan_begin)
        for queue in queues:
            queue.rewind_to_physical_offset(end)
        return max(min(begin, end), self._files.begin)

    def _rewind(self, queue: ConsumeQueue, begin: int) -> None:
        """Rewind past torn units: with only its second page on disk, 0x1_2345_6789 reads 0x2345_6789."""
        queue.rewind(queue.first_at_or_after(begin))
        while queue.max_offset > queue.min_offset:
            last = queue.max_offset - 1
            physical_offset = queue.unit(last)[0]
            if physical_offset >= self._files.begin:
                is_whole = physical_offset >> 32 >= begin >> 32 or queue.is_valid_at(last, self._files)
            else:
                is_whole = last == queue.min_offset or queue.unit(last - 1)[0] < physical_offset
            if is_whole:
                return
            queue.rewind(last)
            queue.rewind(queue.first_at_or_after(begin))

    def _end_of_clean_log(self, scan_begin: int) -> int:
        """Return the log's end after a clean stop, and count records that must have units."""
        self._expected_units = 0
        for item in self._runs(scan_begin):
            if isinstance(item, RecordRun):
                count = int(np.searchsorted(item.positions, self._durable_end - item.file.begin))
                self._expected_units += int((item.heads["sys_flag"][:count] & sysflag.TRANSACTION_PREPARED == 0).sum())
                self._expected_units += self._count_further_units(item, count)
            else:
                end = item.physical_offset
        return end

    def _count_further_units(self, run: RecordRun, count: int) -> int:
        if self._multi_dispatch is MultiDispatch.OFF or not count:
            return 0
        # Searching the bytes for the name finds the few records to look at.
        found, positions, mapped = 0, run.positions[:count], run.file.map
        end = int(positions[-1]) + int(run.heads["size"][count - 1])
        at = mapped.find(MULTI_DISPATCH_NAME, int(positions[0]), end)
        while at >= 0:
            number = int(np.searchsorted(positions, at, "right")) - 1
            position = int(positions[number])
            with suppress(InvalidMessage):
                requests = dispatch_requests(read_dispatch_request(mapped, position), self._multi_dispatch)
                found += 0 if requests[0].sys_flag & sysflag.TRANSACTION_PREPARED else len(requests) - 1
            at = mapped.find(MULTI_DISPATCH_NAME, position + int(run.heads["size"][number]), end)
        return found

    def _durable_end_of(self, queue: ConsumeQueue, scan_begin: int) -> int:
        end, first = queue.max_offset, queue.first_at_or_after(scan_begin)
        while end > first:
            begin = max(end - _UNITS_PER_CHECK, first)
            units = queue.units(begin, end)
            # Most records after the checkpoint are ruled out by their store time, without a full check.
            for number in np.flatnonzero(self._are_covered(units["physical_offset"], scan_begin))[::-1].tolist():
                if queue.is_valid_at(begin + number, self._files):
                    physical_offset, size, _ = units[number].tolist()
                    return int(physical_offset + size)
            end = begin
        return 0

    def _are_covered(self, offsets: npt.NDArray[np.int64], scan_begin: int) -> npt.NDArray[np.bool_]:
        """Return which records from `scan_begin` on have store times that the checkpoint covers; shape (n,)."""
        covered = np.zeros(len(offsets), np.bool_)
        files = self._files
        for file in files.files[(scan_begin - files.begin) // files.file_size :]:
            inside = (offsets >= max(file.begin, scan_begin)) & (offsets <= file.end - MIN_RECORD_SIZE)
            if inside.any():
                # Overlapping numbers, one from each byte.
                at = offsets[inside].astype(np.int64) - file.begin
                flags = np.ndarray((file.size - 3,), ">i4", file.map, strides=(1,))[at + 36]
                times = np.ndarray((file.size - 7,), ">i8", file.map, strides=(1,))
                own = times[at + np.where(flags & sysflag.BORN_HOST_V6, 68, 56)]
                covered[inside] = own <= self._checkpoint.log_timestamp
        return covered

    def _index_end(self, scan_begin: int) -> tuple[int, int]:
        """Return the physical offset from which on the index lacks entries, and how many of that record it has."""
        index = self._index
        if index is None:
            return _NEVER, 0
        kept = 0
        if self.after_crash:
            while kept < len(index.files) and self._is_covered(index.files, kept):
                kept += 1
            while kept < len(index.files) and self._rewind_index(kept, scan_begin):
                kept += 1
                if not index.files[kept - 1].is_full:
                    break
        else:
            kept = len(index.files)
            while kept and not index.files[kept - 1].has_valid_end():
                kept -= 1
        index.delete_from(kept)
        if not index.files or index.end_physical_offset < self._files.begin:
            return self._files.begin, 0
        # Entries of the last record may span two files.
        last, count = index.end_physical_offset, 0
        for file in reversed(index.files):
            count += (own := file.count_at_end(last))
            if own < file.count - 1:
                break
        return last, count

    def _is_covered(self, files: list[IndexFile], number: int) -> bool:
        # A truncated file counts more entries than it has. With the clock set back, a file that was not flushed may end
        # before the flushed one.
        file, before = files[number], files[max(number - 1, 0)]
        is_in_order = before.end_timestamp <= file.end_timestamp <= self._checkpoint.index_timestamp
        return file.count == file.max_count and is_in_order

    def _rewind_index(self, number: int, scan_begin: int) -> bool:
        """Keep what is certain in a file that may not be on disk as a whole; False if it has to be deleted."""
        files = self._dispatcher.index.files if self._dispatcher.index is not None else []
        file, begin = files[number], self._files.begin
        if number and (last := self._record_at(files[number - 1].end_physical_offset)) is not None:
            begin = last.physical_offset + last.size
        # Apache deletes such a file after a crash, and begins the next one with the messages that it scans.
        if file.count > file.max_count or self._has_keys(begin, file.begin_physical_offset):
            return False
        try:
            return file.rewind(scan_begin, self._time_at)
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            log.warning("%s is deleted, and its entries are written again: %s", file.file.path, error)
            return False

    def _has_keys(self, begin: int, end: int) -> bool:
        """Return whether a record between the starts of two records has keys, or may have."""
        self._next_progress = begin + _STEP
        for item in scan(self._files, begin, check_crc=False) if begin < end else ():
            if isinstance(item, ScanEnd):
                return True
            self._log_progress(item.end)
            first = item.file.begin
            requests = read_requests(item.file.map, int(item.positions[0]), min(item.end, end) - first)
            if len(requests) < int(np.searchsorted(item.positions, end - first)) or any(map(index_keys, requests)):
                return True
            if item.end >= end:
                break
        return False

    def _time_at(self, physical_offset: int) -> int:
        record = self._record_at(physical_offset)
        return -1 if record is None else record.store_timestamp

    def _record_at(self, physical_offset: int) -> Peek | None:
        if (file := self._files.find(physical_offset)) is not None:
            with suppress(InvalidMessage):
                record = peek(file.map, physical_offset - file.begin)
                return record if record.physical_offset == physical_offset else None
        return None

    def _reset_empty_store(self) -> None:
        """Empty queues and index; raises StoreCorrupt if units contradict an empty log."""
        for queue in self._queues.values():
            if queue.max_offset > queue.min_offset:
                raise StoreCorrupt(
                    self._files.directory,
                    0,
                    f"there is no CommitLog, but {queue.topic}-{queue.queue_id} has {queue.max_offset} messages; is "
                    "its disk missing, is storePathCommitLog wrong, or is the log one of DLedger, elsewhere? To start "
                    "with an empty store, move consumequeue/ and index/ away",
                )
            queue.truncate(0)
        if self._index is not None:
            self._index.delete_from(0)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self, scan_begin: int, units_begin: int, index_begin: int, entries_there: int) -> int:
        """Dispatch what is missing and return the log's end; skips damage before `scan_begin`."""
        begin = min(units_begin, index_begin)
        self._next_progress = min(begin, scan_begin) + _STEP
        if begin < scan_begin:
            self._read_old_files(begin, scan_begin, units_begin, index_begin, entries_there)
        for item in self._runs(max(scan_begin, min(begin, self._valid_end))):
            if isinstance(item, ScanEnd):
                end = item
                break
            torn = self._dispatch(item, units_begin, index_begin, entries_there, tail=True)
            if torn is not None:
                if torn.physical_offset < self._durable_end:
                    raise self._damaged_durable(torn)
                end = torn
                break
        self._write_units()
        if end.damage is not None:
            log.warning("%s ends at %d: %s", self._files.directory, end.physical_offset, end.damage)
        return end.physical_offset

    def _runs(self, begin: int) -> Iterator[RecordRun | ScanEnd]:
        while True:
            for item in scan(self._files, begin):
                if isinstance(item, ScanEnd):
                    break
                yield item
            assert isinstance(item, ScanEnd)
            if item.damage is None or item.physical_offset >= self._durable_end:
                yield item
                return
            # Damage to a durable record: if only its CRC is wrong, its sizes lead to the next record.
            run = next(scan(self._files, item.physical_offset, check_crc=False))
            if isinstance(run, ScanEnd):
                raise self._damaged_durable(run)
            log.warning("%s is damaged at %d: %s", self._files.directory, item.physical_offset, item.damage)
            damaged = RecordRun(run.file, run.positions[:1], run.heads[:1], run.store_timestamps[:1])
            yield damaged
            begin = damaged.end

    def _damaged_durable(self, end: ScanEnd) -> StoreCorrupt:
        file = self._files.find(end.physical_offset)
        assert file is not None
        return StoreCorrupt(
            file.path,
            end.physical_offset - file.begin,
            f"{end.damage}; this record and some after it were on disk once, so the log is not cut off here; run "
            "`rucola store check` on the directory, and `rucola store repair` to save all intact messages",
        )

    def _read_old_files(self, begin: int, end: int, units_begin: int, index_begin: int, entries_there: int) -> None:
        # What is written from here on reaches the disk in any order: the checkpoint must not cover it yet.
        self._enter_in_checkpoint(0)
        offset, stored_ms = begin, 0
        while offset < end:
            file = self._files.find(offset)
            assert file is not None
            for item in scan_file(file, offset - file.begin, check_crc=False):
                if isinstance(item, RecordRun):
                    self._dispatch(item, units_begin, index_begin, entries_there, tail=False)
                    stored_ms = int(item.store_timestamps[-1])
                elif item.physical_offset < file.end:
                    if units_begin < end:
                        raise StoreCorrupt(
                            file.path,
                            item.physical_offset - file.begin,
                            f"{item.damage or 'the file ends here'}, but the log continues in the next file, so the "
                            "ConsumeQueues cannot be rebuilt; run `rucola store check` on the directory",
                        )
                    log.warning("%s is damaged at %d: %s", file.path, item.physical_offset, item.damage)
            offset = file.end
            self._enter_in_checkpoint(stored_ms if units_begin < offset else 0)

    def _enter_in_checkpoint(self, stored_ms: int) -> None:
        """Make all units and index entries durable, then the checkpoint: the queues have what was stored by then."""
        self._write_units()
        flush_queues([*self._queues.values()], beside_others=False)
        if self._index is not None:
            self._index.flush_entries()
            self._checkpoint.index_timestamp = self._index.flushed_timestamp
        self._checkpoint.logics_timestamp = stored_ms or self._checkpoint.logics_timestamp
        self._checkpoint.write()

    def _dispatch(
        self, run: RecordRun, units_begin: int, index_begin: int, entries_there: int, *, tail: bool
    ) -> ScanEnd | None:
        """Write missing units and entries; damage ends the log in its `tail`, elsewhere it raises StoreCorrupt."""
        self._log_progress(run.end)
        if self._dispatch_at_once(run, units_begin, index_begin, entries_there):
            return None
        self._write_units()
        units: list[DispatchRequest] = []
        entries: list[DispatchRequest] = []
        expected: dict[tuple[str, int], int] = {}
        end, begin, mapped = None, run.file.begin, run.file.map
        first = int(np.searchsorted(run.positions, min(units_begin, index_begin) - begin))
        positions = run.positions[first:].tolist()
        requests = iter(read_requests(mapped, positions[0], run.end - begin) if positions else ())
        for position in positions:
            physical_offset = begin + position
            # Check what the scan does not: the queue's name, torn properties, the queue offset.
            damage = None
            try:
                request = next(requests, None) or read_dispatch_request(mapped, position)
                others = dispatch_requests(request, self._multi_dispatch)[1:]
            except InvalidMessage as error:
                damage = str(error)
            else:
                if tail and self.after_crash and _is_torn(run.file, position, request):
                    damage = "the record has zeros in place of its properties"
                elif physical_offset >= units_begin and not request.sys_flag & sysflag.TRANSACTION_PREPARED:
                    damage = self._continue_queue(request, units, expected, units_begin)
                    if damage is None:
                        self._continue_further_queues(others, units, expected, units_begin)
            if damage is not None:
                if not tail:
                    raise StoreCorrupt(run.file.path, position, f"{damage}; run `rucola store check` on the directory")
                end = ScanEnd(physical_offset, damage)
                break
            if physical_offset >= index_begin:
                entries.append(request)
        # The index may have a part of the first record's entries.
        self._dispatcher.add_units(units, set())
        if self._index is not None and entries:
            # An index of Apache's may have the last message twice.
            skip = min(entries_there, len(index_keys(entries[0])))
            self._dispatcher.add_entries(entries, skip if entries[0].physical_offset == index_begin else 0)
        return end

    def _dispatch_at_once(self, run: RecordRun, units_begin: int, index_begin: int, entries_there: int) -> bool:
        """Dispatch a whole run of usual records that continue their queues; False, before anything, for another one."""
        begin = run.file.begin
        first, last = begin + int(run.positions[0]), begin + int(run.positions[-1])
        if first < units_begin <= last or first < index_begin <= last:
            return False
        found = read_run(run.file.map, first - begin, run.end - begin)
        if found is None:
            return False
        units, (hashes, physical_offsets, timestamps) = found
        if first >= units_begin:
            if not all(self._continues(name, queue_offset) for name, (queue_offset, _) in units.items()):
                return False
            for name, (queue_offset, data) in units.items():
                self._units.setdefault(name, (queue_offset, bytearray()))[1].extend(data)
            self._unit_count += len(run.positions)
            if self._unit_count >= _MAX_UNITS:
                self._write_units()
        if self._index is not None and first >= index_begin:
            own = int(np.searchsorted(physical_offsets, first, "right"))
            skip = min(entries_there, own) if first == index_begin else 0
            self._index.put_many(hashes[skip:], physical_offsets[skip:], timestamps[skip:])
        return True

    def _write_units(self) -> None:
        """Write the units of earlier runs, together: in a run, each of many queues has few."""
        units, self._units, self._unit_count = self._units, {}, 0
        for name, (queue_offset, data) in units.items():
            self._queues[name].append(queue_offset, bytes(data))

    def _continues(self, name: tuple[str, int], queue_offset: int) -> bool:
        if (units := self._units.get(name)) is not None:
            return queue_offset == units[0] + len(units[1]) // UNIT_SIZE
        queue = self._queues.get(name)
        return queue_offset == (queue.max_offset if queue is not None and queue.files.files else 0)

    def _continue_queue(
        self,
        request: DispatchRequest,
        units: list[DispatchRequest],
        expected: dict[tuple[str, int], int],
        units_begin: int,
    ) -> str | None:
        """Append a record to `units` if it continues its queue; otherwise return why not."""
        name, queue_offset = (request.topic, request.queue_id), request.queue_offset
        if name not in expected:
            expected[name] = self._expected_offset(name, queue_offset, units_begin)
        if queue_offset == 0 and expected[name] > 0:
            log.warning("%s-%d starts at 0 again; its topic was deleted and created again", *name)
            self._dispatcher.add_units(units, set())
            units.clear()
            self._queues[name].rewind(0)
        elif queue_offset != expected[name]:
            return queue_offset_mismatch(*name, queue_offset, expected[name])
        expected[name] = queue_offset + 1
        units.append(request)
        return None

    def _continue_further_queues(
        self,
        requests: list[DispatchRequest],
        units: list[DispatchRequest],
        expected: dict[tuple[str, int], int],
        units_begin: int,
    ) -> None:
        """Append requests that continue their queues; the others do not end the log, since the record is valid."""
        for request in requests:
            why = None
            try:
                check_queue_name(request.topic, request.queue_id)
                why = self._continue_queue(request, units, expected, units_begin)
            except InvalidMessage as error:
                why = str(error)
            if why is not None:
                log.warning("%s: the record at %d: %s", self._files.directory, request.physical_offset, why)

    def _expected_offset(self, name: tuple[str, int], queue_offset: int, units_begin: int) -> int:
        """Return the next queue offset. Raises _QueueGap if units before `units_begin` are lost."""
        queue = self._queues.get(name)
        max_offset = queue.max_offset if queue is not None else 0
        # Queue offset 0 is no gap: the topic was created again (see `_continue_queue`).
        if units_begin > self._files.begin and queue_offset not in (0, max_offset):
            raise _QueueGap(f"{name[0]}-{name[1]} ends at {max_offset}, but the log continues with {queue_offset}")
        if queue is not None and queue.files.files:
            return max_offset
        # If the first records of the log are deleted, a queue may start at any offset.
        return queue_offset if self._files.begin > 0 else 0

    def _log_progress(self, physical_offset: int) -> None:
        self._on_progress(physical_offset, self._files.end)
        if physical_offset >= self._next_progress:
            self._next_progress = physical_offset + _STEP
            files = self._files
            log.info("%s: read up to %d; the log ends before %d", files.directory, physical_offset, files.end)


def _is_torn(file: MappedFile, position: int, request: DispatchRequest) -> bool:
    """Return whether a part of the properties was never written, which the CRC does not cover."""
    size, properties = request.size, request.properties
    if b"\0" not in properties:
        return False
    # A whole sector of zeros, or zeros up to the end with no record after them.
    end = position + size
    sectors = range((end - len(properties)) // _SECTOR * _SECTOR, end, _SECTOR)
    return any(not any(file.map[sector : sector + _SECTOR]) for sector in sectors) or (
        properties.endswith(b"\0") and not any(file.map[end : end + FRAME.size])
    )


def _first_timestamp(file: MappedFile) -> int | None:
    for item in scan_file(file, 0, check_crc=False):
        if isinstance(item, RecordRun):
            return int(item.store_timestamps[0])
    return None
