"""Links and special files in a lake or ledger that someone else has prepared: nothing outside is read or changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.errors import StoreError
from rucola.spark.archive import Archive
from rucola.spark.bodies.json_bodies import JsonBodies
from rucola.spark.jobs import archive, search
from rucola.spark.jobs.replay_ledger import AckReader, open_ledger
from rucola.spark.jobs.selection import Selection
from rucola.spark.lake import read_snapshot
from rucola.spark.lake.tables import open_tables, partition_of
from rucola.spark.session import LazySession
from support.small_store import SmallStore

SESSION = LazySession("tests", use_spark=False)


def opened(lake: Path) -> None:
    with Archive(lake).open():
        pass


READERS: dict[str, Callable[[Path], object]] = {
    "snapshot": read_snapshot,
    "search": lambda lake: search.run(SESSION, lake, Selection()),
    "key": lambda lake: Archive(lake).by_key(["k"]),
}
WRITERS: dict[str, Callable[[Path], object]] = {
    "open": opened,
    "archive": lambda lake: archive.run(SESSION, lake.parent / "store", lake),
    "compact": lambda lake: Archive(lake).compact(min_files=1),
    "derive": lambda lake: Archive(lake).derive({"T": JsonBodies()}),
}
ENTRIES = [
    "_rucola", "_rucola/catalog.db", "_rucola/keys", "_rucola/keys/metadata", "_rucola/keys/data",
    "_rucola/keys/data/FILE", "metadata",
    "metadata/version-hint.text", "_rucola/files.json", "_rucola/progress.json", "_rucola/lock",
    "_rucola/snapshot.json", "data", "data/topic=T", "data/topic=T/ANY", "data/topic=T/ANY/ANY",
]  # fmt: skip
READ = {"snapshot": ENTRIES[:7], "search": ENTRIES[:7] + ENTRIES[11:], "key": ENTRIES[:7] + ENTRIES[11:]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A directory with a store and its lake, whose tables name their files with this path, and a copy of it."""
    directory, kept = (tmp_path_factory.mktemp(name) for name in ("made", "kept"))
    store = SmallStore(directory / "store")
    store.put(KEYS="k")
    archive.run(SESSION, store.path, directory / "lake")
    shutil.copytree(directory, kept, dirs_exist_ok=True)
    return directory, kept


@pytest.fixture
def lake(made: tuple[Path, Path]) -> Path:
    directory, kept = made
    shutil.rmtree(directory)
    shutil.copytree(kept, directory)
    return directory / "lake"


def entry_of(lake: Path, entry: str) -> Path:
    """The path of an entry; FILE and ANY stand for the one that is there."""
    path = lake
    for part in entry.split("/"):
        path = next(path.glob({"FILE": "*.parquet", "ANY": "*"}[part])) if part in ("FILE", "ANY") else path / part
    return path


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("job", "entry"),
    [("open", entry) for entry in ENTRIES]
    + [(job, entry) for job in WRITERS if job != "open" for entry in ("_rucola/catalog.db", ENTRIES[-1])]
    + [(job, entry) for job in READERS for entry in READ[job]],
)
def test_a_link_in_a_lake_is_refused_before_anything_changes(lake: Path, job: str, entry: str) -> None:
    path, outside = entry_of(lake, entry), lake.parent / "outside"
    if path.exists():
        path.rename(outside)
    path.symlink_to(outside)
    before = contents(lake.parent)
    with pytest.raises(StoreError) as error:
        {**READERS, **WRITERS}[job](lake)
    assert str(path) in str(error.value)
    assert contents(lake.parent) == before


def test_a_table_that_names_files_outside_the_lake_is_refused(lake: Path) -> None:
    """They are neither read nor deleted, whoever has prepared the table."""
    precious = lake.parent / "precious" / f"{0:032x}-00000.parquet"
    precious.parent.mkdir()
    with open_tables(lake) as tables:
        assert tables is not None
        shutil.copy(lake / read_snapshot(lake).rows[0].path, precious)
        file = tables.data_file(tables.messages, read_snapshot(lake).rows[0].path, partition_of("T", "2023-11-14"))
        file[1] = str(precious)  # its path
        tables.commit(tables.messages, [file])
    for job in (*WRITERS.values(), *READERS.values()):
        with pytest.raises(StoreError):
            job(lake)
    assert precious.exists()


@pytest.mark.parametrize("job", [*WRITERS, *READERS])
@pytest.mark.parametrize("name", ["catalog.db", "files.json"])
def test_a_fifo_in_a_lake_is_refused_and_not_waited_for(lake: Path, job: str, name: str) -> None:
    (lake / "_rucola" / name).unlink(missing_ok=True)
    os.mkfifo(lake / "_rucola" / name)
    with pytest.raises(StoreError):
        {**READERS, **WRITERS}[job](lake)


def test_the_lake_itself_may_be_named_by_a_link(lake: Path) -> None:
    (lake.parent / "link").symlink_to(lake)
    opened(lake.parent / "link")
    assert len(search.run(SESSION, lake.parent / "link", Selection()).messages) == 1


@pytest.mark.parametrize("name", ["replay.json", "lock", "senders", "x.acks", "token"])
@pytest.mark.parametrize("is_fifo", [False, True])
def test_a_ledger_with_a_link_or_fifo_is_refused(tmp_path: Path, name: str, is_fifo: bool) -> None:
    with open_ledger(tmp_path / "ledger"):
        pass
    (tmp_path / "ledger" / name).unlink(missing_ok=True)
    if is_fifo:
        os.mkfifo(tmp_path / "ledger" / name)
    else:
        (tmp_path / "ledger" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError), open_ledger(tmp_path / "ledger"):
        pass
    if name.endswith(".acks"):
        with pytest.raises((StoreError, FileNotFoundError)):
            AckReader(tmp_path / "ledger").refresh()
    assert not (tmp_path / "outside").exists()
