"""The pieces of a rebuild fit together to what one pass writes, in whatever order they are made."""

from __future__ import annotations

import shutil
from itertools import groupby
from pathlib import Path

import pytest

from rucola.errors import StoreCorrupt
from rucola.store.config import StoreConfig
from rucola.store.tools.parallel_rebuild import (
    ScannedLogFile,
    UnitRun,
    index_names,
    log_files,
    plan_index_files,
    scan_log_file,
    write_consume_queue,
    write_index_file,
)
from rucola.store.tools.rebuild import detect_config, rebuild
from support.stores import GOLDEN_DELAYS, OpenStore, config, derived_files, inner


def in_pieces(log: Path, target: Path, settings: StoreConfig) -> list[ScannedLogFile]:
    """Rebuild by pieces, the later ones first, each written twice as by a task that is tried again."""
    found = [item for path in reversed(log_files(log)) for item in scan_log_file(log, int(path.name), settings)]
    runs = sorted((item for item in found if isinstance(item, UnitRun)), key=lambda run: (run[:2], run.physical_offset))
    for _, each in groupby(runs, key=lambda run: run[:2]):
        of_queue = list(each)
        write_consume_queue(log, target, of_queue[:1], settings)
        write_consume_queue(log, target, of_queue, settings)
    taken = sorted(item for item in found if isinstance(item, ScannedLogFile))
    (target / "index").mkdir(parents=True)
    times = {}
    for number, parts in reversed(plan_index_files(taken, settings)):
        for _ in range(2):
            times[number] = write_index_file(log, target / "index" / f"part-{number}", number, parts, settings)
    for number, name in enumerate(index_names([times[number] for number in sorted(times)])):
        (target / "index" / f"part-{number}").rename(target / "index" / name)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("room", [4000, 60])
def test_every_rebuilt_byte_equals_apaches(golden: Path, tmp_path: Path, room: int) -> None:
    """With Apache's own size of index files, and with so many that most end within a message's keys."""
    store = golden / "g1-clean" / "store"
    settings = detect_config(store)
    settings.message_delay_level = GOLDEN_DELAYS
    settings.max_index_num = room
    taken = in_pieces(store / "commitlog", tmp_path, settings)
    assert [(each.messages, each.is_last) for each in taken] == [(1985, False), (571, True)]
    rebuild(store, tmp_path / "one-pass", settings=settings)
    assert derived_files(tmp_path) == derived_files(tmp_path / "one-pass")
    assert (derived_files(tmp_path) == derived_files(store)) == (room == 4000)


def test_parts_rebuild_rolling_files_and_equal_index_names(open_store: OpenStore, tmp_path: Path) -> None:
    engine = open_store()
    for k in range(100):
        engine.put(inner(queue_id=k % 3, keys=f"a{k} b{k % 7}", tags="x", unique_key=f"u{k}"), 1000 + k // 50)
        engine.reput()
    engine.close()
    in_pieces(tmp_path / "store" / "commitlog", tmp_path / "out", config(tmp_path / "unused"))
    assert derived_files(tmp_path / "out") == derived_files(tmp_path / "store")
    names = [sorted(path.name for path in (tmp_path / each / "index").iterdir()) for each in ("store", "out")]
    assert names[0] == names[1]
    assert len(names[0]) > 2


def test_parts_restart_the_offsets_of_a_recreated_topic(tmp_path: Path) -> None:
    log, settings = tmp_path / "commitlog", config(tmp_path / "unused")
    unit = (0).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8)
    log.mkdir()
    runs = [UnitRun("T", 0, 0, 0, unit * 12), UnitRun("T", 0, 12, 1200, unit), UnitRun("T", 0, 0, 1300, unit * 2)]
    assert write_consume_queue(log, tmp_path, runs, settings) == 2
    assert [path.name for path in (tmp_path / "consumequeue" / "T" / "0").iterdir()] == [f"{0:020d}"]


def test_damage_is_named_with_a_remedy(open_store: OpenStore, tmp_path: Path) -> None:
    engine = open_store()
    puts = [engine.put(inner(), 1000 + k) for k in range(60)]
    engine.close()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    log, settings = tmp_path / "copy" / "commitlog", config(tmp_path / "unused")
    run, *_ = scan_log_file(log, 0, settings)
    assert isinstance(run, UnitRun)
    later = run._replace(queue_offset=7, physical_offset=puts[1].physical_offset)
    with pytest.raises(StoreCorrupt) as raised:
        write_consume_queue(log, tmp_path / "out", [later], settings)
    assert raised.value.position == puts[1].physical_offset
    path = log / f"{4096:020d}"
    data = bytearray(path.read_bytes())
    data[88] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt):
        list(scan_log_file(log, 4096, settings))
