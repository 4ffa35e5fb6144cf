"""The pages for people: axe-core's findings, the keyboard alone, large text, and a session that expires."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.console.accounts import hash_password
from support.console_pages import pages
from support.databases import OutboxDatabase
from support.npm import installed_by_npm

pytestmark = [pytest.mark.external, pytest.mark.slow]

FOCUSED = (
    "(one => [one.tagName, one.innerText || one.name || one.id, getComputedStyle(one).outlineStyle])"
    "(document.activeElement)"
)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, of Deque's package."""
    installed = installed_by_npm(Path(__file__).parent / "axe", tmp_path_factory)
    return (installed / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


async def test_no_page_has_a_serious_finding(tmp_path: Path, sqlite_db: OutboxDatabase, axe: str) -> None:
    async with pages(tmp_path, sqlite_db) as (console, page, paths):
        found = []
        for width, scheme in ((1280, "light"), (390, "dark")):
            await page.show_as(width, 800, scheme)
            for path in paths:
                await page.goto(console.url(path))
                await page.evaluate(f"{axe}; 0")
                results = json.loads(await page.evaluate("axe.run(document).then(JSON.stringify)"))
                assert results["passes"], "axe-core has looked"
                found += [
                    f"{path} in {scheme}: {one['id']}: {node['html'][:150]} {node['failureSummary'][:200]}"
                    for one in results["violations"]
                    if one["impact"] in ("serious", "critical")
                    for node in one["nodes"][:3]
                ]
        assert found == []


async def test_text_of_twice_the_size_fits(tmp_path: Path, sqlite_db: OutboxDatabase) -> None:
    async with pages(tmp_path, sqlite_db) as (console, page, paths):
        for path in paths:
            for width, size in ((640, "100%"), (1280, "200%")):  # the zoom of a browser, and of its text alone
                await page.show_as(width, 800)
                await page.goto(console.url(path))
                await page.evaluate(f"document.documentElement.style.fontSize = '{size}'")
                assert await page.evaluate("document.documentElement.scrollWidth") <= width, (path, size)


async def test_the_keyboard_alone_is_enough(tmp_path: Path, sqlite_db: OutboxDatabase) -> None:
    """Find a group, reset its offsets, and undo it; what has the focus is always seen."""
    async with pages(tmp_path, sqlite_db) as (console, page, _):

        async def tab_to(text: str) -> None:
            for _ in range(80):
                await page.press("Tab", "Tab")
                tag, name, outline = await page.evaluate(FOCUSED)
                assert outline != "none", (tag, name)
                if name.strip() == text:
                    return
            raise AssertionError(f"Tab does not reach {text}")

        await page.goto(console.url("/"))
        await page.press("Tab", "Tab")
        await page.press("Enter", "Enter")
        assert await page.evaluate("document.activeElement.id") == "main", "the navigation is skipped"
        await page.press("k", "KeyK", ctrl=True)
        await page.call("Input.insertText", text="billing")
        await page.enter()
        for wanted in ("billing", "Reset offsets on Orders"):
            await tab_to(wanted)
            await page.enter()
        await tab_to("timestamp_ms")
        await page.call("Input.insertText", text="now")
        await page.enter()
        for wanted in ("Do it", "Undo", "Do it"):
            await tab_to(wanted)
            await page.enter()
        assert "Done." in await page.text()
        async with AdminClient(console.console.client.namesrv) as admin:
            stats = await admin.groups.consume_stats("billing")
        assert [at.consumer_offset for at in stats.offset_table.values()] == [5, 0, 5, 0]


async def test_a_session_that_expires_leads_back_after_the_login(tmp_path: Path, sqlite_db: OutboxDatabase) -> None:
    (tmp_path / "accounts").write_text(f"ann={hash_password('right')} admin\n")
    async with pages(tmp_path, sqlite_db, accounts=tmp_path / "accounts") as (console, page, _):

        async def log_in() -> None:
            await page.fill("[name=name]", "ann")
            await page.fill("[name=password]", "right")
            await page.follow("main form button")

        def expire(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE session SET expires_s=0")

        await page.goto(console.url("/topic?name=Orders"))
        await log_in()
        assert "Orders" in await page.text("h1")
        await console.console.database.run(expire)
        await page.evaluate("htmx.ajax('GET', location.href, {target: '#main', select: '#main', swap: 'outerMorph'})")
        await page.until("document.querySelector('[name=password]')")
        await log_in()
        assert "Orders" in await page.text("h1"), "where it was"

        await page.goto(console.url("/run/deleteTopic?topic=Orders&cluster=DefaultCluster"))
        await page.follow("main form button")
        assert "delete topic Orders" in await page.text()
        await console.console.database.run(expire)
        await page.follow("main form button")
        assert await page.evaluate("location.pathname") == "/login"
        await log_in()
        assert await console.console.audit.entries() == [], "the login repeats no action"
        assert await console.console.client.topics.route("Orders")
        assert page.problems == []
