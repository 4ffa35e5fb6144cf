"""The live tail of a topic: its newest messages, and those that come, over one connection of the page.

Without JavaScript the page shows the newest messages each time it is loaded.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Final

from starlette.responses import Response, StreamingResponse

from rucola.admin.commands.authorization import Forbidden
from rucola.console.scans import Hit
from rucola.console.tails import News, Tail
from rucola.console.visit import NotFound, Visit, page
from rucola.errors import ConfigError

HEARTBEAT_S: Final = 15.0
FIRST_ROWS: Final = 30
"""Rows of a page that has just been loaded."""
STREAM_S: Final = 300.0
"""A connection ends after this time. The page connects again, so that its account is checked again."""


async def _topic(visit: Visit) -> str:
    name, collector = visit.query.get("topic", ""), visit.console.collector
    if not visit.may_view_topic(name):
        raise Forbidden(visit.text("you may not view topic {name}", name=name), subject=name)
    await collector.wait_first()
    if await collector.topic(name) is None:
        raise NotFound(visit.absent("there is no topic {name}", name), subject=name)
    return name


@page("/tail")
async def tail(visit: Visit) -> Response:
    name = await _topic(visit)
    async with visit.console.audit.recorded(visit.account.name, visit.peer, f"tail topic={name}"):
        found = await visit.console.tails.get(name)
        news = await found.news(0)
    hits = _hits(visit, news)[:FIRST_ROWS]
    return visit.render("tail.html", tail=found, hits=hits, left_out=0, after=_event_id(found, news.number))


@page("/tail/events")
async def events(visit: Visit) -> Response:
    """Server-sent events, each with table rows, newest first, and the number of messages left out before them."""
    name = await _topic(visit)
    if visit.console.tails.is_full:
        raise ConfigError(visit.text("too many pages watch topics: close one of them"), subject=name)
    found = await visit.console.tails.get(name)
    last = visit.request.headers.get("last-event-id") or visit.query.get("after", "")
    begin, _, number = last.partition("-")
    is_of_tail = begin == str(found.begin_ms) and number.isdecimal() and len(number) < 19
    stream = _events(visit, found, int(number) if is_of_tail else 0)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _events(visit: Visit, tail: Tail, after: int) -> AsyncIterator[str]:
    tails, end_s = visit.console.tails, time.monotonic() + STREAM_S
    with tails.watching():
        async with visit.console.audit.recorded(visit.account.name, visit.peer, f"tail topic={tail.topic} live"):
            yield "retry: 2000\n\n"
            failures: Mapping[str, str] = {}
            while time.monotonic() < end_s and not tails.is_closed:
                if tail.task is None or tail.task.done():
                    return  # the page connects again, and gets another tail
                news = await tail.news(after, HEARTBEAT_S)
                after = news.number
                if tail.failures != failures:
                    failures = tail.failures
                    yield "event: failures\n" + _data(visit.markup("tail_failures.html", failures=failures))
                hits = _hits(visit, news)
                if not hits and not news.left_out:
                    yield ":\n\n"
                    continue
                rows = visit.markup("tail_rows.html", hits=hits, left_out=news.left_out)
                yield f"id: {_event_id(tail, after)}\n{_data(rows)}"


def _data(text: str) -> str:
    """The data of an event, and its end."""
    return "".join(f"data: {line}\n" for line in text.splitlines() or [""]) + "\n"


def _hits(visit: Visit, news: News) -> list[Hit]:
    """The messages, newest first; for a body that the account does not see, the reason."""
    return [
        hit._replace(preview=why) if (why := visit.hides_body(hit.message)) else hit
        for _, hit in reversed(news.messages)
    ]


def _event_id(tail: Tail, number: int) -> str:
    return f"{tail.begin_ms}-{number}"
