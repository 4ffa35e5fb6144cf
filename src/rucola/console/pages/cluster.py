"""The cluster: alarms first, then brokers with roles, rates, disks and age."""

from __future__ import annotations

from starlette.responses import Response

from rucola.console.visit import Visit, page


@page("/", navigation="Cluster")
async def cluster(visit: Visit) -> Response:
    snapshot = await visit.console.collector.wait_first()
    return visit.render(
        "cluster.html",
        alarms=snapshot.alarms(),
        topics=sum(visit.may_view_topic(name) for name in snapshot.topics),
        groups=sum(visit.may_view_group(name) for name in snapshot.groups),
        puts_per_s=_total([one.puts_per_s for one in snapshot.brokers if one.is_master]),
        gets_per_s=_total([one.gets_per_s for one in snapshot.brokers]),
    )


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
