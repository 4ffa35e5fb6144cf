"""Check of index files, as part of `check`, in steps of equal memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rucola.store.index import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE, IndexFile

_STEP: Final = 1 << 16
_MAX_FINDINGS: Final = 10
"""Findings of one kind in one file."""
_NO_RECORD: Final = "the entry points at no record of the log"


class CheckFinding(NamedTuple):
    """A violated invariant: the file, the position in it, and a description."""

    path: Path
    position: int
    what: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.what}"


class IndexFileCheck:
    """Check one file: its structure, then its entries against blocks of the log, in the order of the log."""

    def __init__(self, index: IndexFile) -> None:
        self._index = index
        self._found: Counter[str] = Counter()
        self._steps: list[tuple[int, int, int, int]] = []
        """(first entry, end, least and greatest physical offset)."""

    def close(self) -> None:
        self._index.file.close()

    def _entry(self, number: int, what: str, detail: str = "") -> Iterator[CheckFinding]:
        self._found[what] += 1
        if self._found[what] <= _MAX_FINDINGS:
            position = HEADER_SIZE + SLOT_SIZE * self._index.slot_count + ENTRY_SIZE * number
            yield CheckFinding(self._index.file.path, position, f"entry {number}: {what}{detail}")

    def _entries(self, numbers: npt.NDArray[np.intp], what: str) -> Iterator[CheckFinding]:
        for number in numbers[:_MAX_FINDINGS].tolist():
            yield from self._entry(number, what)

    # -- structure ----------------------------------------------------------------------------------------------------

    def check_structure(self) -> Iterator[CheckFinding]:
        index = self._index
        path = index.file.path
        # The counts in the header, on which all else depends.
        if not 1 <= index.count <= index.max_count:
            yield CheckFinding(path, 36, f"indexCount is {index.count}; the file has room for {index.max_count}")
            return
        references = np.zeros(index.count, np.uint8)
        references[0] = 1  # entry 0 means the end of a chain
        is_sound = True
        for finding in self._check_slots(references):
            is_sound = is_sound and finding.position == 32
            yield finding
        if is_sound and index.count > 1:
            yield from self._check_chains(references)
            yield from self._check_ends()

    def _check_slots(self, references: npt.NDArray[np.uint8]) -> Iterator[CheckFinding]:
        index = self._index
        path, slots = index.file.path, index.slots()
        used = slots[slots != 0]
        if len(used) != index.slots_used:
            yield CheckFinding(path, 32, f"hashSlotCount is {index.slots_used}, but {len(used)} slots are in use")
        outside = (slots < 0) | (slots >= index.count)
        for slot in np.flatnonzero(outside)[:_MAX_FINDINGS].tolist():
            what = f"the slot points at entry {slots[slot]} of {index.count - 1}"
            yield CheckFinding(path, HEADER_SIZE + SLOT_SIZE * slot, what)
        if not outside.any():
            np.add.at(references, used.astype(np.intp), 1)

    def _check_chains(self, references: npt.NDArray[np.uint8]) -> Iterator[CheckFinding]:
        index = self._index
        all_hashes = np.zeros(index.count, np.int32)
        for first in range(1, index.count, _STEP):
            end = min(first + _STEP, index.count)
            entries, numbers = index.entries(first, end), np.arange(first, end)
            previous, hashes = entries["previous"].astype(np.intp), entries["hash"]
            all_hashes[first:end] = hashes
            wrong = (previous < 0) | (previous >= numbers)
            # There are as many references as entries: where one has 257, which look like 1, others have none.
            np.add.at(references, previous[(previous > 0) & ~wrong], 1)
            linked = np.flatnonzero((previous > 0) & ~wrong)
            slots = hashes[linked] % index.slot_count
            others = all_hashes[previous[linked]] % index.slot_count
            yield from self._entries(numbers[wrong], "the chain does not lead back")
            yield from self._entries(numbers[linked[slots != others]], "the chain leads into another slot")
            yield from self._entries(numbers[hashes < 0], "the hash is negative")
            yield from self._entries(numbers[entries["seconds"] < 0], "the time difference is negative")
            physical_offsets = entries["physical_offset"]
            yield from self._entries(numbers[physical_offsets < 0], _NO_RECORD)
            self._steps.append((first, end, int(physical_offsets.min()), int(physical_offsets.max())))
            index.file.drop_pages()
        yield from self._entries(np.flatnonzero(references != 1), "the entry is in no chain, or in two")

    def _check_ends(self) -> Iterator[CheckFinding]:
        index = self._index
        for position, name, stated, number, which in (
            (16, "beginPhyOffset", index.begin_physical_offset, 1, "first"),
            (24, "endPhyOffset", index.end_physical_offset, index.count - 1, "last"),
        ):
            actual = int(index.entries(number, number + 1)["physical_offset"][0])
            if stated != actual:
                yield CheckFinding(index.file.path, position, f"{name} is {stated}, but the {which} entry has {actual}")

    # -- records ------------------------------------------------------------------------------------------------------

    def check_records(
        self, begin: int, end: int, offsets: npt.NDArray[np.int64], times: npt.NDArray[np.int64]
    ) -> Iterator[CheckFinding]:
        """Check the entries from physical offset `begin` to `end`, where records start at the ascending `offsets`."""
        for first, until, least, greatest in self._steps:
            if least < end and greatest >= begin:
                entries, numbers = self._index.entries(first, until), np.arange(first, until)
                inside = (entries["physical_offset"] >= begin) & (entries["physical_offset"] < end)
                yield from self._check_times(entries[inside], numbers[inside], offsets, times)
                self._index.file.drop_pages()

    def _check_times(
        self,
        entries: npt.NDArray[np.void],
        numbers: npt.NDArray[np.intp],
        offsets: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
    ) -> Iterator[CheckFinding]:
        index = self._index
        at = np.searchsorted(offsets, entries["physical_offset"]).clip(max=len(offsets) - 1)
        known = offsets[at] == entries["physical_offset"]
        yield from self._entries(numbers[~known], _NO_RECORD)
        entries, numbers, stored = entries[known], numbers[known], times[at[known]]
        for position, name, stated, number in (
            (0, "beginTimestamp", index.begin_timestamp, 1),
            (8, "endTimestamp", index.end_timestamp, index.count - 1),
        ):
            for actual in stored[numbers == number].tolist():
                if stated != actual:
                    yield CheckFinding(index.file.path, position, f"{name} is {stated}, but the message has {actual}")
        if index.begin_timestamp <= 0:
            return
        expected = ((stored - index.begin_timestamp) // 1000).clip(0, 0x7FFFFFFF)  # the range of the field
        # The first entry was written before the file had its beginTimestamp.
        wrong = (entries["seconds"] != expected) & (numbers > 1)
        for number, seconds, right in zip(
            numbers[wrong].tolist(), entries["seconds"][wrong].tolist(), expected[wrong].tolist(), strict=True
        ):
            yield from self._entry(number, "its time difference is wrong", f": {seconds} s, but it is {right} s")

    def check_end(self, log_end: int) -> Iterator[CheckFinding]:
        """Check that no entry points after the log's end."""
        for first, until, _, greatest in self._steps:
            if greatest >= log_end:
                after = self._index.entries(first, until)["physical_offset"] >= log_end
                yield from self._entries(np.arange(first, until)[after], _NO_RECORD)
