"""`rucola pipeline`: archive, compact and search on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rucola.cli.main import main


@pytest.mark.spark
def test_archive_prints_its_summary_and_adds_nothing_the_second_time(golden: Path, tmp_path: Path) -> None:
    store, lake = golden / "g1-clean" / "store-after-restart", tmp_path / "lake"
    arguments = ["pipeline", "archive", "--store", str(store), "--out", str(lake)]
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    first = json.loads(result.stdout)
    assert first["topics"]["GSpam"] == 2000
    assert first["rows"] == sum(first["topics"].values())
    assert len(list(lake.glob("data/topic=*/*/*.parquet"))) == first["files"] > 0
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"0 messages of {store} archived in {lake}, in 0 files"


@pytest.mark.spark
def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["pipeline", "archive", "--store", str(tmp_path), "--out", str(tmp_path / "lake")]
    )
    assert result.exit_code == 1
    assert str(tmp_path) in result.stderr
    assert not (tmp_path / "lake").exists()


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, arguments)])


@pytest.mark.spark
def test_a_lake_is_filled_compacted_and_searched(golden: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    stores: list[str | Path] = []
    for name in ("g1-clean", "g2-crash"):
        stores += ["--store", golden / name / "store", "--brokerName", name]
    result = invoke("archive", *stores, "--out", lake)
    assert result.exit_code == 0, result.output
    result = invoke("compact", "--lake", lake, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["keyFiles"] == {"replaced": 2, "written": 1}

    lines = (golden / "g1-clean" / "expected.jsonl").read_text().splitlines()
    wanted = next(row for row in map(json.loads, lines) if row["properties"].get("KEYS") and row["topic"] == "GSpam")
    key = wanted["properties"]["KEYS"].split()[0]
    result = invoke("search", "--lake", lake, "-t", "GSpam", "-k", key, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    places = [(each["brokerName"], each["commitLogOffset"]) for each in found["messages"]]
    assert ("g1-clean", wanted["commitLogOffset"]) in places
    assert all(key in each["keys"].split() for each in found["messages"])
    result = invoke("search", "--lake", lake, "-i", wanted["offsetMsgId"])
    assert wanted["msgId"] in result.stdout
    assert len(result.stdout.splitlines()) == 2
    result = invoke("search", "--lake", lake, "-t", "GSpam", "-m", "3")
    assert len(result.stdout.splitlines()) == 4
    assert result.stderr == "these are the newest 3 of more messages; raise the limit with -m\n"
    result = invoke("search", "--lake", lake, "-k", "no such key")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no message matches\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["archive"], "give either --store or --namesrvAddr"),
        (["archive", "--store", ".", "-n", "h:1"], "give either --store or --namesrvAddr"),
        (["archive", "-n", "h:1", "--brokerName", "a"], "live brokers have names of their own"),
        (["archive", "--store", ".", "--brokerName", "a", "--brokerName", "b"], "there are 1 stores and 2 names"),
    ],
)
def test_contradictory_options_are_refused(tmp_path: Path, arguments: list[str], reason: str) -> None:
    result = invoke(*arguments, "--out", tmp_path / "lake")
    assert result.exit_code == 2
    assert reason in result.stderr
    assert not (tmp_path / "lake").exists()


@pytest.mark.spark
@pytest.mark.parametrize("command", ["compact", "search"])
def test_a_directory_without_a_lake_is_refused(tmp_path: Path, command: str) -> None:
    result = invoke(command, "--lake", tmp_path, *(["-k", "key"] if command == "search" else []))
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: {tmp_path} is not a lake; give a directory into which `rucola pipeline archive` has written\n"
    )
