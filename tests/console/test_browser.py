"""The pages in Chromium, of two brokers with 5,000 topics, 2,000 groups and hostile texts; one browser for all tests.

Behind a proxy that serves the console below a path: light and dark, on a phone, with large text, by the keyboard alone,
and checked by axe-core. The same without JavaScript, while a broker does not answer. Sessions that expire, live tails,
charts and saved views.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio

from rucola.admin import AdminClient
from rucola.client import Producer
from rucola.console.accounts import hash_password
from rucola.console.pages import PAGES as REGISTERED
from rucola.message import Message
from rucola.message.host import encode_host
from rucola.message.message import MessageInner
from rucola.message.record import encode
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.offset import OffsetResponseHeader
from rucola.protocol.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rucola.remoting.connection import Connection, Processor
from support.browser import Browser, BrowserPage, browser
from support.cluster import Cluster, cluster
from support.console import Visitor, visitor
from support.console_pages import HOSTILE, MANY_GROUPS, MANY_TOPICS, PAGES, QUESTION, shown_console
from support.npm import installed_by_npm
from support.prefix_proxy import PrefixProxy, prefix_proxy

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

FOCUSED = (
    "(one => [one.tagName, one.innerText || one.name || one.id, getComputedStyle(one).outlineStyle])"
    "(document.activeElement)"
)
ADDRESSES = (
    "[...document.querySelectorAll('[href], [src], [action], [formaction], [hx-get], [data-tail]')].flatMap(one => "
    "['href', 'src', 'action', 'formaction', 'hx-get', 'data-tail'].map(name => one.getAttribute(name)))"
    ".filter(one => one)"
)
UNNAMED = (
    "[...document.querySelectorAll('main input:not([type=hidden]), main select, main textarea')]"
    ".filter(one => !one.labels.length).length"
)
WIDTH = "document.documentElement.scrollWidth"
LOOKS = ((1280, "light", "100%"), (390, "dark", "100%"), (640, "light", "100%"), (1280, "light", "200%"))
"""Width, colours and size of text; the last two are the zoom of a browser, and of its text alone."""


WITHOUT_PAGE = {"/tail/events", "/dead_letters/export", "/preferences", "/logout"}
"""What a page loads, or a form sends."""


@dataclass(frozen=True)
class Site:
    """A console, and the same below the path of a proxy."""

    cluster: Cluster
    console: Visitor
    proxy: PrefixProxy
    paths: dict[str, str]
    chromium: Browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    path = tmp_path_factory.mktemp("site")
    config = {"trusted_proxies": ("127.0.0.1",), "interval_s": 5.0, "requests_per_second": 1000}
    async with AsyncExitStack() as stack:
        chromium = await stack.enter_async_context(browser(path / "profile"))
        cluster, console, paths = await stack.enter_async_context(shown_console(path, has_many=True, **config))
        async with Producer("shop", cluster.namesrv) as producer:
            named = Message("Orders", HOSTILE.encode(), keys=HOSTILE, tags=HOSTILE, properties={"p": HOSTILE})
            sent = await producer.send(named)
        proxy = await stack.enter_async_context(prefix_proxy(urlsplit(console.url("")).port or 0))
        paths |= {"hostile message": f"/message?id={sent.offset_msg_id}"}
        snapshot = console.console.collector.snapshot
        assert (len(snapshot.topics) > MANY_TOPICS, len(snapshot.groups) > MANY_GROUPS) == (True, True)
        yield Site(cluster, console, proxy, paths, chromium)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, of Deque's package."""
    installed = installed_by_npm(Path(__file__).parent / "axe", tmp_path_factory)
    return (installed / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


async def test_no_page_is_forgotten() -> None:
    shown = {re.sub("^/run/.*", "/run/{command}", urlsplit(path).path) for path in PAGES.values()}
    assert shown == {page.path for page in REGISTERED} - WITHOUT_PAGE


async def test_every_page_fits_and_works_behind_a_proxy(site: Site, axe: str) -> None:
    page, proxy = await site.chromium.page(), site.proxy
    found = []
    for name, path in site.paths.items():
        await page.show_as(1280, 800)
        await page.goto(proxy.url + path)
        if name == "question":
            await page.follow(QUESTION)
            assert await page.text(".confirm .question")
        assert await page.evaluate("typeof htmx") == "object", path
        assert await page.evaluate(UNNAMED) == 0, path
        assert await page.evaluate("document.querySelectorAll('[onerror]').length") == 0, path
        addresses = await page.evaluate(ADDRESSES)
        outside = {one for one in addresses if not one.startswith((f"{proxy.prefix}/", "#", "data:"))}
        assert (len(addresses) > 10, outside) == (True, set()), path
        await page.evaluate(f"{axe}; 0")
        for width, scheme, size in LOOKS:
            await page.show_as(width, 800, scheme)
            await page.evaluate(f"void (document.documentElement.style.fontSize = '{size}')")
            assert await page.evaluate(WIDTH) <= width, (path, width, size)
            if width == 640 or size != "100%":
                continue
            results = json.loads(await page.evaluate("axe.run(document).then(JSON.stringify)"))
            assert results["passes"], "axe-core has looked"
            found += [
                f"{path} in {scheme}: {one['id']}: {node['html'][:150]} {node['failureSummary'][:200]}"
                for one in results["violations"]
                if one["impact"] in ("serious", "critical")
                for node in one["nodes"][:3]
            ]
    assert found == []
    assert (page.problems, proxy.strays) == ([], [])


async def test_colours_language_filter_and_views_behind_a_proxy(site: Site) -> None:
    page, url = await site.chromium.page(), site.proxy.url
    await page.goto(f"{url}/login")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(ground)
    await page.follow("button[value=dark]")
    assert await page.evaluate(ground) != light
    await page.follow("button[value=zh]")
    assert "登录" in await page.text()
    await page.follow("button[value=en]")

    await page.goto(f"{url}/topics?kind=all")
    await page.evaluate("window.isSamePage = true")
    await page.fill("main input[name=q]", "ORD")
    await page.until("document.querySelectorAll('#list tbody tr').length == 1")
    assert "Orders" in await page.text("#list")
    assert await page.evaluate("window.isSamePage && document.activeElement.name == 'q'")
    await page.goto(f"{url}/topic?name=Orders")
    assert "UTC" not in await page.text("#main table time"), "in the reader's zone"
    await page.press("k", "KeyK", ctrl=True)
    assert await page.evaluate("document.activeElement.id") == "find"
    await page.goto(f"{url}/topics?sort=queues")
    await page.follow("footer a[href*='/views?path=']")
    await page.fill("main [name=name]", "Many queues")
    await page.follow("main form.fields button")
    saved = await page.evaluate(
        "[...document.querySelectorAll('tbody th a')].map(one => [one.innerText, one.pathname])"
    )
    assert saved == [
        [HOSTILE.replace("\u202e", "\\u202e"), f"{site.proxy.prefix}/topics"],
        ["Many queues", saved[0][1]],
    ]
    await page.follow("tbody tr:last-child th a")
    assert await page.evaluate("location.search") == "?sort=queues"
    await page.goto(f"{url}/views")
    await page.follow("tbody tr:last-child button")
    assert [one.name for one in await site.console.console.views.all()] == [HOSTILE]
    assert (page.problems, site.proxy.strays) == ([], [])


async def test_a_tail_is_live_until_it_is_stopped(site: Site) -> None:
    page, rows = await site.chromium.page(), "document.querySelectorAll('#tail tr').length"
    async with Producer("shop", site.cluster.namesrv) as producer:
        await page.goto(f"{site.proxy.url}/tail?topic=Orders")
        await page.until("document.querySelector('[data-tail]').dataset.state == 'live'")
        before = await page.evaluate(rows)
        await producer.send(Message("Orders", HOSTILE.encode()))
        await page.until(f"{rows} == {before + 1}")
        assert "<img src=x" in await page.text("#tail tr:first-child")
        assert "UTC" not in await page.text("#tail tr:first-child")
        await page.evaluate("document.getElementById('stop').click()")
        assert await page.text("[data-tail]") == "Stopped"
        await producer.send(Message("Orders", b"later"))
        await page.evaluate("document.getElementById('stop').click()")
        await page.until(f"{rows} == {before + 2}")
        assert "later" in await page.text("#tail tr:first-child")
        # What is out of sight leaves.
        await page.evaluate("tail.append(...Array.from({length: 300}, () => document.createElement('tr')))")
        await producer.send(Message("Orders", b"last"))
        await page.until(f"{rows} == 200")
        assert (page.problems, site.proxy.strays) == ([], [])

        page = await site.chromium.page()
        await page.without_scripts()
        await page.goto(site.console.url("/tail?topic=Orders"))
        assert "Stop" not in await page.text()
        await producer.send(Message("Orders", b"without scripts"))
        await site.console.shows("/tail?topic=Orders", "without scripts")
        await page.follow("main a[href*='/tail?']")
        assert "without scripts" in await page.text("#tail")
        assert page.problems == []


def endless_queue() -> dict[int, Processor]:
    """The requests of a queue with a million messages, of which each pull gets one."""
    end, host = 1_000_000, encode_host("127.0.0.1:10911")

    def offset(at: int) -> Processor:
        return lambda _, command: command.response(ResponseCode.SUCCESS, OffsetResponseHeader(offset=at))

    def pull(_: Connection, command: RemotingCommand) -> RemotingCommand:
        at = command.decode_header(PullMessageRequestHeader).queue_offset
        now_ms = time.time_ns() // 1_000_000
        record = encode(MessageInner("Endless", 0, b"message %d;" % at, b"", 0, 0, now_ms, host), at, at, now_ms, host)
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=at + 1, min_offset=0, max_offset=end
        )
        return command.response(ResponseCode.SUCCESS, header, body=record)

    return {
        RequestCode.GET_MIN_OFFSET: offset(0),
        RequestCode.GET_MAX_OFFSET: offset(end),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offset(0),
        RequestCode.PULL_MESSAGE: pull,
    }


