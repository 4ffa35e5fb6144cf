"""Principals: authenticated users, and the decisions about their requests."""

from __future__ import annotations

from typing import ClassVar, Final

from rucola.access import Action, Reason, Refused, Resource
from rucola.acl.requirements import Requirement, requirements

MAX_DECISIONS: Final = 10_000


class Principal:
    """A user: a name and decisions. `allowed` caches them, since permissions never change within one object."""

    is_admin: bool = False
    is_authenticated: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.allowed: set[tuple[int, Resource, str]] = set()
        """Number of the action, resource, and address of the peer."""

    def check(self, action: Action, resource: Resource, host: str) -> None:
        """Raise Refused unless the user is allowed an action on a resource from an address."""
        if not self.is_admin:
            denial = self._decide(action, resource, host)
            if denial:
                raise Refused(Reason.DENIED, denial)
        if len(self.allowed) >= MAX_DECISIONS:
            self.allowed.clear()
        self.allowed.add((action.value, resource, host))

    def _decide(self, action: Action, resource: Resource, host: str) -> str:
        for requirement in requirements(action, resource):
            denial = self.denial(requirement, host)
            if denial:
                return denial
        return ""

    def denial(self, requirement: Requirement, host: str) -> str:
        """Return why a requirement is not met, or an empty text."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class WhiteAddressPrincipal(Principal):
    is_admin = True
    is_authenticated = False


WHITE: Final = WhiteAddressPrincipal("white address")
