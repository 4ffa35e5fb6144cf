"""Ends of the log that progress needs.

What a master delivers itself (delayed, timer and half messages), it notes in files of progress. Their offsets count
records that it has put; without these, they would skip messages. Therefore each file names an end of the log, up to
which it has all of them:

    config/delayOffset.json       {"offsetTable":{1:40},"logEnd":81920}
    config/timer.json             {"deliveredMs":…,"queueOffset":40,"rolledOffset":0,"logEnd":81920}
    config/consumerOffset.json    {"offsetTable":{…},"logEnd":81920}        for the offsets of CID_RMQ_SYS_TRANS

Files are written after a flush, so that no crash leaves progress that is ahead of its log. A copy of a store that was
served meanwhile may, and so may a log from a backup. Such progress begins again: messages that were delivered before
are found in the index by their unique key (`broker.delivery.due_delivery`). It is replaced on disk at once, since the
log grows beyond the named end later.

Apache's brokers ignore the field and do not write it. Without it, progress is ahead only if it exceeds its queue.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

LOG_END: Final = "logEnd"


def with_log_end(document: dict[str, Any], log_end: int) -> dict[str, Any]:
    """Return a file of progress with the end of the log that it needs; 0 adds none."""
    return document | {LOG_END: log_end} if log_end else document


def log_end_of(document: Any) -> int:
    """Return the end of the log that a file of progress needs, 0 if it names none."""
    log_end = document.get(LOG_END) if isinstance(document, dict) else None
    return log_end if type(log_end) is int else 0


def is_ahead(path: Path, needed: int, log_end: int, *, exceeds_queue: bool) -> bool:
    """Return whether progress is ahead of the log, which is logged: it begins again."""
    if needed <= log_end and not exceeds_queue:
        return False
    why = f"needs the log up to {needed}" if needed > log_end else "exceeds its queues"
    logger.warning(
        "%s %s, and the log ends at %d: a newer file than the log, from a copy or a backup? What waits is delivered "
        "again, except what the index has as delivered",
        path, why, log_end,
    )  # fmt: skip
    return True