@pytest.mark.parametrize("with_scripts", [True, False])
async def test_a_scan_shows_its_progress_until_it_is_stopped(site: Site, tmp_path: Path, with_scripts: bool) -> None:
    async with cluster(tmp_path) as running, AsyncExitStack() as stack:
        await running.scripted_broker("broker-a", "Endless", endless_queue())
        console = await stack.enter_async_context(visitor(running.namesrv))
        page = await site.chromium.page()
        if not with_scripts:
            await page.without_scripts()
        await page.goto(console.url("/search?topic=Endless"))
        begin = await page.evaluate("document.querySelector('[name=begin]').value")
        zone = await page.evaluate("new Date().getTimezoneOffset()") if with_scripts else 0
        assert datetime.fromisoformat(begin).utcoffset() == timedelta(minutes=-zone)
        assert abs(datetime.fromisoformat(begin).timestamp() + 3600 - time.time()) < 3600, "an hour before"
        await page.fill("main [name=text]", "message 7;")
        await page.follow("main form[action$='/scan'] button")
        query = parse_qs(urlsplit(await page.evaluate("location.href")).query)
        assert (query["topic"], query["text"], query["begin"]) == (["Endless"], ["message 7;"], [begin])
        if with_scripts:
            read = "document.querySelector('progress')?.value"
            first = await page.until(read)
            await page.until(f"{read} > {first}")
            await page.until("document.querySelector('.hits').innerText.includes('message 7;')")
        else:
            while "message 7;" not in await page.text(".hits"):
                await page.follow("main form a[href*='/scan?']")
        assert "Reading" in await page.text("[role=status]")
        await page.follow("button[value=stop]")
        stopped = await page.text("[role=status]")
        assert re.search(r"was stopped.*\s[\d,]+ of about 1,000,000 messages read", stopped), stopped
        address = await page.evaluate("location.href")
        assert parse_qs(urlsplit(address).query) == query
        assert (await page.text("code"), "message 7;" in await page.text(".hits")) == ("Endless", True)
        await page.goto(address)
        assert await page.text("[role=status]") == stopped, "a look at it reads nothing"
        await page.follow("button[value=again]")
        assert "Reading" in await page.text("[role=status]")
        await page.follow("button[value=stop]")
        assert page.problems == []


