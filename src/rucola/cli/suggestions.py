"""Command groups that suggest the nearest command for a misspelled one, and list their commands by subject."""

from __future__ import annotations

import difflib
from typing import Any

import click


class SuggestingGroup(click.Group):
    """Command group with "did you mean". `subjects` has the commands of each subject for `--help`, or is empty."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.subjects: dict[str, list[str]] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            known = {name.lower(): name for name in self.list_commands(ctx)}
            near = difflib.get_close_matches(args[0].lower(), known, n=3) if args else []
            if not near:
                raise
            names = " or ".join(known[name] for name in near)
            raise click.UsageError(f"{error.message.rstrip('.')}; did you mean {names}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.subjects:
            super().format_commands(ctx, formatter)
            return
        for subject, names in sorted(self.subjects.items()):
            with formatter.section(subject):
                formatter.write_dl([(name, _sentence(self.get_command(ctx, name))) for name in names])


def _sentence(command: click.Command | None) -> str:
    """The first sentence of a command's help, never cut."""
    text = (command.help or "").strip().split("\n\n")[0] if command is not None else ""
    return " ".join(text.split())
