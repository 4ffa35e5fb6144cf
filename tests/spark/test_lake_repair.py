"""A lake of which a file is missing or damaged: it is refused in a sentence, and `repair` restores it or says what is
gone. Never are there silently fewer messages, nor twice as many."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rucola.cli.main import main
from rucola.errors import ConfigError, MQError, StoreCorrupt, StoreError
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, search
from rucola.spark.jobs.selection import Selection
from rucola.spark.lake import read_lake, writer
from rucola.spark.lake.repair import LakeRepairResult
from rucola.spark.lake.snapshot import read_snapshot
from rucola.spark.lake.writer import open_lake
from rucola.spark.session import LazySession, local_session
from support.broker_thread import broker_thread
from support.errors import raises
from support.killing import Deadly, Killed
from support.small_store import SmallStore

pytestmark = pytest.mark.slow

MIDNIGHT_MS = 1_700_006_400_000  # 2023-11-15 00:00 UTC
BROKER = "broker-a"


@dataclass
class Filled:
    """A lake, what it holds, and the store it was filled from, which has three messages more."""

    path: Path
    store: SmallStore
    archived: list[int] = field(default_factory=list)
    later: list[int] = field(default_factory=list)


def put(store: SmallStore, count: int) -> list[int]:
    return [store.put("TU"[n % 2], 0, b"body", at_ms=MIDNIGHT_MS, KEYS=f"k{store.end}") for n in range(count)]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Two commits, which were compacted by a third, and one after that. Replaced files are still there."""
    spark = local_session("tests", cores=2, is_short=True)
    path = tmp_path_factory.mktemp("repair")
    filled = Filled(path / "lake", SmallStore(path / "store"))
    for step in range(3):
        filled.archived += put(filled.store, 10)
        archive.run(spark, filled.store.path, filled.path, broker_name=BROKER)
        if step == 1:
            Archive(filled.path).compact(spark, min_files=2)
    filled.later = put(filled.store, 3)
    return filled


@pytest.fixture
def filled(original: Filled, tmp_path: Path) -> Filled:
    shutil.copytree(original.path, tmp_path / "lake")
    return Filled(tmp_path / "lake", original.store, original.archived, original.later)


def messages(spark: SparkSession, lake: Path) -> list[int]:
    return sorted(row[0] for row in read_lake(spark, lake).select("commitLogOffset").collect())


def indexed(lake: Path, offsets: list[int]) -> list[int]:
    """The messages that are found by their keys."""
    found = [Archive(lake).by_key([f"k{offset}"]).messages for offset in offsets]
    return [each.message.physical_offset for each_key in found for each in each_key]