async def test_charts_are_drawn_and_drawn_again(site: Site) -> None:
    async with visitor(site.cluster.namesrv, interval_s=5.0) as console:
        now_s = int(time.time())
        series = [f"group {kind} billing" for kind in ("backlog", "delay_s", "consumed_per_s")]
        for at_s in range(now_s - 600, now_s, 60):
            await console.console.history.add(at_s, dict.fromkeys(series, 123_456.789))
        page = await site.chromium.page()
        await page.goto(console.url("/group?name=billing"))
        assert await page.until("document.querySelectorAll('.chart canvas').length") == 3
        await page.evaluate("document.querySelector('details').open = true")
        await page.evaluate("document.querySelector('.chart canvas').isSame = true")
        await page.evaluate("htmx.ajax('GET', location.href, {target: '#main', select: '#main', swap: 'outerMorph'})")
        assert await page.evaluate("document.querySelector('.chart canvas').isSame")
        assert await page.evaluate("document.querySelector('details').open")
        assert await page.evaluate("document.querySelectorAll('.chart canvas').length") == 3
        assert page.problems == []

        page = await site.chromium.page()
        await page.without_scripts()
        await page.goto(console.url("/group?name=billing"))
        assert "123,457" not in await page.text(".charts")
        await page.evaluate("document.querySelector('summary').click()")
        assert "123,457" in await page.text(".charts"), "the table says the same"
        assert page.problems == []


