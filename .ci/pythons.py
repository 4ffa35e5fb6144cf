"""The tests of the core with every Python at hand: store, protocol, broker, clients and the pytest fixture.

    .venv/bin/python .ci/pythons.py [ARGUMENT OF PYTEST...]

Looks for each supported version in PYTHONS (paths separated by colons), PATH, and the directories of pyenv and uv. Each
interpreter gets an environment in build/pythons with the packages of requirements-core.lock and a wheel of this
checkout, so that the tests run what users install. The version of the running interpreter is left out, since
`make test` tests it. Prints one line per version; the exit code is 1 if a test failed. A version that is not found is
no failure.

Then the same seed must give the same run of a simulated cluster as with the running interpreter (docs/simulation.md).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PLACE = REPOSITORY / "build" / "pythons"
LOCK = REPOSITORY / "requirements-core.lock"
VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.14t")
"""The supported versions; `t` is a free-threaded build, for which not every dependency has a wheel."""
ROOMS = ("admin", "broker", "client", "http2", "message", "namesrv", "protocol", "remoting", "store", "testing")
"""The directories of tests that need no package of the extras `spark` and `reliable`."""
WARNINGS = ("-W", "default::pytest.PytestUnraisableExceptionWarning")
"""asyncio of 3.13.0 raises in transports that are collected after their server; in 3.11 such an error fails a test."""
SEED = 1
"""Of a run without an election, which would need the extra `etcd`."""
SAME_RUNS = ("3.11", "3.12", "3.13")
"""Versions with which the transcript of a run is the same."""
MARKERS = "not slow and not spark and not external"
IDENTITY = (
    "import sys, sysconfig; free = sysconfig.get_config_var('Py_GIL_DISABLED'); "
    "print('%d.%d' % sys.version_info[:2] + 't' * bool(free), sys.version.split()[0])"
)


def identity(python: Path | str) -> tuple[str, str] | None:
    """Return the version as in VERSIONS and in full; None if this is no interpreter that works."""
    try:
        done = subprocess.run([python, "-c", IDENTITY], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    return (words[0], words[1]) if done.returncode == 0 and len(words) == 2 else None


def candidates(version: str, environment: Mapping[str, str]) -> Iterator[Path | str]:
    """Yield where an interpreter of a version may be, the best place first."""
    yield from filter(None, environment.get("PYTHONS", "").split(":"))
    if found := shutil.which(f"python{version}", path=environment.get("PATH")):
        yield found
    home = Path(environment.get("HOME", "/"))
    number = version.rstrip("t")
    pyenv = Path(environment.get("PYENV_ROOT") or home / ".pyenv")
    uv = Path(environment.get("UV_PYTHON_INSTALL_DIR") or home / ".local" / "share" / "uv" / "python")
    for directory, pattern in ((pyenv / "versions", f"{number}.*"), (uv, f"cpython-{number}.*")):
        newest_first = sorted(directory.glob(pattern), key=_numbers, reverse=True)
        yield from (each / "bin" / "python3" for each in newest_first)


def _numbers(directory: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", directory.name)]


def find(version: str, environment: Mapping[str, str]) -> tuple[Path | str, str] | None:
    """Return an interpreter of a version, and its full version; None if there is none."""
    for python in candidates(version, environment):
        found = identity(python)
        if found and found[0] == version:
            return python, found[1]
    return None


def make_environment(python: Path | str, venv: Path, wheel: Path) -> Path:
    """Make or update the environment of an interpreter, and return its own interpreter."""
    lock, stamp, own = LOCK.read_text(encoding="utf-8"), venv / "installed.lock", venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", own, "install"]
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != lock:
        run(python, "-m", "venv", "--clear", "--without-pip", venv)
        run(*pip, "--only-binary", ":all:", "--no-deps", "--require-hashes", "-r", LOCK)
        stamp.write_text(lock, encoding="utf-8")
    run(*pip, "--no-index", "--no-deps", "--force-reinstall", wheel)
    return own


@cache
def build(speed: str) -> Path:
    """Return a wheel of this checkout: without the accelerator if `speed` is "0", with it if possible if it is ""."""
    place = PLACE / f"wheel{speed}"
    shutil.rmtree(place, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place, RUCOLA_SPEED=speed)
    (wheel,) = place.glob("*.whl")
    return wheel


def run(*command: str | Path, **environment: str) -> str:
    """Run a command in the repository, and return the last line of its output; RuntimeError with all if it fails."""
    done = subprocess.run(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | environment,
    )
    if done.returncode:
        raise RuntimeError(done.stdout)
    return (done.stdout.strip().splitlines() or [""])[-1]


@cache
def transcript(python: Path | str) -> str:
    """Run a simulated cluster, and return what happened."""
    command = [python, "-m", "simulation.cluster", "--seed", str(SEED)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "tests")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


def main(arguments: list[str]) -> int:
    own, failed = identity(sys.executable), 0
    for version in VERSIONS:
        if own and version == own[0]:
            print(f"Python {version}: tested by `make test`", flush=True)
            continue
        if (found := find(version, os.environ)) is None:
            print(f"Python {version}: not found, NOT TESTED", flush=True)
            continue
        print(f"Python {found[1]}{'t' * version.endswith('t')} ... ", end="", flush=True)
        begin = time.monotonic()
        wheel = build("0" if version.endswith("t") else "")  # the stable ABI does not exist for free-threaded builds
        rooms = [f"tests/{room}" for room in ROOMS]
        # One worker more than cores, since these tests wait for a part of their time, and `make test` has all examples.
        options = ["-n", str(min(4, (os.cpu_count() or 1) + 1)), "--dist", "loadfile", "--max-worker-restart", "0"]
        options += ["--reruns", "1"]  # as in .ci/run
        options += ["--hypothesis-profile", "quick", "-p", "no:cacheprovider"]
        try:
            python = make_environment(found[0], PLACE / version, wheel)
            result = run(python, "-m", "pytest", *WARNINGS, "-m", MARKERS, *options, *(arguments or rooms))
            if own and {own[0], version} <= {*SAME_RUNS} and transcript(python) != transcript(sys.executable):
                raise RuntimeError(f"seed {SEED} of the simulated cluster gives another run than with {own[1]}")
            print(f"{result}, {time.monotonic() - begin:.0f} s in all", flush=True)
        except RuntimeError as error:
            failed = 1
            print(f"failed\n{error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
