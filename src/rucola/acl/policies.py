"""Users and policies of ACL 2.0.

A user has a name, a password (the secret key of its signatures), a type, Normal or Super, and a status, enable or
disable. Super users may do everything. For other users, entries of policies decide:

    resource     Topic:name, Group:name, Cluster:name, each with * or a prefix as in Topic:orders-*; * for everything
    actions      Pub, Sub, Create, Update, Delete, Get, List, or All
    source IPs   addresses and networks (10.0.0.0/8) from which the entry applies; none means all
    decision     Allow or Deny

Entries of the policy Custom come first, Default only if none of them matches. Of the entries that match resource,
action and address, the most specific resource decides: exact name, longer prefix, shorter prefix, `*`; among equals,
Deny. Without a match the request is denied. Internal topics (`Requirement.is_internal`) match their own name only.

Corresponds to `AclAuthorizationHandler`, `Policy` and `PolicyEntry` of Apache RocketMQ 5.3. Deliberate difference:
among equals 5.3 prefers Allow, against the comment in its code.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from rucola.acl.principal import Principal
from rucola.acl.requirements import Requirement, ResourceType, Right
from rucola.acl.signature import Signer
from rucola.errors import ConfigError

RIGHTS: Final = {right.name.capitalize(): right for right in Right if right.name}
ALL: Final = "All"
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
USER_SUBJECT: Final = "User:"


class UserType(Enum):
    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Enum):
    ENABLE = "enable"
    DISABLE = "disable"


class Pattern(NamedTuple):
    type: ResourceType | None
    """None for every resource."""
    name: str
    is_prefix: bool

    def matches(self, type_: ResourceType, name: str) -> bool:
        if self.type is None:
            return True
        if self.type is not type_:
            return False
        return name.startswith(self.name) if self.is_prefix else name == self.name

    @property
    def specificity(self) -> tuple[bool, bool, int]:
        """Return a key that is larger for the more specific of two patterns."""
        return self.type is not None, not self.is_prefix, len(self.name)

    def __str__(self) -> str:
        return "*" if self.type is None else f"{self.type.value}:{self.name}{'*' if self.is_prefix else ''}"


@dataclass(frozen=True)
class PolicyEntry:
    pattern: Pattern
    actions: tuple[str, ...]
    source_ips: tuple[str, ...]
    allows: bool

    @cached_property
    def rights(self) -> Right:
        found = Right(0)
        for action in self.actions:
            found |= ~Right(0) if action == ALL else RIGHTS[action]
        return found

    @cached_property
    def _networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        return [ipaddress.ip_network(text, strict=False) for text in self.source_ips]

    def applies_to(self, host: str) -> bool:
        if not self.source_ips:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


class PolicyUser(Principal):
    """A user with its policies; immutable, every change makes a new object."""

    def __init__(
        self,
        name: str,
        password: str,
        type_: UserType,
        status: UserStatus,
        policies: dict[str, list[PolicyEntry]],
        cluster: str,
    ) -> None:
        super().__init__(name)
        self.signer = Signer(password)
        self.is_admin = type_ is UserType.SUPER
        self.is_enabled = status is UserStatus.ENABLE
        self._policies = policies
        self._cluster = cluster

    def denial(self, requirement: Requirement, host: str) -> str:
        name = self._cluster if requirement.type is ResourceType.CLUSTER else requirement.name
        for policy in (CUSTOM, DEFAULT):
            matching = [
                entry
                for entry in self._policies.get(policy, ())
                if entry.pattern.matches(requirement.type, name)
                and not (entry.pattern.is_prefix and requirement.is_internal)
                and entry.rights & requirement.rights
                and entry.applies_to(host)
            ]
            if matching:
                decisive = max(matching, key=lambda entry: (entry.pattern.specificity, not entry.allows))
                return "" if decisive.allows else f"a policy denies user {self.name} access to {requirement}"
        return f"no policy allows user {self.name} access to {requirement}"


def parse_pattern(text: str) -> Pattern:
    """Parse a text such as `Topic:orders-*`. ConfigError."""
    if text == "*":
        return Pattern(None, "", True)
    kind, colon, name = text.partition(":")
    types = {one.value.lower(): one for one in ResourceType}
    if not colon or kind.lower() not in types or not name:
        raise ConfigError(
            f"resource {text!r}: expected Topic:NAME, Group:NAME, Cluster:NAME, NAME may end with *, or *"
        )
    if "*" in name[:-1]:
        raise ConfigError(f"resource {text!r}: * may only stand at the end")
    is_prefix = name.endswith("*")
    return Pattern(types[kind.lower()], name[:-1] if is_prefix else name, is_prefix)


def parse_actions(texts: list[str]) -> tuple[str, ...]:
    """Return actions with Apache's spelling. ConfigError."""
    names = {name.lower(): name for name in (*RIGHTS, ALL)}
    unknown = [text for text in texts if text.strip().lower() not in names]
    if unknown or not texts:
        raise ConfigError(f"action {unknown[0] if unknown else ''!r}: expected one of {', '.join(names.values())}")
    return tuple(names[text.strip().lower()] for text in texts)


def parse_entry(resource: str, actions: list[str], source_ips: list[str], decision: str) -> PolicyEntry:
    if decision.lower() not in ("allow", "deny"):
        raise ConfigError(f"decision {decision!r}: expected Allow or Deny")
    for text in source_ips:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise ConfigError(f"source IP {text!r}: expected an address, or a network such as 10.0.0.0/8") from None
    return PolicyEntry(parse_pattern(resource), parse_actions(actions), tuple(source_ips), decision.lower() == "allow")
