"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rucola.files import replace_file, replacing


def test_the_old_content_is_kept_as_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    replace_file(path, b"1")
    assert os.listdir(path.parent) == ["topics.json"]
    replace_file(path, b"2")
    replace_file(path, b"3")
    assert path.read_bytes() == b"3"
    assert path.with_name("topics.json.bak").read_bytes() == b"2"
    assert sorted(os.listdir(path.parent)) == ["topics.json", "topics.json.bak"]


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    replace_file(path, b"1")
    path.with_name("topics.json.bak").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(path, b"2")
    assert path.read_bytes() == b"1"
    assert sorted(os.listdir(tmp_path)) == ["topics.json", "topics.json.bak"]


def test_writers_at_once_leave_no_part_of_a_file(tmp_path: Path) -> None:
    """Neither under the name nor as backup, at any moment."""
    path = tmp_path / "delayOffset.json"
    backup = path.with_name("delayOffset.json.bak")
    contents = [bytes([65 + writer]) * 20_000 for writer in range(4)]
    replace_file(path, contents[0])
    replace_file(path, contents[1])

    def write(content: bytes) -> None:
        for _ in range(50):
            replace_file(path, content)

    with ThreadPoolExecutor(len(contents)) as threads:
        writing = [threads.submit(write, content) for content in contents]
        while not all(one.done() for one in writing):
            assert {path.read_bytes(), backup.read_bytes()} <= {*contents}
        for one in writing:
            one.result()
    assert sorted(os.listdir(tmp_path)) == [path.name, backup.name]


def test_a_file_is_replaced_at_the_end_of_a_block_that_succeeds(tmp_path: Path) -> None:
    """Writers of one name do not see each other; the mode stays."""
    path = tmp_path / "status.json"
    with replacing(path) as first, replacing(path, is_flushed=False) as second:
        second.write(b"second")
        first.write(b"first")
        assert not path.exists()
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"first", 0o600)
    path.chmod(0o640)
    with replacing(path) as file:
        file.write(b"new")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"part")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o640)
    assert os.listdir(tmp_path) == [path.name]
