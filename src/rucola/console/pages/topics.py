"""Topics: a list from the snapshot, with the traffic of the rows that it shows, and one topic with its queues."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from rucola.console.charts import Chart, charts_of
from rucola.console.collector import KINDS
from rucola.console.visit import MOST_QUEUES, NotFound, Paging, Visit, page


@page("/topics", navigation="Topics")
async def topics(visit: Visit) -> Response:
    collector = visit.console.collector
    snapshot = await collector.wait_first()
    text, kind = visit.query.get("q", "").strip(), visit.query.get("kind", "normal")
    found = [
        one
        for one in snapshot.topics.values()
        if (kind == "all" or one.kind == kind) and text.lower() in one.name.lower() and visit.may_view_topic(one.name)
    ]
    sort = visit.query.get("sort", "name")
    if sort == "queues":
        found.sort(key=lambda one: (-one.write_queues, one.name))
    paging = Paging.of(visit, len(found))
    rows = found[paging.rows]
    traffic = await collector.topic_traffic.get(one.name for one in rows)
    return visit.render(
        "topics.html", rows=rows, traffic=traffic, paging=paging, q=text, kind=kind, sort=sort, kinds=(*KINDS, "all")
    )


@page("/topic")
async def topic(visit: Visit) -> Response:
    name = visit.query.get("name", "")
    collector = visit.console.collector
    await collector.wait_first()
    found = await collector.topic(name) if visit.may_view_topic(name) else None
    if found is None:
        raise NotFound(visit.absent("there is no topic {name}", name), subject=name)
    # At once: a broker that does not answer costs one timeout.
    details, traffic = await asyncio.gather(
        collector.topic_details.get_one(name), collector.topic_traffic.get_one(name)
    )
    senders = await collector.topic_senders.get_one(name)
    groups = [one for one in details.value.groups if visit.may_view_group(one)] if details and details.value else []
    hidden = len(details.value.groups) - len(groups) if details and details.value else 0
    paging = Paging.of(visit, len(groups))
    groups = groups[paging.rows]
    progress = await collector.group_progress.get(groups)
    rates = Chart(visit.text("Messages per second"), "rate", {visit.text("Put/s"): [f"topic puts_per_s {name}"]})
    charts = await charts_of(visit.console.history, visit.query.get("range", ""), [rates])
    return visit.render(
        "topic.html", topic=found, details=details, traffic=traffic, senders=senders, groups=groups, hidden=hidden,
        progress=progress, paging=paging, charts=charts, most_queues=MOST_QUEUES,
    )  # fmt: skip
