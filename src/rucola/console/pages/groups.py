"""Consumer groups: a list with backlogs, and one group with its members and queues."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from rucola.admin.commands.diagnosis import REMEDIES, repair
from rucola.console.charts import Chart, charts_of
from rucola.console.collector import GroupState
from rucola.console.visit import MOST_QUEUES, NotFound, Paging, Visit, page

DIAGNOSIS_S: Final = 8.0
"""Wait for a diagnosis, which asks clients as well."""


@page("/groups", navigation="Groups")
async def groups(visit: Visit) -> Response:
    collector = visit.console.collector
    snapshot = await collector.wait_first()
    text, sort = visit.query.get("q", "").strip(), visit.query.get("sort", "backlog")
    found = [
        one for one in snapshot.groups.values() if text.lower() in one.name.lower() and visit.may_view_group(one.name)
    ]
    if sort == "backlog":

        def backlog(one: GroupState) -> tuple[int, str]:
            known = collector.group_progress.known(one.name)
            return -known.value.backlog if known and known.value else 0, one.name

        found.sort(key=backlog)
    paging = Paging.of(visit, len(found))
    rows = found[paging.rows]
    progress = await collector.group_progress.get(one.name for one in rows)
    return visit.render("groups.html", rows=rows, progress=progress, paging=paging, q=text, sort=sort)


@page("/group")
async def group(visit: Visit) -> Response:
    name, collector = visit.query.get("name", ""), visit.console.collector
    found = await _group(visit, name)
    # At once: a broker that does not answer costs one timeout.
    measured, members = await asyncio.gather(
        collector.group_progress.get_one(name), collector.group_connections.get_one(name)
    )
    delays = await collector.group_delays.get_one(name)
    topics = sorted({queue.topic for queue in measured.value.queues}) if measured and measured.value else []
    wanted = [
        Chart(visit.text(title), unit, {visit.text(title): [f"group {series} {name}"]})
        for title, unit, series in (
            ("Backlog", "number", "backlog"),
            ("Waiting, at most", "seconds", "delay_s"),
            ("Consumed/s", "rate", "consumed_per_s"),
        )
    ]
    charts = await charts_of(visit.console.history, visit.query.get("range", ""), wanted)
    return visit.render(
        "group.html", group=found, measured=measured, members=members, delays=delays, topics=topics,
        charts=charts, most_queues=MOST_QUEUES,
    )  # fmt: skip


@page("/why")
async def why(visit: Visit) -> Response:
    """Why a group is behind, in words."""
    name = visit.query.get("group", "")
    await _group(visit, name)
    measured = await visit.console.collector.diagnoses.get_one(name, DIAGNOSIS_S)
    findings = [
        (one.reason, visit.text(REMEDIES[one.reason].text, **one.fields), repair(one, name))
        for one in (measured.value if measured and measured.value else ())
    ]
    return visit.render("why.html", group=name, measured=measured, findings=findings)


async def _group(visit: Visit, name: str) -> GroupState:
    """Return a group that the visitor may view. Raises NotFound."""
    collector = visit.console.collector
    await collector.wait_first()
    found = await collector.group(name) if visit.may_view_group(name) else None
    if found is None:
        raise NotFound(visit.absent("there is no group {name}", name), subject=name)
    return found
