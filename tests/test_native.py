"""The compiled build (`hatch_build.py`): what is in it, that it does what the same modules do as Python, what it lacks.

On a machine without a C compiler or Python's headers the build must say so; there is nothing else to be tested there.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
MODULES = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
TESTS_OF_THE_HOT_PATH = (
    "message",
    "protocol",
    "remoting",
    "store/test_message_store.py",
    "store/test_replica.py",
    "broker/test_wire.py",
    "client/test_pull.py",
)
WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)


def build(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel into an empty folder."""
    pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    command = [*pip, "--wheel-dir", str(folder), str(REPOSITORY)]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)


def run(package: Path, *arguments: str) -> str:
    """Run Python with the package that lies in a directory, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run([sys.executable, *arguments], env=environment, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Where the compiled package lies; None where there can be none, which the build has said."""
    folder = tmp_path_factory.mktemp("native")
    done = build(folder, RUCOLA_COMPILE="1")
    if done.returncode:
        said = done.stdout + done.stderr
        assert re.search("RUCOLA_COMPILE is set, but (there is no C compiler|Python's headers are missing)", said), said
        return None
    (wheel,) = folder.glob("*.whl")
    assert "-none-any" not in wheel.name
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.mark.parametrize("path", MODULES)
def test_no_compiled_module_awaits_in_an_except_block(path: str) -> None:
    """A compiled coroutine or generator that is left in a handler takes the exception of somebody else along, and the
    process breaks down later, elsewhere. The exit of an `async with` is such a handler."""
    for node in ast.walk(ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))):
        assert not isinstance(node, ast.AsyncWith), f"{path}:{node.lineno} waits at the exit of an async with"
        handlers = [*node.handlers, *node.finalbody] if isinstance(node, ast.Try | ast.TryStar) else []
        for inside in (inside for handler in handlers for inside in ast.walk(handler)):
            assert not isinstance(inside, WAITS), f"{path}:{inside.lineno} waits in an except or finally block"


def test_every_module_is_compiled_and_the_checkout_stays_clean(compiled: Path | None) -> None:
    assert not list((REPOSITORY / "src").rglob("*.so"))
    if compiled is not None:
        names = [path.removeprefix("src/").removesuffix(".py").replace("/", ".") for path in MODULES]
        files = run(compiled, "-c", f"import {', '.join(names)}\nfor one in ({', '.join(names)}): print(one.__file__)")
        assert all(file.startswith(str(compiled)) and file.endswith(".so") for file in files.splitlines())
        assert run(compiled, "-m", "rucola", "--version").endswith(", compiled\n")


def test_the_hot_path_passes_its_tests(compiled: Path | None) -> None:
    if compiled is not None:
        tests = [f"tests/{name}" for name in TESTS_OF_THE_HOT_PATH]
        assert " passed" in run(
            compiled, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", *tests
        )


def test_a_missing_compiler_or_header_is_named(tmp_path: Path) -> None:
    done = build(tmp_path, RUCOLA_COMPILE="1", CC="no-such-compiler -O2")
    assert done.returncode != 0
    assert "RUCOLA_COMPILE is set, but there is no C compiler no-such-compiler" in done.stdout + done.stderr


def test_a_wheel_is_pure_python_by_default(tmp_path: Path) -> None:
    assert build(tmp_path, RUCOLA_COMPILE="0").returncode == 0
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
