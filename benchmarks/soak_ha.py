"""A soak of elections: no acknowledged message is lost over many promotions; median and worst failover time.

    python benchmarks/soak_ha.py [--promotions 100] [--brokers 3] [--producers 4] [--seed 1] [--json]

It is `tests/support/elected_soak.py`, beside the servers of the tests, which it uses; this command only starts it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"


def main() -> None:
    command = [sys.executable, "-m", "support.elected_soak", *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": str(TESTS)})


if __name__ == "__main__":
    main()
