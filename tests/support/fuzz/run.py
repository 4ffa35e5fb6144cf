"""The fuzzer: mutated input for everything that reads bytes from a network, a disk or a lake.

    python -m support.fuzz.run [--minutes 60] [--seed 1] [--only frames,broker]        with tests/ on PYTHONPATH

Every target has valid inputs (recorded frames of Apache's broker, stores and lakes written here) and a corpus,
`tests/fuzz/corpus/<target>/`, in which every input that once failed is kept. The loop (`support.fuzz.loop`) goes round
all targets until the CPU time is up. New findings are written to `--findings`, one file per input, and make the program
exit with 1; copy a file into the corpus, so that the test suite runs it from then on.
"""

from __future__ import annotations

import argparse
import lzma
import random
import shutil
import sys
import tarfile
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from support.fuzz.access import access_targets, guarded_targets
from support.fuzz.directories import lake_target, store_target
from support.fuzz.loop import Finding, Target, fuzz, read_corpus
from support.fuzz.ports import client_target, port_targets
from support.fuzz.servers import broker_target, namesrv_target
from support.fuzz.targets import parser_targets

TESTS = Path(__file__).parents[2]
CORPUS = TESTS / "fuzz" / "corpus"
ROUND_S = 4.0
"""CPU seconds for a target before the next one has its turn."""


def targets(golden: Path, directory: Path, stack: ExitStack) -> list[Target]:
    """Return all targets; servers run until `stack` is closed."""
    return [
        *parser_targets(golden),
        store_target(directory / "store"),
        lake_target(directory / "lake"),
        stack.enter_context(broker_target(golden, directory / "broker")),
        stack.enter_context(namesrv_target(golden)),
        *access_targets(directory),
        *stack.enter_context(guarded_targets(golden, directory / "guarded")),
        *stack.enter_context(port_targets(golden, directory / "ports")),
        stack.enter_context(client_target(golden)),
    ]


def main() -> int:
    """Fuzz until the time is up; print a line per round and finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="CPU minutes; default 60")
    parser.add_argument("--seed", type=int, default=None, help="by default a new one")
    parser.add_argument("--only", default="", help="names of targets, joined by commas")
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"), help="directory for new findings")
    chosen = parser.parse_args()
    seed = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    chance, counts = random.Random(seed), Counter[str]()
    found: dict[str, Finding] = {}
    end_s = time.process_time() + chosen.minutes * 60
    print(f"seed {seed}, {chosen.minutes} CPU minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="fuzz") as name, ExitStack() as stack:
        golden = _unpacked(Path(name) / "golden")
        every = targets(golden, Path(name), stack)
        wanted = [target for target in every if not chosen.only or target.name in chosen.only.split(",")]
        while time.process_time() < end_s:
            for target in wanted:
                corpus = read_corpus(CORPUS, target.name)
                run = fuzz(target, corpus, chance, 0, min(end_s, time.process_time() + ROUND_S))
                counts[target.name] += run.count
                for finding in run.findings:
                    kind = f"{finding.target} {finding.outcome}"
                    if kind not in found:
                        found[kind] = finding
                        path = chosen.findings / target.name / finding.file_name
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_text(finding.data.hex(), "ascii")
                        print(f"FOUND {finding}", flush=True)
            print(f"{sum(counts.values())} inputs: " + ", ".join(f"{n} {c}" for n, c in counts.items()), flush=True)
    print(f"{len(found)} findings in {chosen.findings}" if found else "no findings")
    return 1 if found else 0


def _unpacked(golden: Path) -> Path:
    """Unpack the recordings that the targets need."""
    golden.mkdir()
    with tarfile.open(TESTS / "golden" / "g1-clean.tar.xz") as archive:
        archive.extractall(golden, filter="data")
    with lzma.open(TESTS / "golden" / "wire.jsonl.xz") as packed, open(golden / "wire.jsonl", "wb") as wire:
        shutil.copyfileobj(packed, wire)
    return golden


if __name__ == "__main__":
    sys.exit(main())
