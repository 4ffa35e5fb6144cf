"""Delayed messages by the time of their delivery, and half messages of transactions."""

from __future__ import annotations

from heapq import nsmallest
from typing import Final

from starlette.responses import Response

from rucola.console.broker_state import Delayed
from rucola.console.visit import Visit, page
from rucola.message.topics import SCHEDULE_TOPIC, TRANS_HALF_TOPIC

NEXT: Final = 25
"""Messages that are listed, those of the next deliveries."""


@page("/delayed", navigation="Delayed")
async def delayed(visit: Visit) -> Response:
    for topic in (SCHEDULE_TOPIC, TRANS_HALF_TOPIC):
        visit.require("queryCq", topic=topic)
    collector = visit.console.collector
    brokers = (await collector.wait_first()).masters
    found, missing = await collector.of_brokers(collector.pending, brokers)
    waiting: list[Delayed] = [one for of in found.values() for queue in of.delayed for one in queue.seen]
    by_broker = [(one, found[one.address]) for one in brokers if one.address in found]
    return visit.render("delayed.html", by_broker=by_broker, missing=missing, next=nsmallest(NEXT, waiting))
