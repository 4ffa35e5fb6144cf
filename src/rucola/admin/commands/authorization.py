"""Authorization of the catalogue's commands: what an account may do, for every view but the command line.

A command that reads takes a viewer, one that changes a topic or group an operator, and any other change an admin. An
account has grants: a role for the topics and groups that match a pattern of access control, such as `Topic:orders-*`. A
command that names neither topic nor group takes a grant for `*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from rucola.acl.policies import Pattern, parse_pattern
from rucola.acl.requirements import ResourceType
from rucola.admin.commands.command import Command, Risk
from rucola.errors import ConfigError, MQError
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX

RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "trace_topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "group_name": ResourceType.GROUP,
    "source": ResourceType.GROUP,
    "destination": ResourceType.GROUP,
}
"""The arguments that name a topic or a group."""


class Role(IntEnum):
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


class Forbidden(MQError):
    """A command that an account may not run; `subject` is the topic, group or command."""


@dataclass(frozen=True, slots=True)
class Grant:
    role: Role
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    grants: tuple[Grant, ...]

    def may(self, role: Role, type_: ResourceType | None = None, name: str = "") -> bool:
        """Whether the account has a role for a topic or group, or without one for everything."""
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if type_ is ResourceType.TOPIC and name.startswith(prefix):
                type_, name = ResourceType.GROUP, name.removeprefix(prefix)
        return any(
            grant.role >= role and (grant.pattern.type is None if type_ is None else grant.pattern.matches(type_, name))
            for grant in self.grants
        )


def parse_grants(text: str) -> tuple[Grant, ...]:
    """Parse `viewer *, operator Topic:orders-*`; a role alone is for everything. Raises ConfigError."""
    grants = []
    for part in text.split(","):
        name, _, pattern = part.strip().partition(" ")
        if name.upper() not in Role.__members__:
            raise ConfigError(f"{part.strip()!r}: expected viewer, operator or admin, and a pattern such as Topic:a-*")
        grants.append(Grant(Role[name.upper()], parse_pattern(pattern.strip() or "*")))
    return tuple(grants)


def resources(arguments: Mapping[str, Any]) -> list[tuple[ResourceType, str]]:
    """Return the topics and groups that arguments name."""
    return [(RESOURCES[name], value) for name, value in arguments.items() if name in RESOURCES and value is not None]


def required_role(one: Command, arguments: Mapping[str, Any] | None = None) -> Role:
    """Return the role that a command takes, for some commands with these arguments."""
    if one.risk_of(arguments or {}) is Risk.READ:
        return Role.VIEWER
    return Role.OPERATOR if any(argument.name in RESOURCES for argument in one.arguments()) else Role.ADMIN


def authorize(account: Account, one: Command, arguments: Mapping[str, Any]) -> None:
    """Raise Forbidden unless an account may run a command with these arguments."""
    role = required_role(one, arguments)
    named: list[tuple[ResourceType | None, str]] = [*resources(arguments)] or [(None, "")]
    for type_, name in named:
        if not account.may(role, type_, name):
            where = f"{type_.value} {name}" if type_ else "all topics and groups"
            raise Forbidden(
                f"{one.name} takes the role {role.name.lower()} for {where}, which {account.name} has not",
                subject=name or one.name,
            )
