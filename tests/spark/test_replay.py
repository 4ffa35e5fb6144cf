"""The replay job: what is selected comes to the brokers, in order, at least once, whatever is killed between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from rucola.cli.main import main
from rucola.errors import ConfigError, RemotingError, StoreCorrupt, StoreError
from rucola.spark.jobs import archive, replay, replay_sender
from rucola.spark.jobs.replay import ReplayOptions
from rucola.spark.jobs.replay_ledger import Ack, AckReader, SourceQueue, open_for_sending, open_ledger
from rucola.spark.jobs.replay_sender import RateLimiter
from rucola.spark.jobs.selection import Selection
from rucola.spark.session import AnySession, LazySession
from support.broker_thread import broker_thread
from support.live_reads import Row, read
from support.processes import wait_for
from support.servers import RUCOLA, run, server
from support.small_store import SmallStore

HERE = LazySession("tests", use_spark=False)
MIDNIGHT_MS = 1_700_006_400_000  # 2023-11-15 00:00 UTC


def fill(store: SmallStore, count: int, topic: str = "T", queues: int = 3) -> None:
    """Messages in turn to the queues of a topic, one a second, with tags and keys."""
    for n in range(count):
        pairs = {"TAGS": "AB"[n % 2], "KEYS": f"k{n} é{n}", "UNIQ_KEY": f"{topic}-{n:08d}", "n": str(n)}
        store.put(topic, n % queues, b"body %d" % n, at_ms=MIDNIGHT_MS - 5000 + n * 1000, **pairs)


def numbers(rows: list[Row]) -> list[int]:
    return [int(row["body"].split()[1]) for row in rows]


def by_queue(rows: list[Row]) -> list[list[Row]]:
    """The rows of each queue, in its order."""

    def queue(row: Row) -> tuple[Any, ...]:
        return row["brokerName"], row["topic"], row["queueId"]

    ordered = sorted(rows, key=lambda row: (*queue(row), row["queueOffset"]))
    return [list(each) for _, each in groupby(ordered, key=queue)]


@pytest.mark.spark
def test_a_store_and_its_lake_are_replayed_identically(
    jobs: AnySession, small_store: SmallStore, tmp_path: Path
) -> None:
    fill(small_store, 30)
    fill(small_store, 10, "Other")
    lake = tmp_path / "lake"
    archive.run(HERE, small_store.path, lake)
    everything = {
        "tags": "A || C",
        "keys": ("k2", "é4", "T-00000006", "k7", "k14"),
        "expression": "n <> '2' AND n < 20",
        "starting_timestamp": MIDNIGHT_MS - 3000,
        "ending_timestamp": MIDNIGHT_MS + 9000,
    }
    for selection, wanted in ((Selection(("T",)), 30), (Selection(("T",), **everything), 2)):
        for source in (small_store.path, lake):
            summary = replay.run(jobs, source, ReplayOptions(topic="Copy"), selection=selection)
            assert summary.is_dry
            assert (summary.rows, summary.sent, summary.missing) == (wanted, 0, 0)
            assert {queue.topic for queue in summary.queues} == {"T"}
    told: list[tuple[int, int]] = []
    with broker_thread(tmp_path / "broker", "Copy", "Other") as namesrv:
        for number, source in enumerate((small_store.path, lake)):
            summary = replay.run(
                jobs,
                source,
                ReplayOptions(namesrv, tmp_path / f"ledger-{number}", "Copy"),
                selection=Selection(("T",)),
                progress=lambda done, total: told.append((done, total)),
            )
            assert (summary.rows, summary.sent, summary.acknowledged, summary.missing) == (30, 30, 30, 0)
        rows = read(namesrv, subscribe="Copy")
        assert len(rows) == 60
        assert {(row["msgId"], row["body"]) for row in rows} == {(f"T-{n:08d}", b"body %d" % n) for n in range(30)}
        for each in by_queue(rows):
            assert numbers(each) == sorted(numbers(each)[:10]) * 2  # the store's, then the lake's, each in order
            assert [row["properties"]["n"] for row in each] == [str(n) for n in numbers(each)]
        (row,) = (row for row in rows[:30] if row["msgId"] == "T-00000004")
        assert (row["tags"], row["keys"]) == ("A", ["k4", "é4"])
        # Without a topic each message goes to its own; once all is acknowledged, nothing is sent again.
        others = ReplayOptions(namesrv, tmp_path / "own"), Selection(topics=("Other",))
        assert replay.run(jobs, small_store.path, others[0], selection=others[1]).sent == 10
        fill(small_store, 5, "Other")  # not part of the replay, since its plan is written
        again = replay.run(jobs, small_store.path, others[0], selection=others[1])
        assert (again.sent, again.rows, again.acknowledged) == (0, 10, 10)
        assert sorted(numbers(read(namesrv, subscribe="Other"))) == list(range(10))
    assert all(0 <= done <= total == 30 for done, total in told)


@pytest.mark.spark
def test_a_message_that_no_broker_accepts_ends_the_run(
    jobs: AnySession, small_store: SmallStore, tmp_path: Path
) -> None:
    """Messages that were acknowledged before it are not sent again by the next run."""
    fill(small_store, 400, queues=1)
    small_store.put("T", 0, b"", UNIQ_KEY="empty")
    ledger = tmp_path / "ledger"
    with broker_thread(tmp_path / "broker", "T") as namesrv:
        for _ in range(2):
            with pytest.raises(RemotingError):
                replay.run(jobs, small_store.path, ReplayOptions(namesrv, ledger))
            reached = AckReader(ledger).refresh()[SourceQueue(str(small_store.path), "T", 0)]
            assert reached.count == len(read(namesrv, subscribe="T")) == 400


def test_no_message_overtakes_one_that_no_broker_accepts(
    small_store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are in flight together; those behind a failure do not go to its queue, and the ledger has all others."""
    monkeypatch.setattr(replay_sender, "CHUNK_ROWS", 10)
    fill(small_store, 60, queues=2)
    small_store.put("T", 0, b"", UNIQ_KEY="empty")
    fill(small_store, 60, queues=2)
    ledger = tmp_path / "ledger"
    with broker_thread(tmp_path / "broker", "T") as namesrv:
        with pytest.raises(RemotingError):
            replay.run(HERE, small_store.path, ReplayOptions(namesrv, ledger))
        reached = {queue.queue_id: each.count for queue, each in AckReader(ledger).refresh().items()}
        first, second = by_queue(read(namesrv, subscribe="T"))
    assert numbers(first) == list(range(0, 60, 2))
    # Of the other queue, what was in flight has ended, in order and without a gap.
    assert numbers(second) == [*range(1, 60, 2), *range(1, 60, 2)][: len(second)]
    assert reached == {0: len(first), 1: len(second)}


