"""The data source in plain sessions, of programs whose interpreter is not the `python3` on PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rucola.spark.session import java_home
from support.documents import Document
from support.small_store import SmallStore

PAGE = Document.read("docs/spark.md")
REGISTERED = PAGE.texts("python")[0]
SPARK_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "SPARK_HOME", "VIRTUAL_ENV")


def run(program: str, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program with a `python3` on PATH that lacks Rucola, as in an environment that was not activated."""
    shadow = tmp_path / "bin"
    shadow.mkdir()
    python = shadow / "python3"
    python.write_text('#!/bin/sh\nexec /usr/bin/env PYTHONNOUSERSITE=1 "$REAL" -I -S "$@"\n')
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in SPARK_VARIABLES}
    environment |= {"PATH": f"{shadow}:/usr/bin:/bin", "REAL": sys.executable, "JAVA_HOME": str(java_home())}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", **variables}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)


def reading(store: Path) -> str:
    return f"""
table = spark.read.format("rocketmq").option("storePath", {str(store)!r}).load()
print([row.asDict() for row in table.groupBy("topic").count().collect()])
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_plain_session_reads_a_store_as_the_page_shows(small_store: SmallStore, tmp_path: Path) -> None:
    """The import alone suffices for a session that is created after it."""
    small_store.put("T")
    read = reading(small_store.path)
    done = run(REGISTERED.replace("rucola.spark.register", f"{read}rucola.spark.register") + read, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == 2 * "[{'topic': 'T', 'count': 1}]\n"
    assert "\tat org.apache" not in done.stderr


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_older_than_the_import_is_registered(small_store: SmallStore, tmp_path: Path) -> None:
    """Such a session looks for data sources with the other interpreter, and finds none."""
    small_store.put("T")
    read = reading(small_store.path)
    session = REGISTERED.replace("import rucola.spark\n", "").replace("rucola.spark.register(spark)\n", "")
    unregistered = (
        "try:\n    spark.read.format('rocketmq').load()\nexcept Exception as error:\n    print(str(error)[:200])\n"
    )
    register = "import rucola.spark\n" + 2 * "rucola.spark.register(spark)\n"
    done = run(session + unregistered + register + read, tmp_path)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert "DATA_SOURCE_NOT_FOUND" in done.stdout, before
    assert after == "[{'topic': 'T', 'count': 1}]"
    assert "\tat org.apache" not in done.stderr


SHOW = "import os, rucola.spark; print(os.environ.get('PYSPARK_PYTHON'), os.environ.get('PYSPARK_DRIVER_PYTHON'))"


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({}, f"{sys.executable} {sys.executable}"),
        ({"PYSPARK_PYTHON": "/opt/python"}, f"/opt/python {sys.executable}"),
        ({"PYSPARK_GATEWAY_PORT": "1"}, "None None"),
    ],
    ids=["unset", "set", "under spark-submit"],
)
def test_the_import_sets_the_interpreter_unless_it_is_set(
    variables: dict[str, str], shown: str, tmp_path: Path
) -> None:
    done = run(SHOW, tmp_path, **variables)
    assert done.stdout.strip() == shown
