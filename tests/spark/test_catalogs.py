"""Lakes in catalogs and object stores: the promises of test_lake, where runs have no lock and files no rename."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.utils.config import Config

from rucola.cli.main import main
from rucola.errors import ConfigError, StoreCorrupt, StoreError
from rucola.spark.archive import Archive
from rucola.spark.bodies.json_bodies import JsonBodies
from rucola.spark.jobs import archive
from rucola.spark.lake import lookup, runs, topic_tables, writer
from rucola.spark.lake.parquet_files import read_rows
from rucola.spark.lake.snapshot import STAGING_DIRECTORY, ArchiveProgress, Snapshot
from rucola.spark.lake.staging import stage_in_process
from rucola.spark.lake.storage import Directory, ObjectStore
from rucola.spark.lake.tables import LakeInUse, open_tables, read_snapshot
from rucola.spark.lake.writer import StagedFiles, open_lake
from rucola.spark.session import LazySession
from rucola.spark.source import batch_reader
from rucola.spark.source.options import parse_read_options
from support.databases import DatabaseServer, create_database
from support.errors import raises
from support.killed_archive import archive_and_die
from support.killing import Deadly, Killed
from support.lake_messages import added, messages
from support.object_store import TableBucket, vending_catalog
from support.small_store import SmallStore

pytestmark = pytest.mark.slow


MIN_STEPS = 10
VENDED = "REST that gives credentials with tables"


class Place(NamedTuple):
    """A lake that does not exist yet, the class of its catalog, and that of its files."""

    location: str
    catalog: str
    catalog_class: type
    storage_class: type

    @property
    def archive(self) -> Archive:
        return Archive(self.location, self.catalog)

    def snapshot(self) -> Snapshot:
        return read_snapshot(self.location, self.catalog)


@pytest.fixture(params=["PostgreSQL and a directory", "REST and an object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param.startswith("PostgreSQL"):
        server: DatabaseServer = request.getfixturevalue("postgresql")
        yield Place(str(tmp_path / "lake"), create_database(server), SqlCatalog, Directory)
        return
    with ExitStack() as stack:
        bucket: TableBucket = request.getfixturevalue("table_bucket")
        if request.param == VENDED:
            bucket = stack.enter_context(vending_catalog(bucket))
            monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # there are no others
        for name, value in bucket.environment("tests").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # as a new process reads it
        yield Place(f"{bucket.url}/a/lake", "tests", RestCatalog, ObjectStore)


def stage(lake: writer.LakeWriter, offsets: Iterable[int]) -> StagedFiles:
    return stage_in_process(lake, [messages(offsets)]).files


def publish(place: Place, upto: int, **options: Any) -> None:
    """Archive what comes after the last commit, and replace its files in the same commit."""
    with open_lake(place.location, place.catalog) as lake:
        begin = lake.progress().get("a", ArchiveProgress(0)).physical_offset
        old = lake.snapshot()
        if begin < upto:
            replaced = [*old.rows], [*old.keys]
            staged = stage(lake, range(upto))
            paths = [[file.path for file in files] for files in replaced]
            lake.publish(staged, {"a": ArchiveProgress(upto)}, *paths, **options)


def rows_of(snapshot: Snapshot) -> list[int]:
    """The messages as a reader sees them, all of which are found by their keys."""
    batches = read_rows(snapshot.storage, snapshot.rows, ["commitLogOffset"])
    found = sorted(offset for batch in batches for offset in batch[0].to_pylist())
    by_key = lookup.by_key(snapshot, [f"U{offset}" for offset in found], most=1000).messages
    assert sorted(each.message.physical_offset for each in by_key) == found
    return found


def files_of(place: Place) -> set[str]:
    storage = place.snapshot().storage
    return {file.path for file in storage.files("") if file.path.endswith(".parquet")}


def live(snapshot: Snapshot) -> set[str]:
    return {file.path for file in (*snapshot.rows, *snapshot.keys)}


def test_a_run_that_is_killed_anywhere_counts_once_or_not_at_all(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every call that writes: readers see all of the run or nothing, and the next run continues from there.

    Those to a directory are in test_lake.
    """
    upto = 2
    publish(place, upto)
    steps: list[tuple[type, str, bool]] = [(place.catalog_class, "commit_table", after) for after in (False, True)]
    if place.storage_class is ObjectStore:
        steps += [(ObjectStore, name, False) for name in ("writing", "sync", "delete", "delete_directory")]
    for owner, name, after in steps:
        for calls in range(1, 100):
            deadly = Deadly(getattr(owner, name), calls, after=after)
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, deadly)
                with suppress(Killed):
                    publish(place, upto + 1, keep_replaced_ms=0)
            snapshot = place.snapshot()
            counted = snapshot.progress["a"].physical_offset
            assert rows_of(snapshot) == [*range(counted)]
            assert counted in (upto, upto + 1)
            publish(place, upto := upto + 1, keep_replaced_ms=0)
            assert rows_of(place.snapshot()) == [*range(upto)]
            if not deadly.killed:
                break
        assert name == "delete" or calls > 1
    # A later run deletes what dead ones have left, and nothing else.
    snapshot = place.snapshot()
    assert files_of(place) > live(snapshot)
    with open_lake(place.location, place.catalog):
        assert files_of(place) > live(snapshot)
    monkeypatch.setattr(runs, "_DEAD_AFTER_S", -60)
    with open_lake(place.location, place.catalog):
        pass
    assert files_of(place) == live(snapshot)
    assert not [*snapshot.storage.files(STAGING_DIRECTORY)]
    assert rows_of(place.snapshot()) == [*range(upto)]


