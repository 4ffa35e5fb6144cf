"""Tutorials of the documentation, executed as a reader executes them.

A tutorial has programs, ```` ```python ```` blocks whose first line is a comment with the file's name, and consoles,
```` ```console ```` blocks with commands after `$` and their output. A line of output may end in `...`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from support.servers import RUCOLA

_PROGRAM = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


class Tutorial:
    """A page in a directory of its own, with a running `rucola standalone` in place of the reader's."""

    def __init__(self, page: Path, directory: Path, namesrv: str) -> None:
        self._text = page.read_text(encoding="utf-8").replace("127.0.0.1:9876", namesrv)
        self._directory = directory
        self._environment = {**os.environ, "NAMESRV_ADDR": namesrv, "COLUMNS": "80"}
        for name, source in _PROGRAM.findall(self._text):
            (directory / name).write_text(source, encoding="utf-8")

    def commands(self) -> list[tuple[str, list[str]]]:
        """The commands of the page, each with the lines of output that the page shows."""
        commands: list[tuple[str, list[str]]] = []
        for line in "".join(_CONSOLE.findall(self._text)).splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            else:
                commands[-1][1].append(line)
        return commands

    def run(self, command: str) -> str:
        """Run one command and return its output. AssertionError with its errors if it fails."""
        program, *arguments = shlex.split(command)
        prefix = {"rucola": RUCOLA, "python": [sys.executable]}[program]
        ended = subprocess.run(
            [*prefix, *arguments],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout


def check_output(shown: list[str], output: str) -> None:
    """Fail unless the output has the lines that a page shows, in their order."""
    lines = iter(output.splitlines())
    for line in shown:
        begin, is_cut, _ = line.partition("...")
        assert any(got.startswith(begin) if is_cut else got == line for got in lines), f"{line!r} is not in\n{output}"
