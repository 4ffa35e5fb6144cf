"""Live tails, and what the page of a topic says of its producers and consumers."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from rucola.client import Producer
from rucola.console import tails
from rucola.console.tails import FIRST_MESSAGES, KEPT, Tail
from rucola.message import Message, MessageExt
from support.console import Visitor, live_cluster, text_of, visitor
from support.waiting import until

BODY = b"x" * 100_000


def message(number: int) -> MessageExt:
    return MessageExt(
        "Orders", 0, number, number, 0, BODY, {}, 0, 0, 0, 1, 0, "127.0.0.1:1", number, "127.0.0.1:1", 0, 0, bytes(8)
    )


async def test_a_day_of_messages_and_a_slow_watcher_take_constant_memory() -> None:
    """A day of rounds with bodies of 100 kB, of which the watcher takes one in a thousand."""
    tail = Tail("Orders")
    day, per_round, step = 86_400, 2, 1000
    seen, left_out, after, sizes = 0, 0, 0, list[int]()
    tracemalloc.start()
    try:
        for second in range(day):
            tail.publish(
                [(message(second * per_round + number), "broker-a") for number in range(per_round)], left_out=1
            )
            if second % step == step - 1:
                news = await tail.news(after)
                after, seen, left_out = news.number, seen + len(news.messages), left_out + news.left_out
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert after == day // step * step * (per_round + 1)
    assert (seen, seen + left_out) == (day // step * KEPT, after - len(sizes[:1]) * (step * (per_round + 1) - KEPT))
    assert max(sizes[1:]) - min(sizes[1:]) < 100_000, "less than one body"


async def read_events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, str]]:
    """The ids, or names without one, and texts of server-sent events."""
    event_id, data = "", list[str]()
    async for line in lines:
        name, _, value = line.partition(": ")
        if name in ("id", "event"):
            event_id = value
        elif name == "data":
            data.append(value)
        elif not line and data:
            yield event_id, " ".join(data)
            event_id, data = "", []


async def test_a_page_gets_what_comes_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv, requests_per_second=1000) as console:
        text = await console.text("/tail?topic=Orders")
        assert all(f"order {number} " in text for number in range(39, 39 - FIRST_MESSAGES, -1))
        url = console.url("/tail/events?topic=Orders")
        async with Producer("shop", running.namesrv) as producer:
            async with console.http.stream("GET", url, headers={"last-event-id": "0-7"}) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                async with aclosing(read_events(response.aiter_lines())) as events:
                    _, old = await anext(events)
                    assert "order 39" in old, "an id of another tail: all that is kept"
                    await producer.send(Message("Orders", b"<b>new</b>", keys="k-1"))
                    last, new = await anext(events)
                    assert "&lt;b&gt;new&lt;/b&gt;" in new
                    assert new.count("<tr>") == 1
            await producer.send(Message("Orders", b"while away"))
            async with (
                console.http.stream("GET", url, headers={"last-event-id": last}) as response,
                aclosing(read_events(response.aiter_lines())) as events,
            ):
                _, new = await anext(events)
                assert "while away" in new
                assert "&lt;b&gt;new" not in new
        looks = [(entry.action, entry.result) for entry in await console.console.audit.entries()]
        assert looks[-1] == ("tail topic=Orders", "success")
        assert [action for action, _ in looks[:-1]] == ["tail topic=Orders live"] * 2
        assert (await console.get("/tail?topic=none")).status_code == 404
        assert (await console.get("/tail/events?topic=none")).status_code == 404


async def test_a_tail_says_which_broker_is_missing_and_when_it_is_back(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running:
        await running.register("broker-c", "Orders", "127.0.0.1:1")
        async with visitor(running.namesrv, requests_per_second=1000) as console:
            # A broker that was there has gone.
            collector = console.console.collector
            await collector.wait_first()
            state = collector.snapshot.topics["Orders"]
            with_c = replace(state, brokers={**state.brokers, "broker-c": state.brokers["broker-a"]})
            collector.snapshot = replace(collector.snapshot, topics={"Orders": with_c})
            assert "broker-c could not be read" in await console.text("/tail?topic=Orders")
            found = await console.console.tails.get("Orders")
            assert found.failures.keys() == {"broker-c"}
            async with (
                console.http.stream("GET", console.url("/tail/events?topic=Orders")) as response,
                aclosing(read_events(response.aiter_lines())) as events,
            ):
                name, text = await anext(events)
                assert (name, "broker-c" in text) == ("failures", True)
                collector.snapshot = replace(collector.snapshot, topics={"Orders": state})
                async for name, text in events:
                    if (name, text) == ("failures", ""):
                        break


async def test_a_tail_hides_bodies_that_the_account_does_not_see(tmp_path: Path) -> None:
    accounts, roles = tmp_path / "accounts.properties", tmp_path / "bodies.properties"
    accounts.write_text("ann=- admin\nbob=- viewer\n")
    roles.write_text("Orders=admin\n")
    config = {"accounts": accounts, "body_roles": roles, "user_header": "X-User", "trusted_proxies": ("127.0.0.1",)}
    async with live_cluster(tmp_path) as running, visitor(running.namesrv, **config) as console:
        assert "order 39" in text_of(await console.get("/tail?topic=Orders", **{"x-user": "ann"}))
        text = text_of(await console.get("/tail?topic=Orders", **{"x-user": "bob"}))
        assert "order 39" not in text
        assert "bodies of topic Orders take the role admin" in text
        headers = {"x-user": "bob"}
        async with (
            console.http.stream("GET", console.url("/tail/events?topic=Orders"), headers=headers) as response,
            aclosing(read_events(response.aiter_lines())) as events,
        ):
            _, rows = await anext(events)
            assert rows.count("take the role admin") == rows.count("<tr>") > 0
            assert "order" not in rows.replace("Orders", "")


async def test_a_topic_that_nobody_watches_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "IDLE_S", 0.0)
    monkeypatch.setattr(tails, "INTERVAL_S", 0.01)
    monkeypatch.setattr(tails, "MAX_TAILS", 1)
    async with live_cluster(tmp_path) as running, visitor(running.namesrv, requests_per_second=1000) as console:
        tail = await console.console.tails.get("Orders")
        assert tail.task is not None
        await tail.task
        assert (await console.get("/tail?topic=Orders")).status_code == 200, "another one"
        monkeypatch.setattr(tails, "MAX_WATCHERS", 0)
        assert (await console.get("/tail/events?topic=Orders")).status_code == 400


async def test_an_open_connection_does_not_delay_the_end(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv) as console:
        reading = asyncio.create_task(read_all(console, "/tail/events?topic=Orders"))

        async def is_watched() -> bool:
            return len(await console.console.audit.entries()) == 1

        await until(is_watched)
        await console.server.__aexit__()
        assert "order 39" in await reading, "the connection ended as it should"


async def read_all(console: Visitor, path: str) -> str:
    async with httpx.AsyncClient() as http, http.stream("GET", console.url(path)) as response:
        return "".join([text async for text in response.aiter_text()])


async def test_a_topic_shows_its_producers_and_consumers(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv) as console:
        text = await console.text("/topic?name=Orders")
        assert re.search(r"Group Backlog on this topic .* billing 30 – ", text)
        assert re.search(r"127.0.0.1:\d+ not connected now broker-[ab]:[01] ", text)
        async with Producer("shop", running.namesrv) as producer:
            for _ in range(4):
                await producer.send(Message("Orders", b"new"))
            await console.shows("/topic?name=Orders", f" shop {producer.instance.client_id} broker-a:0 ")
