"""docs/reliable.md, the recipes and the example's README do what they say: each is carried out as written."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from support.databases import DatabaseServer, create_database
from support.documents import Document
from support.reader import Reader

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = Document.read("docs/reliable.md")
PAGE = DOCUMENT.text

MakeReader = Callable[..., Reader]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[MakeReader]:
    """Makes a reader in an empty directory."""
    with ExitStack() as stack:

        def make(replacements: Mapping[str, str] | None = None) -> Reader:
            return stack.enter_context(Reader(tmp_path, replacements))

        yield make


def rows(database: Path, query: str) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute(query)]


@pytest.mark.slow
def test_tutorial_works_as_written(reader: MakeReader, tmp_path: Path) -> None:
    reader().follow(DOCUMENT.sections()["Tutorial"])
    assert rows(tmp_path / "shop.db", "SELECT text FROM invoices ORDER BY text") == ["1 pizza", "2 pasta"]


def test_every_state_is_explained() -> None:
    from rucola.reliable.schema import STATUSES

    for status in STATUSES:
        assert PAGE.count(status) >= 2, status


def test_defaults_on_the_page_are_those_of_the_program() -> None:
    from rucola.reliable.policy import LEAST_PURGE_AFTER_MS, Policy
    from rucola.reliable.schema import LANES

    policy = Policy()
    assert (policy.stuck_after_ms, policy.overdue_after_ms) == (6 * 3_600_000, 24 * 3_600_000)
    assert (policy.lease_ms, policy.poll_ms, LANES, LEAST_PURGE_AFTER_MS) == (30_000, 2000, 16, 77 * 3_600_000)
    for words in ("for 6 h", "for 24 h", "30 s", "2 s at most", "16 lanes", "77 hours"):
        assert words in PAGE


@pytest.mark.slow
def test_readme_of_the_order_service_works_as_written(
    reader: MakeReader, postgresql: DatabaseServer, tmp_path: Path
) -> None:
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    url = create_database(postgresql)
    reader({"postgresql+psycopg://shop@localhost/shop": url}).follow(Document.read("examples/order_service/README.md"))
    assert rows(tmp_path / "examples" / "orders.db", "SELECT count(*) FROM invoices") == [1]
    with closing(psycopg.connect(url.replace("+psycopg", ""))) as connection:
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
