"""`make release-check`: build what a release has, check it as an index would, and use each file as a reader does.

    wheel with the accelerator    for this platform, every Python from 3.11 on
    wheel without it              pure Python, for all others
    sdist                         installed by building it

Each is installed into an environment that is empty but for what pip fetches, and runs the first program of README.md
against the `rucola standalone` installed with it. With `--installed` only that, for the Python that runs this script.
The files are left in build/release.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RELEASE = REPOSITORY / "build" / "release"
SHOWN = "order-1 b'one pizza'\n"


def run(*command: str | Path, cwd: Path = REPOSITORY, **environment: str) -> str:
    """Run a command to its end; return what it printed. SystemExit with its output if it fails."""
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment}
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build() -> list[Path]:
    """Build the files of a release; return their paths."""
    shutil.rmtree(RELEASE, ignore_errors=True)
    hatchling = sys.executable, "-m", "hatchling", "build", "-d", RELEASE
    run(*hatchling, "-t", "wheel", "-t", "sdist", RUCOLA_SPEED="1")
    run(*hatchling, "-t", "wheel", RUCOLA_SPEED="0")
    files = sorted(RELEASE.iterdir())
    assert [file.suffix for file in files].count(".whl") == 2, files
    assert len(files) == 3, files
    return files


def first_program(python: Path) -> None:
    """Run the first program of README.md in an empty directory, with the package that this Python has."""
    program = re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / "README.md").read_text("utf-8"), re.M | re.S)[0]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "first.py").write_text(program, encoding="utf-8")
        ports = ["--namesrv-port", "0", "--broker-port", "0", "--grpc-port", "0"]
        command = [str(python), "-m", "rucola", "standalone", "--store", "store", *ports]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=directory)
        assert server.stdout is not None
        with server, server.stdout as stdout:
            try:
                ready = stdout.readline()
                namesrv = re.search(r"namesrv=(\S+)", ready)
                if namesrv is None:
                    sys.exit(f"{' '.join(command)} is not ready: {ready!r}")
                printed = run(python, "first.py", cwd=directory, ROCKETMQ_NAMESRV=namesrv[1])
            finally:
                server.terminate()
        if printed != SHOWN or server.returncode:
            sys.exit(f"first.py printed {printed!r}, not {SHOWN!r}; the server ended with {server.returncode}")


def install(file: Path, environment: Path) -> Path:
    """Install a file into a new environment; return its Python."""
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", file)
    return python


def main() -> None:
    if "--installed" in sys.argv[1:]:
        first_program(Path(sys.executable))
        return
    files = build()
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    for file in files:
        with tempfile.TemporaryDirectory() as name:
            python = install(file, Path(name, "venv"))
            version = run(python, "-m", "rucola", "--version", cwd=Path(name)).strip()
            first_program(python)
        print(f"{file.name}: {version}; the first program works", flush=True)


if __name__ == "__main__":
    main()
