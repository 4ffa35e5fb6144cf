"""Every test of a client also shows that it leaves nothing behind which asyncio, or a background task, complains of."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest


class Complaints(logging.Handler):
    """What was logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {record.getMessage()} {record.exc_info or ''}")


@pytest.fixture(autouse=True)
def no_complaints() -> Iterator[None]:
    """Fails a test after which a task was destroyed, an error was never looked at or background work failed."""
    complaints = Complaints()
    loggers = [logging.getLogger(name) for name in ("asyncio", "rucola.client", "rucola.remoting")]
    for logger in loggers:
        logger.addHandler(complaints)
    yield
    gc.collect(1)  # asyncio complains when it is collected; what this test made is young
    for logger in loggers:
        logger.removeHandler(complaints)
    assert complaints.lines == []
