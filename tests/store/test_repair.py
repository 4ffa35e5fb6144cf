"""repair: from any damage a sound copy, every undamaged message at its place in it; the source stays as it is."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rucola.errors import StoreError
from rucola.message import sysflag
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from rucola.store.tools.dump import dump
from rucola.store.tools.repair import HOLE_TOPIC, REPAIRED, RepairResult, repair
from support.errors import raises
from support.examples import examples
from support.small_store import SmallStore
from support.stores import RECOVERY_VARIANTS, config, golden_config, inner

pytestmark = pytest.mark.slow

FILE_SIZE = 4096
START_MS = 1_700_000_000_000
LOST_IN = {"first-file-body-flip": ["GA|2|2"], "mid-body-flip": ["GSpam|0|149"]}

TORN = {"tail-zeroed", "tail-bad-magic", "tail-bad-size", "tail-huge-size"}
"""Their last record is damaged: the log ends before it."""


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def rows_of(store: Path) -> dict[int, dict[str, Any]]:
    return {row["commitLogOffset"]: row for row in dump(store)}


def without_unit(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("cq", "tagsCode")}


def is_stand_in(row: dict[str, Any]) -> bool:
    return REPAIRED in row["properties"] or row["topic"] == HOLE_TOPIC[: len(row["topic"])]


# Apache's stores ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["g1-clean", "g2-crash", *RECOVERY_VARIANTS])
def test_damaged_golden_stores_are_repaired(golden: Path, tmp_path: Path, variant: str) -> None:
    source = golden / ("recovery" if variant in RECOVERY_VARIANTS else ".") / variant
    info = source / "info.json"
    name = json.loads(info.read_text())["base"] if info.exists() else variant
    before = files_of(source / "store")
    done = repair(source / "store", tmp_path / "copy", settings=golden_config(golden / name / "store", name))
    assert files_of(source / "store") == before
    assert check(tmp_path / "copy") == []
    sent = [json.loads(line) for line in (golden / name / "expected.jsonl").read_text().splitlines()]
    rows = rows_of(tmp_path / "copy")
    lost = LOST_IN.get(variant, [])
    kept = [row for row in sent if without_unit(rows.get(row["commitLogOffset"], {})) == without_unit(row)]
    torn = variant in TORN
    assert len(kept) == len(sent) - len(lost) - torn
    assert done.kept == len(kept)
    assert [message for one in done.left_out for message in one.messages] == lost
    ghosts = [
        row
        for row in rows.values()
        if not is_stand_in(row) and row["commitLogOffset"] not in {one["commitLogOffset"] for one in sent}
    ]
    assert ghosts == []
    # Apache's broker wrote messages of its own before it was stopped again; what it kept of ours is here, too.
    lines = (source / "after-expected.jsonl").read_text().splitlines(keepends=True)
    theirs = [json.loads(line) for line in lines if line.endswith("\n")]
    sent_there = {json.dumps(without_unit(row)) for row in sent}
    for row in theirs:
        if (
            json.dumps(without_unit(row)) in sent_there
            and f"{row['topic']}|{row['queueId']}|{row['queueOffset']}" not in lost
        ):
            assert without_unit(rows[row["commitLogOffset"]]) == without_unit(row)


def test_intact_store_is_copied_byte_by_byte(golden: Path, tmp_path: Path) -> None:
    source = golden / "g1-clean" / "store"
    told: list[float] = []
    done = repair(
        source,
        tmp_path / "copy",
        settings=golden_config(source, "g1-clean"),
        progress=lambda *far: told.append(far[0] / far[1]),
    )
    assert done.clean
    assert done.lost == 0
    assert told == sorted(told)
    assert told[-1] == 1
    assert all(any(step / 3 < far <= (step + 1) / 3 for far in told) for step in range(3)), (
        "read, written and dispatched"
    )
    ours, theirs = files_of(tmp_path / "copy"), files_of(source)
    for name, content in theirs.items():
        if name.startswith(("commitlog", "consumequeue", "config")):
            assert ours[name] == content, name
    assert done.config == []


# one damaged byte -----------------------------------------------------------------------------------------------------


def small_store(path: Path) -> None:
    """50 messages in four queues and two log files, with keys and tags, and config files."""
    store = MessageStore(config(path))
    store.open(1)
    for k in range(50):
        tags = f"t{k % 3}" if k % 2 else None
        message = inner("TopicA" if k % 3 else "TopicB", k % 2, b"x%03d" % k, tags, f"k{k}", f"U{k:030d}")
        assert store.put(message, START_MS + k * 10).size
        store.reput()
    store.close()
    (path / "config").mkdir()
    (path / "config" / "topics.json").write_text('{\n\t"a":1\n}')
    (path / "config" / "topics.json.bak").write_text('{\n\t"a":0\n}')


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "store"
    small_store(path)
    assert check(path) == []
    return path


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Path:
    """A copy of the small store, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "store"))


