"""The settings of brokers beside their defaults and each other; and users and policies of access control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from starlette.responses import Response

from rucola.console.visit import Paging, Visit, page


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    default: str | None
    """None if it has none, such as a name."""
    values: Sequence[str | None]
    """By broker, None for one that has no such setting or does not answer."""

    @property
    def is_notable(self) -> bool:
        """Whether a broker has another value than the default or the others."""
        known = {value for value in self.values if value is not None}
        return len(known) > 1 or (self.default is not None and known != {self.default})


@page("/configuration", navigation="Configuration")
async def configuration(visit: Visit) -> Response:
    visit.require("getBrokerConfig")
    text, key = visit.query.get("q", "").strip(), visit.query.get("key", "")
    shows_all = visit.query.get("all") == "1" or bool(key)
    brokers = (await visit.console.collector.wait_first()).brokers
    collector = visit.console.collector
    tables, missing = await collector.of_brokers(collector.settings, brokers)
    defaults = visit.console.config.default_settings
    names = sorted({name for table in tables.values() for name in table}, key=str.lower)
    found = [
        Setting(name, defaults.get(name), [tables.get(one.address, {}).get(name) for one in brokers])
        for name in names
        if name == key or (not key and text.lower() in name.lower())
    ]
    total, found = len(found), [one for one in found if shows_all or one.is_notable]
    paging = Paging.of(visit, len(found))
    return visit.render(
        "configuration.html", q=text, key=key, all=shows_all, brokers=brokers, missing=missing, total=total,
        rows=found[paging.rows], paging=paging, has_defaults=bool(defaults),
    )  # fmt: skip


@dataclass(slots=True)
class OnBrokers:
    """What brokers have alike, with the names of those that have it."""

    value: Any
    brokers: list[str] = field(default_factory=list)


@page("/access", navigation="Access")
async def access(visit: Visit) -> Response:
    visit.require("listUser")
    visit.require("listAcl")
    brokers = (await visit.console.collector.wait_first()).masters
    collector = visit.console.collector
    found, missing = await collector.of_brokers(collector.access, brokers)
    users: dict[tuple[str, ...], OnBrokers] = {}
    policies: dict[tuple[str, ...], OnBrokers] = {}
    files, none = [], list[str]()
    for one in brokers:
        if (of_broker := found.get(one.address)) is None:
            continue
        for user in of_broker.users:
            alike = str(user.username), str(user.user_type), str(user.user_status)
            users.setdefault(alike, OnBrokers(user)).brokers.append(one.name)
        for acl in of_broker.policies:
            for entry in (entry for policy in acl.policies for entry in policy.entries):
                actions, sources = ", ".join(entry.actions), ", ".join(entry.source_ips or ())
                key = str(acl.subject), str(entry.resource), actions, sources, str(entry.decision)
                policies.setdefault(key, OnBrokers(key)).brokers.append(one.name)
        if of_broker.versions is not None:
            files += [(one.name, path, *version) for path, version in sorted(of_broker.versions.files.items())]
        if of_broker.refusal:
            none.append(one.name)
    return visit.render(
        "access.html",
        users=[one for _, one in sorted(users.items(), key=itemgetter(0))],
        policies=[one for _, one in sorted(policies.items(), key=itemgetter(0))],
        files=files,
        has_users=any(one.has_users for one in found.values()),
        without=none,
        missing=missing,
        count=len(brokers),
    )
