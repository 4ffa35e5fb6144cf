"""The build hooks: the package page, and machine code of the hot path.

The package page is README.md. A package index shows it without the repository around it, so its links to files become
addresses below the project URL `Source`, and its pictures too. As long as pyproject.toml has no such URL, links become
plain text and pictures are left out.

Machine code is made with mypyc, if the environment asks for it:

    RUCOLA_COMPILE=1 pip install .

The modules are named in pyproject.toml. They stay ordinary Python, which a wheel without extensions and an editable
install run as it is, and are in the wheel beside what was made of them. Extensions are built in a temporary directory
and go into the wheel alone: none can ever lie beside a source that has changed since.

Takes mypy and setuptools, which pip fetches where it may, a C compiler and Python's headers. What is missing is named,
and ends the build: a wheel that only looks compiled would be found out too late.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sysconfig
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SWITCH = "RUCOLA_COMPILE"
REQUIRES = ["mypy>=2.4", "setuptools>=70"]
RELATIVE_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:)([^)]+)\)")
RELATIVE_PICTURE = re.compile(r"!\[([^\]]*)\]\((?![a-z]+:)([^)]+)\)\n?")


class PackagePageHook(MetadataHookInterface):
    """Makes README.md the description of the package. hatchling calls `update` before each build."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": package_page(text, source)}


def package_page(readme: str, source: str | None) -> str:
    """Return README.md with links and pictures as addresses below `source`; without one, links as their plain text."""
    readme = RELATIVE_PICTURE.sub(rf"![\1]({source}/raw/HEAD/\2)\n" if source else "", readme)
    return RELATIVE_LINK.sub(rf"[\1]({source}/blob/HEAD/\2)" if source else r"\1", readme)


class CompileHook(BuildHookInterface[BuilderConfig]):
    """hatchling calls `initialize` before it packs a wheel and `finalize` after."""

    def dependencies(self) -> list[str]:
        # Rucola's own dependencies say what their types are.
        return [*REQUIRES, *self.metadata.core.dependencies] if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not _is_wanted() or version == "editable":
            return
        if missing := _what_is_missing():
            self.app.abort(f"{SWITCH} is set, but {missing}. Without {SWITCH} the wheel is pure Python.")
        self._folder = TemporaryDirectory(prefix="rucola-compile-")
        place = Path(self._folder.name)
        with chdir(self.root):
            _compile(self.config["modules"], place)
        for path in sorted((place / "lib").rglob("*.so")):
            build_data["force_include"][str(path)] = str(path.relative_to(place / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if not build_data["pure_python"]:
            self._folder.cleanup()


def _is_wanted() -> bool:
    return os.environ.get(SWITCH, "") not in ("", "0")


def _what_is_missing() -> str:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler} (on Debian: apt install gcc)"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        return f"Python's headers are missing: {header} (on Debian: apt install python3-dev)"
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        return f"the build takes {' and '.join(REQUIRES)} (pip fetches them, unless told --no-build-isolation)"
    return ""


def _compile(modules: list[str], place: Path) -> None:
    """Write the extension of every module, and the one library behind them all, below `place / "lib"`."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    options = [f"--cache-dir={place / 'mypy'}", "--ignore-missing-imports"]  # of packages that only some installs have
    extensions = mypycify(
        [*options, *modules], opt_level="3", debug_level="0", target_dir=str(place), group_name="rucola"
    )
    command = Distribution({"name": "rucola", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(place / "lib"), str(place / "objects")
    command.ensure_finalized()
    command.run()
