"""The processes that a benchmark has started, and their CPU time."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True)
class Spent:
    """Wall and CPU time in seconds."""

    wall_s: float
    cpu_s: float


def below(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(path.name))
        if fields:
            parents.setdefault(int(fields[1]), []).append(int(path.name))
    found, left = [], [pid]
    while left:
        found += (children := parents.get(left.pop(), []))
        left += children
    return found


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, so that `cpu_s` does not lose them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_s() -> float:
    """Return the CPU time of this process and of all that it has started, including those that have ended."""
    return sum(_cpu_s(pid) for pid in (os.getpid(), *below(os.getpid())))


def spent_in_turns(acts: Sequence[Callable[[], None]], rounds: int) -> list[list[Spent]]:
    """Run acts in alternating rounds after a warm-up, and return the cost of each, by round."""
    adopt_orphans()
    spent: list[list[Spent]] = [[] for _ in acts]
    for number in range(rounds + 1):
        for act, of_act in zip(acts, spent, strict=True):
            begin, cpu = time.perf_counter(), cpu_s()
            act()
            if number:
                of_act.append(Spent(time.perf_counter() - begin, cpu_s() - cpu))
    return spent


def text(pid: int, name: str) -> str:
    """Return the kernel's statistics of a process; empty if it has just ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """Return the fields of a process from its state on, which is the third (see proc(5))."""
    return text(pid, "stat").rpartition(")")[2].split()


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process and of the children that it has waited for."""
    return sum(map(int, _stat(pid)[11:15])) / _TICKS_A_SECOND
