"""A lake of which a file is missing or damaged: it is refused in a sentence, and `repair` restores it or says what is
gone. Never are there silently fewer messages, nor twice as many."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from rucola.cli.main import main
from rucola.errors import MQError, StoreCorrupt, StoreError
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, search
from rucola.spark.jobs.selection import Selection
from rucola.spark.lake import writer
from rucola.spark.lake.repair import LakeRepairResult
from rucola.spark.lake.snapshot import read_snapshot
from rucola.spark.lake.writer import open_lake
from rucola.spark.session import LazySession
from support.errors import raises
from support.killing import Deadly, Killed
from support.small_store import SmallStore

pytestmark = pytest.mark.slow

MIDNIGHT_MS = 1_700_006_400_000  # 2023-11-15 00:00 UTC
BROKER = "broker-a"
HERE = LazySession("tests", use_spark=False)


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
    path = tmp_path_factory.mktemp("repair")
    filled = Filled(path / "lake", SmallStore(path / "store"))
    for step in range(3):
        filled.archived += put(filled.store, 10)
        archive.run(HERE, filled.store.path, filled.path, broker_name=BROKER)
        if step == 1:
            Archive(filled.path).compact(min_files=2)
    filled.later = put(filled.store, 3)
    return filled


@pytest.fixture
def filled(original: Filled, tmp_path: Path) -> Filled:
    shutil.copytree(original.path, tmp_path / "lake")
    return Filled(tmp_path / "lake", original.store, original.archived, original.later)


def messages(lake: Path) -> list[int]:
    batches = Archive(lake).scan().batches(["commitLogOffset"])
    return sorted(offset for batch in batches for offset in batch[0].to_pylist())


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


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_damage_of_each_file_of_a_lake_is_repaired(filled: Filled, name: str, damage: str) -> None:
    path = (filled.path / "_rucola" / name).resolve()
    is_replaced = path.suffix == ".parquet" and path.name.startswith(("0000000001", "0000000002"))
    is_message = path.suffix == ".parquet" and not is_replaced and "keys" not in path.parts
    is_key = path.suffix == ".parquet" and not is_replaced and "keys" in path.parts
    DAMAGES[damage](path)

    # Readers: everything, or a sentence that names the file and says what to do.
    def correct_or_refused(read: Callable[[], list[int]], *, is_concerned: bool) -> None:
        refusal: MQError | None = None
        try:
            assert sorted(read()) == filled.archived
        except MQError as error:
            refusal = error
        assert (refusal is not None) == is_concerned
        if refusal is not None:
            assert str(path) in str(refusal)
            assert "rucola pipeline repair --lake" in str(refusal)
            assert "\n" not in str(refusal)

    is_snapshot = name == "snapshot.json"
    correct_or_refused(lambda: messages(filled.path), is_concerned=is_snapshot or is_message)
    keys = is_snapshot or is_key or is_message
    correct_or_refused(lambda: indexed(filled.path, filled.archived), is_concerned=keys)

    # A dry run changes nothing, and tells.
    before = content(filled.path)
    dry = Archive(filled.path).repair(dry_run=True)
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
            archive.run(HERE, filled.store.path, filled.path, broker_name=BROKER)
        assert content(filled.path) == before

    # The repair restores everything; only what messages were in is gone.
    left = filled.archived
    if is_lost:
        with pytest.raises(StoreError, match=f"lost 5 messages of [TU] on 2023-11-15, which were in .*{path.name}"):
            Archive(filled.path).repair()
        assert content(filled.path) == before
        done = Archive(filled.path).repair(allow_loss=True)
        left = messages(filled.path)
        assert 0 < len(left) < len(filled.archived)
    else:
        done = Archive(filled.path).repair()
    assert done.is_sound == dry.is_sound
    assert done.rows == len(left)
    assert messages(filled.path) == left
    assert sorted(indexed(filled.path, filled.archived)) == left
    again = Archive(filled.path).repair(dry_run=True)
    assert again.is_sound, again.findings
    kept = {data for name, data in content(filled.path).items() if name.endswith(".parquet")}
    assert {data for name, data in before.items() if name.endswith(".parquet")} <= kept
    assert archive.run(HERE, filled.store.path, filled.path, broker_name=BROKER).rows == 3
    assert messages(filled.path) == left + filled.later


@pytest.mark.spark
def test_a_job_of_spark_names_a_damaged_file(spark: SparkSession, filled: Filled) -> None:
    path = filled.path / "topic=T" / "date=2023-11-15" / "0000000004-00000.parquet"
    overwrite(path)
    with raises(StoreError) as raised:
        search.run(spark, filled.path, Selection())
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


# -- more than one file ------------------------------------------------------------------------------------------------


def own(filled: Filled, *names: str) -> list[Path]:
    return [filled.path / "_rucola" / name for name in names]


def is_restored(filled: Filled, **more: Any) -> LakeRepairResult:
    """Repair, and hold that everything is there once, by scan and by key, and that archiving goes on after it."""
    done = Archive(filled.path).repair(**more)
    assert not done.is_sound
    assert messages(filled.path) == filled.archived
    assert sorted(indexed(filled.path, filled.archived)) == filled.archived
    assert archive.run(HERE, filled.store.path, filled.path, broker_name=BROKER).rows == 3
    assert messages(filled.path) == filled.archived + filled.later
    assert Archive(filled.path).repair(dry_run=True).is_sound
    return done


def test_a_lake_without_both_copies_of_its_snapshot_is_refused(filled: Filled) -> None:
    for path in own(filled, "snapshot.json", "snapshot.json.bak"):
        path.unlink()
    before = content(filled.path)
    with raises(StoreError, subject=str(filled.path)):
        Archive(filled.path).repair(allow_loss=True)
    assert content(filled.path) == before


@pytest.mark.parametrize("topic", ["T", "U"])
@pytest.mark.parametrize("has_keys", [True, False])
def test_messages_of_a_lost_commit_are_named(filled: Filled, topic: str, has_keys: bool) -> None:
    """Without the snapshot, key index and progress say which messages the last commit had."""
    for path in own(filled, "snapshot.json", *["keys/0000000004-00000.parquet"] * (not has_keys)):
        path.unlink()
    (path,) = filled.path.glob(f"topic={topic}/*/0000000004-*.parquet")
    path.unlink()
    with pytest.raises(StoreError):
        Archive(filled.path).repair()
    done = Archive(filled.path).repair(allow_loss=True)
    assert len(done.losses) == 1 + has_keys
    assert messages(filled.path) == sorted({*filled.archived} - {*filled.archived[20 + "TU".index(topic) :: 2]})


def test_an_old_snapshot_gets_later_commits(filled: Filled) -> None:
    """A copy of the snapshot was put back, as from a backup. A commit would give its files the places of others."""
    (snapshot,) = own(filled, "snapshot.json")
    shutil.copy(f"{snapshot}.bak", snapshot)
    before = content(filled.path)
    with pytest.raises(StoreCorrupt):
        archive.run(HERE, filled.store.path, filled.path, broker_name=BROKER)
    assert content(filled.path) == before
    is_restored(filled)


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


@pytest.mark.parametrize("lost", ["snapshot.json", "pending.json", "progress.json", "a staged file"])
def test_an_interrupted_commit_is_completed_or_dropped(filled: Filled, lost: str) -> None:
    """Killed after the commit was decided. It is completed, or archived again: the store still has its messages."""
    with killed_behind("pending.json"):
        archive.run(HERE, filled.store.path, filled.path, broker_name=BROKER)
    if lost == "a staged file":
        sorted(filled.path.glob("_rucola/staging/*/rows/*/*/*.parquet"))[0].unlink()
        with pytest.raises(StoreCorrupt):
            archive.run(HERE, filled.store.path, filled.path, broker_name=BROKER)
    elif lost == "pending.json":
        truncate(filled.path / "_rucola" / lost)
        with pytest.raises(StoreCorrupt):
            archive.run(HERE, filled.store.path, filled.path, broker_name=BROKER)
    else:
        (filled.path / "_rucola" / lost).unlink()
    done = Archive(filled.path).repair()
    is_completed = lost == "progress.json"
    assert done.rows == len(filled.archived) + 3 * is_completed
    assert archive.run(HERE, filled.store.path, filled.path, broker_name=BROKER).rows == 3 * (not is_completed)
    assert messages(filled.path) == filled.archived + filled.later
    assert sorted(indexed(filled.path, filled.later)) == filled.later
    assert Archive(filled.path).repair(dry_run=True).is_sound


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
                Archive(lake).repair(allow_loss=True)
        summary = Archive(lake).repair(allow_loss=True)
        assert sum(file.rows for file in read_snapshot(lake).rows) == summary.rows == 25
        assert sorted(indexed(lake, original.archived)) == sorted({*original.archived} - {*original.archived[20::2]})
        assert Archive(lake).repair(dry_run=True).is_sound
        kept = {data for name, data in content(lake).items() if name.endswith(".parquet")}
        assert {data for name, data in before.items() if name.endswith(".parquet")} <= kept
        if deadly.calls > 0:
            break
    assert calls > 1
    assert deadly.calls > 0


@pytest.mark.parametrize("last", ["pending.json", "snapshot.json", "progress.json"])
def test_a_killed_rebuild_of_the_index_can_be_repeated(filled: Filled, last: str) -> None:
    """Behind the decision, the snapshot and the progress. Until there is a snapshot readers are refused."""
    own(filled, "snapshot.json")[0].unlink()
    with killed_behind(last):
        Archive(filled.path).repair()
    if last == "pending.json":
        with pytest.raises(StoreCorrupt):
            read_snapshot(filled.path)
    else:
        assert messages(filled.path) == filled.archived
    # The next run completes it, whichever that is.
    assert archive.run(HERE, filled.store.path, filled.path, broker_name=BROKER).rows == 3
    assert messages(filled.path) == filled.archived + filled.later
    assert sorted(indexed(filled.path, filled.archived)) == filled.archived
    assert Archive(filled.path).repair(dry_run=True).is_sound


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_its_plan_and_executes_it(filled: Filled) -> None:
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
    assert Archive(tmp_path / "lake").repair().is_sound
    with raises(StoreError, subject=str(tmp_path)):
        Archive(tmp_path).repair()
    assert not (tmp_path / "_rucola").exists()
