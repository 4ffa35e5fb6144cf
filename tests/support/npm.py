"""Packages of npm that tests need, at the versions and hashes of a lock."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.once import made_once


def installed_by_npm(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a directory with package.json and its lock, and with the packages that it names."""
    return made_once(tmp_path_factory, programs.name, lambda directory: _install(programs, directory))


def _install(programs: Path, directory: Path) -> None:
    shutil.copytree(programs, directory, ignore=shutil.ignore_patterns("node_modules"), dirs_exist_ok=True)
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.fail("node and npm are not on PATH: run .ci/setup node, or install nodejs and npm by hand")
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(
            f"npm could not install {programs.name}, which needs a registry that answers:\n{done.stderr[-2000:]}"
        )
