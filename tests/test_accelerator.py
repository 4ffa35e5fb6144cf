"""The accelerator as it is built and installed: what is in a wheel, what it says where something is missing.

`tests/speed` compares its functions with Python. Here the tests of the hot path run once more, without it. On a machine
without a C compiler or Python's headers the builds must say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rucola
from support.installation import REPOSITORY, module

pytestmark = pytest.mark.slow

HOT_PATH = (
    "message",
    "store/test_dispatch.py",
    "store/test_message_store.py",
    "store/test_rebuild_pieces.py",
    "broker/test_editing.py",
    "broker/test_wire.py",
)
EXTENSION, ABSENT = "rucola/_speed.abi3.so", "rucola/_speed.absent"


def build(folder: Path, source: Path = REPOSITORY, **env: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel into an empty folder."""
    pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    command = [*pip, "--verbose", "--wheel-dir", str(folder), str(source)]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)


def unpacked(folder: Path) -> tuple[str, list[str]]:
    """Unpack the only wheel in a folder, there; return its name and what is in it."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder)
        return wheel.name, files.namelist()


def version_of(package: Path) -> str:
    """Return the version that an unpacked wheel shows, with the commit of a checkout."""
    commit = package / "rucola/_commit"
    return (
        f"{rucola.__version__}+{commit.read_text().strip().replace('-', '.')}"
        if commit.exists()
        else rucola.__version__
    )


def rucola_in(package: Path, *arguments: str, **env: str) -> str:
    """Run `python -m rucola` with the package that lies in a directory, and return what it prints."""
    environment = {**os.environ, "RUCOLA_SPEED": "", "PYTHONPATH": str(package), **env}
    command = [sys.executable, "-m", "rucola", *arguments]
    done = subprocess.run(command, env=environment, cwd=package, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_a_wheel_has_the_accelerator_for_every_later_python(tmp_path: Path) -> None:
    done = build(tmp_path, RUCOLA_SPEED="")
    assert done.returncode == 0, done.stdout + done.stderr
    name, files = unpacked(tmp_path)
    version = f"rucola, version {version_of(tmp_path)}, "
    if EXTENSION in files:
        assert "-cp311-abi3-" in name
        assert ABSENT not in files
        assert rucola_in(tmp_path, "--version") == f"{version}accelerated\n"
        assert rucola_in(tmp_path, "--version", RUCOLA_SPEED="0") == f"{version}pure Python (RUCOLA_SPEED=0)\n"
        assert "RUCOLA_SPEED is 'maybe'; it can be 0" in rucola_in(tmp_path, "--version", RUCOLA_SPEED="maybe")
    else:
        assert module("hatch_build.py")._what_is_missing()
        assert name.endswith("-py3-none-any.whl")


def test_without_a_compiler_a_wheel_is_pure_python_and_says_why(tmp_path: Path) -> None:
    done = build(tmp_path, RUCOLA_SPEED="", CC="no-such-compiler -O2")
    assert done.returncode == 0, done.stdout + done.stderr
    why = "there is no C compiler no-such-compiler (on Debian: apt install gcc)"
    assert f"Rucola is built without its accelerator: {why}." in done.stdout + done.stderr
    name, files = unpacked(tmp_path)
    assert name.endswith("-py3-none-any.whl")
    assert EXTENSION not in files
    assert rucola_in(tmp_path, "--version") == f"rucola, version {version_of(tmp_path)}, pure Python ({why})\n"


def test_an_accelerator_that_is_asked_for_must_be_built(tmp_path: Path) -> None:
    done = build(tmp_path, RUCOLA_SPEED="1", CC="no-such-compiler")
    assert done.returncode != 0
    assert "RUCOLA_SPEED=1 asks for the accelerator, but there is no C compiler no-such-compiler" in (
        done.stdout + done.stderr
    )


def test_sources_that_were_left_out_are_an_error(tmp_path: Path) -> None:
    """An extension of no sources would be empty, and the package slow without a word."""
    source = tmp_path / "source"
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src"):
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(REPOSITORY / name, source / name)
    (source / "src" / EXTENSION).write_bytes(b"of an editable installation")
    for wanted in ("", "1"):
        done = build(tmp_path / "wheels", source, RUCOLA_SPEED=wanted)
        assert done.returncode != 0
        assert f"{source / 'speed'} has no C sources" in done.stdout + done.stderr
    assert build(tmp_path / "wheels", source, RUCOLA_SPEED="0").returncode == 0
    name, files = unpacked(tmp_path / "wheels")
    assert (name.endswith("-py3-none-any.whl"), EXTENSION in files) == (True, False)


def test_an_extension_of_other_sources_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "rucola").symlink_to(REPOSITORY / "src" / "rucola")
    program = (
        "import sys, types; sys.modules['rucola._speed'] = types.SimpleNamespace(INTERFACE=0, encode_record=print);"
        "from rucola import speed; print(speed.description(), speed.encode_record)"
    )
    environment = {**os.environ, "RUCOLA_SPEED": "", "PYTHONPATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True).stdout
    assert said.startswith("pure Python (rucola._speed has interface 0, not ")
    assert said.endswith("None\n")


def test_the_hot_path_passes_its_tests_without_the_accelerator() -> None:
    tests = [f"tests/{name}" for name in HOT_PATH]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    environment = {**os.environ, "RUCOLA_SPEED": "0"}
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
