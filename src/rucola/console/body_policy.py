"""Accounts that may see the bodies of messages: a role for each topic, in a file of Java's properties.

The first pattern that matches a topic counts; bodies of other topics are shown to all viewers of the topic:

    payments-*=admin
    *=operator

A dead letter, a retry and a delayed message need the role for their original topic as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rucola import settings
from rucola.acl.requirements import ResourceType
from rucola.admin.commands.authorization import Account, Role
from rucola.admin.message_view import WHY_HIDDEN
from rucola.errors import ConfigError
from rucola.message import MessageExt, properties


class BodyPolicy:
    """Raises ConfigError for a file that is wrong; without one, all bodies are shown."""

    def __init__(self, path: Path | None = None) -> None:
        self._roles: dict[str, Role] = {}
        for pattern, role in (settings.read(path) if path else {}).items():
            if role.strip().upper() not in Role.__members__ or "*" in pattern[:-1]:
                raise ConfigError(
                    f"{path}: {pattern}={role}: expected a topic, or its beginning and *, and a role", subject=pattern
                )
            self._roles[pattern] = Role[role.strip().upper()]

    def hides_topic(self, account: Account, topic: str) -> str:
        """Return why an account does not see the bodies of a topic; empty if it does."""
        for pattern, role in self._roles.items():
            if topic == pattern or (pattern.endswith("*") and topic.startswith(pattern[:-1])):
                is_shown = account.may(role, ResourceType.TOPIC, topic)
                return "" if is_shown else f"hidden: bodies of topic {topic} take the role {role.name.lower()}"
        return ""

    def hides_any(self, account: Account) -> bool:
        """Return whether there are bodies that an account does not see."""
        return not all(account.may(role) for role in self._roles.values())

    def hides(self, account: Account, message: MessageExt) -> str:
        """Return why an account does not see the body of a message; empty if it does."""
        origins = (message.properties.get(name) for name in (properties.RETRY_TOPIC, properties.REAL_TOPIC))
        found = (self.hides_topic(account, topic) for topic in (message.topic, *origins) if topic)
        return next(filter(None, found), "")

    @contextmanager
    def applied(self, account: Account) -> Iterator[None]:
        """Hide what the account does not see from the results of commands that run in the block."""
        token = WHY_HIDDEN.set(lambda message: self.hides(account, message))
        try:
            yield
        finally:
            WHY_HIDDEN.reset(token)
