"""Dead letters: the groups that have some, and those of one group by cause and age."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import msgspec
from starlette.responses import Response, StreamingResponse

from rucola.admin import DeadLetter
from rucola.admin.commands.authorization import Forbidden
from rucola.admin.commands.dead_letters import letter_json
from rucola.console.bodies import shown_body
from rucola.console.json_results import safe_json
from rucola.console.visit import ROWS, NotFound, Paging, Visit, page
from rucola.errors import ConfigError, MQError, TopicNotFound
from rucola.message.topics import DLQ_PREFIX, dlq_topic
from rucola.presentation import csv_text

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


@page("/dead_letter")
async def dead_letter(visit: Visit) -> Response:
    """A dead letter to be edited before it is sent again."""
    await visit.console.collector.wait_first()
    group, id_ = visit.query.get("group", "").strip(), visit.query.get("id", "").strip()
    if not visit.may("operator", "Group", group):
        raise Forbidden(visit.text("you may not change group {name}", name=group), subject=group)
    async with visit.console.audit.recorded(visit.account.name, visit.peer, f"dead_letter group={group} id={id_}"):
        found = await visit.console.client.messages.get(id_)
        if found.topic != dlq_topic(group):
            raise NotFound(visit.text("group {name} has no dead letter {id}", name=group, id=id_), subject=id_)
    body = shown_body(found.body, "text")
    problem = visit.hides_body(found)
    if not problem and body.text.encode() != found.body:
        problem = visit.text("the body is no text, or too long to be edited")
    return visit.render("dead_letter.html", group=group, message=found, text=body.text, problem=problem)


COLUMNS: Final = (
    "offsetMsgId", "msgId", "originTopic", "tags", "keys", "cause", "storeTimestamp", "reconsumeTimes", "redriven",
    "body", "bodyBase64", "bodyHidden",
)  # fmt: skip


@page("/dead_letters/export")
async def export(visit: Visit) -> Response:
    """All dead letters of a group, as CSV or as a JSON object a line; the last one says if the rest is missing."""
    await visit.console.collector.wait_first()
    group, is_csv = visit.query.get("group", "").strip(), visit.query.get("format", "json") == "csv"
    if not visit.may_view_group(group):
        raise Forbidden(visit.text("you may not view group {name}", name=group), subject=group)
    found = visit.console.client.dead_letters.read(group)
    first = await anext(found, None)  # an error of the first is a page

    async def lines() -> AsyncIterator[str]:
        if is_csv:
            yield csv_text([COLUMNS])
        letter = first
        try:
            async with visit.console.audit.recorded(visit.account.name, visit.peer, f"export dead letters of {group}"):
                while letter is not None:
                    yield _exported(visit, letter, is_csv=is_csv)
                    letter = await anext(found, None)
        except MQError as error:
            why = f"incomplete: {error}"
            yield csv_text([(why,)]) if is_csv else f"{msgspec.json.encode({'error': why}).decode()}\n"
        finally:
            await found.aclose()

    kind, ending = ("text/csv", "csv") if is_csv else ("application/x-ndjson", "jsonl")
    name = f'attachment; filename="dead-letters.{ending}"'
    return StreamingResponse(lines(), media_type=kind, headers={"content-disposition": name})


def _exported(visit: Visit, letter: DeadLetter, *, is_csv: bool) -> str:
    with visit.console.body_policy.applied(visit.account):
        row = letter_json(letter) | {"cause": cause_of(letter)}
    if is_csv:
        return csv_text([[row.get(name) for name in COLUMNS]])
    return f"{msgspec.json.encode(safe_json(row)).decode()}\n"


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
