"""Retention: which files go, when and why, and when the disk is too full for more.

The oldest file of the log may go as soon as records lie behind it. Every cleanResourceInterval (10 s) a round begins:

    the disk is above                 then
    diskMaxUsedSpaceRatio (75 %)      files go whose messages are all older than fileReservedTime (72 hours); with less
                                      than that on the disk, only in the hours of deleteWhen ("04", "04;16") and in
                                      the rounds after a deletion by hand
    diskSpaceCleanForciblyRatio (85)  the oldest files go whatever their age (cleanFileForciblyEnable)
    diskSpaceWarningLevelRatio (90)   messages are refused too, until a later round finds the disk below it

With deleteOnlyArchived no file goes that the archive does not have whole, for whatever reason (see `archived`).

A file goes in two steps, so that nobody waits for the disk. `expire` takes the oldest file out of the log, and with it
the files of queues and index that lead only to what is gone; from then on none of it can be read. `delete` then removes
them, the log's first and made durable: a crash between leaves queues that begin before the log does, which is sound,
and never a log that its queues have forgotten. A file that is held waits for destroyMapedFileIntervalForcibly, and
all that follow wait behind it. A round ends with the tenth file of the log.

The disk's figures, the time and the hour are told; this asks nobody.

Answers to DefaultMessageStore.{CleanCommitLogService, CleanConsumeQueueService} of org.apache.rocketmq.store.
Deliberate differences: a file's age is the store time of the record behind it, not the file's modification time, which
a copy or a restored backup changes; queues and index follow the log at once, not a round later.
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
from rucola.store.archive_progress import archived_physical_offset
from rucola.store.commit_log import CommitLog
from rucola.store.config import StoreConfig
from rucola.store.dispatch import ConsumeQueues
from rucola.store.index import Index
from rucola.store.mapped_file import MappedFile

log = logging.getLogger(__name__)

MAX_FILES_A_ROUND: Final = 10
ROUNDS_BY_HAND: Final = 20
"""So many rounds delete at any hour after a deletion by hand."""

_HOUR_MS: Final = 3_600_000
_GIB: Final = 1 << 30


class DiskUsage(NamedTuple):
    """How full the file system of a path is, in bytes: `used` of the `total` that users may have, as df counts."""

    path: Path
    used: int
    total: int

    @property
    def percent(self) -> int:
        """Per cent in use, rounded up."""
        return -(-100 * self.used // self.total) if self.total > 0 else 0


class Retention:
    """Retention of one open store. `delete` is for any thread; all else belongs to the store's owner."""

    def __init__(self, config: StoreConfig, commit_log: CommitLog, queues: ConsumeQueues, index: Index | None) -> None:
        """Raises ConfigError for settings that cannot be understood."""
        self._config = config
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._hours = _hours(config.delete_when)
        if config.delete_only_archived and config.archive_progress_path is None:
            raise ConfigError(
                "deleteOnlyArchived=true needs archiveProgressPath, the file in which the archive says how far it is: "
                "<lake>/_rucola/progress.json"
            )
        self.refusal: str | None = None
        """Why the disk is too full for messages; None while it is not."""
        self._rounds_by_hand = 0
        self._may_expire = 0
        self._forced = False
        self._doomed: deque[MappedFile] = deque()
        self._doomed_ms = 0
        self._deleting = threading.Lock()
        self._doomed += self._followers()  # what a stop in the middle of a round left behind

    def begin_round(self, now_ms: int, hour: int, disks: Sequence[DiskUsage]) -> None:
        """Decide what this round may do, given the local hour and the figures of every file system of the store."""
        config = self._config
        fullest = max(disks, key=lambda disk: disk.percent, default=DiskUsage(Path(), 0, 0))
        percent = fullest.percent
        by_hand = self._rounds_by_hand > 0
        self._rounds_by_hand -= by_hand
        needs_space = percent > min(max(config.disk_max_used_space_ratio, 10), 95)
        self._forced = config.clean_file_forcibly_enable and percent > config.disk_space_clean_forcibly_ratio
        works = by_hand or needs_space or self._forced or hour in self._hours
        self._may_expire = MAX_FILES_A_ROUND if works else 0
        was_refusing = self.refusal is not None
        self.refusal = self._refusal(fullest) if percent > config.disk_space_warning_level_ratio else None
        if self.refusal is not None and not was_refusing:
            log.error("%s", self.refusal)
        elif self.refusal is None and was_refusing:
            log.info("%s is %d %% full; messages are taken again", fullest.path, percent)

    def request_manual_deletion(self) -> None:
        """Let files that are old enough go in the next rounds, whatever the hour."""
        self._rounds_by_hand = ROUNDS_BY_HAND

    def expire(self, now_ms: int) -> bool:
        """Take the oldest file out of the log if this round lets it go. Tell whether there is something to `delete`."""
        if not self._doomed and self._may_expire and self._oldest_may_go(now_ms):
            self._may_expire -= 1
            self._doomed_ms = now_ms
            file = self._log.files.detach_first()
            log.info("%s goes: the log begins at %d", file.path, self._log.begin)
            self._doomed += [file, *self._followers()]
        if not self._doomed:
            return False
        waits_since_ms = now_ms - self._doomed_ms
        return not self._doomed[0].is_held or waits_since_ms >= self._config.destroy_maped_file_interval_forcibly

    def delete(self) -> None:
        """Remove what `expire` took out, oldest first. Raises OSError; then the next call goes on where this ended."""
        with self._deleting:
            while self._doomed:
                file = self._doomed[0]
                file.delete()
                if file.path.parent == self._log.files.directory:
                    sync_directory(file.path.parent)
                self._doomed.popleft()

    def _oldest_may_go(self, now_ms: int) -> bool:
        following = self._log.next_file_begin(self._log.begin)
        if following >= self._log.end:
            return False
        if not self._forced:
            record = self._log.record(following)
            reserved_ms = self._config.file_reserved_time * _HOUR_MS
            if record is None or now_ms - peek(record).store_timestamp < reserved_ms:
                return False
        if self._config.delete_only_archived and following > archived_physical_offset(self._config, self._log):
            log.warning("%s stays: it is not archived whole (deleteOnlyArchived)", self._log.files.files[0].path)
            return False
        return True

    def _followers(self) -> list[MappedFile]:
        """Take out the files of queues and index that lead only to what the log does not have any more."""
        begin = self._log.begin
        taken: list[MappedFile] = []
        for queue in self._queues.values():
            if len(queue.files.files) > 1:
                queue.raise_min_offset(begin)
                taken += queue.detach_expired()
        return taken + (self._index.detach_before(begin) if self._index is not None else [])

    def _refusal(self, disk: DiskUsage) -> str:
        config = self._config
        words = (
            f"the disk of {disk.path} is {disk.percent} % full: {disk.used / _GIB:.2f} of {disk.total / _GIB:.2f} GiB. "
            f"Messages are refused above {config.disk_space_warning_level_ratio} % (diskSpaceWarningLevelRatio), and "
            "taken again when there is space"
        )
        if config.delete_only_archived:
            words += (
                f". The log from {self._log.begin} to {self._log.end} is archived up to "
                f"{archived_physical_offset(config, self._log)}, and only what is archived may be deleted (deleteOnlyArchived)"
            )
        return words


def _hours(when: str) -> frozenset[int]:
    """Return the hours of deleteWhen, such as "04" or "04;16"; an hour that no day has, such as 99, says never."""
    try:
        hours = frozenset(int(hour) for hour in when.split(";") if hour.strip())
    except ValueError:
        hours = frozenset({-1})
    if not hours or min(hours) < 0:
        raise ConfigError(f'deleteWhen={when}: expected hours from 00 to 23, such as "04" or "04;16"')
    return hours
