"""The catalogue of commands: what an operator can ask and do, as data (see `command`)."""

from rucola.admin.commands import topics
from rucola.admin.commands.command import CATALOGUE, Argument, Command, InvalidArguments, Option, Result, Risk, Target

__all__ = ["CATALOGUE", "Argument", "Command", "InvalidArguments", "Option", "Result", "Risk", "Target", "topics"]
