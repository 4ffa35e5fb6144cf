"""Search: what a string is (topic, group, broker, client, key or id of a message), and scans through messages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from starlette.responses import Response

from rucola.admin import PAGE, KeyQueryResult, MessageExt
from rucola.admin.commands import InvalidArguments
from rucola.admin.commands.archive_query import archived_message, query_both
from rucola.admin.commands.authorization import Forbidden
from rucola.admin.requests import gather_to_completion
from rucola.console.scans import Question
from rucola.console.visit import Visit, page
from rucola.errors import InvalidMessage, MQError
from rucola.message.ids import parse_offset_msg_id
from rucola.presentation import parse_time

MAX_NAMES: Final = 20
MAX_TOPICS: Final = 20
"""Topics that are searched for a key if no topic is named: each costs a request or two at each of its brokers."""
SCAN_S: Final = 3600
"""The time range that a new scan proposes."""


@dataclass(slots=True)
class Found:
    """What a string is; `links` are names with the paths of their pages."""

    links: list[tuple[str, str, str]] = field(default_factory=list)
    """Kind, name, and path of its page."""
    messages: dict[str, tuple[MessageExt, bool]] = field(default_factory=dict)
    """By offsetMsgId, with whether only the lake has it."""
    failures: list[str] = field(default_factory=list)
    is_cut: bool = False
    needs_topic: bool = False
    """There are too many topics to search each of them for a key or unique key."""


@page("/search", navigation="Search")
async def search(visit: Visit) -> Response:
    text, topic = visit.query.get("q", "").strip(), visit.query.get("topic", "").strip()
    await visit.console.collector.wait_first()
    found = Found()
    if text:
        _add_names(visit, found, text)
        if "@" in text:
            await _add_clients(visit, found, text)
        await _add_messages(visit, found, text, topic)
    since = f"{datetime.fromtimestamp(time.time() - SCAN_S, UTC):%Y-%m-%dT%H:%M:%SZ}"
    messages = sorted(found.messages.values(), key=lambda one: one[0].store_timestamp, reverse=True)
    return visit.render("search.html", q=text, topic=topic, found=found, messages=messages, since=since)


def _add_names(visit: Visit, found: Found, text: str) -> None:
    snapshot = visit.console.collector.snapshot
    topics = filter(visit.may_view_topic, snapshot.topics)
    groups = filter(visit.may_view_group, snapshot.groups)
    for kind, path, names in (("Topic", "/topic", topics), ("Group", "/group", groups)):
        found.links += [(kind, name, visit.url(path, name=name)) for name in _matching(names, text)]
    found.links += [
        ("Broker", f"{one.name} {one.address}", visit.url("/broker", address=one.address))
        for one in snapshot.brokers
        if text.lower() in one.name.lower() or text == one.address
    ]


def _matching(names: Iterable[str], text: str) -> list[str]:
    """The names that contain a text, an equal one first."""
    found = (name for name in names if text.lower() in name.lower())
    return sorted(found, key=lambda name: (name != text, not name.startswith(text), name))[:MAX_NAMES]


async def _add_clients(visit: Visit, found: Found, text: str) -> None:
    """Clients of groups that were looked at, and producers, which each broker has in one table."""
    for group, members in visit.console.collector.group_connections.all_known().items():
        if visit.may_view_group(group) and text in members.clients:
            found.links.append(("Client", f"{text} ({group})", visit.url("/group", name=group)))
    for one in visit.console.collector.snapshot.brokers:
        if not (one.is_master and visit.may("viewer")):
            continue
        try:
            producers = await visit.console.client.groups.producers(one.address)
        except MQError as error:
            found.failures.append(f"{one.name}: {error}")
            continue
        for group, infos in producers.items():
            if any(info.client_id == text for info in infos):
                link = "Producer", f"{text} ({group})", visit.url("/run/producer", address=one.address)
                found.links += [] if link in found.links else [link]


async def _add_messages(visit: Visit, found: Found, text: str, topic: str) -> None:
    client, lake = visit.console.client, visit.console.config.lake
    is_offset_id = await _add_by_offset_id(visit, found, text)
    if is_offset_id and not topic:
        return
    normal = (one.name for one in visit.console.collector.snapshot.topics.values() if one.kind == "normal")
    topics = list(filter(visit.may_view_topic, [topic] if topic else normal))
    if topic and not topics:
        raise Forbidden(visit.text("you may not view topic {name}", name=topic), subject=topic)
    if len(topics) > MAX_TOPICS:
        found.needs_topic = True
        return

    async def query(name: str, *, unique: bool) -> None:
        async def live() -> KeyQueryResult:
            if unique:
                return await client.messages.query_by_unique_key(name, text)
            return await client.messages.query_by_key(name, text)

        try:
            result, origins = await query_both(live, lake, name, text, PAGE, unique=unique)
        except MQError as error:
            found.failures.append(f"{name}: {error}")
            return
        found.failures += [f"{name}: {where}: {why}" for where, why in result.failures.items()]
        found.is_cut |= result.is_cut
        for message in result.messages:
            found.messages[message.offset_msg_id] = message, message.offset_msg_id in (origins.archived or ())

    await gather_to_completion(query(name, unique=unique) for name in topics for unique in (False, True))


async def _add_by_offset_id(visit: Visit, found: Found, text: str) -> bool:
    """Add the message with an offsetMsgId; whether it is one of this cluster, or of the lake."""
    client, lake = visit.console.client, visit.console.config.lake
    try:
        parse_offset_msg_id(text)
    except InvalidMessage:
        return False
    message, is_archived, is_of_cluster = None, False, False
    try:
        is_of_cluster = await client.messages.is_offset_msg_id(text)
        message = await client.messages.get(text) if is_of_cluster else None
    except MQError as error:
        found.failures.append(str(error))
    if message is None and lake is not None:
        try:
            message, is_archived = await archived_message(lake, text), True
        except MQError as error:
            found.failures.append(str(error))
    if message is not None and visit.may_view_topic(message.topic):
        found.messages[message.offset_msg_id] = message, is_archived
    return is_of_cluster or message is not None


def _time(visit: Visit, name: str) -> int | None:
    text = visit.query.get(name, "").strip()
    try:
        return parse_time(text) if text else None
    except ValueError:
        raise InvalidArguments(
            visit.text("{text} is no time: write 2013-01-01T05:15:00, milliseconds since 1970, or now", text=text),
            subject=name,
        ) from None


def _question(visit: Visit) -> Question:
    topic = visit.query.get("topic", "").strip()
    if not visit.may_view_topic(topic):
        raise Forbidden(visit.text("you may not view topic {name}", name=topic), subject=topic)
    begin_ms, end_ms = _time(visit, "begin"), _time(visit, "end")
    return Question(topic, visit.query.get("text", ""), visit.query.get("filter", "").strip(), begin_ms, end_ms)


@page("/scan", takes_forms=True)
async def scan(visit: Visit) -> Response:
    """The address has the question: its reader sees the progress of the account's scan, or starts one."""
    question = _question(visit)
    if "now" in (visit.query.get("begin", "").strip(), visit.query.get("end", "").strip()):
        return visit.redirect(
            "/scan", topic=question.topic, text=question.text, filter=question.filter,
            begin=str(question.begin_ms or ""), end=str(question.end_ms or ""),
        )  # fmt: skip
    scans, account = visit.console.scans, visit.account.name
    if visit.form.get("do") == "stop":
        scans.stop(account, question)
        return visit.back(visit.here())
    running = scans.get(account, question)
    if running is None or visit.form.get("do") == "again":
        action = " ".join(f"{name}={value}" for name, value in question._asdict().items() if value not in ("", None))
        async with visit.console.audit.recorded(account, visit.peer, f"scan {action}"):
            running = scans.start(account, question, visit.hides_body)
    if visit.request.method == "POST":
        return visit.back(visit.here())
    return visit.render("scan.html", scan=running, question=question)
