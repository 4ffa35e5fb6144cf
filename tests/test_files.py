"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rucola.files import replace_file


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
    path.with_name("topics.json.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(path, b"2")
    assert path.read_bytes() == b"1"