@pytest.mark.parametrize("place", ["REST and an object store"], indirect=True)
def test_a_process_that_is_killed_at_any_step_archives_once_or_not_at_all(
    place: Place, small_store: SmallStore
) -> None:
    """By SIGKILL, before each request and object; the next run has what the killed one had not."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("PYICEBERG_")}
    here = LazySession("tests", use_spark=False)

    def archived() -> list[int]:
        snapshot = place.snapshot()
        batches = read_rows(snapshot.storage, snapshot.rows, ["commitLogOffset"])
        found = sorted(offset for batch in batches for offset in batch[0].to_pylist())
        by_key = lookup.by_key(snapshot, ["k"], most=1000).messages
        assert sorted(each.message.physical_offset for each in by_key) == found
        return found

    places: list[int] = []
    counted = set()
    for step in itertools.count():
        places.append(small_store.put("T", KEYS="k"))
        if step == 0:  # the lake is there
            archive.run(here, small_store.path, place.archive)
            continue
        is_killed = archive_and_die(step, environment, small_store.path, place.location, place.catalog)
        found = archived()
        assert found in (places[:-1], places)
        counted.add(len(places) - len(found))
        assert archive.run(here, small_store.path, place.archive).rows == len(places) - len(found)
        assert archived() == places
        if not is_killed:
            break
    assert counted == {0, 1}
    assert step > MIN_STEPS


def test_commits_at_once_lose_nothing_and_repeat_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two archivers of one store; four writers of stores of their own, while a compaction goes on; a lost answer."""
    publish(place, 2)
    # 1. Of two runs that begin at the same progress, one counts; the other one's next run continues.
    with (
        open_lake(place.location, place.catalog) as one,
        open_lake(place.location, place.catalog) as other,
    ):
        one.publish(stage(one, [2, 3]), {"a": ArchiveProgress(4)})
        with pytest.raises(LakeInUse):
            other.publish(stage(other, [2, 3, 4]), {"a": ArchiveProgress(5)})
    assert rows_of(place.snapshot()) == [0, 1, 2, 3]
    # 2. Commits of others do not concern a writer.
    together = threading.Barrier(5)
    failures: list[Exception] = []

    def write(number: int) -> None:
        try:
            with open_tables(place.location, place.catalog) as own:
                assert own is not None
                together.wait()
                for step in range(2):
                    offset = 100 * number + 2 * step
                    files = added(own, f"{number}-{step}", [offset])
                    own.commit(own.messages, files, progress={f"store {number}": ArchiveProgress(offset)})
        except Exception as error:
            failures.append(error)

    def compact() -> None:
        try:
            together.wait()
            with suppress(LakeInUse):
                place.archive.compact(min_files=2)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    threads.append(threading.Thread(target=compact))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    everything = [*range(4), *(100 * number + 2 * step for number in range(1, 5) for step in range(2))]
    snapshot = place.snapshot()
    assert sum(file.rows for file in snapshot.rows) == len(everything)
    assert {name: each.physical_offset for name, each in snapshot.progress.items()} == {
        "a": 4, **{f"store {number}": 100 * number + 2 for number in range(1, 5)}
    }  # fmt: skip
    # 3. A commit whose answer is lost is looked for, also if a proxy has repeated it, and met its own commit.
    commit_table: Callable[..., object] = place.catalog_class.commit_table
    for offset, error in ((4, ConnectionError), (6, CommitFailedException)):

        def lose(*arguments: Any, error: type[Exception] = error) -> None:
            commit_table(*arguments)
            raise error("lost")

        with monkeypatch.context() as patched, open_lake(place.location, place.catalog) as lake:
            patched.setattr(place.catalog_class, "commit_table", lose)
            lake.publish(stage(lake, [offset, offset + 1]), {"a": ArchiveProgress(offset + 2)})
        found = place.snapshot()
        assert sum(file.rows for file in found.rows) == len(everything) + offset - 2
        assert found.progress["a"].physical_offset == offset + 2


