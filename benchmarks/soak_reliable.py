"""A soak test of business reliability: each order has its effect once, or an alert.

    python benchmarks/soak_reliable.py [--minutes 10] [--database postgresql] [--seed 1] [--json]

The test is in `tests/support/effects_soak`, beside the servers and the proxy of the tests, which it uses; this command
starts it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"


def main() -> None:
    command = [sys.executable, "-m", "support.effects_soak.run", *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": str(TESTS)})


if __name__ == "__main__":
    main()
