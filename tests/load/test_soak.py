"""A short run of benchmarks/soak.py: forty clients that come, go and crash for twenty seconds, then as many topics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"


def test_no_acknowledged_message_is_lost_while_clients_join_leave_and_crash() -> None:
    command = [sys.executable, SOAK, "--minutes", "0.33", "--clients", "40", "--without-locks", "--chaos-minutes", "0"]
    done = subprocess.run([*command, "--churn-minutes", "0.2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nthe ledger balances\n" in done.stdout
