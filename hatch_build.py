"""The build hooks: the package page, and the accelerator.

The package page is README.md. A package index shows it without the repository around it, so its links to files become
addresses below the project URL `Source`, and its pictures too. As long as pyproject.toml has no such URL, links become
plain text and pictures are left out. The same URL says whether there are releases: with it, this page and the
documentation site install from the index, not from a clone (`released`).

The accelerator `rucola._speed` is compiled from speed/*.c, if there is a C compiler and Python has its headers. A wheel
with it is for this platform and for every Python from 3.11 on (the stable ABI). Otherwise the wheel is pure Python, and
has a file that says what was missing, which `rucola --version` shows. A wheel also has the commit of the checkout that
it was built from, or RUCOLA_COMMIT, if the sources were copied without one. An editable installation has the extension
beside the sources. RUCOLA_SPEED=1 makes a missing compiler an error, RUCOLA_SPEED=0 leaves the accelerator out. Sources
that are missing are an error in any case but the last.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.macos import process_macos_plat_tag
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.tags import platform_tags

EXTENSION = "rucola/_speed.abi3.so"
ABSENT = "rucola/_speed.absent"
"""In place of the extension: why it was not built, in one sentence."""
COMMIT = "rucola/_commit"
"""In a wheel: the commit of its sources (`rucola.version`)."""
FLAGS = ["-std=c11", "-O3", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-fPIC", "-fvisibility=hidden"]

IN_A_CLONE = re.compile(r"In a clone of this repository \(there is no release yet\), (.)")
RELATIVE_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:)([^)]+)\)")
RELATIVE_PICTURE = re.compile(r"!\[([^\]]*)\]\((?![a-z]+:)([^)]+)\)\n?")


class PackagePageHook(MetadataHookInterface):
    """Makes README.md the description of the package. hatchling calls `update` before each build."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": package_page(text, source)}


def released(text: str) -> str:
    """Return a page as it is once there are releases: `pip install rucola-mq` for `pip install .` in a clone."""
    return IN_A_CLONE.sub(lambda found: found[1].upper(), text).replace("pip install .", "pip install rucola-mq")


def package_page(readme: str, source: str | None) -> str:
    """Return README.md with links and pictures as addresses below `source`; without one, links as their plain text."""
    readme = released(readme) if source else readme
    readme = RELATIVE_PICTURE.sub(rf"![\1]({source}/raw/HEAD/\2)\n" if source else "", readme)
    return RELATIVE_LINK.sub(rf"[\1]({source}/blob/HEAD/\2)" if source else r"\1", readme)


def build_accelerator(root: Path, target: Path, extra_flags: Sequence[str] = ()) -> str:
    """Compile speed/*.c into `target`; return "", or one sentence that says why it could not be done.

    FileNotFoundError if there are no sources: they were left out by mistake.
    """
    sources = sorted(str(path) for path in (root / "speed").glob("*.c"))
    if not sources:
        raise FileNotFoundError(f"{root / 'speed'} has no C sources: copy them, or set RUCOLA_SPEED=0")
    if reason := _what_is_missing():
        return reason
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    if compiler := os.environ.get("CC"):
        linker = [*shlex.split(compiler), *linker[1:]]
    include = f"-I{sysconfig.get_path('include')}"
    new = target.with_suffix(".new")  # a running process may have the old one mapped
    command = [*linker, *FLAGS, *extra_flags, include, *sources, "-o", str(new)]
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        return f"the C compiler {linker[0]} failed (exit code {done.returncode}): build with RUCOLA_SPEED=1 to see why"
    new.replace(target)
    return ""


def commit_of(root: Path) -> str:
    """Return the commit of a checkout, with `-dirty` if files differ from it; "" without a checkout or git."""
    if given := os.environ.get("RUCOLA_COMMIT", ""):
        return given
    if not (root / ".git").exists():
        return ""
    describe = ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(describe, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return "" if done.returncode else done.stdout.strip()


def _platform() -> str:
    """Return the platform of a wheel, as hatchling infers it: on macOS with MACOSX_DEPLOYMENT_TARGET."""
    tag = next(tag for tag in platform_tags() if "manylinux" not in tag and "musllinux" not in tag)
    return process_macos_plat_tag(tag, compat=False) if sys.platform == "darwin" else tag


class AcceleratorHook(BuildHookInterface[BuilderConfig]):
    """hatchling calls `initialize` before it packs a wheel and `finalize` after."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put the extension, or why there is none, into the wheel or, of an editable installation, into the sources."""
        wanted = os.environ.get("RUCOLA_SPEED", "")
        self._built = TemporaryDirectory(prefix="rucola-speed-")
        extension, absent = (Path(self._built.name, Path(name).name) for name in (EXTENSION, ABSENT))
        try:
            reason = (
                "it was left out (RUCOLA_SPEED=0)" if wanted == "0" else build_accelerator(Path(self.root), extension)
            )
        except FileNotFoundError as error:
            self.app.abort(str(error))
        if reason and wanted not in ("", "0"):
            self.app.abort(f"RUCOLA_SPEED={wanted} asks for the accelerator, but {reason}.")
        if reason:
            self.app.display_warning(f"Rucola is built without its accelerator: {reason}.")
            absent.write_text(reason, encoding="utf-8")
        commit = commit_of(Path(self.root))
        if commit and version != "editable":
            recorded = Path(self._built.name, Path(COMMIT).name)
            recorded.write_text(commit, encoding="utf-8")
            build_data["force_include"][str(recorded)] = COMMIT
        if version == "editable":
            for path, name in ((extension, EXTENSION), (absent, ABSENT)):
                target = Path(self.root, "src", name)
                target.unlink(missing_ok=True)
                if path.exists():
                    shutil.copyfile(path, target)
        elif reason:
            build_data["force_include"][str(absent)] = ABSENT
        else:
            build_data["force_include"][str(extension)] = EXTENSION
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._built.cleanup()


def _what_is_missing() -> str:
    """Return what compiling C for this interpreter lacks, as the end of a sentence; "" if nothing."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the stable ABI does not exist for free-threaded Python"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler} (on Debian: apt install gcc)"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        return f"Python's headers are missing: {header} (on Debian: apt install python3-dev)"
    return ""


if __name__ == "__main__":
    # `make speed`: beside the sources, as an editable installation has it. Arguments are more flags for the compiler.
    place = Path(__file__).resolve().parent
    if reason := build_accelerator(place, place / "src" / EXTENSION, sys.argv[1:]):
        sys.exit(f"no accelerator: {reason}")
    (place / "src" / ABSENT).unlink(missing_ok=True)