def test_an_impossible_replay_is_refused(small_store: SmallStore, tmp_path: Path) -> None:
    """See also the command lines in test_commands."""
    small_store.put("T")
    with pytest.raises(ConfigError):
        replay.run(HERE, small_store.path, ReplayOptions(ledger=tmp_path / "ledger"))
    with pytest.raises(ConfigError):
        Selection(starting_timestamp=2, ending_timestamp=1)
    with broker_thread(tmp_path / "broker", "T") as namesrv:
        options = ReplayOptions(namesrv, tmp_path / "ledger")
        assert replay.run(HERE, small_store.path, options).sent == 1
        with pytest.raises(ConfigError):
            replay.run(HERE, small_store.path, replace(options, topic="U"))


@pytest.mark.spark
@pytest.mark.parametrize("option", ["--spark", "--no-spark"])
def test_a_killed_replay_resumes(small_store: SmallStore, tmp_path: Path, option: str) -> None:
    """kill -9 of the command in the middle: the next run sends the rest. Nothing is missing, and all is in order."""
    fill(small_store, 900)
    ledger = tmp_path / "ledger"
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    with server("standalone", "--store", tmp_path / "broker", *ports, log=tmp_path / "log") as running:
        namesrv, _ = running.addresses()
        arguments = ["pipeline", "replay", "--from", str(small_store.path), "--to", "Copy"]
        arguments += ["-n", namesrv, "--ledger", str(ledger), option]
        first = subprocess.Popen([*RUCOLA, *arguments, "--rate", "40"], stdout=subprocess.PIPE)
        try:
            acks = AckReader(ledger)
            wait_for(lambda: sum(reached.count for reached in acks.refresh().values()) >= 50, first)
        finally:
            first.kill()
            first.communicate()
        second = CliRunner().invoke(main, [*arguments, "--json"])
        assert second.exit_code == 0, second.output
        summary = json.loads(second.stdout)
        assert (summary["rows"], summary["acknowledged"], summary["missing"]) == (900, 900, 0)
        assert 0 < summary["sent"] < 900
        rows = read(namesrv, subscribe="Copy")
        assert {row["msgId"] for row in rows} == {f"T-{n:08d}" for n in range(900)}
        assert len(rows) < 1000  # what was under way when it was killed may be there twice
        for each in by_queue(rows):
            first_seen = list(dict.fromkeys(numbers(each)))
            assert first_seen == sorted(first_seen)


