"""The table of docs/compatibility.md: who answers which request code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
ROW = re.compile(r"^\| (\d+) \| ([A-Z0-9_]+) \| ([a-z, ]+) \| (yes|no) \|(.*)\|$", re.MULTILINE)


class Row(NamedTuple):
    """What the page says of one code: whose it is, whether it is answered, and what else there is to say."""

    code: int
    name: str
    asked_of: set[str]
    is_answered: bool
    note: str

    def is_answered_by(self, who: str) -> bool:
        return self.is_answered and who in self.asked_of


def rows() -> list[Row]:
    return [
        Row(int(code), name, set(asked_of.split(", ")), answered == "yes", note.strip())
        for code, name, asked_of, answered, note in ROW.findall(PAGE.read_text(encoding="utf-8"))
    ]
