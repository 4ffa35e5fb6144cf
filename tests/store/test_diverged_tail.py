"""The diverged tail: cut off, kept as a store that tools read, and cut completely after a kill at any line."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

import pytest

from rucola import epochs, files
from rucola.epochs import Epoch
from rucola.store import diverged_tail, epoch_file, mapped_file
from rucola.store.config import StoreConfig
from rucola.store.directory_reader import StoreReader
from rucola.store.diverged_tail import DIVERGED, cut_tail
from rucola.store.epoch_file import EpochFile
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from rucola.store.tools.rebuild import rebuild
from simulation.disk import without_waiting
from support.killing import trace_lines
from support.stores import config, inner

COUNT = 60
SHARED = 25
CODE = tuple(module.__file__ or "" for module in (diverged_tail, epoch_file, epochs, files, mapped_file))


def filled(root: Path) -> tuple[StoreConfig, int]:
    """A store of several log files, cleanly closed, in two epochs; the offset at which the second one begins."""
    settings = config(root)
    with MessageStore(settings) as store:
        for number in range(COUNT):
            if number == SHARED:
                shared = store.max_physical_offset
            store.put(
                inner("AB"[number % 2], number % 3, b"%d" % number + bytes(200), keys=f"k{number}"), 1000 * number
            )
    EpochFile(root).replace([Epoch(1, 0), Epoch(2, shared)])
    return settings, shared


def numbers(store: Path) -> list[int]:
    with StoreReader(store) as reader:
        return [int(message.body[:2].rstrip(b"\0")) for message in reader.walk()]


def is_cut(settings: StoreConfig, shared: int) -> None:
    """The store opens, ends where it should, and the rest is aside, once."""
    with MessageStore(settings) as store:
        assert store.max_physical_offset == shared
    assert check(settings.store_path_root_dir) == []
    with MessageStore(settings) as store:
        store.put(inner("A", 0, b"99"), 1_000_000)
    assert check(settings.store_path_root_dir) == []
    root = Path(settings.store_path_root_dir)
    assert numbers(root) == [*range(SHARED), 99]
    assert EpochFile(root).epochs == (Epoch(1, 0),)
    kept = sorted((root / DIVERGED).iterdir())
    assert sorted({number for directory in kept for number in numbers(directory)}) == list(range(SHARED, COUNT))
    assert not list((root / DIVERGED).glob("*.tmp"))


def test_a_tail_over_several_files_is_cut_and_kept(tmp_path: Path) -> None:
    settings, shared = filled(tmp_path / "store")
    with MessageStore(settings) as store:
        log_end = store.max_physical_offset
    tail = cut_tail(settings, shared)
    assert (tail.begin, tail.end, tail.messages) == (shared, log_end, COUNT - SHARED)
    assert len(tail.directories) > 1
    assert sum([len(numbers(directory)) for directory in tail.directories]) == COUNT - SHARED
    # Each is sound as what it is, a log without queues; damage to it is found, and its queues can be built.
    assert [check(directory) for directory in tail.directories] == [[]] * len(tail.directories)
    kept = tail.directories[1] / "commitlog" / tail.directories[1].name[:20]
    data = kept.read_bytes()
    kept.write_bytes(data[:150] + b"!" + data[151:])
    assert [(found.path, found.position) for found in check(tail.directories[1])] == [(kept, 0)]
    kept.write_bytes(data)
    rebuild(tail.directories[1])
    assert [found.path.name for found in check(tail.directories[1])] == ["checkpoint"]
    is_cut(settings, shared)


@pytest.mark.parametrize("beyond", [1, 100, 280])
def test_a_record_that_a_cut_would_split_is_cut_and_kept_whole(tmp_path: Path, beyond: int) -> None:
    settings, shared = filled(tmp_path / "store")
    tail = cut_tail(settings, shared + beyond)
    assert (tail.begin, tail.messages) == (shared, COUNT - SHARED)
    is_cut(settings, shared)


def test_a_second_tail_of_the_same_length_is_kept_beside_the_first(tmp_path: Path) -> None:
    settings = config(tmp_path / "store")
    for number in (1, 2):
        with MessageStore(settings) as store:
            store.put(inner("A", 0, b"%d" % number), 1000 * number)
        assert numbers(cut_tail(settings, 0).directories[0]) == [number]
    assert len(list((tmp_path / "store" / DIVERGED).iterdir())) == 2
    with MessageStore(settings) as store:
        assert store.max_physical_offset == 0
    assert check(tmp_path / "store") == []


def test_a_whole_log_whose_first_files_are_deleted_is_cut_and_kept(tmp_path: Path) -> None:
    """It may begin anywhere afterwards, as that of a new slave."""
    settings, _ = filled(tmp_path / "store")
    first, *others = sorted((tmp_path / "store" / "commitlog").iterdir())
    before = numbers(tmp_path / "store")
    first.unlink()
    left = numbers(tmp_path / "store")
    assert left == before[-len(left) :] != before
    tail = cut_tail(settings, 0)
    assert [number for directory in tail.directories for number in numbers(directory)] == left
    assert (tail.begin, tail.messages, len(tail.directories)) == (int(others[0].name), len(left), len(others))
    with MessageStore(settings) as store:
        assert store.max_physical_offset == 0
        assert not store.consume_queues()
    assert check(tmp_path / "store") == []


def lines(settings: StoreConfig, shared: int, kill_before: int = -1) -> list[tuple[str, int]]:
    """Cut, and return the lines of the cut in order; or kill the process before one of them."""
    seen: list[tuple[str, int]] = []

    def on_line(frame: FrameType) -> None:
        if len(seen) == kill_before:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append((frame.f_code.co_filename, frame.f_lineno))

    trace_lines(lambda: cut_tail(settings, shared), CODE.__contains__, on_line)
    return seen


@pytest.mark.slow
def test_a_cut_that_is_killed_before_any_line_is_completed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_waiting(monkeypatch)  # the page cache survives
    seen = lines(*filled(tmp_path / "first"))
    first_times = {line: number for number, line in reversed(list(enumerate(seen)))}
    last_times = {line: number for number, line in enumerate(seen)}
    for number in sorted({*first_times.values(), *last_times.values()}):
        settings, shared = filled(tmp_path / str(number))
        child = os.fork()
        if child == 0:
            try:
                lines(settings, shared, number)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "it lived longer than the first time"
        with MessageStore(settings) as store:  # a broker starts, finds the divergence again, and cuts again
            end = store.max_physical_offset
        assert end >= shared
        if end > shared:
            cut_tail(settings, shared)
        EpochFile(Path(settings.store_path_root_dir)).limit(0, shared - 1)
        is_cut(settings, shared)
