"""Ctrl-C during a job of the command line, and what a terminal shows until then."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rucola.spark.session import java_home
from support.processes import wait_for
from support.servers import RUCOLA
from support.small_store import SmallStore
from support.waiting import DEADLINE_S, wait_until


@contextmanager
def job(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], str]]]:
    """A job on a terminal, in a session of its own; yields it with a function that reads up to a pattern."""
    screen, terminal = pty.openpty()
    environment = {**os.environ, "JAVA_HOME": str(java_home()), "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(
        [*RUCOLA, "pipeline", *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    shown = b""

    def read(pattern: str) -> str:
        nonlocal shown
        while not re.search(pattern.encode(), shown):
            try:
                piece = os.read(screen, 4096)
            except OSError:  # EIO: every process has closed the terminal
                piece = b""
            if not piece:
                break
            shown += piece
        return shown.decode(errors="replace")

    try:
        yield process, read
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(screen)


def members(session: int) -> list[str]:
    """The commands of the processes of a session, which a job's Java runtime and Python workers belong to."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended
            continue
    return found


def wait_until_alone(session: int) -> None:
    """Wait until a job has left no process behind."""
    wait_until(lambda: not members(session))


@pytest.fixture
def audited(small_store: SmallStore) -> tuple[str | Path, ...]:
    for number in range(500):
        small_store.put(body=bytes(2000), queue_id=number % 4)
    return "audit", "--from", small_store.path, "--spark", "--master", "local[1]"


def wait_for_process(process: subprocess.Popen[bytes], command: str) -> None:
    wait_for(lambda: any(command in each for each in members(process.pid)), process)


def while_loading(process: subprocess.Popen[bytes], read: Callable[[str], str]) -> None:
    read("loading PySpark")


def before_the_runtime(process: subprocess.Popen[bytes], read: Callable[[str], str]) -> None:
    wait_for_process(process, "bin/spark-")


def while_spark_starts(process: subprocess.Popen[bytes], read: Callable[[str], str]) -> None:
    wait_for_process(process, "SparkSubmit")
    read("starting Spark")


def in_a_task(process: subprocess.Popen[bytes], read: Callable[[str], str]) -> None:
    wait_for_process(process, "worker_daemon")
    shown = read("audit: starting Spark")
    places = [shown.find(phase) for phase in ("loading PySpark", "audit", "audit: starting Spark")]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "to_all"),
    [(while_loading, True), (before_the_runtime, True), (while_spark_starts, False), (in_a_task, True)],
)
def test_an_interrupted_job_exits_with_130_and_leaves_nothing(
    moment: Callable[..., None], to_all: bool, audited: tuple[str, ...]
) -> None:
    """Ctrl-C signals all processes of the terminal, a supervisor only the job."""
    with job(*audited) as (process, read):
        moment(process, read)
        (os.killpg if to_all else os.kill)(process.pid, signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        shown = read("no such text")
        wait_until_alone(process.pid)
    assert "Traceback" not in shown
    assert "Error" not in shown
    assert "\tat " not in shown
    assert " WARN " not in shown  # of Spark's log
