"""`rucola router`: run a Router of a program, again after each change of its files, or describe it."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from rucola.cli.log_format import log_options
from rucola.cli.output import print_json
from rucola.cli.suggestions import SuggestingGroup
from rucola.client.router import Router

POLL_S = 0.3
IGNORED = {"venv", "__pycache__", "node_modules", "site-packages"}
"""Directories whose files are not watched, as are those that begin with a dot."""

target_argument = click.argument("target", metavar="MODULE:ROUTER")


@click.group(cls=SuggestingGroup)
def router() -> None:
    """Run a program of decorated handlers, or describe it.

    MODULE:ROUTER is a module, found from this directory, and the name of the Router in it.
    """


@router.command()
@target_argument
@click.option(
    "--reload", is_flag=True, help="For development: start again when a Python file of this directory changes."
)
@log_options
def run(target: str, reload: bool) -> None:
    """Run a router until SIGTERM or Ctrl-C.

    \b
    Examples:
      rucola router run kitchen:router
      rucola router run kitchen:router --reload
    """
    if reload:
        _run_and_reload([one for one in sys.argv[1:] if one != "--reload"])
    _load(target).run()


@router.command()
@target_argument
def asyncapi(target: str) -> None:
    """Print the AsyncAPI document of a router: topics, operations, JSON schemas.

    \b
    Examples:
      rucola router asyncapi kitchen:router > asyncapi.json
    """
    print_json(_load(target).asyncapi())


def _load(target: str) -> Router:
    module, _, name = target.partition(":")
    if not module or not name:
        raise click.UsageError(f"{target!r}: write MODULE:ROUTER, such as kitchen:router")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise click.UsageError(f"there is no module {module} in {os.getcwd()}") from None
    if not isinstance(found, Router):
        raise click.UsageError(f"{target}: {name} of {module} is {type(found).__name__}, not a Router")
    return found


def _run_and_reload(command: list[str]) -> NoReturn:
    """Run this command without --reload in a child process, a new one after each change of a file."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    while True:
        seen = _changes(Path.cwd())
        child = subprocess.Popen([sys.executable, "-m", "rucola", *command])  # noqa: S603
        try:
            while (now := _changes(Path.cwd())) == seen:
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            sys.exit(child.wait())  # Ctrl-C reaches the child as well
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
        changed = min(path for path, _ in now ^ seen)
        click.echo(f"{changed} has changed: starting again", err=True)


def _changes(directory: Path) -> set[tuple[str, int]]:
    """Return the Python files below a directory, with their times of modification."""
    found: set[tuple[str, int]] = set()
    for folder, names, files in os.walk(directory):
        names[:] = [name for name in names if name not in IGNORED and not name.startswith(".")]
        for file in files:
            path = os.path.join(folder, file)
            if file.endswith(".py"):
                try:
                    found.add((os.path.relpath(path, directory), os.stat(path).st_mtime_ns))
                except FileNotFoundError:  # an editor replaces it
                    continue
    return found
