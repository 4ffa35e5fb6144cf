"""Progress reports of a job, sent from a background thread while the job blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from rucola.spark.session import LazySession

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Called with (done, total); both count the same unit, such as messages or tasks."""

INTERVAL_S: Final = 0.3


@contextmanager
def call_periodically(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` every `INTERVAL_S` seconds in a thread during the block; its exception ends only the calls."""
    ended = threading.Event()

    def watch() -> None:
        # Event.wait is both the timer and the stop signal, so leaving the block never waits a whole interval.
        while not ended.wait(INTERVAL_S):
            callback()

    thread = threading.Thread(target=watch, name="progress of a job")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def report_tasks(
    session: LazySession, progress: ProgressCallback, describe: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Report tasks of Spark's active stages; `describe` gets "starting Spark", and "" when the session is ready."""
    described = ""

    def report() -> None:
        nonlocal described
        phase = "starting Spark" if session.is_starting else ""
        if describe is not None and phase != described:
            describe(phase)
            described = phase
        if session.session is None:
            return
        tracker = session.session.sparkContext.statusTracker()
        found = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        # A stage may end between the two calls; the tracker then returns None for it.
        stages = [stage for stage in found if stage is not None]
        if stages:
            progress(sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages))

    with call_periodically(report):
        yield