def content(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwrite(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES: dict[str, Callable[[Path], None]] = {"removed": remove, "truncated": truncate, "overwritten": overwrite}

FILES = [
    *("snapshot.json", "snapshot.json.bak", "progress.json", "progress.json.bak", "lock"),
    *(f"keys/{number:010d}-00000.parquet" for number in range(1, 5)),
    *(
        f"../topic={topic}/date=2023-11-15/{number:010d}-{count:05d}.parquet"
        for number in range(1, 5)
        for count, topic in enumerate("TU")
    ),
]


def test_the_test_lake_has_every_kind_of_file(original: Filled) -> None:
    own = original.path / "_rucola"
    assert {path for path in original.path.rglob("*") if path.is_file()} == {(own / name).resolve() for name in FILES}
    assert read_snapshot(original.path).number == 4


@pytest.mark.spark
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_damage_of_each_file_of_a_lake_is_repaired(spark: SparkSession, filled: Filled, name: str, damage: str) -> None:
    path = (filled.path / "_rucola" / name).resolve()
    is_replaced = path.suffix == ".parquet" and path.name.startswith(("0000000001", "0000000002"))
    is_message = path.suffix == ".parquet" and not is_replaced and "keys" not in path.parts
    is_key = path.suffix == ".parquet" and not is_replaced and "keys" in path.parts
    DAMAGES[damage](path)

    # Readers: everything, or a sentence that names the file and says what to do.
    def correct_or_refused(read: Callable[[], list[int]], *, is_concerned: bool) -> None:
        refusal: Exception | None = None
        try:
            assert sorted(read()) == filled.archived
        except (MQError, PySparkException, Py4JJavaError) as error:
            refusal = error
        assert (refusal is not None) == is_concerned
        if isinstance(refusal, MQError):
            assert str(path) in str(refusal)
            assert "rucola pipeline repair --lake" in str(refusal)
            assert "\n" not in str(refusal)
        elif refusal is not None:  # damage that only shows when Spark reads the file; it names it, too
            assert is_message
            assert damage == "overwritten"
            assert path.name in str(refusal)

    is_snapshot = name == "snapshot.json"
    correct_or_refused(lambda: messages(spark, filled.path), is_concerned=is_snapshot or is_message)
    keys = is_snapshot or is_key or is_message
    correct_or_refused(lambda: indexed(filled.path, filled.archived), is_concerned=keys)

    if is_message and damage == "overwritten":
        with pytest.raises(StoreError) as raised:
            search.run(spark, filled.path, Selection())
        assert str(raised.value).startswith(f"{path} cannot be read: the file is damaged; restore it from a backup")
        assert "\n" not in str(raised.value)

    # A dry run changes nothing, and tells.
    before = content(filled.path)
    dry = Archive(filled.path).repair(spark, dry_run=True)
    assert content(filled.path) == before
    is_harmless = name == "lock" or (damage == "removed" and (is_replaced or name.endswith(".bak")))
    assert dry.is_sound == is_harmless
    assert dry.is_dry
    # The files from which a compaction made this one still have its messages.
    is_lost = is_message and path.name.startswith("0000000004")
    assert bool(dry.losses) == is_lost

    # An archive goes on where it was, or refuses.
    if is_snapshot or ((is_message or is_key) and damage != "overwritten"):
        with pytest.raises(StoreCorrupt):
            archive.run(spark, filled.store.path, filled.path, broker_name=BROKER)
        assert content(filled.path) == before

    # The repair restores everything; only what messages were in is gone.
    left = filled.archived
    if is_lost:
        with pytest.raises(StoreError, match=f"lost 5 messages of [TU] on 2023-11-15, which were in .*{path.name}"):
            Archive(filled.path).repair(spark)
        assert content(filled.path) == before
        done = Archive(filled.path).repair(spark, allow_loss=True)
        left = messages(spark, filled.path)
        assert 0 < len(left) < len(filled.archived)
    else:
        done = Archive(filled.path).repair(spark)
    assert done.is_sound == dry.is_sound
    assert done.rows == len(left)
    assert messages(spark, filled.path) == left
    assert sorted(indexed(filled.path, filled.archived)) == left
    again = Archive(filled.path).repair(spark, dry_run=True)
    assert again.is_sound, again.findings
    kept = {data for name, data in content(filled.path).items() if name.endswith(".parquet")}
    assert {data for name, data in before.items() if name.endswith(".parquet")} <= kept
    # The last message was in the last file of U: without it the progress is set back, and it is archived again.
    restored = filled.archived[-1:] if is_lost and path.name == "0000000004-00001.parquet" else []
    wanted = sorted(left + restored + filled.later)
    assert archive.run(spark, filled.store.path, filled.path, broker_name=BROKER).rows == len(wanted) - len(left)
    assert messages(spark, filled.path) == wanted


# -- more than one file ------------------------------------------------------------------------------------------------


def own(filled: Filled, *names: str) -> list[Path]:
    return [filled.path / "_rucola" / name for name in names]


def is_restored(spark: SparkSession, filled: Filled, **more: Any) -> LakeRepairResult:
    """Repair, and hold that everything is there once, by scan and by key, and that archiving goes on after it."""
    done = Archive(filled.path).repair(spark, **more)
    assert not done.is_sound
    assert messages(spark, filled.path) == filled.archived
    assert sorted(indexed(filled.path, filled.archived)) == filled.archived
    assert archive.run(spark, filled.store.path, filled.path, broker_name=BROKER).rows == 3
    assert messages(spark, filled.path) == filled.archived + filled.later
    assert Archive(filled.path).repair(spark, dry_run=True).is_sound
    return done


def test_progress_without_rows_is_a_loss_and_set_back(filled: Filled) -> None:
    """As an archive run whose tasks wrote elsewhere has left it. What the store still has is archived then."""
    here = LazySession("tests", use_spark=False)
    with open_lake(filled.path) as lake:
        progress = lake.progress()[BROKER]
        queues = {topic: {queue: end + 5 for queue, end in ends.items()} for topic, ends in progress.queues.items()}
        lake.publish({BROKER: replace(progress, physical_offset=filled.store.end, queues=queues)})
    before = content(filled.path)
    found = Archive(filled.path).repair(here, dry_run=True)
    assert len(found.losses) == sum(map(len, queues.values()))
    with pytest.raises(StoreError):
        Archive(filled.path).repair(here)
    assert content(filled.path) == before
    Archive(filled.path).repair(here, allow_loss=True)
    assert Archive(filled.path).repair(here).is_sound
    assert archive.run(here, filled.store.path, filled.path, broker_name=BROKER).rows == len(filled.later)


@pytest.mark.spark
def test_a_lake_without_metadata_is_restored(spark: SparkSession, filled: Filled) -> None:
    """Only messages are left; how they were archived has to be said, since brokers delete files by that."""
    shutil.rmtree(filled.path / "_rucola")
    with pytest.raises(StoreCorrupt):
        archive.run(spark, filled.store.path, filled.path, broker_name=BROKER)
    with pytest.raises(ConfigError):
        Archive(filled.path).repair(spark)
    done = is_restored(spark, filled, stores=[BROKER])
    # Files that a compaction had replaced are no part of it, and no file is lost.
    assert sorted(Path(path).name[:10] for path in done.asides) == ["0000000001"] * 2 + ["0000000002"] * 2
    assert all((filled.path / "_rucola" / "aside" / "0000000005" / path).exists() for path in done.asides)


@pytest.mark.spark
def test_lost_progress_is_derived_from_the_rows(spark: SparkSession, filled: Filled) -> None:
    wanted = Archive(filled.path).progress()
    for path in own(filled, "snapshot.json", "snapshot.json.bak", "progress.json", "progress.json.bak"):
        path.unlink()
    Archive(filled.path).repair(spark, stores=[BROKER])
    assert Archive(filled.path).progress() == wanted
    published = json.loads((filled.path / "_rucola" / "progress.json").read_bytes())
    assert published[BROKER]["physical_offset"] == wanted[BROKER].physical_offset


@pytest.mark.spark
@pytest.mark.parametrize("number", [3, 4])
def test_the_key_index_reveals_lost_messages(spark: SparkSession, filled: Filled, number: int) -> None:
    """Without a snapshot no list says which files there were; progress and keys do."""
    for path in own(filled, "snapshot.json", "snapshot.json.bak"):
        path.unlink()
    for path in filled.path.glob("topic=T/*/*.parquet"):
        if int(path.name[:10]) <= 3 if number == 3 else int(path.name[:10]) == 4:
            path.unlink()
    said = {3: "10 messages of T on 2023-11-15 from broker-a", 4: "5 messages of T on 2023-11-15 from broker-a"}[number]
    with pytest.raises(StoreError, match=f"has lost {said}, at physical offsets"):
        Archive(filled.path).repair(spark)
    left = Archive(filled.path).repair(spark, allow_loss=True).rows
    assert left == len(messages(spark, filled.path)) == 30 - int(said[:2])


@pytest.mark.spark
def test_an_old_snapshot_gets_later_commits(spark: SparkSession, filled: Filled) -> None:
    """A copy of the snapshot was put back, as from a backup. A commit would give its files the places of others."""
    (snapshot,) = own(filled, "snapshot.json")
    shutil.copy(f"{snapshot}.bak", snapshot)
    before = content(filled.path)
    with pytest.raises(StoreCorrupt):
        archive.run(spark, filled.store.path, filled.path, broker_name=BROKER)
    assert content(filled.path) == before
    is_restored(spark, filled)


@pytest.mark.spark
def test_messages_archived_again_into_an_empty_lake_are_kept_once(
    spark: SparkSession, filled: Filled, tmp_path: Path
) -> None:
    """What versions before this one left of a lake whose snapshot was lost: commit 1 anew, over that of before."""
    archive.run(spark, filled.store.path, tmp_path / "new", broker_name=BROKER)
    shutil.copytree(tmp_path / "new", filled.path, dirs_exist_ok=True)
    for path in own(filled, "snapshot.json.bak", "progress.json.bak"):
        path.unlink()
    Archive(filled.path).repair(spark)
    assert messages(spark, filled.path) == filled.archived + filled.later
    assert archive.run(spark, filled.store.path, filled.path, broker_name=BROKER).rows == 0


@pytest.mark.spark
@pytest.mark.parametrize("is_said", [False, True])
def test_a_lake_of_live_brokers_is_restored(spark: SparkSession, tmp_path: Path, is_said: bool) -> None:
    """Its progress is that of queues; nothing of a broker's log may be deleted for it."""
    lake = tmp_path / "lake"
    own = lake / "_rucola"
    with broker_thread(tmp_path / "broker", "T") as namesrv:
        for number in range(2):
            rows = spark.range(0, 40).selectExpr(f"concat({number}, '-', id) AS body")
            rows.write.format("rocketmq").options(nameServer=namesrv, topic="T").mode("append").save()
            assert archive.run_live(spark, namesrv, lake).rows == 40
        wanted = Archive(lake).progress()
        (own / "snapshot.json").unlink()
        if is_said:
            for name in ("snapshot.json.bak", "progress.json", "progress.json.bak"):
                (own / name).unlink()
            with pytest.raises(ConfigError):
                Archive(lake).repair(spark)
        done = Archive(lake).repair(spark, live=["broker-a"] if is_said else [])
        assert (done.rows, done.losses, done.asides) == (80, (), ())
        assert Archive(lake).progress() == wanted
        assert archive.run_live(spark, namesrv, lake).rows == 0


@contextmanager
def killed_behind(name: str) -> Iterator[None]:
    """What is done inside dies when it has replaced a file of this name."""

    replace = writer.replace_file
    replaced: list[str] = []

    def replace_file(path: Path, data: bytes) -> None:
        replace(path, data)
        replaced.append(path.name)
        if path.name == name:
            raise Killed

    with pytest.MonkeyPatch.context() as patched, suppress(Killed):
        patched.setattr(writer, "replace_file", replace_file)
        yield
    assert replaced[-1] == name


@pytest.mark.spark
@pytest.mark.parametrize("lost", ["snapshot.json", "pending.json", "progress.json", "a staged file"])
def test_an_interrupted_commit_is_completed_or_dropped(spark: SparkSession, filled: Filled, lost: str) -> None:
    """Killed after the commit was decided. It is completed, or archived again: the store still has its messages."""
    with killed_behind("pending.json"):
        archive.run(spark, filled.store.path, filled.path, broker_name=BROKER)
    if lost == "a staged file":
        sorted(filled.path.glob("_rucola/staging/*/rows/*/*/*.parquet"))[0].unlink()
        with pytest.raises(StoreCorrupt):
            archive.run(spark, filled.store.path, filled.path, broker_name=BROKER)
    elif lost == "pending.json":
        truncate(filled.path / "_rucola" / lost)
        with pytest.raises(StoreCorrupt):
            archive.run(spark, filled.store.path, filled.path, broker_name=BROKER)
    else:
        (filled.path / "_rucola" / lost).unlink()
    done = Archive(filled.path).repair(spark)
    is_completed = lost in ("snapshot.json", "progress.json")
    assert done.rows == len(filled.archived) + 3 * is_completed
    assert archive.run(spark, filled.store.path, filled.path, broker_name=BROKER).rows == 3 * (not is_completed)
    assert messages(spark, filled.path) == filled.archived + filled.later
    assert sorted(indexed(filled.path, filled.later)) == filled.later
    assert Archive(filled.path).repair(spark, dry_run=True).is_sound


# -- a repair that is killed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (writer, "replace_file"),
        (writer, "sync_directory"),
        (Path, "replace"),
        (Path, "unlink"),
    ],
)
def test_a_repair_killed_at_any_step_can_be_repeated(
    original: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    """At every call that changes the disk. Files are set aside here and messages are lost; there is no session."""
    for calls in range(1, 100):
        lake = tmp_path / str(calls)
        shutil.copytree(original.path, lake)
        truncate(lake / "topic=T" / "date=2023-11-15" / "0000000004-00000.parquet")
        shutil.copy(
            lake / "topic=U" / "date=2023-11-15" / "0000000003-00001.parquet",
            lake / "topic=U" / "date=2023-11-15" / "0000000001-00007.parquet",
        )
        deadly = Deadly(getattr(owner, name), calls, after=after)
        before = content(lake)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, deadly)
            with suppress(Killed):
                Archive(lake).repair(None, allow_loss=True)  # type: ignore[arg-type]
        summary = Archive(lake).repair(None, allow_loss=True)  # type: ignore[arg-type]
        assert sum(file.rows for file in read_snapshot(lake).rows) == summary.rows == 25
        assert sorted(indexed(lake, original.archived)) == sorted({*original.archived} - {*original.archived[20::2]})
        assert Archive(lake).repair(None, dry_run=True).is_sound  # type: ignore[arg-type]
        kept = {data for name, data in content(lake).items() if name.endswith(".parquet")}
        assert {data for name, data in before.items() if name.endswith(".parquet")} <= kept
        if deadly.calls > 0:
            break
    assert calls > 1
    assert deadly.calls > 0


