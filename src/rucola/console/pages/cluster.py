"""The cluster: alarms first, then brokers with roles, rates, disks and replication; and one broker."""

from __future__ import annotations

from starlette.responses import Response

from rucola.console.charts import Chart, archive_charts, charts_of
from rucola.console.visit import NotFound, Visit, page


@page("/", navigation="Cluster")
async def cluster(visit: Visit) -> Response:
    snapshot = await visit.console.collector.wait_first()
    series = {
        visit.text("Put/s"): [f"puts_per_s {one.label}" for one in snapshot.brokers if one.is_master],
        visit.text("Got/s"): [f"gets_per_s {one.label}" for one in snapshot.brokers],
    }
    rates = Chart(visit.text("Messages per second"), "rate", series)
    archive = visit.console.collector.archive
    wanted = [rates, *archive_charts(archive, visit.text)]
    return visit.render(
        "cluster.html",
        alarms=snapshot.alarms(),
        archive=archive,
        topics=sum(visit.may_view_topic(name) for name in snapshot.topics),
        groups=sum(visit.may_view_group(name) for name in snapshot.groups),
        puts_per_s=_total([one.puts_per_s for one in snapshot.brokers if one.is_master]),
        gets_per_s=_total([one.gets_per_s for one in snapshot.brokers]),
        charts=await charts_of(visit.console.history, visit.query.get("range", ""), wanted),
    )  # fmt: skip


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@page("/broker")
async def broker(visit: Visit) -> Response:
    visit.require("brokerStatus")
    visit.require("haStatus")
    address = visit.query.get("address", "")
    snapshot = await visit.console.collector.wait_first()
    found = next((one for one in snapshot.brokers if one.address == address), None)
    if found is None:
        raise NotFound(visit.text("no broker with the address {name} is registered", name=address), subject=address)
    label = found.label
    slaves = [one.label for one in snapshot.brokers if one.name == found.name and not one.is_master]
    rates = {visit.text("Put/s"): [f"puts_per_s {label}"]} if found.is_master else {}
    rates |= {visit.text("Got/s"): [f"gets_per_s {label}"]}
    disk, lag = visit.text("Disk"), visit.text("Replication lag")
    wanted = [
        Chart(visit.text("Messages per second"), "rate", rates),
        Chart(disk, "percent", {disk: [f"disk_ratio {label}"]}),
    ]
    if shown := slaves if found.is_master else [label]:
        wanted.append(Chart(lag, "size", {f"{lag} {slave}": [f"replication_lag {slave}"] for slave in shown}))
    charts = await charts_of(visit.console.history, visit.query.get("range", ""), wanted)
    return visit.render("broker.html", broker=found, charts=charts)
