"""Sphinx extension: after the build, every link within the site leads to a page, a file and an anchor that exist.

Sphinx warns of missing pages while it reads them. This check reads what was written, so that it also sees anchors,
downloads and links that templates and raw HTML contain. A broken link is a warning, and `make docs` takes warnings for
errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src") and not urlsplit(value).scheme:
                self.links.add(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


def broken_links(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (page, link) for each link from a page below `root` to something that is not there."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in root.rglob("*.html")}
    for path, page in sorted(pages.items()):
        for link in sorted(page.links):
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            found = pages.get(target)
            if not target.exists() or (found is not None and unquote(parts.fragment) not in found.anchors):
                yield str(path.relative_to(root)), link


def _check(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        for page, link in broken_links(Path(app.outdir).resolve()):
            logger.warning("%s links to %s, which does not exist", page, link)


def setup(app: Sphinx) -> dict[str, bool]:
    """Check the links when the build has finished."""
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
