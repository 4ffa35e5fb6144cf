"""rebuild writes what a broker's dispatch writes, in place or elsewhere, and never leaves a mix."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rucola.errors import StoreCorrupt, StoreError, StoreLocked
from rucola.store.tools import rebuild as module
from rucola.store.tools.check import check
from rucola.store.tools.rebuild import detect_config, rebuild
from support.errors import raises
from support.stores import GOLDEN_DELAYS, OpenStore, config, crashed_copy, derived_files, golden_config, inner


@pytest.fixture
def apaches(golden: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden / "g1-clean" / "store", tmp_path / "apaches"))


def test_every_rebuilt_byte_equals_apaches_in_place_and_elsewhere(golden: Path, tmp_path: Path, apaches: Path) -> None:
    theirs = derived_files(golden / "g1-clean" / "store")
    settings = detect_config(apaches)
    settings.message_delay_level = GOLDEN_DELAYS
    assert settings.mapped_file_size_commit_log == 1 << 20
    assert (settings.max_hash_slot_num, settings.max_index_num) == (1000, 4000)
    seen: list[tuple[int, int]] = []
    elsewhere = rebuild(apaches, tmp_path / "out", settings=settings, progress=lambda *far: seen.append(far))
    assert derived_files(tmp_path / "out") == theirs
    assert (elsewhere.messages, elsewhere.units, elsewhere.index_files) == (2556, 2556, 2)
    assert seen == sorted(seen)
    assert seen[-1] == (2 << 20, 2 << 20)
    queue_file = next(path for path in (apaches / "consumequeue").rglob("*") if path.is_file())
    queue_file.write_bytes(bytes(queue_file.stat().st_size))
    assert check(apaches) != []
    assert rebuild(apaches, settings=settings).path == apaches
    assert derived_files(apaches) == theirs
    assert check(apaches) == []


def test_rebuild_equals_dispatch_with_rolling_files(open_store: OpenStore, tmp_path: Path) -> None:
    engine = open_store()
    for k in range(100):
        engine.put(inner(queue_id=k % 3, keys=f"a{k} b{k % 7}", tags="x", unique_key=f"u{k}"), 1000 * (k + 1))
        engine.reput()
    engine.close()
    settings = config(tmp_path / "unused")
    rebuild(tmp_path / "store", tmp_path / "out", settings=settings)
    assert derived_files(tmp_path / "out") == derived_files(tmp_path / "store")


def test_rebuild_restarts_the_offsets_of_a_recreated_topic(open_store: OpenStore, tmp_path: Path) -> None:
    engine = open_store()
    (size,) = {engine.put(inner(), 1000).size for _ in range(5)}
    engine.close()
    shutil.rmtree(tmp_path / "store" / "consumequeue" / "T")
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[5 * size : 6 * size] = data[:size]
    data[5 * size + 28 : 5 * size + 36] = (5 * size).to_bytes(8, "big")
    log.write_bytes(data)
    rebuilt = rebuild(tmp_path / "store", settings=engine.config)
    assert (rebuilt.messages, rebuilt.units) == (6, 1)


def test_a_served_directory_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    open_store().put(inner(), 1)
    with pytest.raises(StoreLocked):
        rebuild(tmp_path / "store")


def test_a_damaged_log_is_refused_and_nothing_changes(golden: Path, apaches: Path) -> None:
    log = apaches / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    with pytest.raises(StoreCorrupt):
        rebuild(apaches)
    assert derived_files(apaches) == derived_files(golden / "g1-clean" / "store")


def test_a_store_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        rebuild(tmp_path)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(1024))
    with raises(StoreError, subject=str(tmp_path)):
        rebuild(tmp_path, tmp_path)


@pytest.mark.parametrize("names_changed", [0, 1, 2])
def test_an_interruption_leaves_the_old_or_the_new(
    apaches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_changed: int
) -> None:
    """A child process dies after so many directories changed names; whatever has the right name is whole."""
    settings = golden_config(apaches, "g1-clean")
    store = Path(shutil.copytree(apaches, tmp_path / "store"))
    child = os.fork()
    if child == 0:
        exchange, done = module._exchange, []

        def exchange_or_die(new: Path, old: Path) -> None:
            if len(done) == names_changed:
                os._exit(9)
            exchange(new, old)
            done.append(old)

        monkeypatch.setattr(module, "_exchange", exchange_or_die)
        monkeypatch.setattr(shutil, "rmtree", lambda path: os._exit(9))
        rebuild(store, settings=settings)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert derived_files(store) == derived_files(apaches)
    assert [finding.path.name for finding in check(store)] == ["rebuild.tmp"]
    rebuild(store, settings=settings)
    assert check(store) == []


def test_a_crashed_store_can_be_rebuilt(open_store: OpenStore, tmp_path: Path) -> None:
    engine = open_store()
    for k in range(20):
        engine.put(inner(keys=f"k{k}"), 1000)
    crashed_copy(engine, tmp_path / "crashed")
    assert rebuild(tmp_path / "crashed", settings=engine.config).units == 20
    assert [finding.path.name for finding in check(tmp_path / "crashed")] == ["abort", "checkpoint"]
