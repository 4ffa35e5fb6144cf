"""The rebuild job: the bytes of a broker, written by many tasks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from rucola.cli.main import main
from rucola.errors import StoreError
from rucola.spark.jobs import rebuild
from rucola.store.tools.check import check
from rucola.store.tools.rebuild import detect_config
from support.small_store import SmallStore
from support.stores import GOLDEN_DELAYS, derived_files


@pytest.mark.spark
def test_every_rebuilt_byte_equals_apaches(spark: SparkSession, golden: Path, tmp_path: Path) -> None:
    theirs = golden / "g1-clean" / "store"
    settings = detect_config(theirs)
    settings.message_delay_level = GOLDEN_DELAYS
    done = rebuild.run(spark, theirs, tmp_path / "out", settings=settings)
    assert derived_files(tmp_path / "out") == derived_files(theirs)
    assert (done.messages, done.units, done.index_files, done.index_entries) == (2556, 2556, 2, 7432)
    # In place, over what was damaged.
    store = Path(shutil.copytree(theirs, tmp_path / "store"))
    shutil.rmtree(store / "index")
    queue_file = store / "consumequeue" / "GSpam" / "0" / f"{0:020d}"
    queue_file.write_bytes(bytes(queue_file.stat().st_size))
    assert rebuild.run(spark, store, settings=settings).path == store
    assert derived_files(store) == derived_files(theirs)
    assert check(store) == []


@pytest.mark.spark
def test_the_command_prints_what_it_wrote(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    for number in range(60):  # more than a file of the log; where that ends, nothing more is read
        small_store.put("Tä", number % 2, KEYS="a b", TAGS="x")
    arguments = ["pipeline", "rebuild", str(small_store.path), "--out", str(tmp_path / "out")]
    (tmp_path / "broker.conf").write_text("maxHashSlotNum=10\nmaxIndexNum=50\n")
    result = CliRunner().invoke(main, [*arguments, "-c", str(tmp_path / "broker.conf"), "--json"])
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)
    assert (done["messages"], done["queues"], done["units"]) == (60, 2, 60)
    assert (done["indexEntries"], done["indexFiles"]) == (120, 3)
    for queue in ("0", "1"):
        theirs = small_store.path / "consumequeue" / "Tä" / queue / f"{0:020d}"
        assert (tmp_path / "out" / "consumequeue" / "Tä" / queue / f"{0:020d}").read_bytes() == theirs.read_bytes()


@pytest.mark.spark
def test_damage_is_one_line_and_leaves_the_store_unchanged(
    spark: SparkSession, small_store: SmallStore, tmp_path: Path
) -> None:
    places = [small_store.put() for _ in range(3)]
    small_store.overwrite(places[1] + 88, b"X")
    before = derived_files(small_store.path)
    with pytest.raises(StoreError, match=r"0{20} at byte \d+: .*Run `rucola store repair DIR --out COPY`"):
        rebuild.run(spark, small_store.path)
    assert derived_files(small_store.path) == before
    with pytest.raises(StoreError):
        rebuild.run(spark, tmp_path)
