"""Users and their policies. Subjects have the form `User:name`."""

from __future__ import annotations

import msgspec
from msgspec import field


class UserInfo(msgspec.Struct, rename="camel", kw_only=True):
    """A user. Responses contain no password."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, {self.user_type!r}, {self.user_status!r})"


class PolicyEntryInfo(msgspec.Struct, rename="camel", kw_only=True):
    resource: str | None = None
    actions: list[str] = field(default_factory=list)
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, rename="camel", kw_only=True):
    policy_type: str | None = None
    entries: list[PolicyEntryInfo] = field(default_factory=list)


class AclInfo(msgspec.Struct, rename="camel", kw_only=True):
    subject: str | None = None
    policies: list[PolicyInfo] = field(default_factory=list)
