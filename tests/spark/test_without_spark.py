"""Jobs in this process: the same results as in Spark, from the same input, and when which of both is chosen."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from rucola.cli.main import main
from rucola.errors import ConfigError, StoreCorrupt
from rucola.spark import session
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, audit, replay, search
from rucola.spark.jobs.selected_messages import SelectedMessages
from rucola.spark.jobs.selection import Selection
from rucola.spark.lake import key_index, parquet_files
from rucola.spark.lake.lookup import messages_of
from rucola.spark.lake.snapshot import Snapshot
from rucola.spark.lake.tables import read_snapshot
from rucola.spark.session import SMALL_SIZE, AnySession, LazySession
from rucola.spark.source.schema import COLUMNS, LAST_TIME_MS
from support.lake_entries import lake_entries
from support.small_store import SmallStore

MIDNIGHT_MS = 1_700_006_400_000  # 2023-11-15 00:00 UTC
HERE = LazySession("tests", use_spark=False)


def fill(store: SmallStore, count: int, seed: int = 2013) -> None:
    """Messages of all sorts: retries, dead letters, traces, several days, keys twice, no properties at all."""
    pick = random.Random(seed)
    for n in range(count):
        topic = pick.choice(["T", "T", "a#b=c", "é", "%RETRY%g", "%DLQ%g", "RMQ_SYS_TRACE_TOPIC"])
        at_ms = MIDNIGHT_MS - 50_000_000 + n * pick.choice([0, 1000, 400_000])
        body = f"body {pick.randrange(5)}".encode()
        if topic == "RMQ_SYS_TRACE_TOPIC":
            fields = ["SubBefore", str(at_ms + 7), "region", "gé", "request", f"U{pick.randrange(count)}", "0", "é"]
            body = "\x01".join(fields).encode() + b"\x02junk\x02"
        given = {
            "UNIQ_KEY": f"U{pick.randrange(count)}",
            "KEYS": pick.choice(["k1 k1 k2", "é", f"k{n}"]),
            "TAGS": pick.choice(["A", "B c"]),
            "n": str(n),
            "RETRY_TOPIC": "T",
            "DELAY": pick.choice(["3", "18", "99", "junk"]),
        }
        given = {name: value for name, value in given.items() if pick.random() < 0.7}
        # A few bodies are no zlib stream, and a few times are no times: microseconds, the largest number.
        odd = pick.random() < 0.1
        born_ms = pick.choice([at_ms * 1000, 2**63 - 1, -1]) if pick.random() < 0.1 else at_ms
        at_ms = 2**63 - 1 if pick.random() < 0.03 else at_ms
        store.put(topic, pick.randrange(3), body, at_ms=at_ms, born_ms=born_ms, sys_flag=int(odd), **given)


def rows_of(lake: Path) -> list[Any]:
    rows = [row for batch in Archive(lake).scan().batches(tuple(COLUMNS)) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["commitLogOffset"])


def places_of(snapshot: Snapshot) -> set[tuple[str, str, int, int]]:
    """Where rows are, by topic and day, whatever files they are in."""
    places = {(file.topic, file.date) for file in snapshot.rows}
    return {
        (
            *place,
            sum(file.rows for file in snapshot.rows if (file.topic, file.date) == place),
            min(file.least for file in snapshot.rows if (file.topic, file.date) == place),
        )
        for place in places
    }


@pytest.mark.spark
def test_archive_and_compaction_equal_those_of_spark(
    spark: SparkSession, small_store: SmallStore, tmp_path: Path
) -> None:
    both: tuple[tuple[AnySession, Path], ...] = ((spark, tmp_path / "in-spark"), (HERE, tmp_path / "here"))
    summaries = []
    for part in range(3):
        fill(small_store, 60, seed=part)
        summaries = [archive.run(jobs, small_store.path, lake) for jobs, lake in both]
        one, other = (replace(summary, lake="", file_count=0, file_size=0, key_size=0) for summary in summaries)
        assert one == other
    in_spark, here = (lake for _, lake in both)
    rows = rows_of(in_spark)
    assert rows_of(here) == rows
    entries = lake_entries(in_spark)
    assert lake_entries(here) == entries
    snapshots = [read_snapshot(lake) for _, lake in both]
    assert places_of(snapshots[0]) == places_of(snapshots[1])
    assert snapshots[0].progress == snapshots[1].progress
    assert {(file.entries, file.least, file.most) for file in snapshots[0].keys} == {
        (file.entries, file.least, file.most) for file in snapshots[1].keys
    }
    # A store time that is none is alone on its day.
    for lake in (in_spark, here):
        files = Counter((file.topic, file.date) for file in read_snapshot(lake).rows)
        several = sum(file.rows for file in read_snapshot(lake).rows if files[file.topic, file.date] > 1)
        summary = Archive(lake).compact(min_files=2)
        assert (summary.rows, summary.replaced_key_files, summary.key_files) == (several, 3, 1)
        assert rows_of(lake) == rows
        assert lake_entries(lake) == entries
    compacted = [{(file.topic, file.date): file.rows for file in read_snapshot(lake).rows} for lake in (in_spark, here)]
    assert compacted[0] == compacted[1]


@pytest.mark.spark
def test_an_audit_equals_that_of_spark(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    fill(small_store, 400)
    (small_store.path / "config").mkdir()
    offsets = {"T@g": {"0": 1, "1": 900}, "é@done": {"0": 3}, "Gone@g": {"0": 7}}
    text = json.dumps({"offsetTable": offsets})
    (small_store.path / "config" / "consumerOffset.json").write_text(text)
    archive.run(HERE, small_store.path, tmp_path / "lake")
    other = SmallStore(tmp_path / "other")
    chosen: dict[str, Any] = {
        "selection": Selection(tags="A", expression="n > 30"), "hottest": 2, "delay_levels": "1s"
    }  # fmt: skip
    both = [small_store.path, tmp_path / "lake"]
    for sources, given in (([small_store.path], {}), (both, chosen), ([other.path], {})):
        one, here = (audit.run(jobs, sources, **given) for jobs in (spark, HERE))
        for name, table in one.tables.items():
            found = here.tables[name]
            assert [(each.name, each.type) for each in found.schema] == [
                (each.name, each.type) for each in table.schema
            ]
            assert found.to_pylist() == table.to_pylist(), name
    assert len(here.tables["topics"]) == 0


@pytest.mark.spark
def test_counts_and_rows_equal_those_of_spark(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    fill(small_store, 300)
    archive.run(HERE, small_store.path, tmp_path / "lake")
    selections = (
        Selection(),
        Selection(("T", "é"), tags="A", expression="n > 100"),
        Selection(keys=("k1", "é", "U7"), starting_timestamp=MIDNIGHT_MS - 49_000_000),
        Selection(ending_timestamp=MIDNIGHT_MS, expression="n IS NULL"),
        Selection(tags="B c || none"),
    )
    for source in (small_store.path, tmp_path / "lake"):
        for selection in selections:
            messages = SelectedMessages(source, selection)
            names = tuple(COLUMNS)
            here = [row for batch in messages.batches(names) for row in batch.to_pylist(maps_as_pydicts="strict")]
            there = messages.frame(spark, names).select(*names).toArrow().to_pylist(maps_as_pydicts="strict")
            assert sorted(here, key=lambda row: row["commitLogOffset"]) == sorted(
                there, key=lambda row: row["commitLogOffset"]
            )
            assert 0 < len(here) <= messages.size()
            counts = [replay.run(jobs, source, selection=selection).queues for jobs in (spark, HERE)]
            assert counts[0] == counts[1]


def test_files_of_an_earlier_version_are_read(small_store: SmallStore, tmp_path: Path) -> None:
    """They lack the topic, and the columns that are null for nearly all messages."""
    fill(small_store, 20)
    archive.run(HERE, small_store.path, tmp_path / "lake")
    new = ("bodyError", "bornTimestampRaw", "storeTimestampRaw")
    for file in read_snapshot(tmp_path / "lake").rows:
        older = tmp_path / "older" / file.path
        older.parent.mkdir(parents=True, exist_ok=True)
        table = pq.read_table(tmp_path / "lake" / file.path, partitioning=None)
        pq.write_table(table.drop_columns(["topic", *new]), older)
        smaller = replace(file, size=older.stat().st_size)
        (rows,) = parquet_files.read_file(tmp_path / "older", smaller, COLUMNS)
        (expected,) = parquet_files.read_file(tmp_path / "lake", file, COLUMNS)
        assert rows.drop_columns(list(new)).equals(expected.drop_columns(list(new)))
        assert all(rows[name].null_count == len(rows) for name in new)
        assert len(messages_of(pa.Table.from_batches([rows.drop_columns(list(new))]))) == len(rows)


def test_a_number_that_is_no_time_is_in_no_range_of_times(small_store: SmallStore, tmp_path: Path) -> None:
    """A search by key, which compares single messages, finds what a search by columns finds."""
    for at_ms in (-5, 0, LAST_TIME_MS, LAST_TIME_MS + 1):
        small_store.put(at_ms=at_ms, KEYS="k")
    lake = tmp_path / "lake"
    archive.run(HERE, small_store.path, lake)
    for begin, end, count in ((None, None, 4), (0, None, 2), (None, LAST_TIME_MS, 1), (1, None, 1), (None, 0, 0)):
        selection = Selection(starting_timestamp=begin, ending_timestamp=end)
        assert len(search.run(HERE, lake, selection).messages) == count
        assert len(search.run(HERE, lake, replace(selection, keys=("k",))).messages) == count


def test_damage_is_reported_without_spark(small_store: SmallStore, tmp_path: Path) -> None:
    places = [small_store.put() for _ in range(3)]
    small_store.overwrite(places[1] + 88, b"X")
    for job in (
        lambda: archive.run(HERE, small_store.path, tmp_path / "lake"),
        lambda: audit.run(HERE, [small_store.path]),
    ):
        with pytest.raises(StoreCorrupt):
            job()
    assert not list((tmp_path / "lake").glob("data/topic=*"))
    assert archive.run(HERE, small_store.path, tmp_path / "lake", corrupt_records="skip").rows == 2


def test_many_rows_are_split_into_several_files(
    small_store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is buffered is bounded; keys are cut by their hash."""
    monkeypatch.setattr(parquet_files, "_MAX_BUFFERED", 1)
    monkeypatch.setattr(key_index, "ENTRIES_PER_FILE", 100)
    monkeypatch.setattr("rucola.spark.source.record_layout.BATCH_ROWS", 40)
    fill(small_store, 200)
    first = archive.run(HERE, small_store.path, tmp_path / "lake")
    snapshot = read_snapshot(tmp_path / "lake")
    assert sum(file.rows for file in snapshot.rows) == first.rows
    per_place = [(file.topic, file.date) for file in snapshot.rows]
    assert len(per_place) > len(set(per_place))
    assert len(snapshot.keys) > 1
    ordered = sorted(snapshot.keys, key=lambda file: file.least)
    assert all(one.most < other.least for one, other in pairwise(ordered))
    assert first.key_count == sum(file.entries for file in snapshot.keys)
    found = search.run(HERE, tmp_path / "lake", Selection(keys=("k1",)), limit=1000)
    assert len(found.messages) == len(
        [
            each
            for each in search.run(HERE, tmp_path / "lake", Selection(), limit=1000).messages
            if "k1" in (each.message.keys or "").split()
        ]
    )


