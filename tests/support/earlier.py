"""Earlier versions of Rucola, from the history of this repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.installation import REPOSITORY
from support.servers import RUCOLA

VERSIONS = {
    "before epochs": "4d607a46a8d32cfebaa71200840c683dc6fea049",
    "with epochs": "4ef53d445a792be5ff5b6f6a9d58afa193c3cda0",
}
"""Commits whose code is tested beside today's; a release adds its tag."""


def earlier(name: str, directory: Path) -> list[str]:
    """Write the sources of an earlier version to a directory, once, and return its program `rucola`."""
    commit, directory = VERSIONS[name], directory / VERSIONS[name]
    if directory.exists():
        return program_of(directory)
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=REPOSITORY, capture_output=True)
    if archive.returncode:
        pytest.skip(f"no git history with {commit}: {archive.stderr.decode(errors='replace').strip()}")
    whole = directory.with_suffix(".new")
    whole.mkdir(exist_ok=True)
    subprocess.run(["tar", "-x", "-C", whole], input=archive.stdout, check=True)
    whole.rename(directory)
    return program_of(directory)


def program_of(directory: Path) -> list[str]:
    return ["env", f"PYTHONPATH={directory / 'src'}", *RUCOLA]
