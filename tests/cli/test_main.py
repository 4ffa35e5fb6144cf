"""Entry point `rucola`: help, exit codes, and lazy imports."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rucola.cli.main import COMMANDS, Commands, main
from support.servers import run


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command, with its path."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def test_every_command_explains_itself_with_examples() -> None:
    for path, command in commands(main):
        result = CliRunner().invoke(main, [*path, "--help"])
        assert result.exit_code == 0, path
        if not isinstance(command, click.Group):
            assert "Examples:" in result.output, path
            assert f"rucola {' '.join(path)}" in result.output, path


def test_help_shows_the_table_of_commands() -> None:
    result = CliRunner().invoke(main, ["-h"])
    assert result.exit_code == 0
    for name, (_, line) in COMMANDS.items():
        assert name in result.output
        assert line in result.output


def test_help_imports_no_subpackage() -> None:
    program = "import sys, rucola.cli.main\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    own = {name for name in loaded if name.startswith("rucola")}
    assert own == {"rucola", "rucola.cli", "rucola.cli.main", "rucola.cli.suggestions", "rucola.errors"}


def test_an_error_is_one_line_and_ends_with_1() -> None:
    result = run("admin", "topicStatus", "-n", "nowhere.invalid:1", "-t", "Orders")
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "nowhere" in line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/here/x"), "Error: /here/x: Permission denied\n"),
        (OSError(errno.ENOSPC, "No space left on device"), "Error: No space left on device\n"),
        (TimeoutError(), "Error: TimeoutError\n"),
    ],
)
def test_an_operating_system_error_is_one_line(error: OSError, line: str) -> None:
    @click.group(cls=Commands)
    def door() -> None:
        raise error

    result = CliRunner().invoke(door, ["demo"])
    assert (result.exit_code, result.stderr) == (1, line)


def test_an_error_does_not_change_the_terminal() -> None:
    """Remarks of servers and names of files are part of errors."""
    result = CliRunner().invoke(main, ["store", "check", "no\x1b[2Jstore"])
    assert result.exit_code != 0
    assert "no\\x1b[2Jstore" in result.output
    assert "\x1b" not in result.output


def test_an_interrupt_during_the_imports_prints_no_traceback(tmp_path: Path) -> None:
    """`click` is imported first; this one sends Ctrl-C to its own process."""
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "rucola", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["store", "check", "--help"]])
def test_a_full_disk_behind_the_output_is_a_sentence(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "rucola", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, f"Error: standard output: {os.strerror(errno.ENOSPC)}\n")


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [
        ("opentelemetry", "rucola.client.otel", "otel"),
        ("prometheus_client", "rucola.client.metrics", "metrics"),
        ("prometheus_client", "rucola.reliable.metrics", "metrics"),
        ("sqlalchemy", "rucola.reliable", "reliable"),
        ("pyspark", "rucola.spark.session", "spark"),
    ],
)
def test_the_error_of_a_missing_package_names_its_extra(package: str, module: str, extra: str) -> None:
    program = f"import sys; sys.modules['{package}'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"'rucola-mq[{extra}]'" in done.stderr.splitlines()[-1]