async def tab_to(page: BrowserPage, text: str) -> None:
    """Move to what has a text or name with Tab; what has the focus is always seen."""
    for _ in range(80):
        await page.press("Tab", "Tab")
        tag, name, outline = await page.evaluate(FOCUSED)
        assert outline != "none", (tag, name)
        if name.strip() == text:
            return
    raise AssertionError(f"Tab does not reach {text}")


async def test_the_keyboard_alone_is_enough(site: Site) -> None:
    """Find a group, reset its offsets, and undo it."""
    page = await site.chromium.page()
    await page.goto(site.console.url("/"))
    await page.press("Tab", "Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    await page.press("Enter", "Enter")
    assert await page.evaluate("document.activeElement.id") == "main", "the navigation is skipped"
    await page.press("k", "KeyK", ctrl=True)
    await page.call("Input.insertText", text="billing")
    await page.enter()
    for wanted in ("billing", "Reset offsets on Orders"):
        await tab_to(page, wanted)
        await page.enter()
    await tab_to(page, "timestamp_ms")
    await page.call("Input.insertText", text="now")
    await page.enter()
    for wanted in ("Do it", "Undo", "Do it"):
        await tab_to(page, wanted)
        await page.enter()
    assert "Done." in await page.text()
    async with AdminClient(site.cluster.namesrv) as admin:
        stats = await admin.groups.consume_stats("billing")
    assert [at.consumer_offset for at in stats.offset_table.values()] == [5, 0, 5, 0]
    assert page.problems == []


async def test_a_session_that_expires_leads_back_after_the_login(site: Site, tmp_path: Path) -> None:
    (tmp_path / "accounts").write_text(f"ann={hash_password('right')} admin\n")
    page = await site.chromium.page()

    async def log_in() -> None:
        await page.fill("[name=name]", "ann")
        await page.fill("[name=password]", "right")
        await page.follow("main form button")

    def expire(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE session SET expires_s=0")

    config = {"accounts": tmp_path / "accounts", "interval_s": 5.0}
    async with visitor(site.cluster.namesrv, **config) as console:
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


async def test_every_page_works_without_scripts_while_a_broker_does_not_answer(site: Site) -> None:
    await site.cluster.register("broker-c", "Orders", "127.0.0.1:1")
    await site.console.console.collector.refresh()
    page = await site.chromium.page()
    await page.without_scripts()
    for name, path in site.paths.items():
        await page.show_as(390 if name in ("topic", "group") else 1280, 800)
        await page.goto(site.console.url(path))
        assert await page.text("h1"), path
        assert await page.evaluate("document.querySelectorAll('[onerror]').length") == 0, path
        if name in ("cluster", "topics", "groups", "topic"):
            assert "broker-c" in await page.text(), path
        if time_shown := await page.text("main time"):
            assert "UTC" in time_shown, path
    assert {one.partition(" http")[0] for one in page.problems} <= {NO_ANSWER}


NO_ANSWER = "Failed to load resource: the server responded with a status of 502 (Bad Gateway)"
"""Of a command that needs the broker."""
