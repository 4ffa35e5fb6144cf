"""`.ci/setup` prints a line per step, and a command's output only if it fails; tests without Spark need no Spark."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ROOMS = ["admin", "broker", "client", "message", "namesrv", "protocol", "remoting", "store", "testing"]
SPARK = ["pyspark", "py4j", "pyarrow", "pandas"]


def set_up(venv: Path, failing: str) -> subprocess.CompletedProcess[str]:
    """Install into an environment whose pip warns, installs nothing, and fails if it is given a certain argument."""
    python = venv / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\necho "WARNING: a warning of pip"\ncase "$*" in *{failing}*) echo "the reason"; exit 3;; esac\n'
    )
    python.chmod(0o755)
    return subprocess.run([REPOSITORY / ".ci" / "setup", "venv", venv], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("failing", "verbs"),
    [
        ("no-such-argument", ["Installing", "Installing", "Removing", "Installing"]),
        ("importlib.metadata", ["Installing", "Installing", "Installing"]),  # the distribution rucola is not there
    ],
)
def test_setup_prints_a_line_per_step(tmp_path: Path, failing: str, verbs: list[str]) -> None:
    done = set_up(tmp_path / "venv", failing)
    assert done.returncode == 0
    assert done.stderr == ""
    assert re.findall(r"^(\w+) .* \.\.\. \d+ s\n", done.stdout, re.MULTILINE) == verbs
    assert done.stdout.count("\n") == len(verbs)


def test_setup_shows_the_whole_output_of_a_step_that_fails(tmp_path: Path) -> None:
    done = set_up(tmp_path / "venv", "requirements.lock")
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1].endswith("... failed")
    assert done.stderr == "WARNING: a warning of pip\nthe reason\n"


@pytest.mark.slow
def test_tests_of_the_broker_need_no_package_of_spark() -> None:
    hide = f"import sys; sys.modules.update(dict.fromkeys({SPARK}))"
    collect = "import pytest; sys.exit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
    rooms = [str(REPOSITORY / "tests" / room) for room in ROOMS]
    done = subprocess.run(
        [sys.executable, "-c", f"{hide}; {collect}", *rooms], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert all(f"tests/{room}/test_" in done.stdout for room in ROOMS)
