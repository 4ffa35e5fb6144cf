"""Epochs: the file has Apache 5's layout, and the algebra finds where any two logs of one broker name diverge."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.epochs import MAX_EPOCHS, Epoch, appended, divergence, within
from rucola.errors import StoreCorrupt
from rucola.store.epoch_file import EPOCH_FILE, EpochFile, format_epochs, parse_epochs

APACHE = b"2\n773307083\n7-7000\n8-8000\n"
"""The example in the documentation of Apache 5's CheckpointFile."""


def test_the_layout_is_that_of_apache_5(tmp_path: Path) -> None:
    assert parse_epochs(APACHE) == (Epoch(7, 7000), Epoch(8, 8000))
    assert format_epochs([Epoch(7, 7000), Epoch(8, 8000)]) == APACHE
    assert parse_epochs(b"1\r\n0\r\n7-7000\r\n") == (Epoch(7, 7000),)
    (tmp_path / EPOCH_FILE).write_bytes(APACHE)
    epochs = EpochFile(tmp_path)
    epochs.begin_epoch(11, 9000)
    assert EpochFile(tmp_path).epochs == (*parse_epochs(APACHE), Epoch(11, 9000))
    with pytest.raises(ValueError, match="epoch 11 does not follow 11"):
        epochs.begin_epoch(11, 9500)
    epochs.limit(8500, 8999)
    assert EpochFile(tmp_path).epochs == (Epoch(8, 8000),)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"2\n773307083\n7-7000\n",
        b"2\n773307084\n7-7000\n8-8000\n",
        b"1\n0\n7\n",
        b"1\n0\n7-\n",
        b"1\n0\n7-8-9\n",
        b"2\n0\n8-7000\n7-8000\n",
        b"2\n0\n7-7000\n8-7000\n",
        b"1\n0\n0-0\n",
        b"\xff\n\n",
    ],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / EPOCH_FILE).write_bytes(content)
    with pytest.raises(StoreCorrupt):
        EpochFile(tmp_path)


def test_an_epoch_without_a_byte_gives_way() -> None:
    assert appended([Epoch(1, 0), Epoch(2, 50)], Epoch(3, 50)) == (Epoch(1, 0), Epoch(3, 50))
    assert appended([], Epoch(1, 0)) == (Epoch(1, 0),)


def test_the_number_of_epochs_is_bounded() -> None:
    epochs: tuple[Epoch, ...] = ()
    for number in range(1, MAX_EPOCHS + 10):
        epochs = appended(epochs, Epoch(number, number))
    assert (len(epochs), epochs[0], epochs[-1].number) == (MAX_EPOCHS, Epoch(10, 10), MAX_EPOCHS + 9)


def test_a_log_has_the_epochs_of_its_bytes() -> None:
    epochs = [Epoch(1, 0), Epoch(2, 50), Epoch(5, 90)]
    assert within(epochs, 0, 89) == (Epoch(1, 0), Epoch(2, 50))
    assert within(epochs, 0, 90) == tuple(epochs)
    assert within(epochs, 49, 100) == tuple(epochs)
    assert within(epochs, 50, 100) == (Epoch(2, 50), Epoch(5, 90))
    assert within(epochs, 500, 600) == (Epoch(5, 90),)


class Member:
    """A broker of the model: every byte of its log is the number of the mastership that wrote it, and its own."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.epochs: tuple[Epoch, ...] = ()
        self.is_master = False

    def lead(self, number: int) -> None:
        self.epochs, self.is_master = appended(self.epochs, Epoch(number, len(self.log))), True

    def write(self, count: int, first: int) -> None:
        self.log += [(self.epochs[-1].number, first + index) for index in range(count)]

    def follow(self, master: Member, count: int) -> None:
        point = divergence(self.epochs, len(self.log), master.epochs, len(master.log))
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(self.log, master.log, strict=False))
        assert point == len(list(shared))
        self.log = master.log[: point + count]
        self.epochs, self.is_master = within(master.epochs, 0, len(self.log)), False

    def lose(self, count: int) -> None:
        """A power cut; what is left is recovered, and no mastership goes on."""
        self.log = self.log[: max(0, len(self.log) - count)]
        self.epochs, self.is_master = within(self.epochs, 0, len(self.log)), False


STEPS = st.lists(
    st.tuples(st.sampled_from(["lead", "write", "follow", "lose"]), *[st.integers(0, 2)] * 2, st.integers(0, 5)),
    max_size=40,
)


@given(STEPS)
def test_the_divergence_is_the_end_of_what_two_logs_share(steps: list[tuple[str, int, int, int]]) -> None:
    members, masterships, written = [Member() for _ in range(3)], 0, 0
    for what, one, other, count in steps:
        member = members[one]
        if what == "lead":
            masterships += 1
            member.lead(masterships)
        elif what == "write" and member.is_master:
            member.write(count, written)
            written += count
        elif what == "lose":
            member.lose(count)
        elif what == "follow" and one != other:
            member.follow(members[other], count)
    for member in members:
        for master in members:
            member.follow(master, 100)
            assert member.log == master.log
