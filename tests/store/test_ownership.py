"""Who can read and change what Rucola writes: modes of new files, and directories that others could change."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rucola.errors import StoreError
from rucola.files import check_ownership, make_directory, replace_file
from rucola.store.config import StoreConfig
from rucola.store.directory_lock import DirectoryLock
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.errors import raises
from support.stores import OpenStore, inner


@pytest.fixture
def _open_umask() -> Iterator[None]:
    """A umask that takes nothing away: what the modes are is Rucola's choice."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("_open_umask")
def test_a_store_is_readable_by_its_owner_only(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put(inner(), 0)
    store.close()
    root = tmp_path / "store"
    found = [root, *root.rglob("*")]
    assert {mode(path) for path in found if path.is_dir()} == {0o700}
    assert {mode(path) for path in found if path.is_file()} == {0o600}
    assert len(found) > 8
    assert check(root) == []


@pytest.mark.usefixtures("_open_umask")
def test_a_replaced_file_keeps_its_mode_and_a_new_one_is_private(tmp_path: Path) -> None:
    file = tmp_path / "made" / "by" / "broker.conf"
    replace_file(file, b"new")
    assert (mode(file), mode(file.parent), mode(file.parent.parent)) == (0o600, 0o700, 0o700)
    file.chmod(0o640)
    replace_file(file, b"changed")
    assert (mode(file), mode(file.with_name("broker.conf.bak")), file.read_bytes()) == (0o640, 0o640, b"changed")
    file.parent.chmod(0o750)
    make_directory(file.parent)
    assert mode(file.parent) == 0o750


@pytest.mark.parametrize("part", ["", "log"])
def test_a_directory_that_every_user_can_change_is_refused(tmp_path: Path, part: str) -> None:
    root, log = tmp_path / "store", tmp_path / "log"
    open_directory = tmp_path / (part or "store")
    for directory in (root, log):
        directory.mkdir()
    open_directory.chmod(0o777)
    config = StoreConfig(store_path_root_dir=root, store_path_commit_log=log, mapped_file_size_commit_log=1 << 16)
    with raises(StoreError, subject=str(open_directory)):
        MessageStore(config).open()
    assert [*root.iterdir()] == []
    open_directory.chmod(0o770)  # a group that an operator chose
    store = MessageStore(config)
    store.open()
    store.close()


def test_the_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process plays the other user: only root could give a directory away."""
    owner = tmp_path.stat().st_uid
    other = 54_321
    monkeypatch.setattr(os, "geteuid", lambda: other)
    if owner:
        with raises(StoreError, subject=str(tmp_path)):
            DirectoryLock(tmp_path)
        assert [*tmp_path.iterdir()] == []
    else:
        check_ownership(tmp_path)  # root can change everything anyway
        os.chown(tmp_path, 12_345, -1)
        for user in (other, 0):
            monkeypatch.setattr(os, "geteuid", lambda user=user: user)
            with pytest.raises(StoreError):
                DirectoryLock(tmp_path)
        assert [*tmp_path.iterdir()] == []


def test_a_store_of_apaches_broker_opens(golden: Path, open_store: OpenStore) -> None:
    """Its files are readable by everyone, as Java creates them, and stay so."""
    log = next((golden / "g1-clean" / "store" / "commitlog").iterdir())
    assert mode(log) & 0o044 == 0o044
    check_ownership(golden / "g1-clean" / "store")