SPANS = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter


def line(span):
    return f"{span.name} {span.context.span_id:016x} {[f'{one.context.span_id:016x}' for one in span.links]}\\n"


spans = open(os.environ["SPANS"], "a", buffering=1)
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=spans, formatter=line)))
trace.set_tracer_provider(provider)
"""


@pytest.mark.spark
@pytest.mark.parametrize("option", ["--spark", "--no-spark"])
def test_with_otel_messages_keep_their_context_or_get_that_of_their_send(
    small_store: SmallStore, tmp_path: Path, option: str
) -> None:
    """The providers are set up as by `opentelemetry-instrument`: by the first module that any Python imports."""
    first = f"00-{1:032x}-{2:016x}-01"
    small_store.put("T", 0, b"first", UNIQ_KEY="first", traceparent=first)
    small_store.put("T", 0, b"second", UNIQ_KEY="second")
    (tmp_path / "sitecustomize.py").write_text(SPANS)
    with broker_thread(tmp_path / "broker", "T") as namesrv:
        arguments = ["--from", small_store.path, "-n", namesrv, "--ledger", tmp_path / "ledger", "--otel", option]
        replayed = run("pipeline", "replay", *arguments, PYTHONPATH=str(tmp_path), SPANS=str(tmp_path / "spans"))
        assert replayed.returncode == 0, replayed.stderr
        contexts = {row["msgId"]: row["properties"]["traceparent"] for row in read(namesrv, subscribe="T")}
    (span,) = (tmp_path / "spans").read_text().splitlines()
    send = contexts["second"].split("-")[2]
    assert contexts["first"] == first
    assert span == f"send T {send} {[f'{2:016x}']}"


def senders(ledger: Path) -> set[int]:
    """The processes that have the ledger open for sending."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if link.readlink() == ledger / "senders":
                found.add(int(link.parts[2]))
    return found


