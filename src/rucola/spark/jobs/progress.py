"""How far work has come that another thread waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from rucola.spark.session import LazySession

Progress: TypeAlias = Callable[[int, int], None]
"""Is told (done, in all)."""

LOOK_INTERVAL_S: Final = 0.3


@contextmanager
def looking(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` several times a second while the block runs, from a thread of its own."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_INTERVAL_S):
            look()

    thread = threading.Thread(target=watch, name="progress of a job")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def tasks_told(session: LazySession, progress: Progress) -> Iterator[None]:
    """Tell how many tasks of Spark's active stages are done while the block runs."""

    def look() -> None:
        if session.session is None:
            return
        tracker = session.session.sparkContext.statusTracker()
        found = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        stages = [stage for stage in found if stage is not None]
        if stages:
            progress(sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages))

    with looking(look):
        yield
