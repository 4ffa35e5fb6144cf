"""Sphinx extension: diagrams that are drawn with characters become SVG.

    ```{diagram} A message is sent
    ┌──────────┐  send   ╔═══════════╗
    │ producer ├────────►║ CommitLog ║
    └──────────┘         ╚═══════════╝
    ```

The argument is the caption. Wherever the page is shown without this extension, such as on a source-hosting page,
readers see the drawing itself. Boxes are components, boxes with double lines are files; `─ │ ┌ ┐ └ ┘ ├ ┤ ┬ ┴ ┼` are
lines, `╟ ╢ ╤ ╧` join them to a file, `┄ ┆` are dashed lines, `► ◄ ▲ ▼` arrowheads, and everything else is text.

An SVG has the site's colours by its CSS variables, so that it follows the light and the dark mode. It keeps its size on
narrow screens, where the reader scrolls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WIDTH, HEIGHT = 8, 18
"""Pixels of one character."""
MAX_COLUMNS = 80
_FONT_SIZE = 13
_NORTH, _EAST, _SOUTH, _WEST = 1, 2, 4, 8
_LINES = {
    "─": _EAST | _WEST, "│": _NORTH | _SOUTH, "┌": _EAST | _SOUTH, "┐": _WEST | _SOUTH, "└": _EAST | _NORTH,
    "┘": _WEST | _NORTH, "├": _NORTH | _SOUTH | _EAST, "┤": _NORTH | _SOUTH | _WEST, "┬": _EAST | _WEST | _SOUTH,
    "┴": _EAST | _WEST | _NORTH, "┼": _EAST | _WEST | _NORTH | _SOUTH, "►": _WEST, "◄": _EAST,
    "▲": _NORTH | _SOUTH, "▼": _NORTH | _SOUTH, "╟": _EAST, "╢": _WEST, "╤": _SOUTH, "╧": _NORTH,
}  # fmt: skip
"""The sides of its cell to which a character draws a line from the middle."""
_DASHED = {"┄": _EAST | _WEST, "┆": _NORTH | _SOUTH}
_DOUBLE = frozenset("╔╗╚╝═║")
_ARROWHEADS = {
    "►": ((8, 0), (0, -4), (0, 4)), "◄": ((-8, 0), (0, -4), (0, 4)),
    "▼": ((0, 18), (-4, 9), (4, 9)), "▲": ((0, -18), (-4, -9), (4, -9)),
}  # fmt: skip
"""The corners from the middle of the cell; the tip touches a frame in the next cell."""


class Frame(NamedTuple):
    """A rectangle of cells, including its lines."""

    row: int
    column: int
    last_row: int
    last_column: int
    is_file: bool


class Drawing:
    """A drawing as a grid of characters. ValueError if it is too wide, or a frame of a file is not closed."""

    def __init__(self, text: str) -> None:
        lines = text.rstrip().split("\n")
        self.columns = max(len(line) for line in lines)
        if self.columns > MAX_COLUMNS:
            raise ValueError(f"the drawing has {self.columns} columns, {MAX_COLUMNS} are possible")
        self.rows = [line.ljust(self.columns) for line in lines]
        self.frames = list(self._find_frames())

    def _find_frames(self) -> Iterator[Frame]:
        for row, line in enumerate(self.rows):
            for column, character in enumerate(line):
                if character in "┌╔":
                    found = self._frame(row, column)
                    if found is not None:
                        yield found
                    elif character == "╔":
                        raise ValueError(f"the frame at line {row + 1}, column {column + 1} is not closed")

    def _frame(self, row: int, column: int) -> Frame | None:
        """Return the frame whose upper left corner is here; other lines may meet its sides."""
        is_file = self.rows[row][column] == "╔"
        right, low, end = "╗╚╝" if is_file else "┐└┘"
        across, down = ("═╤╧", "║╟╢") if is_file else ("─┬┴┼", "│├┤┼")
        last = column + 1
        while last < self.columns and self.rows[row][last] in across:
            last += 1
        if last == self.columns or self.rows[row][last] != right:
            return None
        for below in range(row + 1, len(self.rows)):
            begin, stop = self.rows[below][column], self.rows[below][last]
            if (begin, stop) == (low, end):
                return Frame(row, column, below, last, is_file)
            if begin not in down or stop not in down:
                return None
        return None

    def segments(self, sides: dict[str, int]) -> Iterator[tuple[float, float, float, float]]:
        """Yield the lines that these characters draw, as (x, y, x, y), joined as far as they are straight."""
        # One unit is half a cell: from its side to its middle.
        for row, line in enumerate(self.rows):
            y = (row + 0.5) * HEIGHT
            for begin, end in _runs([bool(sides.get(one, 0) & side) for one in line for side in (_WEST, _EAST)]):
                yield begin * WIDTH / 2, y, end * WIDTH / 2, y
        for column in range(self.columns):
            x = (column + 0.5) * WIDTH
            cells = [line[column] for line in self.rows]
            for begin, end in _runs([bool(sides.get(one, 0) & side) for one in cells for side in (_NORTH, _SOUTH)]):
                yield x, begin * HEIGHT / 2, x, end * HEIGHT / 2

    def arrowheads(self) -> Iterator[str]:
        """Yield the corners of each arrowhead."""
        for row, line in enumerate(self.rows):
            for column, character in enumerate(line):
                if corners := _ARROWHEADS.get(character):
                    x, y = (column + 0.5) * WIDTH, (row + 0.5) * HEIGHT
                    yield " ".join(f"{x + dx:g},{y + dy:g}" for dx, dy in corners)

    def texts(self) -> Iterator[tuple[int, int, str]]:
        """Yield (row, column, text); words with one space between them are one text."""
        drawn = {*_LINES, *_DASHED, *_DOUBLE}
        for row, line in enumerate(self.rows):
            column = 0
            for part in "".join(" " if one in drawn else one for one in line).split("  "):
                if part.strip():
                    yield row, column + len(part) - len(part.lstrip()), part.strip()
                column += len(part) + 2

    def svg(self, title: str) -> str:
        """Return the drawing as an SVG element."""
        width, height = self.columns * WIDTH, len(self.rows) * HEIGHT
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}"><title>{escape(title)}</title>'
        ]
        for frame in self.frames:
            x, y = (frame.column + 0.5) * WIDTH, (frame.row + 0.5) * HEIGHT
            size = (frame.last_column - frame.column) * WIDTH, (frame.last_row - frame.row) * HEIGHT
            kind = "file" if frame.is_file else "box"
            parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{size[0]}" height="{size[1]}"/>')
        for kind, sides in (("line", _LINES), ("dashed", _DASHED)):
            path = "".join(f"M{a:g} {b:g}L{c:g} {d:g}" for a, b, c, d in self.segments(sides))
            parts += [f'<path class="{kind}" d="{path}"/>'] if path else []
        parts += [f'<polygon points="{points}"/>' for points in self.arrowheads()]
        for row, column, text in self.texts():
            y = (row + 0.5) * HEIGHT + _FONT_SIZE * 0.35
            length = f'textLength="{len(text) * WIDTH}" lengthAdjust="spacingAndGlyphs"'
            parts.append(f'<text x="{column * WIDTH}" y="{y:g}" {length}>{escape(text)}</text>')
        return "".join([*parts, "</svg>"])


def _runs(units: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each run of true units."""
    begin = 0
    for is_drawn, run in groupby(units):
        end = begin + len(list(run))
        if is_drawn:
            yield begin, end
        begin = end


class Diagram(SphinxDirective):
    """A drawing with a caption, as a figure with an SVG."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        title = self.arguments[0]
        try:
            svg = Drawing("\n".join(self.content)).svg(title)
        except ValueError as error:
            raise self.error(f"diagram {title!r}: {error}") from None
        figure = f'<figure class="diagram">{svg}<figcaption>{escape(title)}</figcaption></figure>'
        return [nodes.raw("", figure, format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive and its style."""
    app.add_directive("diagram", Diagram)
    app.add_css_file("diagrams.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
