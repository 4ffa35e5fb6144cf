"""stat counts what Apache's summaries count."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rucola.store.tools.stat import stat


@pytest.mark.parametrize("name", ["g1-clean", "g2-crash"])
def test_stat_equals_the_golden_stores(golden: Path, name: str) -> None:
    seen: list[tuple[int, int]] = []
    counted = stat(golden / name / "store", progress=lambda *far: seen.append(far))
    rows = [json.loads(line) for line in (golden / name / "expected.jsonl").read_text().splitlines()]
    summary = json.loads((golden / name / "summary.json").read_text())
    log = counted.log
    assert log.records.messages == len(rows) == summary["messages"]
    assert log.records.size == sum(row["storeSize"] for row in rows)
    assert log.end == summary["commitLogEnd"]
    assert log.blanks == len(summary["blanks"])
    assert log.blank_size == sum(blank["blankSize"] for blank in summary["blanks"])
    assert log.records.size + log.blank_size + log.unused == log.files * log.file_size
    times = [row["storeTimestamp"] for row in rows]
    assert (log.records.first_timestamp, log.records.last_timestamp) == (min(times), max(times))
    assert sum(queue.max_offset - queue.min_offset for queue in counted.queues) == summary["cqUnits"]
    for queue in counted.queues:
        own = [row for row in rows if (row["topic"], row["queueId"]) == (queue.topic, queue.queue_id)]
        assert (queue.in_log.messages, queue.in_log.size) == (len(own), sum(row["storeSize"] for row in own))
    assert counted.abort == (name == "g2-crash")
    assert counted.config["topics.json"] > 0
    assert seen[-1][0] == seen[-1][1]
    # Every key has its entry, but for those of the last message in the crashed store.
    entries = sum(file.entries for file in counted.index)
    assert entries == log.records.keys - (3 if name == "g2-crash" else 0)
    assert all(0 < file.slots_used <= file.slots for file in counted.index)


def test_stat_names_damage(golden: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(golden / "recovery" / "first-file-body-flip" / "store", tmp_path / "store"))
    log = stat(store).log
    assert log.damage is not None
    assert "at physical offset 4395" in log.damage
    assert log.end == 4395
