"""Extensions of the documentation: diagrams become SVG, and links within the site are checked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.documents import Document
from support.installation import REPOSITORY

DOCS = REPOSITORY / "docs"
sys.path.insert(0, str(DOCS / "extensions"))

from diagrams import Drawing  # noqa: E402
from links import broken_links  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
DRAWING = """\
┌──────────┐  send   ╔═══════════╗
│ producer ├────────►║ CommitLog ║
└────┬─────┘         ╚═══════════╝
     ┆ a < b
"""
DRAWN = [
    (path.relative_to(REPOSITORY), title, text)
    for path in sorted(DOCS.rglob("*.md"))
    for title, text in re.findall(r"^```\{diagram\} ([^\n]*)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
]


def test_a_drawing_becomes_boxes_lines_arrowheads_and_texts() -> None:
    root = ElementTree.fromstring(Drawing(DRAWING).svg("A & B"))
    assert [element.text for element in root.iter(f"{SVG}title")] == ["A & B"]
    boxes = [(one.get("class"), one.get("x"), one.get("y"), one.get("width")) for one in root.iter(f"{SVG}rect")]
    assert boxes == [("box", "4", "9", "88"), ("file", "172", "9", "96")]
    assert [one.text for one in root.iter(f"{SVG}text")] == ["send", "producer", "CommitLog", "a < b"]
    assert [one.get("points") for one in root.iter(f"{SVG}polygon")] == ["172,27 164,23 164,31"]
    line, dashed = root.iter(f"{SVG}path")
    assert "M92 27L164 27" in str(line.get("d")), "from the side of the producer to the arrowhead"
    assert (dashed.get("class"), dashed.get("d")) == ("dashed", "M44 54L44 72")


@pytest.mark.parametrize(
    ("text", "why"), [("x" * 81, "81 columns, 80 are possible"), ("  ╔══╗\n  ║  ║", "line 1, column 3 is not closed")]
)
def test_a_drawing_with_a_mistake_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Drawing(text)


@pytest.mark.parametrize(("page", "title", "text"), DRAWN, ids=lambda value: str(value)[:40])
def test_every_word_of_a_diagram_is_in_its_svg(page: Path, title: str, text: str) -> None:
    root = ElementTree.fromstring(Drawing(text).svg(title))
    shown = " ".join(element.text or "" for element in root.iter(f"{SVG}text")).split()
    assert sorted(shown) == sorted(re.sub("[─│┌┐└┘├┤┬┴┼►◄▲▼╟╢╤╧┄┆╔╗╚╝═║]", " ", text).split())
    assert root.findall(f"{SVG}rect") != []


def test_every_explanation_has_a_diagram() -> None:
    assert {page.name for page, _, _ in DRAWN} == {path.name for path in (DOCS / "explanation").glob("*.md")}


def test_colours_are_those_of_the_theme() -> None:
    """Which has a light and a dark mode."""
    styles = (DOCS / "_static" / "diagrams.css").read_text()
    assert re.findall(r"(?:fill|stroke|color): *([^;]*);", styles) != []
    for colour in re.findall(r"(?:fill|stroke|color): *([^;]*);", styles):
        assert colour == "none" or colour.startswith("var(--"), colour


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.html").write_text('<h1 id="top">x</h1>')
    (tmp_path / "a.html").write_text(
        '<a href="folder/#top">1</a> <a href="https://elsewhere/x">2</a> <a href="#here" id="here">3</a>'
        '<a href="b.html">4</a> <a href="folder/index.html#gone">5</a> <img src="picture.svg">'
    )
    assert [*broken_links(tmp_path)] == [
        ("a.html", "b.html"), ("a.html", "folder/index.html#gone"), ("a.html", "picture.svg"),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(DOCS / 'extensions')!r})\nextensions = ['myst_parser', 'links']\n"
    )
    (source / "index.md").write_text('# Title\n\n<a href="nowhere.html">x</a>\n')
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", source, tmp_path / "html"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 1
    assert "index.html links to nowhere.html, which does not exist" in built.stderr


def test_a_diagram_is_a_readable_block_elsewhere() -> None:
    """A host that shows the page itself shows the drawing: its lines have no commands or markup."""
    text = Document.read("docs/explanation/message.md").text
    assert "```{diagram} A message that fails\n┌──────────┐" in text
