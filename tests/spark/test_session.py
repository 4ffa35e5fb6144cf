from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from rucola.errors import ConfigError
from rucola.spark import session
from support.small_store import SmallStore


def runtime(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_392", 8), ("11.0.2", 11), ("17", 17), ("17.0.9", 17), ("25-ea", 25)]
)
def test_versions_are_read(tmp_path: Path, version: str, major: int) -> None:
    assert session.java_version(runtime(tmp_path / "jvm", version)) == major


def test_no_runtime_has_no_version(tmp_path: Path) -> None:
    assert session.java_version(tmp_path) is None
    runtime(tmp_path / "jvm", "17").joinpath("release").unlink()
    assert session.java_version(tmp_path / "jvm") is None


def test_the_first_fitting_runtime_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = runtime(tmp_path / "own", "11.0.2")
    on_path = runtime(tmp_path / "path", "1.8.0_392")
    directory = tmp_path / "jvm"
    newest, fitting = runtime(directory / "a", "21.0.1"), runtime(directory / "b", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(own))
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    monkeypatch.setattr(session, "JVM_DIRECTORIES", (directory,))
    assert session.java_home() == fitting
    runtime(tmp_path / "good", "17.0.1")
    monkeypatch.setenv("PATH", str(tmp_path / "good" / "bin"))
    assert session.java_home() == tmp_path / "good"
    monkeypatch.setenv("JAVA_HOME", str(newest))
    assert session.java_home() == newest


def test_without_a_runtime_one_sentence_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = runtime(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(session, "JVM_DIRECTORIES", (tmp_path / "none",))
    with pytest.raises(ConfigError) as raised:
        session.java_home()
    text = str(raised.value)
    assert f"found Java 11 in {old}" in text
    assert "apt-get install openjdk-17-jre-headless" in text
    assert "\n" not in text


@pytest.mark.spark
def test_a_job_runs_where_spark_submit_says(small_store: SmallStore, tmp_path: Path) -> None:
    """The command line itself is the program; its session keeps the master and the name that it was given."""
    small_store.put("T")
    program = tmp_path / "job.py"
    program.write_text(
        "from rucola.cli.main import main\n"
        "from rucola.spark.session import local_session\n"
        "context = local_session().sparkContext\n"
        "print(context.master, context.getConf().get('spark.ui.enabled'))\n"
        "main(prog_name='rucola')\n"
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    conf = ("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1")
    conf += ("--conf", "spark.driver.host=127.0.0.1")
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    machine = {
        "JAVA_HOME": str(session.java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
    }
    command = ["pipeline", "replay", "--from", small_store.path, "--dry-run", "--json"]
    done = subprocess.run(
        [submit, "--master", "local[1]", *conf, program, *command],
        capture_output=True,
        text=True,
        env={**os.environ, **python, **machine},
    )
    assert done.returncode == 0, done.stderr
    first, rest = done.stdout.split("\n", 1)
    assert first == "local[1] false"
    assert json.loads(rest)["rows"] == 1
