"""Class data archive (AppCDS, JEP 350): Spark's parsed classes, which save up to half of the CPU time of a short job.

    $XDG_CACHE_HOME/rucola/spark-<key>.jsa     the archive, some 170 MB; by default below ~/.cache
    $XDG_CACHE_HOME/rucola/spark-<key>.part    claimed by a session without an archive, written when its runtime exits

The key is a hash of the Java release and the Spark installation. The runtime writes an archive's header last: a `.part`
with a header is complete, and the next session renames it. Creating the `.part` is the claim, which expires after an
hour. Archives not used for 30 days are removed. An archive is optional: without it, sessions start more slowly.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

_CLAIM_S: Final = 60 * 60
_UNUSED_S: Final = 30 * 24 * 60 * 60
_CONFIGURATION_DIRECTORIES: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
_QUIET: Final = "-Xlog:cds*=off"
"""Silences warnings about archives, which runtimes print to stdout, between the results of a command."""


def java_options(java_home: Path) -> list[str]:
    """Return runtime options that use the archive or, if missing, write it at exit; none if neither is possible."""
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    if not _can_archive(java_home, home):
        return []
    try:
        archive = _directory() / f"spark-{_key(java_home, home)}.jsa"
        part = archive.with_suffix(".part")
        # The runtime of an earlier session has written the archive at its exit.
        if _is_complete(part):
            part.replace(archive)
        if archive.exists():
            with suppress(OSError):
                os.utime(archive)  # marks the archive as used; fails harmlessly in a read-only cache
            return [_QUIET, f"-XX:SharedArchiveFile={archive}"]
        # No archive: this session writes it, unless another session does.
        if _claim(part):
            return [_QUIET, f"-XX:ArchiveClassesAtExit={part}"]
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        pass
    return []


def _can_archive(java_home: Path, spark_home: Path) -> bool:
    """Return whether this runtime can archive these classes: not if the class path has a non-empty directory."""
    directories = [os.environ[name] for name in _CONFIGURATION_DIRECTORIES if name in os.environ]
    return (
        (java_home / "lib" / "server" / "classes.jsa").is_file()
        and not directories
        and not any((spark_home / "conf").glob("*"))
    )


def _directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "rucola"


def _key(java_home: Path, spark_home: Path) -> str:
    jars = spark_home / "jars"
    parts = (java_home / "release").read_bytes(), os.fsencode(jars), str(jars.stat().st_mtime_ns).encode()
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _is_complete(part: Path) -> bool:
    """Return whether an archive has its header, whose magic number is not zero."""
    try:
        with part.open("rb") as file:
            return any(file.read(4))
    except FileNotFoundError:
        return False


def _claim(part: Path) -> bool:
    """Claim the writing of the archive, and return whether that succeeded. Also removes unused archives."""
    part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = time.time()
    for path in part.parent.glob("spark-*"):
        if now - path.stat().st_mtime > (_CLAIM_S if path == part else _UNUSED_S):
            path.unlink(missing_ok=True)
    try:
        part.open("x").close()
    except FileExistsError:
        return False
    return True
