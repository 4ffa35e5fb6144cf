"""One message: its life and its body."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from rucola.admin import PAGE, TRACE_TOPIC, KeyQueryResult, MessageExt, MessageQueue, MessageTrack, TracedDelivery
from rucola.admin.commands import InvalidArguments
from rucola.admin.commands.archive_query import archived_message, query_both
from rucola.admin.commands.authorization import Forbidden
from rucola.admin.message_track import REDRIVEN_FROM
from rucola.console.bodies import FORMS, is_cut, shown_body
from rucola.console.visit import ROWS, NotFound, Visit, page
from rucola.errors import MQError, RemotingError
from rucola.message import properties

ORIGINS = {
    properties.ORIGIN_MESSAGE_ID: "copy of",
    REDRIVEN_FROM: "re-driven from",
}
"""Properties that name another message by its offsetMsgId."""


@page("/message")
async def message(visit: Visit) -> Response:
    given = {name: visit.query.get(name, "").strip() for name in ("id", "topic", "broker", "queue", "offset")}
    await visit.console.collector.wait_first()
    action = " ".join(f"{name}={value}" for name, value in given.items() if value)
    async with visit.console.audit.recorded(visit.account.name, visit.peer, f"message {action}"):
        found, is_archived = await _find(visit, **given)
        if not visit.may_view_topic(found.topic):
            raise Forbidden(visit.text("you may not view topic {name}", name=found.topic), subject=found.topic)
    # At once: a broker that does not answer costs one timeout.
    (tracks, hidden, problem), copies, deliveries = await asyncio.gather(
        _tracks(visit, found), _copies(visit, found), _deliveries(visit, found)
    )
    form, why_hidden = visit.query.get("as", ""), visit.hides_body(found)
    body = shown_body(b"" if why_hidden else found.body, form)
    return visit.render(
        "message.html", message=found, is_archived=is_archived, tracks=tracks, hidden=hidden, problem=problem,
        copies=copies, deliveries=deliveries, body=body,
        why_hidden=why_hidden, forms=list(FORMS), is_cut=is_cut(found.body, body.form),
        origins=[(text, found.properties[name]) for name, text in ORIGINS.items() if name in found.properties],
        producer_group=found.properties.get(properties.PGROUP, ""), redriven_from=REDRIVEN_FROM,
    )  # fmt: skip


async def _find(visit: Visit, id: str, topic: str, broker: str, queue: str, offset: str) -> tuple[MessageExt, bool]:
    """The message, and whether only the lake has it."""
    client, lake = visit.console.client, visit.console.config.lake
    if offset:
        if not all(text.isdecimal() and len(text) < 19 for text in (queue, offset)):
            raise InvalidArguments(visit.text("queue and offset are numbers"), subject="offset")
        return await client.messages.at(MessageQueue(topic, broker, int(queue)), int(offset)), False
    if topic:
        result, origins = await query_both(
            lambda: client.messages.query_by_unique_key(topic, id), lake, topic, id, PAGE, unique=True
        )
        if result.messages:
            first = min(result.messages, key=lambda one: (one.store_timestamp, one.physical_offset))
            return first, first.offset_msg_id in (origins.archived or ())
    # Only brokers of this cluster get requests: the id has an address.
    is_here = await client.messages.is_offset_msg_id(id)
    try:
        if is_here:
            return await client.messages.get(id), False
    except RemotingError:
        if lake is None:
            raise
    archived = None if lake is None else await archived_message(lake, id)
    if archived is None:
        raise NotFound(visit.text("there is no message {name}: with a unique id, name its topic", name=id), subject=id)
    return archived, True


async def _tracks(visit: Visit, found: MessageExt) -> tuple[list[MessageTrack], int, str]:
    """The state in the groups of the topic, the number of groups that are not shown, and why it is unknown."""
    details = await visit.console.collector.topic_details.get_one(found.topic)
    if details is None or details.value is None:
        return [], 0, details.error if details else visit.text("not measured yet")
    groups = [name for name in details.value.groups if visit.may_view_group(name)]
    try:
        tracks = await visit.console.client.messages.track(found, groups[:ROWS])
    except MQError as error:
        return [], len(groups), str(error)
    return tracks, len(groups) - len(tracks), "; ".join(f"{one}: {why}" for one, why in details.value.failures.items())


async def _deliveries(visit: Visit, found: MessageExt) -> list[TracedDelivery]:
    """The deliveries that clients traced, oldest first; none if no client traces."""
    if TRACE_TOPIC not in visit.console.collector.snapshot.topics:
        return []
    try:
        view = await visit.console.client.traces.query(found.msg_id)
    except MQError:
        return []
    return [one for one in view.deliveries if visit.may_view_group(one.group)][:ROWS]


async def _copies(visit: Visit, found: MessageExt) -> list[MessageExt]:
    """Other messages of the topic with the same unique key: sent again, or re-driven; oldest first."""

    async def live() -> KeyQueryResult:
        return await visit.console.client.messages.query_by_unique_key(found.topic, found.msg_id)

    try:
        result, _ = await query_both(live, visit.console.config.lake, found.topic, found.msg_id, PAGE, unique=True)
    except MQError:
        return []
    others = (one for one in result.messages if one.offset_msg_id != found.offset_msg_id)
    return sorted(others, key=lambda one: (one.store_timestamp, one.physical_offset))
