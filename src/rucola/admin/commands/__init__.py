"""The catalogue of commands: what an operator can ask and do, as data (see `command`)."""

from rucola.admin.commands import cluster, groups, offsets, topics  # these fill the catalogue
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
    "CATALOGUE", "Argument", "Command", "Flag", "InvalidArguments", "Option", "Result", "Risk", "Target", "cluster",
    "groups", "offsets", "topics",
]  # fmt: skip