def repaired(store: Path) -> RepairResult:
    return repair(store, store.with_name("copy"), settings=config(store))


def undamaged(whole: Path, copy: Path, *, but: frozenset[int] = frozenset()) -> Iterator[int]:
    """Yield the offsets of the messages that are in the copy as they were, and fail for any other than `but`."""
    rows = rows_of(copy)
    for physical_offset, row in rows_of(whole).items():
        if physical_offset in but:
            continue
        assert rows.get(physical_offset) == row
        yield physical_offset


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), with_units=st.booleans())
def test_damage_of_any_bytes_is_repaired(whole: Path, data: st.DataObject, with_units: bool) -> None:
    used = {"commitlog": 2 * FILE_SIZE, "consumequeue": 200, "index": 880}
    sizes = {name: min(len(content), used.get(name.split("/")[0], 4096)) for name, content in files_of(whole).items()}
    paths = sorted(name for name, size in sizes.items() if size and (with_units or not name.startswith("consumequeue")))
    # Half of all damage goes into the log's records, where most of the bytes are.
    logs = [name for name in paths if name.startswith("commitlog")]
    chosen = data.draw(st.lists(st.sampled_from(logs) | st.sampled_from(paths), min_size=1, max_size=4))
    before, hit = rows_of(whole), set()
    with tempfile.TemporaryDirectory() as directory:
        store = Path(shutil.copytree(whole, Path(directory) / "store"))
        if not with_units:
            shutil.rmtree(store / "consumequeue")
        for path in chosen:
            content = bytearray((store / path).read_bytes())
            position = data.draw(st.integers(0, sizes[path] - 1))
            content[position] ^= data.draw(st.integers(1, 255))
            (store / path).write_bytes(content)
            at = int(Path(path).name) + position if path in logs else -1
            hit |= {k for k, row in before.items() if k <= at < k + row["storeSize"]}
        done = repaired(store)
        copy = store.with_name("copy")
        assert check(copy) == []
        after = rows_of(copy)
        changed = {k for k, row in before.items() if after.get(k) != row}
        # A record that claims to be another one may be believed, unless the units tell: then the other one is lost, or
        # those that leave no room for a queue offset. Every one of them is listed.
        assert all(any(one.begin <= k < one.end for one in done.left_out) for k in changed - hit)
        if len(chosen) == 1 and with_units:
            assert changed <= hit


def test_an_intact_store_in_which_a_topic_was_created_again_is_copied(tmp_path: Path) -> None:
    small = SmallStore(tmp_path / "store")
    for count in (3, 2, 1):
        small.next_offsets.clear()
        for _ in range(count):
            small.put("T")
            small.put("U", sys_flag=sysflag.TRANSACTION_PREPARED, dispatch=False)
    done = repaired(small.path)
    assert done.clean
    assert check(done.out) == []
    assert files_of(done.out / "commitlog") == files_of(small.path / "commitlog")


