"""Links and special files in a lake or ledger that someone else has prepared: nothing outside is read or changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.errors import StoreError
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, search
from rucola.spark.jobs.replay_ledger import AckReader, open_ledger
from rucola.spark.jobs.selection import Selection
from rucola.spark.lake import read_snapshot
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
    "repair": lambda lake: Archive(lake).repair(),
    "dry repair": lambda lake: Archive(lake).repair(dry_run=True),
}
ENTRIES = [
    "_rucola", "_rucola/snapshot.json", "_rucola/progress.json", "_rucola/pending.json", "_rucola/lock",
    "_rucola/keys", "_rucola/keys/FILE", "topic=T", "topic=T/DATE", "topic=T/DATE/FILE",
]  # fmt: skip
READ = {
    "snapshot": ENTRIES[:2],
    "search": [*ENTRIES[:2], *ENTRIES[7:]],
    "key": [*ENTRIES[:2], *ENTRIES[5:]],
}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    store = SmallStore(tmp_path / "store")
    store.put(KEYS="k")
    archive.run(SESSION, store.path, tmp_path / "lake")
    return tmp_path / "lake"


def entry_of(lake: Path, entry: str) -> Path:
    """The path of an entry; FILE and DATE stand for the one that is there."""
    path = lake
    for part in entry.split("/"):
        path = next(iter(path.iterdir())) if part in ("FILE", "DATE") else path / part
    return path


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("job", "entry"),
    [(job, entry) for job in WRITERS for entry in ENTRIES] + [(job, entry) for job in READERS for entry in READ[job]],
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


def test_opening_a_prepared_lake_removes_nothing_outside(lake: Path) -> None:
    """What a pending commit replaces is deleted by its path in the lake."""
    precious = lake.parent / "precious"
    precious.mkdir()
    (precious / "file.parquet").write_bytes(b"precious")
    (lake / "topic=X").symlink_to(precious)
    number = read_snapshot(lake).number + 1
    removes = '"removes": ["topic=X/file.parquet"]'
    (lake / "_rucola" / "pending.json").write_text(
        f'{{"number": {number}, "at_ms": 1, "moves": {{}}, "rows": [], "keys": [], {removes}}}'
    )
    with pytest.raises(StoreError):
        opened(lake)
    assert (precious / "file.parquet").read_bytes() == b"precious"


@pytest.mark.parametrize("job", [*WRITERS, *READERS])
@pytest.mark.parametrize("name", ["snapshot.json", "pending.json"])
def test_a_fifo_in_a_lake_is_refused_and_not_waited_for(lake: Path, job: str, name: str) -> None:
    if job in READERS and name != "snapshot.json":
        name = "snapshot.json"
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
