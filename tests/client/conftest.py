"""Every test of a client also checks that neither asyncio nor a background task logs an error."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest


class Complaints(logging.Handler):
    """The logged errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {record.getMessage()} {record.exc_info or ''}")


@pytest.fixture(autouse=True)
def no_complaints() -> Iterator[None]:
    """Fail a test that destroys a pending task, never retrieves an exception, or whose background task fails."""
    complaints = Complaints()
    loggers = [logging.getLogger(name) for name in ("asyncio", "rucola.client", "rucola.remoting")]
    for logger in loggers:
        logger.addHandler(complaints)
    yield
    gc.collect(1)  # asyncio logs when tasks are collected; objects of this test are young
    for logger in loggers:
        logger.removeHandler(complaints)
    assert complaints.lines == []
