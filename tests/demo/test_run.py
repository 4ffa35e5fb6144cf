"""`rucola demo` as a process: a complete short run, a mismatch, and a directory with other files."""

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
WIDTH = 80
JARGON = re.compile(
    r"offsetMsgId|unique key|consumer offset|backlog|\blag\b|redriv|IN_DLQ|NOT_ONLINE|msgId|rebalance|\btps\b",
    re.IGNORECASE,
)
"""Words that a reader learns later."""


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


def test_the_demo_runs_from_flights_to_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with demo(out) as (process, _):
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert f"sent {COUNT} = stored {COUNT} = received {COUNT} = archived {COUNT}\n" in output
    assert re.search(r"undamaged\.\nAll numbers agree, after \d+ s\.\n", output)
    for step in ("2. Send", "3. Receive", "4. Find", "5. Retry", "6. Archive", "minutes late", "mean delay", "hour"):
        assert step in output
    own_lines = [line for line in output.splitlines() if str(out) not in line]
    assert [line for line in own_lines if len(line) > WIDTH] == []
    assert JARGON.findall("\n".join(own_lines)) == []
    assert (out / "flights.svg").read_text().rstrip().endswith("</svg>")
    assert [*(out / "lake").rglob(f"topic={flights.TOPIC}/date=*/*.parquet")] != []
    assert output.endswith(f"rucola standalone --store {out / 'store'}\n  rucola console --lake {out / 'lake'}\n")
    check = run("store", "check", out / "store")
    assert (check.returncode, check.stdout) == (0, f"{out / 'store'} is clean\n")


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
