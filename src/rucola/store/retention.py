"""Retention: deletion of log files, and refusal of messages when the disk is too full.

The oldest file may be deleted once the log has records in a later one. Every cleanResourceInterval (10 s) a round
starts:

    the disk is above                 then
    diskMaxUsedSpaceRatio (75 %)      files are deleted if all their messages are older than fileReservedTime (72
                                      hours); below that only in the hours of deleteWhen ("04", "04;16"), and in the
                                      rounds after a manual deletion
    diskSpaceCleanForciblyRatio (85)  the oldest files are deleted at any age (cleanFileForciblyEnable)
    diskSpaceWarningLevelRatio (90)   messages are refused, too, until a later round finds the disk below it

With deleteOnlyArchived, a file that is not completely archived is never deleted (see `archive_progress`).

`expire` detaches the oldest file and the files of queues and index that point only at deleted records. Then `delete`,
in a thread, removes them, first the log's, durably: a crash never leaves a log whose queues are missing. A held file,
and all that follow it, wait up to destroyMapedFileIntervalForcibly. A round deletes at most ten log files.

Corresponds to `CleanCommitLogService` and `CleanConsumeQueueService` of `DefaultMessageStore` of Apache RocketMQ 4.9.8.
Deliberate differences: the age of a file is the store time of the record after it, not its modification time, which a
copy or a restored backup changes; queues and index follow the log at once, not one round later.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rucola.errors import ConfigError
from rucola.files import sync_directory
from rucola.message.record import peek
from rucola.store.archive_progress import archived_physical_offset, missing_messages
from rucola.store.commit_log import CommitLog
from rucola.store.config import StoreConfig, deletion_hours
from rucola.store.dispatch import ConsumeQueues
from rucola.store.index import Index
from rucola.store.mapped_file import MappedFile

log = logging.getLogger(__name__)

MAX_FILES_A_ROUND: Final = 10
MANUAL_ROUNDS: Final = 20
"""The number of rounds after a manual deletion that delete at any hour."""

_HOUR_MS: Final = 3_600_000
_GIB: Final = 1 << 30


class DiskUsage(NamedTuple):
    """One file system's bytes: `used` of the `total` that users may allocate, as df counts."""

    path: Path
    used: int
    total: int

    @property
    def percent(self) -> int:
        """Per cent in use, rounded up."""
        return -(-100 * self.used // self.total) if self.total > 0 else 0


class Retention:
    """Retention of one open store, for its owner thread; `delete` is for any thread."""

    def __init__(self, config: StoreConfig, commit_log: CommitLog, queues: ConsumeQueues, index: Index | None) -> None:
        """Raises ConfigError for invalid settings."""
        self._config = config
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._hours = deletion_hours(config.delete_when)
        if config.delete_only_archived and config.archive_progress_path is None:
            raise ConfigError(
                "deleteOnlyArchived=true needs archiveProgressPath, the file with the archive's progress: "
                "<lake>/_rucola/progress.json",
                subject="archiveProgressPath",
            )
        self.disks: Sequence[DiskUsage] = (DiskUsage(Path(), 0, 0),) * 2
        """The disks of the CommitLog and of the store directory, as the last round found them."""
        self.refusal: str | None = None
        """Why the disk is too full for messages; None if it is not."""
        self._manual_rounds = 0
        self._may_expire = 0
        self._forced = False
        self._kept: Path | None = None
        self._missing = ""
        """Why the archive lacks messages of the file that is kept; empty if it has not come so far."""
        self._detached: deque[MappedFile] = deque()
        """Files to be deleted, in this order. `expire` appends, `delete` removes; both ends of a deque are atomic."""
        self._detached_ms = 0
        self._delete_lock = threading.Lock()
        self._detached += self._detach_dependents()  # a stop in the middle of a round leaves some

    def begin_round(self, now_ms: int, hour: int, disks: Sequence[DiskUsage]) -> None:
        """Decide what this round may do, given the local hour and the disks' usage."""
        config, self.disks = self._config, disks
        fullest = max(disks, key=lambda disk: disk.percent, default=DiskUsage(Path(), 0, 0))
        percent = fullest.percent
        is_manual = self._manual_rounds > 0
        self._manual_rounds -= is_manual
        needs_space = percent > min(max(config.disk_max_used_space_ratio, 10), 95)
        self._forced = config.clean_file_forcibly_enable and percent > config.disk_space_clean_forcibly_ratio
        is_active = is_manual or needs_space or self._forced or hour in self._hours
        self._may_expire = MAX_FILES_A_ROUND if is_active else 0
        was_refusing = self.refusal is not None
        self.refusal = self._refusal(fullest) if percent > config.disk_space_warning_level_ratio else None
        if self.refusal is not None and not was_refusing:
            log.error("%s", self.refusal)
        elif self.refusal is None and was_refusing:
            log.info("%s is %d %% full; messages are accepted again", fullest.path, percent)

    def request_manual_deletion(self) -> None:
        self._manual_rounds = MANUAL_ROUNDS

    def will_expire(self, now_ms: int) -> bool:
        return not self._detached and self._may_expire > 0 and self._may_expire_oldest(now_ms)

    def expire(self, now_ms: int, *, is_due: bool = True) -> bool:
        """Detach the oldest log file if this round permits it; True if there is a file to `delete`.

        `is_due` False is what `will_expire` has just returned, which can read many files.
        """
        if is_due and self.will_expire(now_ms):
            self._may_expire -= 1
            self._detached_ms = now_ms
            file = self._log.files.detach_first()
            log.info("%s is deleted; the log begins at %d", file.path, self._log.begin)
            self._detached += [file, *self._detach_dependents()]
        if not self._detached:
            return False
        waited_ms = now_ms - self._detached_ms
        return not self._detached[0].is_held or waited_ms >= self._config.destroy_maped_file_interval_forcibly

    def delete(self) -> None:
        """Delete the detached files, oldest first. Raises OSError; the next call retries the same file."""
        with self._delete_lock:
            while self._detached:
                file = self._detached[0]
                file.delete()
                if file.path.parent == self._log.files.directory:
                    sync_directory(file.path.parent)
                self._detached.popleft()

    def _may_expire_oldest(self, now_ms: int) -> bool:
        # The file that is written to stays.
        following = self._log.next_file_begin(self._log.begin)
        if following >= self._log.end:
            return False
        # All its messages are older than the first record of the next file.
        if not self._forced:
            record = self._log.record(following)
            reserved_ms = self._config.file_reserved_time * _HOUR_MS
            if record is None or now_ms - peek(record).store_timestamp < reserved_ms:
                return False
        # The archive, which costs a `stat` per file of the lake, comes last.
        if self._config.delete_only_archived and following > archived_physical_offset(self._config, self._log):
            self._keep("it is not completely archived")
            return False
        if self._config.delete_only_archived:
            missing = missing_messages(self._config, self._log, self._queues, self._log.begin, following)
            if missing is not None:
                self._keep(missing, missing)
                return False
        self._missing = ""
        return True

    def _keep(self, why: str, missing: str = "") -> None:
        if self._kept != (path := self._log.files.files[0].path):
            log.warning("%s is kept: %s (deleteOnlyArchived)", path, why)
        self._kept, self._missing = path, missing

    def _detach_dependents(self) -> list[MappedFile]:
        begin = self._log.begin
        detached: list[MappedFile] = []
        for queue in self._queues.values():
            if len(queue.files.files) > 1:
                queue.raise_min_offset(begin)
                detached += queue.detach_expired()
        return detached + (self._index.detach_before(begin) if self._index is not None else [])

    def _refusal(self, disk: DiskUsage) -> str:
        config = self._config
        reason = (
            f"the disk of {disk.path} is {disk.percent} % full: {disk.used / _GIB:.2f} of {disk.total / _GIB:.2f} GiB. "
            f"Messages are refused above {config.disk_space_warning_level_ratio} % (diskSpaceWarningLevelRatio), and "
            "accepted again when there is space"
        )
        if config.delete_only_archived:
            end = archived_physical_offset(config, self._log)
            reason += (
                f". The log from {self._log.begin} to {self._log.end} is archived up to {end}, and only archived "
                "messages may be deleted (deleteOnlyArchived)"
            )
            if self._missing:
                reason += f". {self._kept} is kept: {self._missing}"
        return reason
