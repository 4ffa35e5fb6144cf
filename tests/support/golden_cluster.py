"""The golden store, served by a process of `rucola`, and `rucola admin` asked about it in this one."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from click.testing import CliRunner, Result

from rucola.cli.main import main


class GoldenCluster:
    """A running server on the golden store, and what mqadmin printed for the same store."""

    def __init__(self, namesrv: str, broker: str, mqadmin: str) -> None:
        self.namesrv = namesrv
        self.broker = broker
        sections = re.split(r"^### mqadmin (.*)\n", mqadmin, flags=re.MULTILINE)
        self.recorded = dict(zip(sections[1::2], sections[2::2], strict=True))

    def admin(self, command: str, answer: str = "") -> Result:
        """One command; `answer` is what is typed where it asks."""
        arguments = ["admin", *shlex.split(command)]
        return CliRunner().invoke(main, arguments, env={"NAMESRV_ADDR": self.namesrv}, input=answer)

    def done(self, command: str) -> str:
        """What a command printed, which must have gone well."""
        result = self.admin(command)
        assert result.exit_code == 0, (command, result.stderr, result.exception)
        return result.stdout

    def rows(self, command: str) -> list[list[str]]:
        """The words of every line printed."""
        return words(self.done(command))

    def json(self, command: str) -> Any:
        return json.loads(self.done(command + " --json"))

    def expected(self, command: str) -> list[list[str]]:
        """The words of every line that mqadmin printed, with this broker's address."""
        name, _, rest = command.partition(" ")
        text = self.recorded[f"{name} -n 127.0.0.1:9876{' ' if rest else ''}{rest}"]
        return words(text.replace("127.0.0.1:10911", self.broker))


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]
