"""A standalone Spark cluster: one master and one worker, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from rucola.spark import session
from support.processes import wait_for

_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1"}
_MOUNT = 'while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; shift; exec "$@"'


@contextmanager
def spark_cluster(folder: Path, replaced: Mapping[Path, Path] | None = None) -> Iterator[str]:
    """The address of a master with one worker, which works below `folder`.

    The worker has mounts of its own: at each path that is a key of `replaced`, it sees the directory that is the value.
    """
    folder.mkdir(exist_ok=True)
    with _process(folder / "master", [], "master.Master", "--port", "0") as (master, log):
        address = _line_of(master, log, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"))
        with _process(folder / "worker", _with_mounts(replaced or {}), "worker.Worker", *size, address):
            yield address


def _with_mounts(replaced: Mapping[Path, Path]) -> list[str]:
    """The begin of a command that runs in a mount namespace of its own."""
    if not replaced:
        return []
    # Root needs no user namespace, which some containers forbid; anyone else needs one.
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    tried = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
    assert tried.returncode == 0, f"this test needs mount namespaces: {' '.join(unshare)} says {tried.stderr.strip()}"
    pairs = [str(path) for pair in replaced.items() for path in reversed(pair)]
    return [*unshare, "sh", "-ec", _MOUNT, "sh", *pairs, "--"]


@contextmanager
def _process(
    log: Path, before: Sequence[str], name: str, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process of Spark's own cluster, whose log is a file."""
    command = [*before, _SPARK_CLASS, f"org.apache.spark.deploy.{name}", "--webui-port", "0", "--host", "127.0.0.1"]
    with (
        log.open("wb") as file,
        subprocess.Popen(
            [*command, *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_LOOPBACK, "JAVA_HOME": str(session.java_home())},
        ) as process,
    ):
        try:
            yield process, log
        finally:
            process.terminate()


def _line_of(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    """Wait until a process has written a line, and return what it says."""
    found: list[str] = []

    def is_there() -> bool:
        found.extend(re.findall(pattern, log.read_text()))
        return bool(found)

    wait_for(is_there, process)
    return found[0]
