"""The catalogue of commands: the queries and actions of an operator, as data (see `command`)."""

from rucola.admin.commands import (  # these fill the catalogue
    access,
    cluster,
    contents,
    dead_letters,
    diagnosis,
    doctor,
    drain,
    groups,
    health,
    messages,
    offsets,
    roles,
    sending,
    settings,
    topics,
)
from rucola.admin.commands.command import (
    CATALOGUE,
    Argument,
    Command,
    Flag,
    InvalidArguments,
    Option,
    Result,
    Risk,
    Target,
)

__all__ = [
    "CATALOGUE", "Argument", "Command", "Flag", "InvalidArguments", "Option", "Result", "Risk", "Target", "access",
    "cluster", "contents", "dead_letters", "diagnosis", "doctor", "drain", "groups", "health", "messages", "offsets",
    "roles", "sending", "settings", "topics",
]  # fmt: skip
