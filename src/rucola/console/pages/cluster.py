"""The cluster: alarms first, then brokers with roles, rates, disks and replication; and one broker."""

from __future__ import annotations

from starlette.responses import Response

from rucola.console.charts import RANGES, chart, range_of
from rucola.console.visit import Visit, page
from rucola.errors import ConfigError


@page("/", navigation="Cluster")
async def cluster(visit: Visit) -> Response:
    snapshot, range_ = await visit.console.collector.wait_first(), range_of(visit.query.get("range", ""))
    series = {
        visit.text("Put/s"): [f"puts_per_s {one.label}" for one in snapshot.brokers if one.is_master],
        visit.text("Got/s"): [f"gets_per_s {one.label}" for one in snapshot.brokers],
    }
    rates = await chart(visit.console.history, visit.text("Messages per second"), "rate", series, range_)
    return visit.render(
        "cluster.html",
        alarms=snapshot.alarms(),
        archive=visit.console.collector.archive,
        topics=sum(visit.may_view_topic(name) for name in snapshot.topics),
        groups=sum(visit.may_view_group(name) for name in snapshot.groups),
        puts_per_s=_total([one.puts_per_s for one in snapshot.brokers if one.is_master]),
        gets_per_s=_total([one.gets_per_s for one in snapshot.brokers]),
        all_charts=[rates], ranges=RANGES, range=range_,
    )  # fmt: skip


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@page("/broker")
async def broker(visit: Visit) -> Response:
    address, range_ = visit.query.get("address", ""), range_of(visit.query.get("range", ""))
    snapshot = await visit.console.collector.wait_first()
    found = next((one for one in snapshot.brokers if one.address == address), None)
    if found is None:
        raise ConfigError(visit.text("no broker with the address {name} is registered", name=address), subject=address)
    history, label = visit.console.history, found.label
    slaves = [one.label for one in snapshot.brokers if one.name == found.name and not one.is_master]
    slaves = slaves if found.is_master else [label]
    rates = {visit.text("Put/s"): [f"puts_per_s {label}"]} if found.is_master else {}
    rates |= {visit.text("Got/s"): [f"gets_per_s {label}"]}
    all_charts = [
        await chart(history, visit.text("Messages per second"), "rate", rates, range_),
        await chart(history, visit.text("Disk"), "percent", {visit.text("Disk"): [f"disk_ratio {label}"]}, range_),
    ]
    if slaves:
        lags = {slave: [f"replication_lag {slave}"] for slave in slaves}
        all_charts.append(await chart(history, visit.text("Replication lag"), "size", lags, range_))
    return visit.render("broker.html", broker=found, all_charts=all_charts, ranges=RANGES, range=range_)
