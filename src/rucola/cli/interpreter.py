"""Interpreter of a server process: short garbage collections, a short switch interval, and kept memory.

A full collection scans every object, and all messages wait for it: 100 ms with ten thousand idle connections. Objects
that survive one usually live for hours, so they are frozen then (`gc.freeze`) and no later collection scans them
again. Each object is scanned by one full collection at most, and each full collection scans some ten thousand.

Reference counting frees a frozen object as any other; only cycles of frozen objects stay (asyncio leaves one of eight
small objects for each closed connection). So that these do not accumulate, `collect_if_doubled` collects everything
once the number of frozen objects has doubled.

The event loop waits for the interpreter lock while another thread runs Python code, for the switch interval at most. A
server's threads mostly wait for the disk and compute little, so a short interval delays messages less and costs nothing
measurable: beside a thread that only computes, a flush of the kernel takes 0.04 ms instead of 8.7 (median, busy
machine).

A message of megabytes passes through several buffers of its size. By default each of them is given back to the kernel
when it is freed, and every page of the next one is made anew: to decode a message of 3.9 MB takes 2.7 ms instead of
0.6. So a server keeps up to KEPT_MEMORY that it has freed.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rucola.system_calls import keep_freed_memory

SWITCH_INTERVAL_S: Final = 0.0005
"""A tenth of the interpreter's own."""

KEPT_MEMORY: Final = 64 * 1024 * 1024
"""Bytes, enough for the buffers of three messages of 16 MB."""

CHECK_INTERVAL_S: Final = 3600
"""Time between two calls of `collect_if_doubled`: counting a million frozen objects takes some milliseconds."""

_MIDDLE_THRESHOLD: Final = 5
_OLD_THRESHOLD: Final = 1
"""Collections of the youngest generation before one of the middle, and of the middle before a full one, instead of 10
and 10. A full collection scans some 10,000 objects then. Together they scan no more: each object passes each once."""


class FrozenObjects:
    """The frozen objects of this process. `freeze` is called once, when the server is ready."""

    def __init__(self) -> None:
        self._count = 0
        """The number of frozen objects at the start, or after the last collection of all."""

    def freeze(self) -> None:
        """Freeze all objects that exist now, and later those that survive a full collection.

        Without a collection now, which would delay the start by 20 ms.
        """
        gc.set_threshold(gc.get_threshold()[0], _MIDDLE_THRESHOLD, _OLD_THRESHOLD)
        gc.freeze()
        self._count = gc.get_freeze_count()
        gc.callbacks.append(_freeze_survivors)

    def collect_if_doubled(self) -> bool:
        """Collect all objects, even frozen ones, if these have doubled since the last time."""
        is_doubled = gc.get_freeze_count() > 2 * self._count
        if is_doubled:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._count = gc.get_freeze_count()
        return is_doubled

    def thaw(self) -> None:
        """End what `freeze` began, so that the process collects as before."""
        gc.callbacks.remove(_freeze_survivors)
        gc.unfreeze()


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    """Freeze all objects at the end of a full collection; a callback of the collector."""
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


@contextmanager
def tuned_for_serving() -> Iterator[FrozenObjects]:
    """Freeze objects and shorten the switch interval while the block runs.

    Applies to the whole process, once. The memory is kept beyond the block.
    """
    interval, thresholds, frozen = sys.getswitchinterval(), gc.get_threshold(), FrozenObjects()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_freed_memory(KEPT_MEMORY)
    frozen.freeze()
    try:
        yield frozen
    finally:
        frozen.thaw()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
