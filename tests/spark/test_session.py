from __future__ import annotations

from pathlib import Path

import pytest

from rucola.errors import ConfigError
from rucola.spark import session


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
    monkeypatch.setattr(session, "_JVM_DIRECTORIES", (directory,))
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
    monkeypatch.setattr(session, "_JVM_DIRECTORIES", (tmp_path / "none",))
    with pytest.raises(ConfigError) as raised:
        session.java_home()
    text = str(raised.value)
    assert f"there is Java 11 in {old}" in text
    assert "apt-get install openjdk-17-jre-headless" in text
    assert "\n" not in text
