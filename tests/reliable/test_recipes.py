"""docs/reliable-recipes.md: each recipe is carried out as written, on the databases that it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from rucola.testing.rocketmq import RocketMQ
from support.databases import DatabaseServer, create_database
from support.documents import Document
from support.outbox import until
from support.reader import Reader

CHAPTERS = Document.read("docs/reliable-recipes.md").sections()

Follow = Callable[..., str]

pytestmark = pytest.mark.slow


@pytest.fixture
def follow(tmp_path: Path, rocketmq: RocketMQ) -> Iterator[Follow]:
    """Carries out a chapter on a database server, or with SQLite; returns the database's URL."""
    with ExitStack() as stack:

        def carry_out(title: str, server: DatabaseServer | None = None, chapter: Document | None = None) -> str:
            url = f"sqlite:///{tmp_path / 'shop.db'}"
            replacements = {"127.0.0.1:9876": rocketmq.namesrv}
            if server is not None:
                url = create_database(server)
                replacements |= addresses(url)
            reader = stack.enter_context(Reader(tmp_path, replacements))
            reader.follow(chapter or CHAPTERS[title])
            return url

        yield carry_out


def addresses(url: str) -> dict[str, str]:
    """The places in which a recipe says where the database is, and what is there in this test."""
    scheme, rest = url.split("://")
    user, host, port, name = re.fullmatch(r"(\w+)@([\d.]+):(\d+)/(\w+)(?:\?.*)?", rest).groups()  # type: ignore[union-attr]
    return {
        f"{scheme}://shop@localhost/shop": url,
        "postgresql://shop@localhost/shop": f"postgresql://{rest}",
        'host="localhost", port=3306, user="shop", database="shop"': (
            f'host="{host}", port={port}, user="{user}", database="{name}"'
        ),
        '"HOST": "localhost"': f'"HOST": "{host}"',
        '"PORT": "5432"': f'"PORT": "{port}"',
        '"USER": "shop"': f'"USER": "{user}"',
        '"NAME": "shop"': f'"NAME": "{name}"',
        "sqlite:///shop.db": url,  # in the commands of a recipe for several databases
    }


def rows(url: str, query: str) -> list[str]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return list(connection.scalars(text(query)))
    finally:
        engine.dispose()


async def check_billed(url: str, invoices: str) -> None:
    await until(lambda: rows(url, "SELECT status FROM rucola_stub") == ["CONFIRMED"])
    assert rows(url, f"SELECT count(*) FROM {invoices}") == [1]
    assert rows(url, "SELECT count(*) FROM rucola_done") == [1]


def test_every_recipe_is_carried_out() -> None:
    assert set(CHAPTERS) == {
        "SQLAlchemy: Session and AsyncSession", "FastAPI", "sqlite3", "psycopg", "PyMySQL", "Django"
    }  # fmt: skip


def test_the_recipe_for_sqlalchemy_works(follow: Follow) -> None:
    url = follow("SQLAlchemy: Session and AsyncSession")
    assert rows(url, "SELECT what FROM orders ORDER BY id") == ["pizza", "pasta"]
    assert rows(url, "SELECT body FROM rucola_stub ORDER BY seq") == [b"1", b"2"]


def test_the_recipe_for_fastapi_works(follow: Follow) -> None:
    url = follow("FastAPI")
    assert rows(url, "SELECT what FROM orders") == ["pizza"]


async def test_sqlite3(follow: Follow) -> None:
    await check_billed(follow("sqlite3"), "invoices")


async def test_the_recipe_for_psycopg_works(follow: Follow, postgresql: DatabaseServer) -> None:
    await check_billed(follow("psycopg", postgresql), "invoices")


def test_the_recipe_for_pymysql_works(follow: Follow, mariadb: DatabaseServer) -> None:
    url = follow("PyMySQL", mariadb)
    assert rows(url, "SELECT what FROM orders") == ["pizza"]
    assert rows(url, "SELECT body FROM rucola_stub") == [b"1"]


async def test_django_on_sqlite(follow: Follow) -> None:
    url = follow("Django")
    await check_billed(url, "shop_invoice")
    assert inspect(create_engine(url)).has_table("shop_order")


async def test_django_on_postgresql(follow: Follow, postgresql: DatabaseServer) -> None:
    """The page's second DATABASES block takes the place of the first."""
    databases = r"DATABASES = .*?^OUTBOX_DATABASE = [^\n]*\n"
    first, second = re.findall(databases, CHAPTERS["Django"].text, re.DOTALL | re.MULTILINE)
    assert "sqlite3" in first
    await check_billed(
        follow("Django", postgresql, Document(CHAPTERS["Django"].text.replace(first, second, 1))), "shop_invoice"
    )