@pytest.mark.parametrize("position", [3, 4, 12, 27, 35, 39, 93])
def test_a_record_with_a_wrong_head_is_lost_and_keeps_its_queue_offset(
    whole: Path, damaged: Path, position: int
) -> None:
    """Size, magic, queue id, queue offset, physical offset, sysFlag (prepared) and topic: nothing is guessed."""
    begin = next(k for k, row in rows_of(whole).items() if row["cq"] == "TopicA|1|2")
    log = damaged / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[begin + position] ^= 4
    log.write_bytes(content)
    done = repaired(damaged)
    copy = damaged.with_name("copy")
    assert check(copy) == []
    assert [(one.begin, one.messages) for one in done.left_out] == [(begin, ["TopicA|1|2"])]
    assert rows_of(copy)[begin]["cq"] == "TopicA|1|2"
    assert is_stand_in(rows_of(copy)[begin])
    assert len(list(undamaged(whole, copy, but=frozenset((begin,))))) == 49


def test_a_lost_message_is_replaced_by_a_placeholder(whole: Path, damaged: Path) -> None:
    begin, row = next((k, row) for k, row in rows_of(whole).items() if row["cq"] == "TopicA|0|5")
    log = damaged / "commitlog" / f"{begin // FILE_SIZE * FILE_SIZE:020d}"
    content = bytearray(log.read_bytes())
    content[begin % FILE_SIZE + 88] ^= 1
    log.write_bytes(content)
    done = repaired(damaged)
    (left_out,) = done.left_out
    assert (left_out.begin, left_out.end, left_out.messages) == (begin, begin + row["storeSize"], ["TopicA|0|5"])
    assert "CRC" in left_out.why
    stand_in = rows_of(damaged.with_name("copy"))[begin]
    assert (stand_in["cq"], stand_in["bodyLength"], stand_in["tagsCode"]) == ("TopicA|0|5", 0, 0)
    assert "CRC" in stand_in["properties"][REPAIRED]
    assert (done.lost, done.kept) == (1, 49)
    list(undamaged(whole, damaged.with_name("copy"), but=frozenset((begin,))))


# whole files ----------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_replaced_by_placeholders(whole: Path, damaged: Path) -> None:
    shutil.copytree(damaged, damaged.with_name("more"))
    store = MessageStore(config(damaged.with_name("more")))
    store.open(1)
    for k in range(50):
        store.put(inner("TopicA", 0, b"y%03d" % k), START_MS + 1000 + k)
    store.close()
    (damaged.with_name("more") / "commitlog" / f"{FILE_SIZE:020d}").unlink()
    done = repair(damaged.with_name("more"), damaged.with_name("copy"), settings=config(damaged))
    assert check(damaged.with_name("copy")) == []
    rows, before = rows_of(damaged.with_name("copy")), rows_of(whole)
    missing = {row["cq"] for k, row in before.items() if FILE_SIZE <= k < 2 * FILE_SIZE}
    assert missing <= set(done.left_out[0].messages)
    assert done.left_out[0].why == "the file is missing"
    assert [rows[k] for k in before if k < FILE_SIZE] == [row for k, row in before.items() if k < FILE_SIZE]


def test_a_truncated_file_is_repaired(whole: Path, damaged: Path) -> None:
    log = damaged / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes()[:2000])
    done = repaired(damaged)
    assert check(damaged.with_name("copy")) == []
    assert done.lost == sum(1 for k, row in rows_of(whole).items() if k < FILE_SIZE and k + row["storeSize"] > 2000)
    rows = rows_of(damaged.with_name("copy"))
    assert all(rows[k] == row for k, row in rows_of(whole).items() if k >= FILE_SIZE or k + row["storeSize"] <= 2000)


