"""`rucola pipeline archive`: the job by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rucola.cli.main import main


@pytest.mark.spark
def test_archive_says_what_it_wrote_and_adds_nothing_the_second_time(golden: Path, tmp_path: Path) -> None:
    store, lake = golden / "g1-clean" / "store-after-restart", tmp_path / "lake"
    arguments = ["pipeline", "archive", "--store", str(store), "--out", str(lake)]
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    first = json.loads(result.stdout)
    assert first["topics"]["GSpam"] == 2000
    assert first["rows"] == sum(first["topics"].values())
    assert len(list(lake.rglob("*.parquet"))) == first["files"] > 0
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"0 messages of {store} archived in {lake}, in 0 files"


@pytest.mark.spark
def test_what_is_no_store_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["pipeline", "archive", "--store", str(tmp_path), "--out", str(tmp_path / "lake")]
    )
    assert result.exit_code == 1
    assert str(tmp_path) in result.stderr
    assert not (tmp_path / "lake").exists()
