"""The pictures of README and tutorials: recorded by a scene, shown by a page, and of no particular machine."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.console_pages import PAGES as CONSOLE_PAGES
from support.installation import REPOSITORY, module

PICTURES = sorted((REPOSITORY / "docs" / "pictures").glob("*.svg"))
PHOTOS = sorted((REPOSITORY / "docs" / "pictures").glob("*.png"))
"""Of the console, in Chromium."""
OF_PAGES = sorted((REPOSITORY / "docs" / "pictures" / "console").glob("*.png"))
"""Of each page of the console, in three looks."""
PAGES = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]


def test_every_picture_is_shown_and_every_shown_picture_exists() -> None:
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+\.(?:svg|png))\)", page.read_text(encoding="utf-8"))
    }
    assert shown == {*PICTURES, *PHOTOS, *OF_PAGES}
    assert (len(PICTURES), len(PHOTOS)) == (4, 4)
    assert sum(path.stat().st_size for path in (*PHOTOS, *OF_PAGES)) < 3_500_000


def test_every_page_of_the_console_has_its_picture_with_a_sentence() -> None:
    """The paths in `support.console_pages`, which the tests compare with the registered pages."""
    text = (REPOSITORY / "docs" / "console-pages.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\n## [^\n]+\n\n[^\n]+[?.]\n\n\[!\[[^\]]+\]\(pictures/console/([\w-]+)\.png\)\]", text)
    assert [*pictures] == [*CONSOLE_PAGES]
    assert {path.stem for path in OF_PAGES} == {*CONSOLE_PAGES}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_loads_nothing_and_names_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert not re.search(r"url\((?!#)|href=", text)
    assert "/tmp/" not in text
    assert str(Path.home()) not in text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", re.sub(r"<[^>]*>", "", text))
    assert not re.search(r"127\.0\.0\.1:(?!9876|10911)\d+.*namesrv", text)


@pytest.mark.slow
def test_the_scene_of_a_page_can_be_recorded(tmp_path: Path) -> None:
    """With another directory, so that a test changes no file of the repository."""
    record = module("docs/pictures/record.py")
    record.PICTURES = tmp_path
    record.SCENES["first-message"]()
    text = re.sub(r"<[^>]*>", "", (tmp_path / "first-message.svg").read_text(encoding="utf-8")).replace("&#160;", " ")
    for line in ("python send.py", "SEND_OK", "order-1 one pizza", "rucola admin queryMsgByKey -t Orders -k order-1"):
        assert line in text