@pytest.mark.spark
def test_a_killed_worker_is_replaced(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    """kill -9 of a Python worker: Spark ends the run, where it may not try again, and the next run sends the rest."""
    fill(small_store, 300)
    ledger, killed = tmp_path / "ledger", []

    def kill(done: int, _: int) -> None:
        if done >= 30 and not killed:
            killed.extend(senders(ledger))
            for worker in killed[:1]:
                os.kill(worker, signal.SIGKILL)

    with broker_thread(tmp_path / "broker", "T") as namesrv:
        options = ReplayOptions(namesrv, ledger)
        with pytest.raises(StoreError, match="Python worker exited unexpectedly"):
            replay.run(spark, small_store.path, replace(options, rate=20), progress=kill)
        summary = replay.run(spark, small_store.path, options)
        assert killed
        assert summary.sent < 300
        assert summary.acknowledged == 300
        rows = read(namesrv, subscribe="T")
        assert {row["msgId"] for row in rows} == {f"T-{n:08d}" for n in range(300)}
        for each in by_queue(rows):
            first_seen = list(dict.fromkeys(numbers(each)))
            assert first_seen == sorted(first_seen)


# -- the ledger and the limiter alone --------------------------------------------------------------------------------


def test_a_ledger_counts_complete_lines_and_refuses_damage(tmp_path: Path) -> None:
    one, other = SourceQueue("broker-a", "Tä", 0), SourceQueue("broker-b", "Tä", 0)
    with open_ledger(tmp_path / "ledger") as ledger:
        assert ledger.read_plan() is None
        ledger.write_plan({"source": "é"})
        growing = ledger.read_acks()
        with open_for_sending(ledger.directory, "a") as (writer, before):
            assert before.count == 0
            writer.write([Ack(*one, 100, 3), Ack(*other, 50, 2, 1, "q")])
            writer.write([Ack(*one, 170, 1)])
        assert growing.refresh()[one].physical_offset == 170
        # A line that was being written when its task was killed counts as not written.
        with (ledger.directory / "b.acks").open("w") as torn:
            torn.write('{"brokerName": "broker-a", "topic": "Tä", "queueId": 0, "commitLogOff')
        reached = growing.refresh()
        assert (reached[one].count, reached[other].count, reached[other].unsafe, growing.count) == (4, 2, 1, 6)
        with pytest.raises(StoreError), open_ledger(tmp_path / "ledger"):
            pass
        with (
            open_for_sending(ledger.directory, "c"),
            pytest.raises(StoreError),
        ):
            ledger.wait_for_senders(timeout_s=0)
    with open_ledger(tmp_path / "ledger") as ledger:
        assert ledger.read_plan() == {"source": "é"}
        # Acknowledgements without what they are of: another replay would leave out messages that it never sent.
        (ledger.directory / "replay.json").write_text('{"source": ')
        with pytest.raises(StoreCorrupt):
            ledger.read_plan()
        (ledger.directory / "replay.json").unlink()
        with pytest.raises(StoreCorrupt):
            ledger.read_plan()
    (tmp_path / "ledger" / "d.acks").write_text("no acknowledgement\n")
    with pytest.raises(StoreCorrupt):
        AckReader(tmp_path / "ledger").refresh()


async def test_idle_time_earns_no_credit_for_a_burst() -> None:
    now, waited = [0.0], []

    async def sleep(seconds: float) -> None:
        waited.append(round(seconds, 6))
        now[0] += seconds

    limiter = RateLimiter(50, clock=lambda: now[0], sleep=sleep)
    assert limiter.chunk_rows == 5
    for _ in range(3):
        await limiter.acquire(5)
    assert waited == [0.1, 0.1]
    now[0] += 10  # brokers were slow
    await limiter.acquire(5)
    await limiter.acquire(5)
    assert waited == [0.1, 0.1, 0.1]
    unlimited = RateLimiter(None, sleep=sleep)
    await unlimited.acquire(1_000_000)
    assert waited == [0.1, 0.1, 0.1]
    assert RateLimiter(0.5).chunk_rows == 1


def test_queues_are_distributed_evenly() -> None:
    plans = [replay.QueuePlan("b", "T", n, rows, 0, 100) for n, rows in enumerate((50, 30, 20, 20))]
    queues = replay.pending_queues(plans, {})
    lanes = replay.assign_lanes(queues, 2)
    assert [[queue.rows for queue in lane] for lane in lanes] == [[50, 20], [30, 20]]
    assert len(replay.assign_lanes(queues, 16)) == 4


# -- the command ------------------------------------------------------------------------------------------------------


def test_a_dry_run_prints_what_would_be_sent(small_store: SmallStore) -> None:
    fill(small_store, 4, queues=2)
    result = CliRunner().invoke(
        main, ["pipeline", "replay", "--from", str(small_store.path), "--dry-run", "-s", "n > 0"]
    )
    assert result.exit_code == 0, result.output
    head, *rows, last = result.stdout.splitlines()
    assert head.split() == ["#Broker", "#Topic", "#QID", "#Messages", "#Bytes", "#Acknowledged"]
    assert [row.split()[1:4] for row in rows] == [["T", "0", "1"], ["T", "1", "2"]]
    assert last == f"3 messages of {small_store.path} would be sent to their own topics"


def test_a_replay_needs_a_ledger(small_store: SmallStore) -> None:
    result = CliRunner().invoke(main, ["pipeline", "replay", "--from", str(small_store.path), "-n", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "--namesrvAddr (or ROCKETMQ_NAMESRV) and --ledger are needed, or --dry-run" in result.stderr
