"""`rucola store` on the golden stores, whole and damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from rucola.cli.main import main


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ("g1-clean/store", "g1-clean/expected.jsonl"),
        ("g1-clean/store-after-restart", "g1-clean/after-expected.jsonl"),
        ("g2-crash/store", "g2-crash/expected.jsonl"),
    ],
)
def test_dump_prints_what_apaches_decoder_reads(golden: Path, store: str, expected: str) -> None:
    result = CliRunner().invoke(main, ["store", "dump", str(golden / store)])
    assert result.exit_code == 0, result.stderr
    printed = [json.loads(line) for line in result.stdout.splitlines()]
    assert printed == [json.loads(line) for line in (golden / expected).read_text(encoding="utf-8").splitlines()]


def test_check_of_a_clean_store(golden: Path) -> None:
    result = CliRunner().invoke(main, ["store", "check", str(golden / "g1-clean" / "store")])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("store is clean\n")
    result = CliRunner().invoke(main, ["store", "check", str(golden / "g1-clean" / "store"), "--json"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


def test_check_names_the_damage(golden: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(golden / "g1-clean" / "store", tmp_path / "store"))
    log = store / "commitlog" / f"{0:020}"
    first = json.loads((golden / "g1-clean" / "expected.jsonl").read_text(encoding="utf-8").splitlines()[0])
    data = bytearray(log.read_bytes())
    body = 88  # where the body of a record with IPv4 hosts begins
    assert first["commitLogOffset"] == 0
    data[body] ^= 1
    log.write_bytes(data)
    result = CliRunner().invoke(main, ["store", "check", str(store)])
    assert result.exit_code == 1
    assert f"{log} at byte 0: " in result.stdout
    result = CliRunner().invoke(main, ["store", "check", str(store), "--json"])
    assert result.exit_code == 1
    findings = json.loads(result.stdout)
    assert (str(log), 0) in {(finding["path"], finding["position"]) for finding in findings}
    assert all(finding["what"] for finding in findings)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    for command in ("check", "dump"):
        result = CliRunner().invoke(main, ["store", command, str(tmp_path / "nothing")])
        assert result.exit_code == 2
        assert "nothing" in result.stderr


def test_a_directory_that_is_no_store(tmp_path: Path) -> None:
    for command in ("check", "dump"):
        result = CliRunner().invoke(main, ["store", command, str(tmp_path)])
        assert result.exit_code == 1
        assert result.stdout == ""
        assert f"{tmp_path} is no store directory" in result.stderr
