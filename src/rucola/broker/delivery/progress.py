"""Progress of the messages that a master delivers itself: which of them are delivered.

    kind              module                   progress                                  a slave copies it with
    delay levels      `delivery.delay`         config/delayOffset.json                   GET_ALL_DELAY_OFFSET
    timer messages    `delivery.timer`         config/timer.json                         -
    transactions      `delivery.transactions`  offsets of the group CID_RMQ_SYS_TRANS    GET_ALL_CONSUMER_OFFSET
    POP               `delivery.pop`           records in the CommitLog                  the log

A new kind is a `Delivery` in `delivery.kinds`. Then its progress is loaded at the start, written every 10 s and at the
stop, copied to slaves, and reset if the log is cut off; what waits in the oldest log file is rolled before that is
deleted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from rucola.broker.background.scheduler import in_thread
from rucola.broker.log_end import is_ahead, log_end_of, with_log_end
from rucola.store import config_files

P = TypeVar("P")


class ProgressFile(Generic[P]):
    """Progress in a separate file, which does not exist before there is any."""

    def __init__(
        self, path: Path, start: P, encode: Callable[[P], dict[str, Any]], parse: Callable[[Path | str, Any], P]
    ) -> None:
        self.path = path
        self.parse = parse
        self._start = self._written = start
        self._encode = encode

    def load(
        self,
        log_end: int,
        exceeds_queue: Callable[[P], bool],
        is_early: Callable[[P], bool] = lambda progress: False,
    ) -> P:
        """Return the progress, which is reset if it is ahead of the log. Raises StoreCorrupt and OSError.

        `is_early` judges progress that does not name the end of the log which it needs, as Apache's.
        """
        document = config_files.read_config(self.path)
        stored = self._written = self.parse(self.path, document) if document not in (None, {}) else self._start
        needed = log_end_of(document)
        exceeds = exceeds_queue(stored) or (not needed and is_early(stored))
        if is_ahead(self.path, needed, log_end, exceeds_queue=exceeds):
            stored = self._start
            self.write(stored, 0)
        return stored

    def write(self, progress: P, log_end: int) -> None:
        """Write progress that has changed; durable on return. For any thread. Raises OSError."""
        if progress != self._written:
            needed = 0 if progress == self._start else log_end
            config_files.write_config(self.path, with_log_end(self._encode(progress), needed))
            self._written = progress

    def reset(self) -> None:
        # Overwritten and not deleted: a missing file is read from its .bak.
        if config_files.read_config(self.path) is not None:
            config_files.write_config(self.path, self._encode(self._start))


class Delivery(ABC, Generic[P]):
    """One kind, with progress of type P. Methods must be called in the broker's event loop."""

    name: str
    file: ProgressFile[P] | None
    copied_with: str | None = None
    """The name of the request for the master's progress."""

    @abstractmethod
    def load(self) -> None:
        """Load the progress, or start at 0 if it is ahead of the log. Raises StoreCorrupt and OSError."""

    @abstractmethod
    def progress(self) -> P: ...

    async def persist(self, progress: P, log_end: int) -> None:
        """Write progress that has changed; the log up to `log_end` must be on disk. Raises OSError."""
        assert self.file is not None
        await in_thread(self.file.write, progress, log_end)

    def parse_copy(self, document: Any) -> P | None:
        """Return the progress in the master's response to `copied_with`, if it has any. Raises StoreCorrupt."""
        return None if self.file is None else self.file.parse("the master's response", document)

    @abstractmethod
    def roll_some(self, file_end: int, now_ms: int) -> bool | None:
        """Put some that wait before the physical offset `file_end` again at the end of the log.

        True if none is left, None if unknown, False if a put failed.
        """
