"""The class data archive: made once, mapped by the next runtime, and never needed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rucola.spark import class_archive
from rucola.spark.session import java_home
from support.waiting import wait_until

# Prints which archives the runtime has mapped, how a worker imports PySpark, and the process of the runtime.
PROGRAM = """
from pathlib import Path
from rucola.spark.session import local_session
spark = local_session("tests", cores=1, is_short=True)
java = spark.sparkContext._jvm.ProcessHandle.current().pid()
maps = Path(f"/proc/{java}/maps").read_text()
def where(batches):
    import pyspark
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"path": [pyspark.__file__]})
(row,) = spark.range(0, 1, 1, 1).mapInArrow(where, "path string").collect()
print(java, row.path, *{line.split(maxsplit=5)[5] for line in maps.splitlines() if line.endswith(".jsa")}, sep="\\n")
"""


def session_in(cache: Path) -> tuple[int, str, set[Path]]:
    """Run the program with a cache directory; return the runtime's process, PySpark's path, and mapped archives."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    java, pyspark, *archives = done.stdout.splitlines()
    return int(java), pyspark, set(map(Path, archives))


def wait_for_end(process: int) -> None:
    """Wait for a process that is no child of this one."""
    wait_until(lambda: not Path(f"/proc/{process}").exists())


@pytest.mark.spark
def test_the_second_session_maps_the_archive_of_the_first(tmp_path: Path) -> None:
    cache = tmp_path / "a cache"
    java, pyspark, archives = session_in(cache)
    own = java_home() / "lib" / "server" / "classes.jsa"
    assert archives == {own}
    assert ".zip" not in pyspark
    wait_for_end(java)
    (part,) = (cache / "rucola").iterdir()
    assert part.suffix == ".part"
    _, _, archives = session_in(cache)
    assert archives == {own, part.with_suffix(".jsa")}
    assert list((cache / "rucola").iterdir()) == [part.with_suffix(".jsa")]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a runtime with an archive of its own, and an empty cache directory."""
    home = tmp_path / "jvm"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    return home


def named(options: list[str]) -> tuple[str, Path]:
    """The option that names an archive, and the path it names."""
    (option,) = (option for option in options if "Archive" in option)
    name, _, path = option.partition("=")
    return name, Path(path)


def test_one_session_at_a_time_writes_an_archive(runtime: Path) -> None:
    name, part = named(class_archive.java_options(runtime))
    assert name == "-XX:ArchiveClassesAtExit"
    assert class_archive.java_options(runtime) == []  # while the first one has the claim
    part.write_bytes(bytes(4096))  # a runtime that is writing: the header comes last
    assert class_archive.java_options(runtime) == []
    an_hour_ago = time.time() - 2 * 60 * 60
    os.utime(part, (an_hour_ago, an_hour_ago))  # a runtime that was killed
    assert named(class_archive.java_options(runtime)) == (name, part)
    assert part.read_bytes() == b""


def test_a_complete_archive_is_used_and_old_ones_are_removed(runtime: Path) -> None:
    _, part = named(class_archive.java_options(runtime))
    part.write_bytes(b"\xa8\xab\x0b\xf0" + bytes(4092))
    archive = part.with_suffix(".jsa")
    for _ in range(2):
        assert named(class_archive.java_options(runtime)) == ("-XX:SharedArchiveFile", archive)
    assert not part.exists()
    old = archive.with_name("spark-old.jsa")
    for path in (old, archive):
        path.touch()
        os.utime(path, (0, 0))
    class_archive.java_options(runtime)
    assert archive.stat().st_mtime > time.time() - 60  # it was used
    (runtime / "release").write_text('JAVA_VERSION="21.0.1"\n')
    assert named(class_archive.java_options(runtime))[1] not in (archive, part)
    assert archive.exists()
    assert not old.exists()


def test_a_session_works_without_an_archive(runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert class_archive.java_options(runtime) == []
    monkeypatch.delenv("HADOOP_CONF_DIR")
    (tmp_path / "cache").write_text("a file, and no directory")
    assert class_archive.java_options(runtime) == []
    (tmp_path / "cache").unlink()
    (runtime / "lib" / "server" / "classes.jsa").unlink()
    assert class_archive.java_options(runtime) == []
    assert not (tmp_path / "cache").exists()


def test_an_archive_in_a_read_only_cache_is_used(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, part = named(class_archive.java_options(runtime))
    archive = part.rename(part.with_suffix(".jsa"))

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "utime", refuse)
    assert named(class_archive.java_options(runtime)) == ("-XX:SharedArchiveFile", archive)