def test_records_truncated_by_an_earlier_recovery_stay_away(whole: Path, damaged: Path) -> None:
    """Apache's broker leaves behind the end of the log what it cuts off, and writes over it."""
    records = sorted(rows_of(whole).items())
    cut, _ = records[-6]
    log = damaged / "commitlog" / f"{FILE_SIZE:020d}"
    old = log.read_bytes()
    log.write_bytes(old[: cut - FILE_SIZE].ljust(FILE_SIZE, b"\0"))
    (damaged / "abort").touch()
    store = MessageStore(config(damaged))
    store.open(1)
    for k in range(2):
        store.put(inner("TopicC", 0, b"new", "t", f"new{k}"), START_MS + 100_000 + k)
    end = store.max_physical_offset
    store.close()
    content = log.read_bytes()
    log.write_bytes(content[: end - FILE_SIZE] + old[end - FILE_SIZE :])
    done = repaired(damaged)
    assert check(damaged.with_name("copy")) == []
    rows = rows_of(damaged.with_name("copy"))
    assert [row["topic"] for k, row in sorted(rows.items()) if k >= cut] == ["TopicC", "TopicC"]
    assert any("an earlier recovery had cut it off" in one.why for one in done.left_out)


# the rest of the directory --------------------------------------------------------------------------------------------


def test_the_repaired_copy_can_be_served(whole: Path, damaged: Path) -> None:
    log = damaged / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[100:1500] = bytes(1400)
    log.write_bytes(content)
    lost = repaired(damaged).lost
    assert lost > 5
    copy = damaged.with_name("copy")
    store = MessageStore(config(copy))
    store.open(START_MS)
    ends = {name: end for name, (_, end) in store.queues().items()}
    assert ends == {("TopicA", 0): 16, ("TopicA", 1): 17, ("TopicB", 0): 9, ("TopicB", 1): 8}
    for name, end in ends.items():
        assert all(len(store.get(*name, queue_offset, 1).records) == 1 for queue_offset in range(end))
        assert store.put(inner(*name), START_MS + 99_999).queue_offset == end
    store.close()
    (copy / "abort").touch()
    shutil.rmtree(copy / "consumequeue")
    store = MessageStore(config(copy))
    store.open(START_MS)
    store.close()
    assert check(copy) == []
    assert len(rows_of(copy)) >= 50 + 4 - lost


def test_damaged_config_file_is_replaced_by_its_bak(damaged: Path) -> None:
    (damaged / "config" / "topics.json").write_text('{"a":')
    (damaged / "config" / "delayOffset.json").write_text("")
    (damaged / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:33}}}')
    done = repaired(damaged)
    copy = damaged.with_name("copy") / "config"
    assert files_of(copy) == {
        "topics.json": b'{\n\t"a":0\n}',
        "topics.json.bak": b'{\n\t"a":0\n}',
        "consumerOffset.json": b'{"offsetTable":{"T@g":{0:33}}}',
    }
    assert [line.split()[0] for line in done.config] == ["delayOffset.json", "topics.json"]


def test_a_repaired_copy_does_not_entitle_its_broker_to_be_elected(damaged: Path) -> None:
    (damaged / "config" / "coordination.json").write_text('{"incarnation":7,"bootId":""}')
    (damaged / "config" / "coordination.json.bak").write_text('{"incarnation":6,"bootId":""}')
    done = repaired(damaged)
    assert sorted(path.name for path in (done.out / "config").iterdir()) == ["topics.json", "topics.json.bak"]
    assert [line.split(":")[0] for line in done.config] == ["coordination.json was left out"]


def test_an_unwritable_or_used_destination_is_refused(damaged: Path, tmp_path: Path) -> None:
    with raises(StoreError, subject=str(damaged)):
        repair(damaged, damaged)
    with raises(StoreError, subject=str(damaged / "inside")):
        repair(damaged, damaged / "inside")
    (tmp_path / "nothing" / "commitlog").mkdir(parents=True)
    with raises(StoreError, subject=str(tmp_path / "nothing" / "commitlog")):
        repair(tmp_path / "nothing", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    (damaged / "commitlog" / f"{5:020d}").write_bytes(bytes(FILE_SIZE))
    with raises(StoreError, subject=str(damaged / "commitlog")):
        repaired(damaged)
