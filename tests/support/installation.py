"""Rucola built and installed as users install it, without a network: new environments share this one's packages."""

from __future__ import annotations

import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import click
import pytest

from support.once import made_once

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = Path(click.__file__).resolve().parents[1]
"""Where the dependencies of Rucola and the build tools are installed."""


def module(path: str) -> ModuleType:
    """Import a file of the repository that is in no package."""
    spec = util.spec_from_file_location(Path(path).stem, REPOSITORY / path)
    assert spec is not None
    assert spec.loader is not None
    imported = util.module_from_spec(spec)
    spec.loader.exec_module(imported)
    return imported


def run(*command: str | Path) -> str:
    """Run a command in the repository; what it printed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return wheel and sdist of this checkout, the only files of their directory."""

    def make(directory: Path) -> None:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", directory)

    directory = made_once(tmp_path_factory, "dist", make)
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return wheel, sdist


def share_packages(environment: Path) -> None:
    """Give a virtual environment the packages of this one, except Rucola: pip must not find it installed."""
    shared = environment / "shared"
    shared.mkdir()
    for path in PACKAGES.iterdir():
        if "rucola" not in path.name.lower() and path.suffix != ".pth":
            (shared / path.name).symlink_to(path)
    site = run(environment / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "packages.pth").write_text(f"{shared}\n")
