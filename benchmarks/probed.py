"""A server of this folder or `rucola`, with a probe that records the stalls of its event loop.

    python probed.py HISTOGRAM.json COMMAND ...        COMMAND: `rucola` and its arguments, or `echo.py` and its own

The probe schedules itself every millisecond. If it is called late, the loop was blocked: by a callback, the disk, or
another thread that held the interpreter's lock. The time for which the loop's thread was runnable without a processor
is subtracted. SIGUSR1 clears the histogram; at its end the server writes it: the upper bounds of the classes in ms with
their counts, and the longest stall.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import sys
import threading
import time
from bisect import bisect_left
from pathlib import Path

INTERVAL_S = 0.001
BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 1000)


class Probe:
    """Measures the lateness of a call that is due every millisecond."""

    def __init__(self) -> None:
        self.begin_anew()
        self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def begin_anew(self, *_: object) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.longest_ms = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = loop.time() + INTERVAL_S
        self._waited_ms = self._ready_ms()
        loop.call_at(self._due, self._called)

    def _called(self) -> None:
        late_ms = max((time.monotonic() - self._due) * 1000 - (self._ready_ms() - self._waited_ms), 0)
        self.counts[bisect_left(BOUNDS_MS, late_ms)] += 1
        self.longest_ms = max(self.longest_ms, late_ms)
        self.start(self._loop)

    def _ready_ms(self) -> float:
        """Return the total time for which this thread has waited for a processor."""
        return int(os.pread(self._schedule, 100, 0).split()[1]) / 1e6

    def as_json(self) -> str:
        classes = [f"<= {bound} ms" for bound in BOUNDS_MS] + [f"> {BOUNDS_MS[-1]} ms"]
        return json.dumps({"counts": dict(zip(classes, self.counts, strict=True)), "longest_ms": self.longest_ms})


def probe_every_loop(probe: Probe) -> None:
    """Start a probe with every event loop that begins to run."""
    run_forever = asyncio.BaseEventLoop.run_forever

    def probed(loop: asyncio.BaseEventLoop) -> None:
        probe.start(loop)
        run_forever(loop)

    asyncio.BaseEventLoop.run_forever = probed  # type: ignore[method-assign]


def main() -> None:
    result, command = Path(sys.argv[1]), sys.argv[2]
    probe = Probe()
    signal.signal(signal.SIGUSR1, probe.begin_anew)
    probe_every_loop(probe)
    sys.argv = sys.argv[2:]
    try:
        if command == "rucola":
            from rucola.cli.main import main as rucola  # imported here, so that the echo server does not pay for it

            rucola()
        else:
            runpy.run_path(str(Path(__file__).with_name(command)), run_name="__main__")
    finally:
        result.write_text(probe.as_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
