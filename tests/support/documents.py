"""Documents of this repository: their sections, blocks, programs and commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from rucola.cli.main import main
from support.installation import REPOSITORY

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED_IN_BLOCK = re.compile(r"# ([\w/-]+\.(?:py|conf|yml))\n")
_NAMED_BEFORE = re.compile(r"`([\w-]+\.(?:py|conf|yml))`")


@dataclass(frozen=True)
class Block:
    """A block of a document: its language, its text, and the text between it and the block before."""

    language: str
    text: str
    before: str

    @property
    def file_name(self) -> str | None:
        """The file that a reader saves the block as: a comment in its first line, else the last one named before it."""
        if named := _NAMED_IN_BLOCK.match(self.text):
            return named[1]
        names = _NAMED_BEFORE.findall(self.before)
        return names[-1] if names else None

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The commands after `$ `, each with what the block shows below it."""
        parts = re.split(r"^\$ ", self.text.replace("\\\n", ""), flags=re.MULTILINE)[1:]
        return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


class Document:
    """A document or a part of it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def read(cls, path: str | Path) -> Document:
        """Read a document of this repository."""
        return cls((REPOSITORY / path).read_text(encoding="utf-8"))

    @property
    def blocks(self) -> list[Block]:
        """All blocks with a language."""
        found, end = [], 0
        for match in _BLOCK.finditer(self.text):
            found.append(Block(match[1], match[2], self.text[end : match.start()]))
            end = match.end()
        return found

    def texts(self, language: str) -> list[str]:
        """The texts of the blocks in a language."""
        return [block.text for block in self.blocks if block.language == language]

    def rucola_commands(self) -> list[str]:
        """The commands of `rucola` in all shell blocks, also indented ones, without their comments."""
        text = self.text.replace("\\\n", " ")
        return re.findall(r"^ *\$ (rucola .*?)(?:\s+#.*)?$", text, re.MULTILINE)

    def sections(self) -> dict[str, Document]:
        """The parts below the headings of the second level, by title."""
        found: Iterator[tuple[str, str]] = iter(
            re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", self.text, re.MULTILINE | re.DOTALL)
        )
        return {title: Document(text) for title, text in found}

    def after(self, words: str) -> Document:
        """The part that begins with these words."""
        return Document(self.text[self.text.index(words) :])


def check_command(line: str) -> None:
    """Fail unless a command of `rucola` exists and has every option that the line gives, up to a pipe."""
    _, *arguments = shlex.split(line)
    arguments = arguments[: arguments.index("|")] if "|" in arguments else arguments
    command: click.Command = main
    with click.Context(main) as context:
        while isinstance(command, click.Group):
            found = command.get_command(context, arguments.pop(0))
            assert found is not None, line
            command = found
        known = {option for parameter in command.params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("-")} <= known, line
