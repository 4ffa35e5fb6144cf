"""`make simulate`: run seeds, shrink what fails, plant bugs.

--seed 7            one run, with its transcript
--seeds 1-200       many runs, on --workers processes
--hours 8           runs for as long, from --begin on
--mutations         plant each bug of `mutations`, and look for a seed that finds it
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from simulation.cluster.plan import FAULTS, Plan, draw
from simulation.cluster.seeds import fixed_process, outcome_of, outcomes, shrink


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make simulate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="one run, with its transcript")
    parser.add_argument("--plan", type=Path, help="one run of a plan in a file, as in tests/simulation/mended")
    parser.add_argument("--seeds", help="runs of seeds, such as 1-200")
    parser.add_argument("--hours", type=float, help="runs for as long")
    parser.add_argument("--begin", type=int, default=1, help="the first seed of --hours")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--length", type=float, default=60.0, help="simulated seconds of work and faults in a run")
    parser.add_argument("--mutations", nargs="?", const="", help="plant bugs: all, or those whose name has this in it")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for the smallest run that fails")
    parser.add_argument(
        "--transcripts", type=Path, help="write the transcript of each run that fails in this directory"
    )
    options = parser.parse_args()
    if options.mutations is not None:
        from simulation.cluster.mutations import plant_all

        return plant_all(options.mutations, options.workers)
    if options.seed is not None or options.plan is not None:
        if options.plan is None:
            plan = draw(options.seed, options.length)
        else:
            plan = msgspec.json.decode(options.plan.read_bytes(), type=Plan)
        outcome = outcome_of(plan)
        sys.stdout.write(outcome.text())
        return bool(outcome.broken)
    end_s = time.monotonic() + (options.hours or 1e6) * 3600
    if options.seeds:
        first, _, last = options.seeds.partition("-")
        seeds = iter(range(int(first), int(last or first) + 1))
    elif options.hours:
        seeds = iter(range(options.begin, 1 << 62))
    else:
        parser.error("give --seed, --seeds, --hours or --mutations")
    counts: Counter[str] = Counter()
    failed, runs, simulated_s, cpu_s = list[int](), 0, 0.0, 0.0
    for outcome in outcomes((draw(seed, options.length) for seed in seeds), options.workers, end_s):
        runs, simulated_s, cpu_s = runs + 1, simulated_s + outcome.simulated_s, cpu_s + outcome.cpu_s
        counts += outcome.counts
        if runs % 100 == 0:
            print(f"{runs} runs, {len(failed)} failed", file=sys.stderr, flush=True)
        if outcome.broken:
            seed = outcome.plan.seed
            failed.append(seed)
            print(f"seed {seed} fails:", *outcome.broken[:5], sep="\n  ", flush=True)
            if options.transcripts is not None:
                options.transcripts.mkdir(parents=True, exist_ok=True)
                (options.transcripts / f"{seed}.txt").write_text(outcome.text(), encoding="utf-8")
            if not options.no_shrink:
                smallest = shrink(outcome)
                print("the smallest run that fails:\n" + smallest.text(), flush=True)
                print("its plan:", msgspec.json.encode(smallest.plan).decode(), flush=True)
    print(_coverage(counts))
    speed = simulated_s / cpu_s if cpu_s else 0
    print(
        f"{runs} runs, {simulated_s / 3600:.1f} simulated hours in {cpu_s / 3600:.2f} hours of CPU time: "
        f"{speed:.0f} in one"
    )
    print(f"{len(failed)} failed: {failed}" if failed else "all as they should be")
    return bool(failed)


def _coverage(counts: Counter[str]) -> str:
    """A table: operations and their results, with each kind of fault that lasted meanwhile."""
    operations = sorted({name.partition(" × ")[0] for name in counts if name.startswith(("send", "consume", "expire"))})
    lines = [f"{'':<40}" + "".join(f"{kind:>9}" for kind in FAULTS)]
    lines.append(f"{'injected':<40}" + "".join(f"{counts[f'fault {kind}']:>9}" for kind in FAULTS))
    for operation in operations:
        lines.append(f"{operation:<40}" + "".join(f"{counts[f'{operation} × {kind}']:>9}" for kind in FAULTS))
    return "\n".join(lines)


if __name__ == "__main__":
    fixed_process()
    raise SystemExit(main())
