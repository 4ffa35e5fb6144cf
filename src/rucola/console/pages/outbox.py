"""Outbox: the messages that applications have added and that are not settled, by state, and what happens next."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rucola.admin.commands.authorization import Forbidden
from rucola.console.visit import ROWS, Visit, page
from rucola.errors import ConfigError

STATES: Final = {
    "NEW": "waits for the relay",
    "SENT": "waits for its groups",
    "MANUAL": "waits for an operator",
    "STUCK": "not confirmed in time",
    "DEAD": "a dead letter",
    "VOID": "voided",
}


@page("/outbox", navigation="Outbox", needs="outbox")
async def outbox(visit: Visit) -> Response:
    database = visit.console.config.outbox
    if database is None:
        raise ConfigError(visit.text("this console has no outbox: start it with --database"))
    state, topic = visit.query.get("state", ""), visit.query.get("topic", "").strip()
    # Counts are of all topics.
    if not (visit.may_view_topic(topic) if topic else visit.may("viewer")):
        raise Forbidden(visit.text("you may not view topic {name}", name=topic or "*"), subject=topic)
    unsettled = await database.unsettled() if visit.may("viewer") else None
    stubs = await database.find([state] if state in STATES else [], topic or None, ROWS + 1)
    return visit.render(
        "outbox.html", unsettled=unsettled, stubs=stubs[:ROWS], is_cut=len(stubs) > ROWS, states=STATES, state=state,
        topic=topic,
    )  # fmt: skip
