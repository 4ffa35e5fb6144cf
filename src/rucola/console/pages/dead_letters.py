"""Dead letters: the groups that have some, and those of one group by cause and age."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from starlette.responses import Response

from rucola.admin import DeadLetter
from rucola.admin.commands.authorization import Forbidden
from rucola.console.visit import ROWS, Paging, Visit, page
from rucola.errors import ConfigError, MQError, TopicNotFound
from rucola.message.topics import DLQ_PREFIX

MAX_READ: Final = 1000
MAX_READ_S: Final = 10.0
CAUSES: Final = "exception", "error", "cause", "reason"
"""Properties, in lower case, in which applications say why they failed: RocketMQ records no cause."""
AGES_MS: Final = {"an hour": 3_600_000, "a day": 86_400_000, "a week": 7 * 86_400_000}


@dataclass(slots=True)
class Cause:
    """Dead letters of one cause, original topic and tag."""

    text: str
    topic: str
    tags: str
    count: int = 0
    waiting: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    ages: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*AGES_MS, ""), 0))
    """The number by the limit of the age; the rest is older."""


@page("/dead_letters", navigation="Dead letters")
async def dead_letters(visit: Visit) -> Response:
    collector = visit.console.collector
    snapshot = await collector.wait_first()
    group = visit.query.get("group", "").strip()
    if group:
        return await _of_group(visit, group)
    text = visit.query.get("q", "").strip()
    names = [one.name.removeprefix(DLQ_PREFIX) for one in snapshot.topics.values() if one.kind == "dead letters"]
    found = [name for name in names if text.lower() in name.lower() and visit.may_view_group(name)]
    paging = Paging.of(visit, len(found))
    rows = found[paging.rows]
    stats = await collector.dead_letters.get(rows)
    return visit.render("dead_letters.html", rows=rows, stats=stats, paging=paging, q=text)


async def _of_group(visit: Visit, group: str) -> Response:
    if not visit.may_view_group(group):
        raise Forbidden(visit.text("you may not view group {name}", name=group), subject=group)
    letters: list[DeadLetter] = []
    problem, is_cut = "", False
    try:
        async with asyncio.timeout(MAX_READ_S):
            async with aclosing(visit.console.client.dead_letters.read(group)) as found:
                async for letter in found:
                    if len(letters) == MAX_READ:
                        is_cut = True
                        break
                    letter.message.body = b""
                    letters.append(letter)
    except TimeoutError:
        is_cut = True
    except (ConfigError, TopicNotFound):
        raise
    except MQError as error:
        problem = str(error)
    newest = sorted(letters, key=lambda one: one.message.store_timestamp, reverse=True)
    return visit.render(
        "dead_group.html", group=group, causes=_causes(letters), letters=newest[:ROWS], count=len(letters),
        is_cut=is_cut, problem=problem, ages=list(AGES_MS), cause_of=cause_of,
    )  # fmt: skip


def cause_of(letter: DeadLetter) -> str:
    """Return the first line of what the application said, or nothing."""
    named = {name.lower(): value for name, value in letter.message.properties.items()}
    return next((named[name].strip().partition("\n")[0] for name in CAUSES if named.get(name, "").strip()), "")


def _causes(letters: list[DeadLetter]) -> list[Cause]:
    """The causes, the most frequent first."""
    causes: dict[tuple[str, str, str], Cause] = {}
    now_ms = time.time_ns() // 1_000_000
    for letter in letters:
        key = cause_of(letter), letter.origin_topic or "", letter.message.tags or ""
        one = causes.setdefault(key, Cause(*key))
        at_ms = letter.message.store_timestamp
        one.count += 1
        one.waiting += not letter.is_redriven
        one.oldest_ms = min(one.oldest_ms or at_ms, at_ms)
        one.newest_ms = max(one.newest_ms, at_ms)
        one.ages[next((name for name, limit_ms in AGES_MS.items() if now_ms - at_ms < limit_ms), "")] += 1
    return sorted(causes.values(), key=lambda one: (-one.count, one.text, one.topic, one.tags))
