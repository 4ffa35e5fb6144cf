"""At most one broker serves a directory, also if its lock file is deleted or replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from rucola.errors import StoreLocked
from rucola.store.directory_lock import DirectoryLock, is_served
from rucola.store.message_store import MessageStore
from support.stores import config, inner, sound_store

OPEN = "import sys; from pathlib import Path; from rucola.store.directory_lock import DirectoryLock; "
PROGRAM = OPEN + "DirectoryLock(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"


def replace_lock(root: Path) -> None:
    (root / "lock").unlink()


def write_other_lock(root: Path) -> None:
    (root / "other").write_bytes(b"lock")
    (root / "other").replace(root / "lock")


@pytest.mark.parametrize("meddle", [replace_lock, write_other_lock])
def test_a_store_whose_lock_file_is_replaced_admits_no_second_broker(tmp_path: Path, meddle: object) -> None:
    assert callable(meddle)
    with MessageStore(config(tmp_path)) as store:
        store.put(inner(), 1)
        meddle(tmp_path)
        assert is_served(tmp_path)
        with pytest.raises(StoreLocked):
            MessageStore(config(tmp_path)).open(1)
        third = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], input="", capture_output=True, text=True)
        assert third.stdout == ""
        assert "StoreLocked" in third.stderr
        assert store.put(inner(), 1).queue_offset == 1
    assert not is_served(tmp_path)
    with sound_store(tmp_path) as store:
        assert store.max_offset("T", 0) == 2


def test_a_lock_of_another_process_is_seen_without_its_file(tmp_path: Path) -> None:
    assert not is_served(tmp_path / "missing")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert is_served(tmp_path)
        (tmp_path / "lock").unlink()
        assert is_served(tmp_path)
        with pytest.raises(StoreLocked):
            DirectoryLock(tmp_path)
        holder.communicate()
    assert not is_served(tmp_path)
    DirectoryLock(tmp_path).release()


def test_a_refused_lock_leaves_no_descriptor_open(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    before = open_below(tmp_path)
    assert before
    for _ in range(3):
        with pytest.raises(StoreLocked):
            DirectoryLock(tmp_path)
    assert open_below(tmp_path) == before
    lock.release()


def open_below(directory: Path) -> list[str]:
    """The files of a directory that this process has open, one entry for each descriptor."""
    found = []
    for number in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed meanwhile, as that of the listing
            found.append(os.readlink(f"/dev/fd/{number}"))
    return sorted(path for path in found if path.startswith(str(directory)))
