"""libfaketime: the wall clock of a process of its own, which jumps while it runs."""

from __future__ import annotations

from pathlib import Path

LIBRARIES = "*/faketime/libfaketime.so.1"
MISSING = "the tests of clock jumps need libfaketime: install it, or run `.ci/setup etcd` as root, which does"


class WallClock:
    """The wall clock of the processes that are started with `environment`; their other clocks are the system's.

    RuntimeError if libfaketime is not installed.
    """

    def __init__(self, path: Path) -> None:
        library = next(Path("/usr/lib").glob(LIBRARIES), None)
        if library is None:
            raise RuntimeError(MISSING)
        self._path = path
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.jump(0)

    def jump(self, seconds: int) -> None:
        """Set the clock to so many seconds after the system's, or before it."""
        temporary = self._path.with_suffix(".new")
        temporary.write_text(f"{seconds:+d}\n")
        temporary.replace(self._path)