@pytest.mark.slow
def test_small_jobs_do_not_load_pandas(small_store: SmallStore, tmp_path: Path) -> None:
    """That would take as long as the jobs themselves. An archive does: pyiceberg needs it for a commit."""
    fill(small_store, 20)
    store, lake = str(small_store.path), str(tmp_path / "lake")
    archive.run(HERE, store, lake)
    commands = (
        ["audit", "--from", store, "--from", lake],
        ["replay", "--from", lake, "--dry-run"],
        ["search", "--lake", lake, "-g", "A", "-b", "0"],
    )
    program = f"""
import sys
from rucola.cli.main import main
for arguments in {commands!r}:
    main(["pipeline", *arguments], standalone_mode=False)
    assert "pandas" not in sys.modules, arguments
"""
    subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=True)


# -- which of both is chosen ------------------------------------------------------------------------------------------


class Asked(Exception):
    """A session was asked for."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> SparkSession:
        raise Asked

    monkeypatch.setattr(session, "local_session", refuse)


@pytest.mark.parametrize("command", ["archive", "audit", "replay", "search"])
def test_options_decide_where_a_job_runs(
    asked: None, small_store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """By default the size does; --spark and --no-spark do in any case, and a master asks for Spark."""
    fill(small_store, 20)
    lakes = tmp_path / "given", tmp_path / "new"
    for _ in range(2):
        fill(small_store, 20)
        archive.run(HERE, small_store.path, lakes[0])
    arguments = {
        "archive": ["--store", str(small_store.path), "--out", str(lakes[1])],
        "audit": ["--from", str(small_store.path)],
        "replay": ["--from", str(lakes[0]), "--dry-run"],
        "search": ["--lake", str(lakes[0])],
    }[command]

    def result(*options: str) -> Any:
        return CliRunner().invoke(main, ["pipeline", command, *arguments, *options])

    for options in (["--spark"], ["--master", "local[1]"]):
        assert isinstance(result(*options).exception, Asked)
    monkeypatch.setattr(session, "SMALL_SIZE", 1000)
    monkeypatch.setattr("rucola.spark.lake.parquet_files.SMALL_SIZE", 1000)
    assert isinstance(result().exception, Asked)
    assert result("--no-spark", "--master", "local[1]").exit_code == 1
    assert result("--no-spark").exit_code == 0
    if command == "archive":
        return  # it is done
    monkeypatch.setattr(session, "SMALL_SIZE", SMALL_SIZE)
    assert result().exit_code == 0


def test_a_master_without_spark_is_refused() -> None:
    with pytest.raises(ConfigError):
        LazySession("tests", "local[1]", use_spark=False)


def test_under_spark_submit_a_job_runs_in_spark(
    asked: None, small_store: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_store.put("T")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(Asked):
        audit.run(LazySession("tests"), [small_store.path])
