"""The commands of `rucola pipeline` as a whole: what they say before Spark is there, and how they end.

On a master of its own, a command is in test_unshared.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from rucola.cli.main import main
from rucola.client import Message
from rucola.client.sync import Producer
from rucola.errors import ConfigError, StoreError
from rucola.spark import session
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.jobs.replay_ledger import AckReader
from rucola.spark.lake.tables import LakeInUse, read_snapshot
from rucola.spark.session import LazySession, local_session
from support.broker_thread import broker_thread
from support.errors import raises
from support.ports import free_ports
from support.processes import wait_for
from support.servers import RUCOLA, server
from support.small_store import SmallStore
from support.waiting import DEADLINE_S


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a session fails."""

    def refuse(*_: object, **__: object) -> SparkSession:
        raise AssertionError("a session was asked for")

    monkeypatch.setattr(session, "local_session", refuse)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("archive --store EMPTY --out NEW", "EMPTY is not a store directory: it holds no commitlog/"),
        ("archive --store STORE --store EMPTY --out NEW", "EMPTY is not a store directory: it holds no commitlog/"),
        ("archive --store STORE --out STORE", "STORE is not empty and not a lake"),
        ("archive -n 127.0.0.1:1 --out NEW", "127.0.0.1:1"),
        ("archive -n 127.0.0.1:1 --allow-missing --require-broker broker-a --out NEW", "127.0.0.1:1"),
        ("compact --lake EMPTY", "EMPTY is not a lake"),
        ("search --lake EMPTY -t T", "EMPTY is not a lake"),
        ("audit --from STORE --from EMPTY", "EMPTY is neither a store directory nor a lake"),
        ("audit --from STORE -t Nope", "topic 'Nope' is not in STORE, which holds T"),
        ("rebuild STORE --out STORE", "STORE is not empty"),
        ("replay --from EMPTY --dry-run", "EMPTY is neither a store directory nor a lake"),
        ("replay --from STORE -t Nope --dry-run", "topic 'Nope' is not in STORE, which holds T"),
        ("replay --from STORE -n 127.0.0.1:1 --ledger STORE", "STORE holds other things than the ledger"),
        ("replay --from STORE -n 127.0.0.1:1 --ledger NEW --to T", "127.0.0.1:1"),
        ("replay --from STORE -g a|b* --dry-run", "a|b*"),
        ("replay --from STORE -s price> --dry-run", "price>"),
    ],
)
def test_invalid_options_are_refused_before_spark_starts(
    no_session: None, small_store: SmallStore, tmp_path: Path, command: str, said: str
) -> None:
    small_store.put("T")
    (tmp_path / "empty").mkdir()
    places = {"STORE": small_store.path, "EMPTY": tmp_path / "empty", "NEW": tmp_path / "new"}
    for name, path in places.items():
        command, said = re.sub(rf"\b{name}\b", str(path), command), said.replace(name, str(path))
    result = CliRunner().invoke(main, ["pipeline", *command.split()])
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "new" / "_rucola").exists(), "no lake was begun"
    assert not [*(tmp_path / "empty").iterdir()]


def test_rebuild_of_another_directory_is_a_wrong_command_line(no_session: None, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["pipeline", "rebuild", str(tmp_path)])
    assert result.exit_code == 2
    assert f"{tmp_path} is not a store directory" in result.stderr


def test_a_live_archive_names_the_brokers_it_leaves_out(no_session: None, tmp_path: Path) -> None:
    with broker_thread(tmp_path, "T") as namesrv:
        command = [
            "pipeline",
            "archive",
            "-n",
            namesrv,
            "--out",
            str(tmp_path / "lake"),
            "--require-broker",
            "broker-x",
        ]
        failed = CliRunner().invoke(main, command)
        assert failed.exit_code == 1
        assert "broker-x is not registered at the name servers. Start it again, or allow missing" in failed.stderr
        done = CliRunner().invoke(main, [*command, "--allow-missing"])
        assert (done.exit_code, done.stderr) == (0, "left out: broker-x is not registered at the name servers\n")
    no_live = CliRunner().invoke(
        main, ["pipeline", "archive", "--store", str(tmp_path), "--out", "x", "--allow-missing"]
    )
    assert no_live.exit_code == 2
    assert "--allow-missing and --require-broker apply to live brokers" in no_live.stderr


