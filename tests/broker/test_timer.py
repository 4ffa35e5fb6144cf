"""Messages for a time of their own, with a clock that the test winds: due times, restarts, crashes, rolling."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rucola.broker.delivery import timer
from rucola.broker.delivery.due_delivery import DELIVERY_BATCH
from rucola.broker.delivery.timer import MAX_DELAY_MS, TimerCheckpoint, redirect_delayed
from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message import properties
from rucola.message.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
)
from rucola.message.record import decode, decode_many
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rucola.protocol.codes import ResponseCode
from rucola.slices import run
from rucola.store.tools.check import check
from rucola.store.tools.rebuild import rebuild
from support import stores
from support.aging_broker import ClockAndDisk, aging_broker
from support.broker_peer import broker_peer, next_messages
from support.errors import raises
from support.examples import examples
from support.peer import Peer
from support.timer_store import DAY_MS, T0, TimerStore, fill, timer_store
from support.waiting import until

# Where a message waits.


@pytest.mark.parametrize(
    ("pairs", "due_ms"),
    [
        ({TIMER_DELIVER_MS: str(T0 + 1)}, T0 + 1),
        ({TIMER_DELAY_SEC: "60"}, T0 + 60_000),
        ({TIMER_DELAY_MS: "1"}, T0 + 1),
        ({TIMER_DELIVER_MS: str(T0 + 400 * DAY_MS)}, T0 + 400 * DAY_MS),
        ({TIMER_DELIVER_MS: str(T0 + MAX_DELAY_MS)}, T0 + MAX_DELAY_MS),
        ({TIMER_DELIVER_MS: "1", TIMER_DELAY_MS: "2", TIMER_DELAY_SEC: "3"}, T0 + 3000),
        ({DELAY: "0", TIMER_DELAY_MS: "2"}, T0 + 2),
    ],
)
def test_a_message_for_a_future_time_is_stored_in_the_timer_topic(pairs: dict[str, str], due_ms: int) -> None:
    named = dict(pairs)
    assert redirect_delayed("T", 3, named, 18, T0) == (TIMER_TOPIC, 0)
    assert named == {**pairs, TIMER_OUT_MS: str(due_ms), REAL_TOPIC: "T", REAL_QID: "3"}


@pytest.mark.parametrize(
    "pairs",
    [
        {},
        {TIMER_DELIVER_MS: str(T0)},
        {TIMER_DELIVER_MS: "0"},
        {TIMER_DELAY_SEC: "-5"},
        {TIMER_DELAY_MS: "0"},
        {TIMER_DELIVER_MS: str(T0 + 9), TIMER_OUT_MS: "1"},
    ],
)
def test_a_message_for_a_past_time_is_stored_at_once(pairs: dict[str, str]) -> None:
    named = dict(pairs)
    assert redirect_delayed("T", 3, named, 18, T0) == ("T", 3)
    assert named == pairs


def test_a_delay_level_overrides_a_delivery_time() -> None:
    assert redirect_delayed("T", 3, {DELAY: "2", TIMER_DELAY_MS: "5"}, 18, T0) == (SCHEDULE_TOPIC, 1)


@pytest.mark.parametrize("text", ["soon", "", "1.5", "9" * 5000, str(2**63)])
def test_a_delivery_time_that_is_not_a_number_is_refused(text: str) -> None:
    with raises(InvalidMessage, subject=TIMER_DELIVER_MS):
        redirect_delayed("T", 0, {TIMER_DELIVER_MS: text}, 18, T0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (TIMER_DELIVER_MS, T0 + MAX_DELAY_MS + 1),
        (TIMER_DELAY_MS, MAX_DELAY_MS + 1),
        (TIMER_DELAY_MS, 10**18),
        (TIMER_DELAY_SEC, MAX_DELAY_MS // 1000 + 1),
        (TIMER_DELIVER_MS, 2**63 - 1),
    ],
)
def test_a_time_that_nobody_can_mean_is_refused(name: str, value: int) -> None:
    with raises(InvalidMessage, subject=name):
        redirect_delayed("T", 0, {name: str(value)}, 18, T0)


# Delivery.


def test_a_message_is_delivered_when_due_and_not_before(tmp_path: Path) -> None:
    with timer_store(tmp_path) as here:
        assert here.deliver(T0) is None
        here.send(T0, T0 + 5000, b"body", queue_id=3, TAGS="A", UNIQ_KEY="K", colour="red")
        assert here.deliver(T0 + 4999) == T0 + 5000
        assert here.delivered(3) == []
        assert here.deliver(T0 + 5000) is None
        (message,) = here.delivered(3)
        assert (message.body, message.flag, message.born_timestamp) == (b"body", 7, 1)
        assert message.properties == {
            TIMER_DELIVER_MS: str(T0 + 5000), "TAGS": "A", UNIQ_KEY: "K", "colour": "red",
            TIMER_OUT_MS: str(T0 + 5000), REAL_TOPIC: "T", REAL_QID: "3",
        }  # fmt: skip
        assert here.deliver(T0 + 9000) is None
        assert len(here.delivered(3)) == 1


def test_the_unit_of_a_timer_message_holds_its_due_time(tmp_path: Path) -> None:
    with timer_store(tmp_path) as here:
        here.send(T0, T0 + 5000, b"body", TAGS="A")
        assert here.store.units(TIMER_TOPIC, 0, 0, 1)[0][2] == T0 + 5000
    shutil.rmtree(tmp_path / "consumequeue")
    rebuild(tmp_path, settings=stores.config(tmp_path))
    with timer_store(tmp_path) as here:
        assert here.deliver(T0) == T0 + 5000


def test_timer_messages_are_delivered_in_due_order_beyond_the_heap_capacity(tmp_path: Path) -> None:
    order = random.Random(7).sample(range(600), 600)
    with timer_store(tmp_path, near_capacity=16, segment_units=32, mapped_file_size_commit_log=1 << 20) as here:
        for number in order:
            here.send(T0, T0 + 1000 + number // 3, b"%d" % number)
        for now_ms in range(T0 + 1000, T0 + 1300, 25):
            due_ms = here.deliver(now_ms)
            assert due_ms is None or due_ms > now_ms
            assert len(here.bodies()) == min(600, 3 * (now_ms - T0 - 999))
        times = [int(message.properties[TIMER_OUT_MS]) for message in here.delivered()]
        assert times == sorted(times)
        assert sorted(map(int, here.bodies())) == list(range(600))


def test_each_waiting_message_is_scanned_a_few_times_however_many_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer, "SCANS", 4)
    order, segments, calls = random.Random(7).sample(range(1024), 1024), 1024 // 8, 0
    with timer_store(tmp_path, near_capacity=4, segment_units=8, mapped_file_size_commit_log=1 << 20) as here:
        for number in order:
            here.send(T0, T0 + 1000 + number, b"%d" % number)
        here.store.reput()
        while here.timed.deliver(T0 + 5000) is not None:
            calls += 1
        assert [int(body) for body in here.bodies()] == list(range(1024))
    assert calls < 4 * 8 * segments, f"{1024 // 4 * segments} if the heap had always 4"


def test_many_due_messages_are_delivered_in_batches(tmp_path: Path) -> None:
    with timer_store(tmp_path, near_capacity=1000, mapped_file_size_commit_log=1 << 20) as here:
        for number in range(DELIVERY_BATCH + 10):
            here.send(T0, T0 + 1000, b"%d" % number)
        here.store.reput()
        assert here.timed.deliver(T0 + 1000) == T0 + 1000
        assert here.bodies() == [b"%d" % number for number in range(DELIVERY_BATCH)]
        assert here.timed.deliver(T0 + 1000) is None
        assert here.bodies() == [b"%d" % number for number in range(DELIVERY_BATCH + 10)]


def test_a_late_message_with_an_earlier_due_time_is_delivered(tmp_path: Path) -> None:
    """As after a clock was set back."""
    with timer_store(tmp_path) as here:
        here.send(T0, T0 + 5000, b"late")
        here.deliver(T0 + 5000)
        here.send(T0, T0 + 1000, b"early")
        here.timed.file.write(here.timed.progress(), here.store.max_physical_offset)
        assert here.deliver(T0) == T0 + 1000
        here.deliver(T0 + 1000)
        assert here.bodies() == [b"late", b"early"]


# Restarts and crashes.


def test_a_restart_delivers_each_remaining_message_once(tmp_path: Path) -> None:
    with timer_store(tmp_path) as here:
        for number in range(40):
            here.send(T0, T0 + 1000 + 10 * (number % 20), b"%d" % number)
        here.deliver(T0 + 1095)
        here.timed.file.write(here.timed.progress(), here.store.max_physical_offset)
        written = json.loads((tmp_path / "config" / "timer.json").read_text())
        assert written == {
            "deliveredMs": T0 + 1099,
            "queueOffset": 40,
            "rolledOffset": 0,
            "logEnd": here.store.max_physical_offset,
        }
    with timer_store(tmp_path) as here:
        assert here.deliver(T0 + 1095) == T0 + 1100
        assert len(here.bodies()) == 20
        here.deliver(T0 + 2000)
        assert sorted(map(int, here.bodies())) == list(range(40))
        here.timed.file.write(here.timed.progress(), here.store.max_physical_offset)
    with timer_store(tmp_path) as here:
        assert here.deliver(T0 + 9000) is None
        assert len(here.bodies()) == 40


def test_a_crash_repeats_only_messages_without_a_unique_key(tmp_path: Path) -> None:
    with timer_store(tmp_path / "before") as here:
        here.send(T0, T0 + 1000, b"noted")
        here.deliver(T0 + 1000)
        here.timed.file.write(here.timed.progress(), here.store.max_physical_offset)
        here.send(T0 + 1000, T0 + 1500, b"not noted", UNIQ_KEY="1")
        here.send(T0 + 1000, T0 + 1500, b"has no key")
        here.deliver(T0 + 1500)
        here.send(T0 + 1500, T0 + 9000, b"waits")
        stores.crashed_copy(here.store, tmp_path / "after")
    with timer_store(tmp_path / "after") as here:
        here.deliver(T0 + 9000)
        assert here.bodies() == [b"noted", b"not noted", b"has no key", b"has no key", b"waits"]


@pytest.mark.parametrize("text", ["{nonsense", "[]", '{"deliveredMs":1,"queueOffset":2}', '{"deliveredMs":"x"}'])
def test_an_unreadable_progress_file_is_named(tmp_path: Path, text: str) -> None:
    with timer_store(tmp_path) as here:
        here.timed.file.write(TimerCheckpoint(0, 1, 0), 0)
        (tmp_path / "config" / "timer.json").write_text(text)
        with pytest.raises(StoreCorrupt):
            here.timed.load()


# Rolling.


async def test_messages_that_wait_in_the_oldest_file_are_rolled(tmp_path: Path) -> None:
    with timer_store(tmp_path) as here:
        here.send(T0, T0 + 10, b"soon", UNIQ_KEY="0")
        here.send(T0, T0 + 90 * DAY_MS, b"far", UNIQ_KEY="1")
        here.deliver(T0 + 10)
        assert await here.roll(T0 + 10)
        assert here.timed.progress().rolled_offset == 0, "the only file of the log stays"
        fill(here, T0 + 10, 4096)
        here.send(T0, T0 + 80 * DAY_MS, b"in the next file", UNIQ_KEY="2")
        assert await here.roll(T0 + 20)
        assert await here.roll(T0 + 30)
        assert here.store.max_offset(TIMER_TOPIC, 0) == 4
        copy = decode(here.store.get(TIMER_TOPIC, 0, 3, 1).records[0])
        assert (copy.body, copy.properties[TIMER_ROLL_TIMES]) == (b"far", "1")
        assert here.timed.progress() == TimerCheckpoint(T0 + 80 * DAY_MS - 1, 4, 2)
        here.deliver(T0 + 90 * DAY_MS)
        assert here.bodies() == [b"soon", b"in the next file", b"far"]
        assert TIMER_ROLL_TIMES not in here.delivered()[2].properties


async def test_a_message_rolled_before_a_crash_is_delivered_once(tmp_path: Path) -> None:
    with timer_store(tmp_path / "before") as here:
        here.send(T0, T0 + DAY_MS, b"far", UNIQ_KEY="1")
        fill(here, T0, 4096)
        assert await here.roll(T0)
        here.store.reput()
        stores.crashed_copy(here.store, tmp_path / "after")
    with timer_store(tmp_path / "after") as here:
        here.deliver(T0 + DAY_MS)
        assert here.bodies() == [b"far"]


async def test_a_roll_stops_while_the_store_refuses_puts(tmp_path: Path) -> None:
    with timer_store(tmp_path) as here:
        here.send(T0, T0 + DAY_MS, b"far")
        fill(here, T0, 4096)
        here.store.write_state.set_stalled("no descriptor")
        assert not await here.roll(T0)
        here.store.write_state.set_stalled(None)
        here.store.write_state.set_disk_full("a file that is deleted frees more than a roll takes")
        assert await here.roll(T0)
        assert here.timed.progress().rolled_offset == 1


# Recalls.


def test_a_recalled_message_is_not_delivered(tmp_path: Path) -> None:
    with timer_store(tmp_path) as here:
        here.send(T0, T0 + 10, b"twin", UNIQ_KEY="K")
        for due_ms in (T0 + 10, T0 + 11):
            here.send(T0, due_ms, b"%d" % (due_ms - T0), UNIQ_KEY="K")
            here.send(T0, due_ms, b"other %d" % (due_ms - T0), UNIQ_KEY="L")
        for key, due_ms, waits in (("K", T0 + 10, True), ("K", T0 + 12, False), ("M", T0 + 10, False)):
            assert here.timed.waits("T", key, due_ms) == waits
        assert not here.timed.waits("U", "K", T0 + 10)
        here.recall(T0 + 5, T0 + 10, "K")
        here.recall(T0 + 9, T0 + 10, "K")
        here.deliver(T0 + 20)
        assert here.bodies() == [b"other 10", b"11", b"other 11"]
        assert not here.timed.waits("T", "K", T0 + 10)
        assert here.timed.progress().delivered_ms == T0 + 11


async def test_a_recall_outlives_its_file_and_a_crash_while_puts_fail(tmp_path: Path) -> None:
    with timer_store(tmp_path / "before") as here:
        here.send(T0, T0 + 10, b"before it", UNIQ_KEY="B")
        here.send(T0, T0 + 10, b"recalled", UNIQ_KEY="K")
        here.recall(T0, T0 + 10, "K")
        fill(here, T0, 4096)
        here.store.write_state.set_disk_full("deliveries fail")
        here.deliver(T0 + 10)
        here.timed.file.write(here.timed.progress(), here.store.max_physical_offset)
        assert await here.roll(T0 + 10)
        here.store.reput()
        here.timed.file.write(here.timed.progress(), here.store.max_physical_offset)
        stores.crashed_copy(here.store, tmp_path / "after")
    (tmp_path / "after" / "commitlog" / f"{0:020}").unlink()
    with timer_store(tmp_path / "after") as here:
        here.deliver(T0 + 20)
        assert here.bodies() == [b"before it"]


# Whatever happens.


steps = st.one_of(
    st.tuples(st.just("send"), st.lists(st.integers(1, 60), min_size=1, max_size=20)),
    st.tuples(st.just("recall"), st.lists(st.integers(0, 99), max_size=5)),
    st.tuples(st.just("wait"), st.integers(1, 20)),
    st.sampled_from([("restart", 0), ("crash", 0), ("note", 0), ("roll", 0)]),
)


@settings(max_examples=examples(25))
@given(st.lists(steps, max_size=10))
@example([("send", [2]), ("restart", 0), ("send", [1]), ("recall", [1])])
async def test_every_message_is_delivered_once_when_due(script: list[tuple[str, Any]]) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        patched.setattr(timer, "SCANS", 2)
        sizes = {"near_capacity": 3, "segment_units": 5}
        here, count, now_ms, due = TimerStore(Path(directory) / "0", sizes), 0, T0, {}
        for number, (step, value) in enumerate([*script, ("wait", 100)], 1):
            match step:
                case "send":
                    for delay in value:
                        here.send(now_ms, now_ms + delay, b"%d" % count, UNIQ_KEY=f"K{count}")
                        due[count] = now_ms + delay
                        count += 1
                case "recall":
                    for choice in value:
                        if waiting := [key for key, due_ms in due.items() if due_ms > now_ms]:
                            chosen = waiting[choice % len(waiting)]
                            here.recall(now_ms, due.pop(chosen), f"K{chosen}")
                case "wait":
                    now_ms += value
                    here.deliver(now_ms)
                    arrived = sorted(map(int, here.bodies()))
                    assert arrived == sorted(key for key, due_ms in due.items() if due_ms <= now_ms)
                case "note":
                    here.timed.file.write(here.timed.progress(), here.store.max_physical_offset)
                case "roll":
                    assert await here.roll(now_ms)
                case _:
                    if step == "restart":
                        here.store.reput()
                        here.timed.file.write(here.timed.progress(), here.store.max_physical_offset)
                    after = Path(directory) / str(number)
                    here.store.reput()
                    if step == "crash":
                        stores.crashed_copy(here.store, after)
                        here.store.close()
                    else:
                        here.store.close()
                        shutil.copytree(here.path, after)
                    here = TimerStore(after, sizes)
        here.store.close()
        assert check(here.path) == []


# A whole broker.


async def test_a_broker_delivers_a_message_at_its_time(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send(b"now")
        sent = await peer.send(b"later", properties="TIMER_DELAY_MS\x011\x02WAIT\x01true\x02TAGS\x01A\x02")
        assert (sent.code, sent.ext_fields["queueId"], sent.ext_fields["queueOffset"]) == (0, "0", "0")
        (message,) = await next_messages(peer, queue_offset=1)
        assert (message.topic, message.body, message.tags) == ("T", b"later", "A")
        (waited,) = decode_many((await peer.pull(topic=TIMER_TOPIC)).body)
        assert waited.offset_msg_id == sent.ext_fields["msgId"]
        assert properties.WAIT not in waited.properties


async def test_retention_keeps_messages_that_wait(tmp_path: Path) -> None:
    world = ClockAndDisk()
    due_ms = world.now_ms + 30 * DAY_MS

    async def wait_for_weeks(peer: Peer) -> None:
        async def begin() -> int:
            return int((await peer.pull()).ext_fields["minOffset"])

        async def has_let_files_go() -> bool:
            return await begin() > before

        await peer.send(b"far", properties=f"TIMER_DELIVER_MS\x01{due_ms}\x02")
        for _ in range(10):
            await peer.send(bytes(1000))
        world.percent = 80
        for _ in range(9):
            before = await begin()
            world.now_ms += 3 * DAY_MS + 1
            for _ in range(10):
                assert (await peer.send(bytes(1000))).code == ResponseCode.SUCCESS
            await until(has_let_files_go)

    async with aging_broker(tmp_path, world) as (peer, _):
        await wait_for_weeks(peer)
    world.now_ms = due_ms
    async with aging_broker(tmp_path, world) as (peer, _):
        found = await next_messages(peer, queue_offset=100)
        assert [message.body for message in found] == [b"far"]
    assert check(tmp_path) == []


@pytest.mark.parametrize("capacity", [4, 1000])
def test_messages_that_wait_are_counted_by_due_time(tmp_path: Path, capacity: int) -> None:
    """Near and far ones, after some were delivered and rolled, and after a restart."""
    times_ms = random.Random(1).sample(range(1, 3 * DAY_MS), 100)
    with timer_store(tmp_path, near_capacity=capacity, segment_units=8) as here:
        for due_ms in times_ms:
            here.send(T0, T0 + due_ms, b"x")

        def counted(timed: timer.TimerMessageService, now_ms: int) -> tuple[list[int], int]:
            due = run(timed.due_steps(now_ms))
            return due.counts, due.last_due_ms

        def expected(now_ms: int) -> tuple[list[int], int]:
            left = [T0 + due_ms - now_ms for due_ms in times_ms if T0 + due_ms > now_ms]
            bounds = [0, 60_000, 3_600_000, DAY_MS, 1 << 62]
            pairs = zip([-1, *bounds], bounds, strict=False)
            return [sum(low < one <= high for one in left) for low, high in pairs], now_ms + max(left)

        for now_ms in (T0, T0 + DAY_MS, T0 + 2 * DAY_MS):
            here.deliver(now_ms)
            assert counted(here.timed, now_ms) == expected(now_ms)
        again = timer.TimerMessageService(
            here.store, here.puts, stores.topic_table(here.store), tmp_path / "config", near_capacity=capacity
        )
        again.load()
        now_ms = T0 + 2 * DAY_MS + 1
        while again.deliver(now_ms) == now_ms:
            pass
        assert counted(again, now_ms) == expected(now_ms)