def run_command(*arguments: object) -> Any:
    """Run a command of the pipeline, and return what it prints as JSON."""
    done = CliRunner().invoke(main, ["pipeline", *map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return msgspec.json.decode(done.stdout)


@pytest.mark.parametrize("place", ["PostgreSQL and a directory", "REST and an object store", VENDED], indirect=True)
def test_commands_find_a_lake_by_its_catalog(place: Place, small_store: SmallStore) -> None:
    at = ("--catalog", place.catalog)
    for number in range(3):
        small_store.put("T", number % 2, KEYS=f"k{number}", UNIQ_KEY=f"U{number}")
        assert run_command("archive", "--store", small_store.path, "--out", place.location, *at)["rows"] == 1
    assert run_command("archive", "--store", small_store.path, "--out", place.location, *at)["rows"] == 0
    for _ in range(2):
        found = run_command("search", "--lake", place.location, *at, "-k", "k1")["messages"]
        assert [message["msgId"] for message in found] == ["U1"]
        # The store is a directory, which needs no catalog.
        audited = run_command("audit", "--from", small_store.path, "--from", place.location, *at)
        assert sum(topic["messages"] for topic in audited["topics"]) == 6
        assert run_command("replay", "--from", place.location, *at, "--dry-run")["rows"] == 3
        counted = run_command("sql", "--lake", place.location, *at, "SELECT count(*) AS n FROM messages")
        assert [row["n"] for row in counted["rows"]] == [3]
        of_store = ("--store", small_store.path, "--brokerName", small_store.path)
        assert run_command("status", "--lake", place.location, *at, *of_store)["rows"] == 3
        assert run_command("check", "--lake", place.location, *at, *of_store)["differences"] == []
        read = parse_read_options({"lake": str(place.location), "catalog": place.catalog, "columns": "msgId"})
        batches = (batch for part in batch_reader.plan(read) for batch in batch_reader.read(part, read, ("msgId",)))
        assert sorted(row["msgId"] for batch in batches for row in batch.to_pylist()) == ["U0", "U1", "U2"]
        run_command("compact", "--lake", place.location, *at)
    assert len(place.snapshot().rows) == 1
    # A catalog has one lake.
    with raises(ConfigError, subject=place.location):
        Archive(f"{place.location}-2", place.catalog).progress()
    # A lake that has lost its tables is not begun anew.
    with open_tables(place.location, place.catalog) as own:
        assert own is not None
        own.catalog.drop_table("rucola.messages")
    with raises(StoreError, subject=place.catalog):
        place.archive.progress()
    with pytest.raises(StoreCorrupt), place.archive.open():
        pass


def test_tables_of_topics_are_in_the_catalog(
    place: Place, small_store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message once, whatever is killed or raced; with a schema that changes, and files that are merged."""
    decoders = {"Orders": JsonBodies()}

    def archive_one(number: int) -> None:
        small_store.put("Orders", body=b'{"id":%d,"n%d":1}' % (number, number))
        archive.run(LazySession("tests", use_spark=False), small_store.path, place.archive)

    def rows() -> list[tuple[int, int | None]]:
        with open_tables(place.location, place.catalog) as own:
            assert own is not None
            table = own.topic("Orders")
            assert table is not None
            found = table.scan().to_arrow().sort_by("commitLogOffset").to_pylist()
            return [(row["value"]["id"], row["value"][f"n{row['value']['id']}"]) for row in found]

    small_store.put("%RETRY%g")
    small_store.put("Orders", body=b'{"id":0,"n0":1}')
    command = ("archive", "--store", small_store.path, "--out", place.location, "--catalog", place.catalog)
    decoding = ("--decode", "Orders=json", "--table-per-topic")
    done = CliRunner().invoke(main, ["pipeline", *map(str, command), *decoding])
    assert done.exit_code == 0, done.output
    assert rows() == [(0, 1)]
    number = 0
    commit = place.catalog_class, "commit_table"
    for owner, name, calls, after in (
        (*commit, 1, False),  # of the schema
        (*commit, 2, False),
        (*commit, 2, True),
        (place.storage_class, "writing", 2, True),
        (place.storage_class, "delete_directory", 1, False),
    ):
        archive_one(number := number + 1)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, Deadly(getattr(owner, name), calls, after=after))
            with suppress(Killed):
                place.archive.derive(decoders, keep_replaced_ms=0)
        assert rows() in ([(each, 1) for each in range(number)], [(each, 1) for each in range(number + 1)])
        place.archive.derive(decoders, keep_replaced_ms=0)
        assert rows() == [(each, 1) for each in range(number + 1)]
        if number == 2:
            monkeypatch.setattr(topic_tables, "MIN_FILES", 2)  # then files are merged, too
    # Of two runs that begin at the same progress, one counts.
    archive_one(number := number + 1)

    class Between(JsonBodies):
        def decode(self, bodies: pa.BinaryArray, known: pa.StructType | None) -> Any:
            place.archive.derive(decoders)
            return super().decode(bodies, known)

    with pytest.raises(LakeInUse):
        place.archive.derive({"Orders": Between()})
    assert rows() == [(each, 1) for each in range(number + 1)]
    # What dead runs have left is deleted with the next messages.
    archive_one(number + 1)
    monkeypatch.setattr(runs, "_DEAD_AFTER_S", -60)
    monkeypatch.setattr(runs.Run, "check_age", lambda _: None)
    place.archive.derive(decoders, keep_replaced_ms=0)
    storage = place.snapshot().storage
    with open_tables(place.location, place.catalog) as own:
        assert own is not None
        table = own.topic("Orders")
        assert table is not None
        found = {
            file.path for file in storage.files(own.directory(table)) if not file.path.endswith((".avro", ".json"))
        }
        assert found == set(own.paths(table))
        assert own.topic("%RETRY%g") is not None
    inferred = CliRunner().invoke(
        main, ["pipeline", "infer-schema", "--lake", place.location, "--catalog", place.catalog, "-t", "Orders"]
    )
    assert "n0" in json.loads(inferred.stdout)["properties"]
    again = run_command(
        "decode", "--lake", place.location, "--catalog", place.catalog, "--decode", "Orders=json", "--again"
    )
    assert [each["rows"] for each in again["topics"]] == [number + 2]


def test_a_catalog_that_cannot_be_used_is_named(tmp_path: Path, small_store: SmallStore) -> None:
    for catalog in ("nowhere", "ftp://host/x", "postgresql+psycopg://a:secret@host/x"):
        with pytest.raises(ConfigError) as error:
            Archive(tmp_path / "lake", catalog).progress()
        assert "secret" not in str(error.value)
    with pytest.raises(ConfigError):
        Archive("s3://bucket/lake")
    refused = CliRunner().invoke(main, ["pipeline", "search", "--lake", "s3://bucket/lake", "-k", "k"])
    assert refused.exit_code == 2
    with pytest.raises(ConfigError):
        Archive(tmp_path / "lake", progress_directory=tmp_path)
