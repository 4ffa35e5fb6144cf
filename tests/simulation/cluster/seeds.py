"""Runs in processes of their own: one is forked for each plan, so that none finds what another has left behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from simulation.cluster.plan import SHOP, Plan
from simulation.cluster.run import Outcome, simulate

MOST_S = 60
"""Seconds of CPU time that a run may take."""
MOST_ATTEMPTS = 200
"""Runs that one shrinking may need."""
_ADDR_NO_RANDOMIZE = 0x0040000
_SHARED_MEMORY = Path("/dev/shm")


def fixed_process() -> None:
    """Let what differs between two processes be the same: the hashes of strings, addresses of objects, the time zone.

    Starts this program again if it has to.
    """
    library = ctypes.CDLL(None)
    before = library.personality(ctypes.c_ulong(0xFFFFFFFF))
    fixed = {"PYTHONHASHSEED": "0", "TZ": "UTC"}
    if before & _ADDR_NO_RANDOMIZE and all(os.environ.get(name) == value for name, value in fixed.items()):
        return
    if library.personality(ctypes.c_ulong(before | _ADDR_NO_RANDOMIZE)) == -1:
        sys.exit("addresses cannot be fixed here (personality is refused, as by Docker's seccomp profile)")
    os.execve(sys.executable, sys.orig_argv, os.environ | fixed)


def _directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="simulation-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None))


def _loaded(plan: Plan) -> Plan:
    """Import what only some plans need, before runs are forked; return the plan without what is not installed."""
    try:
        if plan.has_shop:
            import simulation.cluster.shop
    except ModuleNotFoundError as error:
        print(f"seed {plan.seed} runs without databases: {error}", file=sys.stderr)
        plan = replace(plan, clients=tuple(client for client in plan.clients if client.kind not in SHOP))
    try:
        if plan.has_archive:
            import simulation.cluster.archiver  # noqa: F401
    except ModuleNotFoundError as error:
        print(f"seed {plan.seed} runs without the archive job: {error}", file=sys.stderr)
        plan = replace(plan, faults=tuple(fault for fault in plan.faults if fault.kind != "archive"))
    return plan


class _Child:
    """A process with one run; its outcome comes through a pipe."""

    def __init__(self, plan: Plan, prepare: Callable[[], object]) -> None:
        self.plan = plan = _loaded(plan)
        self._root = _directory()
        self._root.rmdir()
        self.pipe, writing = os.pipe()
        self._data = b""
        self._pid = os.fork()
        if self._pid == 0:
            try:
                gc.disable()
                resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S))
                os.close(self.pipe)
                prepare()
                data = pickle.dumps(simulate(plan, self._root))
            except BaseException as error:
                failed = Outcome(plan, [f"fails: {error!r}\n{traceback.format_exc()}"], [], 0.0, 0.0, Counter())
                data = pickle.dumps(failed)
            with contextlib.suppress(BrokenPipeError), open(writing, "wb") as file:
                file.write(data)
            os._exit(0)
        os.close(writing)

    def read(self) -> bool:
        """Read what has come; return whether that is all."""
        data = os.read(self.pipe, 1 << 20)
        self._data += data
        return not data

    def end(self) -> None:
        """End the process, if it still runs."""
        os.close(self.pipe)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._root, ignore_errors=True)

    def outcome(self) -> Outcome:
        self.end()
        if not self._data:
            return Outcome(self.plan, [f"no end within {MOST_S} s"], [], 0.0, 0.0, Counter())
        result = pickle.loads(self._data)
        assert isinstance(result, Outcome)
        return result


def outcomes(
    plans: Iterable[Plan], workers: int, end_s: float = 1e12, prepare: Callable[[], object] = lambda: None
) -> Iterator[Outcome]:
    """Run plans, so many at a time, until the monotonic time `end_s`; yield outcomes as they come."""
    running: dict[int, _Child] = {}
    try:
        yield from _outcomes(iter(plans), running, workers, end_s, prepare)
    finally:
        for child in running.values():
            child.end()


def _outcomes(
    waiting: Iterator[Plan], running: dict[int, _Child], workers: int, end_s: float, prepare: Callable[[], object]
) -> Iterator[Outcome]:
    while True:
        while len(running) < workers and time.monotonic() < end_s and (plan := next(waiting, None)) is not None:
            child = _Child(plan, prepare)
            running[child.pipe] = child
        if not running:
            return
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for child in list(running.values()):
            if child.pipe in ready and child.read():
                del running[child.pipe]
                yield child.outcome()


def outcome_of(plan: Plan, prepare: Callable[[], object] = lambda: None) -> Outcome:
    """Run one plan."""
    (outcome,) = outcomes([plan], 1, prepare=prepare)
    return outcome


def failures(outcome: Outcome) -> set[str]:
    """What a run has broken, without what differs from run to run: names, numbers and times."""
    return {re.sub(r"\S*\d\S*", "*", line.splitlines()[-1]) for line in outcome.broken}


def shrink(failed: Outcome, prepare: Callable[[], object] = lambda: None) -> Outcome:
    """Return a run that fails as this one does, without whatever is not needed for that."""
    wanted = failures(failed)
    attempts, smallest, is_smaller = 0, failed, True
    while is_smaller and attempts < MOST_ATTEMPTS:
        is_smaller = False
        for plan in smallest.plan.smaller():
            attempts += 1
            outcome = outcome_of(plan, prepare)
            if failures(outcome) & wanted:
                smallest, is_smaller = outcome, True
                break
            if attempts >= MOST_ATTEMPTS:
                break
    for length_s in (5.0, 15.0, 30.0):
        last_s = max([fault.at_s for fault in smallest.plan.faults], default=0.0)
        if length_s > last_s:
            outcome = outcome_of(replace(smallest.plan, length_s=length_s), prepare)
            if failures(outcome) & wanted:
                return outcome
    return smallest
