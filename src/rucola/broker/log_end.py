"""Ends of the log that progress needs.

Progress of delivery (delayed, timer and half messages) counts records that the broker has put; without these records it
would skip messages. Therefore each file names the end of the log up to which it needs them:

    config/delayOffset.json       {"offsetTable":{1:40},"logEnd":81920}
    config/timer.json             {"deliveredMs":…,"queueOffset":40,"rolledOffset":0,"logEnd":81920}
    config/consumerOffset.json    {"offsetTable":{…},"logEnd":81920}        for the offsets of CID_RMQ_SYS_TRANS

Files are written after a flush, so progress is ahead of its log only in a copy of a running store, or with a log from a
backup. It is then reset, and messages delivered before are found in the index by their unique key
(`broker.delivery.due_delivery`). It is replaced on disk at once, since the log grows beyond the named end later.

Apache's brokers ignore the field and do not write it. Without it, progress is ahead if it exceeds its queue, or if a
delayed message counts as delivered that was due after the last record of the log.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

LOG_END: Final = "logEnd"


def with_log_end(document: dict[str, Any], log_end: int) -> dict[str, Any]:
    """Add the end of the log that progress needs to its document; 0 adds none."""
    return document | {LOG_END: log_end} if log_end else document


def log_end_of(document: Any) -> int:
    """End of the log that a file of progress needs, 0 if it names none."""
    log_end = document.get(LOG_END) if isinstance(document, dict) else None
    return log_end if type(log_end) is int else 0


def is_ahead(path: Path, needed: int, log_end: int, *, exceeds_queue: bool) -> bool:
    """Return whether progress is ahead of the log and must be reset, which is logged."""
    if needed <= log_end and not exceeds_queue:
        return False
    why = f"needs the log up to {needed}" if needed > log_end else "counts messages that were not delivered"
    logger.warning(
        "%s %s, and the log ends at %d: a newer file than the log, from a copy or a backup? What waits is delivered "
        "again, except what the index has as delivered",
        path, why, log_end,
    )  # fmt: skip
    return True
