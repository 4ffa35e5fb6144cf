"""`.ci/setup` prints a line per step, and a command's output only if it fails; tests without Spark need no Spark."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.installation import REPOSITORY, module

PYTHONS = module(".ci/pythons.py")
ROOMS: tuple[str, ...] = PYTHONS.ROOMS
SPARK = ["pyspark", "py4j", "pyarrow", "pandas"]


def set_up(venv: Path, failing: str) -> subprocess.CompletedProcess[str]:
    """Install into an environment whose pip warns, installs nothing, and fails if it is given a certain argument."""
    python = venv / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\necho "WARNING: a warning of pip"\ncase "$*" in *{failing}*) echo "the reason"; exit 3;; esac\n'
    )
    python.chmod(0o755)
    return subprocess.run([REPOSITORY / ".ci" / "setup", "venv", venv], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("failing", "verbs"),
    [
        ("no-such-argument", ["Installing", "Installing", "Removing", "Installing"]),
        ("importlib.metadata", ["Installing", "Installing", "Installing"]),  # the distribution rucola is not there
    ],
)
def test_setup_prints_a_line_per_step(tmp_path: Path, failing: str, verbs: list[str]) -> None:
    done = set_up(tmp_path / "venv", failing)
    assert done.returncode == 0
    assert done.stderr == ""
    assert re.findall(r"^(\w+) .* \.\.\. \d+ s\n", done.stdout, re.MULTILINE) == verbs
    assert done.stdout.count("\n") == len(verbs)


def test_setup_shows_the_whole_output_of_a_step_that_fails(tmp_path: Path) -> None:
    done = set_up(tmp_path / "venv", "requirements.lock")
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1].endswith("... failed")
    assert done.stderr == "WARNING: a warning of pip\nthe reason\n"


@pytest.mark.slow
def test_tests_of_the_broker_need_no_package_of_spark() -> None:
    hide = f"import sys; sys.modules.update(dict.fromkeys({SPARK}))"
    collect = "import pytest; sys.exit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
    rooms = [str(REPOSITORY / "tests" / room) for room in ROOMS]
    done = subprocess.run(
        [sys.executable, "-c", f"{hide}; {collect}", *rooms], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert all(f"tests/{room}/test_" in done.stdout for room in ROOMS)


def interpreter(path: Path, version: str) -> Path:
    """A program that answers as an interpreter of this version would; an empty version is one that does not work."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n" if version else "#!/bin/sh\nexit 127\n")
    path.chmod(0o755)
    return path


def test_interpreters_are_found_where_they_usually_are(tmp_path: Path) -> None:
    """pyenv puts programs into PATH that do not work, since another version is active."""
    shims, pyenv, uv = tmp_path / "shims", tmp_path / ".pyenv" / "versions", tmp_path / ".local/share/uv/python"
    for version in ("3.11", "3.12", "3.13"):
        interpreter(shims / f"python{version}", "")
    interpreter(pyenv / "3.12.9" / "bin" / "python3", "3.12 3.12.9")
    newest = interpreter(pyenv / "3.12.10" / "bin" / "python3", "3.12 3.12.10")
    threads = interpreter(uv / "cpython-3.14.2+freethreaded-linux" / "bin" / "python3", "3.14t 3.14.2")
    usual = interpreter(uv / "cpython-3.14.1-linux" / "bin" / "python3", "3.14 3.14.1")
    own = interpreter(tmp_path / "own" / "python", "3.13 3.13.0")
    environment = {"HOME": str(tmp_path), "PATH": f"{shims}:/bin", "PYTHONS": f"{own}:/nowhere/python"}
    found = {version: PYTHONS.find(version, environment) for version in PYTHONS.VERSIONS}
    assert found == {
        "3.11": None,
        "3.12": (newest, "3.12.10"),
        "3.13": (str(own), "3.13.0"),
        "3.14": (usual, "3.14.1"),
        "3.14t": (threads, "3.14.2"),
    }


def test_the_identity_of_an_interpreter_is_its_version() -> None:
    short, full = PYTHONS.identity(sys.executable)
    assert short.rstrip("t") == "{}.{}".format(*sys.version_info)
    assert sys.version.startswith(full)
    assert PYTHONS.identity("/nowhere/python") is None


def test_the_lock_of_the_core_is_a_part_of_the_lock() -> None:
    def pinned(name: str) -> dict[str, set[str]]:
        """The hashes of each pinned version."""
        lines = (REPOSITORY / name).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        return {line.split()[0]: set(re.findall(r"sha256:\w+", line)) for line in lines}

    core, everything = pinned("requirements-core.lock"), pinned("requirements.lock")
    assert len(core) > 15
    assert core.items() <= everything.items()
