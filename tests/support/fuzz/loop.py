"""The fuzzing loop: mutated inputs for one target, and the verdict about each.

An input is a finding if the target

    fails      raises anything but an MQError, which names what is wrong with the input
    stalls     takes more CPU time than `STALL_S`: a server would serve nothing else meanwhile
    grows      raises the peak memory of the process by more than `GROWTH`

Without coverage of branches, the loop follows outcomes: an input with an outcome that was not seen before, the type and
wording of its error without numbers and names, joins the inputs that are mutated further.
"""

from __future__ import annotations

import random
import re
import resource
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from rucola.errors import MQError
from support.fuzz.mutations import mutated

STALL_S = 0.1
"""CPU seconds; five times the aim for one request, so that a busy machine raises no alarm."""
GROWTH = 48 * 1024 * 1024
MAX_POPULATION = 2000


@dataclass(frozen=True)
class Target:
    """Something that reads input from outside: its valid inputs, and how to run one."""

    name: str
    seeds: Sequence[bytes]
    run: Callable[[bytes], object]
    stall_s: float = STALL_S


@dataclass(frozen=True)
class Finding:
    """An input with a bad outcome."""

    target: str
    data: bytes
    why: str
    outcome: str
    """The outcome without numbers and names: one finding of each is reported."""

    @property
    def file_name(self) -> str:
        """The name of the input in a corpus."""
        return sha256(self.data).hexdigest()[:12] + ".hex"

    def __str__(self) -> str:
        return f"{self.target}/{self.file_name} ({len(self.data)} bytes): {self.why}"


@dataclass
class Run:
    """The inputs tried so far for one target."""

    target: Target
    findings: list[Finding] = field(default_factory=list)
    count: int = 0
    outcomes: set[str] = field(default_factory=set)

    def try_input(self, data: bytes) -> bool:
        """Run one input; return whether its outcome is new."""
        self.count += 1
        why, outcome = "", "accepted"
        peak, begin_s = _peak(), time.process_time()
        try:
            self.target.run(data)
        except MQError as error:
            outcome = _outcome(error)
        except Exception as error:
            outcome = _outcome(error)
            why = "".join(traceback.format_exception(error)[-3:]).strip()
        spent_s, grown = time.process_time() - begin_s, _peak() - peak
        # A pause of the garbage collector is no stall: slow inputs are slow again.
        if not why and spent_s > self.target.stall_s and self._is_slow_again(data):
            why = f"{spent_s:.2f} CPU seconds; {self.target.stall_s} are allowed"
        if not why and grown > GROWTH:
            why = f"memory grew by {grown >> 20} MiB; {GROWTH >> 20} are allowed"
        if why and outcome not in self.outcomes:
            self.findings.append(Finding(self.target.name, data, why, outcome))
        is_new = outcome not in self.outcomes
        self.outcomes.add(outcome)
        return is_new

    def _is_slow_again(self, data: bytes) -> bool:
        begin_s = time.process_time()
        try:
            self.target.run(data)
        except Exception:  # its outcome is known already
            pass
        return time.process_time() - begin_s > self.target.stall_s


def fuzz(
    target: Target, corpus: Iterable[bytes], chance: random.Random, count: int, until_s: float | None = None
) -> Run:
    """Run the seeds, the corpus and `count` mutations of them, or as many as CPU time allows until `until_s`."""
    run = Run(target)
    population = [*target.seeds, *corpus]
    for data in list(population):
        run.try_input(data)
    while run.count < count if until_s is None else time.process_time() < until_s:
        data = mutated(chance.choice(population), population, chance)
        if run.try_input(data) and len(population) < MAX_POPULATION:
            population.append(data)
    return run


def read_corpus(directory: Path, target: str) -> list[bytes]:
    """Return the stored inputs of a target, hexadecimal files: those that failed once."""
    return [bytes.fromhex(path.read_text("ascii")) for path in sorted((directory / target).glob("*.hex"))]


def _outcome(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    wording = re.sub(r"[0-9]+|'[^']*'|\"[^\"]*\"|`[^`]*`", "#", str(error))[:60]
    return f"{type(error).__name__} {place.name}:{place.lineno} {wording}"


def _peak() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