@pytest.mark.spark
@pytest.mark.parametrize("last", ["pending.json", "snapshot.json", "progress.json"])
def test_a_killed_rebuild_of_the_index_can_be_repeated(spark: SparkSession, filled: Filled, last: str) -> None:
    """Behind the decision, the snapshot and the progress. Until there is a snapshot readers are refused."""
    for path in own(filled, "snapshot.json", "snapshot.json.bak"):
        path.unlink()
    with killed_behind(last):
        Archive(filled.path).repair(spark)
    if last == "pending.json":
        with pytest.raises(StoreCorrupt):
            read_snapshot(filled.path)
    else:
        assert messages(spark, filled.path) == filled.archived
    # The next run completes it, whichever that is.
    assert archive.run(spark, filled.store.path, filled.path, broker_name=BROKER).rows == 3
    assert messages(spark, filled.path) == filled.archived + filled.later
    assert sorted(indexed(filled.path, filled.archived)) == filled.archived
    assert Archive(filled.path).repair(spark, dry_run=True).is_sound


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_the_command_prints_its_plan_and_executes_it(spark: SparkSession, filled: Filled) -> None:
    command = ["pipeline", "repair", "--lake", str(filled.path)]
    result = CliRunner().invoke(main, [*command, "--dry-run"])
    assert (result.exit_code, result.stdout) == (0, f"{filled.path} is sound, with 30 messages in 4 files\n")
    (filled.path / "_rucola" / "snapshot.json").unlink()
    search = CliRunner().invoke(main, ["pipeline", "search", "--lake", str(filled.path), "-k", "k"])
    assert search.exit_code == 1
    assert search.stderr.count("\n") == 1
    assert f"rucola pipeline repair --lake {filled.path} --dry-run" in search.stderr
    result = CliRunner().invoke(main, [*command, "--dry-run"])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "_rucola/snapshot.json: the file is missing"
    assert result.stdout.splitlines()[-1] == f"{filled.path} would be restored, with 30 messages in 4 files"
    result = CliRunner().invoke(main, [*command, "--json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert (shown["sound"], shown["dryRun"], shown["rows"], shown["losses"]) == (False, False, 30, [])
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.stdout) == (0, f"{filled.path} is sound, with 30 messages in 4 files\n")


def test_a_new_lake_is_sound_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    with open_lake(tmp_path / "lake"):
        pass
    assert Archive(tmp_path / "lake").repair(None).is_sound  # type: ignore[arg-type]
    with raises(StoreError, subject=str(tmp_path)):
        Archive(tmp_path).repair(None)  # type: ignore[arg-type]
    assert not (tmp_path / "_rucola").exists()
