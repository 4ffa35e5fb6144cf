"""Commands that documents show, checked against the command line."""

from __future__ import annotations

import re
import shlex

import click

from rucola.cli.main import main


def commands_of(text: str) -> list[str]:
    """The commands of `rucola` in a document's shell blocks, without their comments."""
    return re.findall(r"^\$ (rucola .*?)(?:\s+#.*)?$", text, re.MULTILINE)


def check_command(line: str) -> None:
    """Fail unless a command exists and has every option that the line gives."""
    _, *arguments = shlex.split(line)
    command: click.Command = main
    with click.Context(main) as context:
        while isinstance(command, click.Group):
            found = command.get_command(context, arguments.pop(0))
            assert found is not None, line
            command = found
        known = {option for parameter in command.params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("-")} <= known
