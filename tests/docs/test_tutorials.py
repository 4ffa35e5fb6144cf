"""Tutorials of the documentation do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.walkthrough import Walkthrough

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
SERVER = """```console
$ rucola standalone --store store
rucola ready namesrv=127.0.0.1:9876 broker=127.0.0.1:10911
```
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "begin"),
    [("first-message.md", "Start a name server"), ("search.md", "Send three orders")],
)
def test_a_tutorial_works_as_written(page: str, begin: str, tmp_path: Path) -> None:
    """From the first command after the installation, which tests/test_readme.py follows."""
    text = (TUTORIALS / page).read_text(encoding="utf-8")
    chapter = text[text.index(begin) :]
    reader = Walkthrough(tmp_path)
    try:
        reader.follow(chapter if "rucola standalone" in chapter else SERVER + chapter)
    finally:
        reader.close()


def test_every_tutorial_is_tested() -> None:
    assert {path.name for path in TUTORIALS.glob("*.md")} == {"first-message.md", "search.md"}


@pytest.mark.slow
def test_the_first_steps_of_access_control_work_as_written(tmp_path: Path) -> None:
    page = (TUTORIALS.parent / "access-control.md").read_text(encoding="utf-8")
    reader = Walkthrough(tmp_path)
    try:
        reader.follow(page[page.index("## First steps") : page.index("## Clients")])
    finally:
        reader.close()
