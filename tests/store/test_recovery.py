"""Opening a store: what is said meanwhile. What comes of it is in `tests/faults` and beside the golden stores."""

from __future__ import annotations

import itertools
import logging
import re
from pathlib import Path

import pytest

from rucola.store import recovery
from support.stores import OpenStore, crashed_copy, inner


def test_long_recovery_logs_its_progress(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    for number in range(40):
        store.put(inner(body=bytes(900), queue_id=number % 2), 1)
    long, short = crashed_copy(store, tmp_path / "long"), crashed_copy(store, tmp_path / "short")
    caplog.set_level(logging.INFO, "rucola.store.recovery")
    with short:
        assert caplog.messages == [], "a second or so is not long"
    monkeypatch.setattr(recovery, "_STEP", 9000)
    with long:
        assert long.max_physical_offset == store.max_physical_offset
        end = -(-store.max_physical_offset // 4096) * 4096
    told = [re.fullmatch(r"(.*): read up to (\d+); the log ends before (\d+)", message) for message in caplog.messages]
    assert [(line[1], line[3]) for line in told if line] == [(str(tmp_path / "long" / "commitlog"), str(end))] * len(
        told
    )
    places = [int(line[2]) for line in told if line]
    assert len(places) >= 3
    assert places[0] >= 9000
    assert all(after - before >= 9000 for before, after in itertools.pairwise(places))
