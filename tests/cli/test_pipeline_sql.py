"""`rucola pipeline sql`: DuckDB's SQL over the messages of a lake, and nothing but these."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rucola.cli.main import main
from rucola.errors import ConfigError
from rucola.spark.jobs import archive, sql
from rucola.spark.session import LazySession
from support.rows import put_all_sorts
from support.small_store import SmallStore


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    store = SmallStore(tmp_path / "store")
    put_all_sorts(store)
    archive.run(LazySession("tests", use_spark=False), store.path, tmp_path / "lake")
    return tmp_path / "lake"


def query(lake: Path, text: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", "sql", "--lake", str(lake), text, *options])


def test_rows_come_as_a_table_as_json_and_as_csv(lake: Path) -> None:
    counts = "SELECT topic, date, count(*) AS n FROM messages WHERE tags = 'A' GROUP BY ALL ORDER BY date"
    found = query(lake, counts)
    assert found.exit_code == 0, found.output
    assert [line.split() for line in found.stdout.splitlines()] == [
        ["topic", "date", "n"],
        ["T", "1970-01-01", "1"],
        ["T", "2023-11-14", "1"],
        ["T", "2023-11-15", "1"],
        ["T", "1"],
    ]
    all_columns = json.loads(query(lake, "FROM messages WHERE queueOffset = 1", "-t", "T", "--json").stdout)
    (row,) = all_columns["rows"]
    assert (row["body"], row["keys"], row["properties"]["KEYS"]) == ("é漢", ["é", "k1", "k1"], "é k1 k1")
    assert row["storeTimestamp"].startswith("2023-11-1")
    assert not all_columns["cut"]
    cut = query(lake, "SELECT topic, body, tags FROM messages ORDER BY topic DESC", "--csv", "-m", "7")
    rows = list(csv.reader(io.StringIO(cut.stdout)))
    assert (len(rows), rows[0], rows[1]) == (8, ["topic", "body", "tags"], ["T", "é漢", "A"])
    assert cut.stderr
    assert query(lake, "SELECT 1", "--csv", "--json").exit_code == 2


def test_numbers_are_shown_as_bars(lake: Path) -> None:
    """Those of the last column of numbers, in relation to the largest; others have none."""
    values = "(VALUES ('a', 1, 2.5, true), ('b', 2, 10, true), ('c', 3, -1, NULL), ('d', 4, NULL, false))"
    shown = query(lake, f"SELECT * FROM {values}", "--chart")
    assert shown.exit_code == 0, shown.output
    assert [line.count("█") for line in shown.stdout.splitlines()] == [0, 10, 40, 0, 0]
    assert query(lake, "SELECT topic FROM messages", "--chart").exit_code == 1
    assert query(lake, "SELECT topic FROM messages WHERE topic = 'none'", "--chart").exit_code == 0
    assert query(lake, "SELECT 1", "--chart", "--json").exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        "SELEC 1",
        "SELECT nothing FROM messages",
        "",
        "SELECT 1; SELECT 2",
        "DROP VIEW messages",
        "SET enable_external_access = true",
        "SELECT * FROM read_text('/etc/hostname')",
        "COPY (SELECT 1) TO '{lake}/x.csv'",
        "ATTACH '{lake}/_rucola/catalog.db' (TYPE sqlite)",
        "INSTALL httpfs",
    ],
)
def test_what_is_no_query_of_the_messages_is_refused(lake: Path, text: str) -> None:
    before = sorted(lake.rglob("*"))
    found = query(lake, text.format(lake=lake))
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr
    assert sorted(lake.rglob("*")) == before


def test_a_query_ends_after_its_time(lake: Path) -> None:
    with pytest.raises(ConfigError):
        sql.run(lake, "SELECT count(*) FROM range(100_000_000_000) WHERE sqrt(range) = 0.5", timeout_s=0.2)
    assert sql.run(lake, "SELECT count(*) FROM messages").rows == [(12,)]


def test_a_lake_is_needed(tmp_path: Path) -> None:
    found = query(tmp_path, "SELECT 1")
    assert found.exit_code == 1
    assert str(tmp_path) in found.stderr
