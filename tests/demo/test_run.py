"""`rucola demo` as a process: a mismatch, and a directory with other files.

A run without one is in tests/spark/test_tour.py, which goes on with its files.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rucola.client.sync import Message, Producer
from rucola.demo import flights
from support.servers import RUCOLA, run

pytestmark = pytest.mark.spark

COUNT = 600
STARTED = re.compile(r"1\. Start .*?\b(127\.0\.0\.1:\d+)\.", re.DOTALL)


@contextmanager
def demo(out: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the demonstration; yields its process and name server. Its stderr is in the file `errors` next to `out`."""
    with out.with_name("errors").open("w") as errors:
        process = subprocess.Popen(
            [*RUCOLA, "demo", "--flights", str(COUNT), "--out", out], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        first = process.stdout.readline() + process.stdout.readline()
        started = STARTED.match(first)
        assert started, first + out.with_name("errors").read_text()
        yield process, started[1]
    finally:
        process.send_signal(signal.SIGINT)  # lets it stop its broker if it still runs
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_mismatch_is_named_with_exit_code_1(tmp_path: Path) -> None:
    """Somebody else sends a message meanwhile, which is no flight."""
    with demo(tmp_path / "out") as (process, namesrv):
        with Producer("stranger", namesrv=namesrv) as producer:
            producer.send(Message(flights.TOPIC, b"{}", tags="UA"))
        output, _ = process.communicate()
    assert process.returncode == 1, output
    mismatch = rf"^mismatch messages (stored|archived): {COUNT + 1}, expected {COUNT}$"
    assert re.search(mismatch, output, re.MULTILINE), output
    assert "All numbers agree" not in output


def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    refused = run("demo", "--flights", "10", "--out", tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{tmp_path} contains files that no demonstration has written" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