@pytest.mark.spark
def test_a_job_without_work_does_not_start_spark(
    spark: SparkSession, small_store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_store.put("T", KEYS="k")
    lake = str(tmp_path / "lake")
    archive.run(spark, small_store.path, lake)
    monkeypatch.setattr(session, "local_session", None)
    for command in (["archive", "--store", str(small_store.path), "--out", lake], ["compact", "--lake", lake]):
        result = CliRunner().invoke(main, ["pipeline", *command])
        assert result.exit_code == 0, result.output
    found = CliRunner().invoke(main, ["pipeline", "search", "--lake", lake, "-k", "k"])
    assert found.exit_code == 0
    assert found.stdout.splitlines()[1].split()[-1] == "k"
    assert "None" not in found.stdout


# -- where Spark works ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("master", ["", "local[", "locally", "spark://", "spark://host", "http://host:7077"])
def test_an_invalid_master_is_refused(master: str) -> None:
    with raises(ConfigError, subject=master):
        local_session(master=master)


def test_an_unreachable_master_is_an_error() -> None:
    masters = "spark://localhost:1,127.0.0.1:1"
    with raises(ConfigError, subject=masters):
        LazySession("tests", masters).get()


def test_spark_submit_excludes_the_master_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(ConfigError):
        LazySession("tests", "local[1]").get()


# -- going on for ever ------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_continuous_archive_survives_its_brokers_and_stops_on_a_signal(tmp_path: Path) -> None:
    """Brokers are killed and come back; then the whole foreground is interrupted, as Ctrl-C at a terminal does."""
    lake, out, log = tmp_path / "lake", tmp_path / "out", tmp_path / "log"
    ports = dict(zip(("--namesrv-port", "--broker-port"), map(str, free_ports(2, 1)), strict=True))
    serving = ["standalone", "--store", tmp_path / "broker", *itertools.chain(*ports.items())]

    def send(namesrv: str, count: int) -> None:
        with Producer("senders", namesrv) as producer:
            for n in range(count):
                producer.send(Message("T", b"body", keys=f"k{n}"))

    def archived() -> int:
        with suppress(StoreError):  # no lake yet: its directory is there before its first snapshot
            return sum(file.rows for file in read_snapshot(lake).rows)
        return 0

    def runs() -> list[int]:
        return [int(count) for count in re.findall(r"^(\d+) messages of", out.read_text(), re.MULTILINE)]

    def comes(condition: Callable[[], bool]) -> None:
        try:
            wait_for(condition, process)
        except AssertionError as error:
            raise AssertionError(f"{error}: {log.read_text()}") from None

    with ExitStack() as stack:
        stdout, stderr = (stack.enter_context(path.open("w")) for path in (out, log))
        with server(*serving, log=tmp_path / "first") as running:
            namesrv, _ = running.addresses()
            send(namesrv, 5)
            command = [*RUCOLA, "pipeline", "archive", "-n", namesrv, "--out", str(lake), "--every", "0.2"]
            process = subprocess.Popen(command, stdout=stdout, stderr=stderr, text=True, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            comes(lambda: archived() == 5)
            comes(lambda: "messages of" in out.read_text())
        lost = "the archive in .* failed, retrying: "
        comes(lambda: re.search(lost, log.read_text()) is not None)
        with server(*serving, log=tmp_path / "second"):
            send(namesrv, 3)
            comes(lambda: sum(runs()) == 8)
            comes(lambda: "works again after" in log.read_text())
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(DEADLINE_S) == 0, log.read_text()
    assert archived() == sum(runs()) == 8  # a run takes the messages that are there when it starts
    assert 0 not in runs()
    failed = [line for line in log.read_text().splitlines() if re.match(lost, line)]
    assert len(failed) <= 3, "one for an outage, not for each try"
    assert "Traceback" not in log.read_text()


@pytest.mark.slow
def test_an_interrupted_job_without_spark_prints_nothing(small_store: SmallStore, tmp_path: Path) -> None:
    for n in range(40):
        small_store.put("T", n % 2, UNIQ_KEY=f"U{n}")
    acks = AckReader(tmp_path / "ledger")

    def is_sending() -> bool:
        acks.refresh()
        return acks.count > 0

    with broker_thread(tmp_path / "broker", "T") as namesrv:
        given = ["--from", str(small_store.path), "-n", namesrv, "--ledger", str(tmp_path / "ledger")]
        given += ["--rate", "1", "--no-spark"]
        with subprocess.Popen(
            [*RUCOLA, "pipeline", "replay", *given], stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                wait_for(is_sending, process)
                os.killpg(process.pid, signal.SIGINT)
                _, said = process.communicate(timeout=DEADLINE_S)
            finally:
                process.kill()
    assert process.returncode == 130
    assert said == ""


@pytest.mark.spark
def test_an_archive_waits_for_other_runs_and_ends_by_sigterm(
    spark: SparkSession, small_store: SmallStore, tmp_path: Path
) -> None:
    lake, log = tmp_path / "lake", tmp_path / "log"
    small_store.put("T")
    archive.run(spark, small_store.path, lake)
    command = ["archive", "--store", str(small_store.path), "--out", str(lake), "--every", "0.2"]
    with (
        log.open("w") as stderr,
        subprocess.Popen([*RUCOLA, "pipeline", *command], stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("0 messages of ")
            with opened(lake):
                waits = f"failed, retrying: another run is writing to {lake}; wait until it has ended"
                wait_for(lambda: waits in log.read_text(), process)
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


@contextmanager
def opened(lake: Path) -> Iterator[None]:
    """Open a lake as soon as nobody has it."""
    with ExitStack() as stack:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                stack.enter_context(Archive(lake).open())
                break
            except LakeInUse:
                assert time.monotonic() < deadline
        yield
