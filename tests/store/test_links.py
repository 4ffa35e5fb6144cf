"""Links and special files in a store that someone else has prepared: nothing outside is read, written or waited for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.errors import StoreError
from rucola.files import open_inside, read_inside
from rucola.store.config_files import read_config
from rucola.store.directory_reader import StoreReader
from rucola.store.diverged_tail import cut_tail
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from rucola.store.tools.rebuild import rebuild
from rucola.store.tools.repair import repair
from rucola.store.tools.stat import stat
from support.stores import config, inner

ENTRIES = [
    "abort", "checkpoint", "lock", "config", "config/topics.json", "commitlog", f"commitlog/{0:020d}", "consumequeue",
    "consumequeue/T", "consumequeue/T/0", f"consumequeue/T/0/{0:020d}", "index", "epochFileCheckpoint",
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that was closed in order."""
    with MessageStore(config(tmp_path / "store")) as opened:
        opened.put(inner("T", 0), 1)
    (tmp_path / "store" / "config").mkdir(exist_ok=True)
    assert check(tmp_path / "store") == []
    return tmp_path / "store"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def open_store(path: Path) -> None:
    with MessageStore(config(path)):
        raise AssertionError("it was opened")


TOOLS: dict[str, Callable[[Path], object]] = {
    "broker": open_store,
    "reader": StoreReader,
    "check": check,
    "stat": stat,
    "rebuild": rebuild,
    "rebuild elsewhere": lambda path: rebuild(path, path.parent / "new"),
    "repair": lambda path: repair(path, path.parent / "new"),
    "cut": lambda path: cut_tail(config(path), 0),
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_link_in_a_store_is_refused_before_anything_changes(store: Path, tool: str, entry: str) -> None:
    outside, path = store.parent / "outside", store / entry
    if path.exists():
        path.rename(outside)
    elif entry != "abort":  # a link that leads nowhere would be created by a write
        outside.write_bytes(b"precious")
    path.symlink_to(outside)
    before = contents(store.parent), outside.exists()
    with pytest.raises(StoreError) as error:
        TOOLS[tool](store)
    assert str(path) in str(error.value)
    assert (contents(store.parent), outside.exists()) == before


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("entry", ["checkpoint", "lock", "config/topics.json", ENTRIES[6], "epochFileCheckpoint"])
def test_a_fifo_is_refused_and_not_waited_for(store: Path, tool: str, entry: str) -> None:
    path = store / entry
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(StoreError) as error:
        TOOLS[tool](store)
    assert str(path) in str(error.value)


def test_the_directory_itself_may_be_a_link_and_foreign_links_in_it_are_left_alone(store: Path) -> None:
    (store / "latest").symlink_to("/etc")
    link = store.parent / "link"
    link.symlink_to(store)
    with MessageStore(config(link)) as opened:
        opened.put(inner("T", 0), 1)
    assert os.readlink(store / "latest") == "/etc"
    shutil.rmtree(store / "consumequeue")
    rebuild(link)
    assert [found.path.name for found in check(store)] == ["latest"] or check(store) == []


def test_a_log_on_another_disk_is_named_by_its_setting(store: Path) -> None:
    (store / "commitlog").rename(store.parent / "disk")
    (store / "commitlog").symlink_to(store.parent / "disk")
    (store.parent / "by-name").symlink_to(store.parent / "disk")
    settings = config(store)
    settings.store_path_commit_log = store.parent / "by-name"
    with MessageStore(settings) as opened:
        assert opened.put(inner("T", 0), 1)


def test_only_regular_files_below_a_directory_are_opened(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a" / "b").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_bytes(b"outside")
    (root / "a" / "b" / "file").write_bytes(b"inside")
    (root / "a" / "link").symlink_to(outside)
    (root / "a" / "file").symlink_to(outside / "file")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    assert read_inside(root, root / "a" / "b" / "file") == b"inside"
    for path in ("a/link/file", "a/file", "loop", "fifo", "a/b"):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT):
            with pytest.raises((StoreError, IsADirectoryError)):
                open_inside(root, root / path, flags)
    with pytest.raises(FileNotFoundError):
        open_inside(root, root / "a" / "none")
    with pytest.raises(StoreError):
        open_inside(root, root / ".." / "outside" / "file")
    assert (outside / "file").read_bytes() == b"outside"
    with pytest.raises(StoreError):
        read_config(root / "fifo")
