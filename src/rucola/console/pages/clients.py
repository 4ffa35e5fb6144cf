"""Clients: the members of the consumer groups that a page shows, and the producers of all brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from rucola.admin import version_text
from rucola.console.collector import GroupConnections
from rucola.console.visit import Paging, Visit, page
from rucola.domain.client import ProducerInfo
from rucola.domain.group import SYSTEM_GROUPS
from rucola.domain.subscription import SubscriptionData
from rucola.message.topics import RETRY_PREFIX

GROUPS: Final = 20
"""Groups of a page."""
MAX_MEMBERS: Final = 3
"""Members and subscriptions of a group that the list shows; its page has all."""


@dataclass(slots=True)
class ProducerRow:
    """A client of a producer group, with the brokers to which it is connected."""

    group: str
    info: ProducerInfo
    brokers: list[str]


@page("/clients", navigation="Clients")
async def clients(visit: Visit) -> Response:
    kind = "producers" if visit.query.get("kind") == "producers" else "consumers"
    return await (_producers if kind == "producers" else _consumers)(visit, visit.query.get("q", "").strip())


async def _consumers(visit: Visit, text: str) -> Response:
    collector = visit.console.collector
    snapshot = await collector.wait_first()
    known = collector.group_connections.all_known()
    found = [
        name
        for name in snapshot.groups
        if visit.may_view_group(name)
        and (text.lower() in name.lower() or (name in known and any(text in one for one in known[name].clients)))
    ]
    found.sort(key=lambda name: (name in SYSTEM_GROUPS, name))
    paging = Paging.of(visit, len(found), GROUPS)
    rows = found[paging.rows]
    return visit.render(
        "clients.html", kind="consumers", q=text, rows=rows, paging=paging, most=MAX_MEMBERS,
        connections=await collector.group_connections.get(rows), version_text=version_text,
        own_subscriptions=_own_subscriptions,
    )  # fmt: skip


def _own_subscriptions(found: GroupConnections) -> list[tuple[str, SubscriptionData]]:
    """Return the subscriptions of a group by topic, without those of its retries."""
    return [(topic, one) for topic, one in sorted(found.subscriptions.items()) if not topic.startswith(RETRY_PREFIX)]


async def _producers(visit: Visit, text: str) -> Response:
    visit.require("producer", target=None)
    collector = visit.console.collector
    masters = (await collector.wait_first()).masters
    measured, missing = await collector.of_brokers(collector.producers, masters)
    found: dict[tuple[str, str], ProducerRow] = {}
    for broker in masters:
        infos = ((group, info) for group, of_group in measured.get(broker.address, {}).items() for info in of_group)
        for group, info in infos:
            if text.lower() not in f"{group} {info.client_id} {info.remote_ip}".lower():
                continue
            row = found.setdefault((group, info.client_id), ProducerRow(group, info, []))
            row.brokers.append(broker.name)
            if info.last_update_timestamp > row.info.last_update_timestamp:
                row.info = info
    paging = Paging.of(visit, len(found))
    rows = [found[key] for key in sorted(found)[paging.rows]]
    return visit.render(
        "clients.html", kind="producers", q=text, rows=rows, paging=paging, missing=missing, version_text=version_text
    )
