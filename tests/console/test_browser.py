"""The pages in Chromium: light and dark, on a phone, by the keyboard, and without JavaScript."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.admin import AdminClient
from support.browser import browser
from support.console import live_cluster, visitor
from support.console_pages import pages
from support.databases import OutboxDatabase

pytestmark = [pytest.mark.external, pytest.mark.slow]


async def test_every_page_fits_and_nothing_fails(tmp_path: Path, sqlite_db: OutboxDatabase) -> None:
    async with pages(tmp_path, sqlite_db) as (console, page, paths):
        for width, scheme in ((1280, "light"), (390, "dark")):
            await page.show_as(width, 800, scheme)
            for path in paths:
                await page.goto(console.url(path))
                assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
                assert await page.evaluate("typeof htmx") == "object", path
                unnamed = "[...document.querySelectorAll('main input:not([type=hidden]), main select')]"
                assert await page.evaluate(f"{unnamed}.filter(one => !one.labels.length).length") == 0, path
        ground = "getComputedStyle(document.body).backgroundColor"
        dark = await page.evaluate(ground)
        await page.follow("button[value=light]")
        assert await page.evaluate(ground) != dark
        await page.follow("button[value=zh]")
        assert "登录" in await page.text()
        await page.follow("button[value=en]")

        await page.goto(console.url("/topics?kind=all"))
        await page.evaluate("window.isSamePage = true")
        await page.fill("main input[name=q]", "ORD")
        await page.until("document.querySelectorAll('#list tbody tr').length == 1")
        assert "Orders" in await page.text("#list")
        assert await page.evaluate("window.isSamePage && document.activeElement.name == 'q'")
        await page.goto(console.url("/topic?name=Orders"))
        assert "UTC" not in await page.text("#main table time"), "in the reader's zone"
        await page.press("k", "KeyK", ctrl=True)
        assert await page.evaluate("document.activeElement.id") == "find"
        await page.goto(console.url("/"))
        await page.press("Tab", "Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        assert page.problems == []


async def test_an_action_without_javascript(tmp_path: Path) -> None:
    async with (
        live_cluster(tmp_path) as running,
        visitor(running.namesrv) as console,
        browser(tmp_path / "profile") as chromium,
        AdminClient(running.namesrv) as admin,
    ):
        page = await chromium.page()
        await page.without_scripts()
        await page.goto(console.url("/groups"))
        await page.follow("tbody a[href*=billing]")
        await page.follow("a.danger")
        await page.fill("[name=timestamp_ms]", "now")
        await page.follow("main form button")
        assert "reset the offsets of group billing on topic Orders to the end" in await page.text()
        assert (await admin.groups.consume_stats("billing")).offset_table, "nothing has been done"
        await page.follow("main form button")
        stats = await admin.groups.consume_stats("billing")
        assert {at.consumer_offset for at in stats.offset_table.values()} == {10}
        await page.goto(console.url("/audit"))
        assert "resetOffsetByTime -g billing -t Orders" in await page.text("tbody tr")
        assert page.problems == []
