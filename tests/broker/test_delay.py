"""Delayed messages, with a clock that the test winds: due times, restarts, crashes, damage; then a whole broker."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from rucola import fastjson
from rucola.broker.background.scheduler import DueTask
from rucola.broker.delivery.delay import DELIVERY_BATCH, redirect_by_level
from rucola.broker.delivery.rolling import roll
from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message import MessageInner, properties
from rucola.message.hashing import tags_code
from rucola.message.ids import parse_offset_msg_id
from rucola.message.properties import DELAY, MAX_PROPERTIES_SIZE, REAL_QID, REAL_TOPIC, TAGS, UNIQ_KEY
from rucola.message.record import decode, decode_many
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support import stores
from support.aging_broker import ClockAndDisk, aging_broker
from support.broker_peer import broker_with_delays, max_offset, next_messages, send_back
from support.delayed_store import DELAYS_MS, T0, DelayedStore, delayed_store
from support.errors import raises
from support.stores import crashed_copy, force_deletion
from support.timer_store import fill, timer_store
from support.transaction_store import COMMIT
from support.waiting import until


@pytest.mark.parametrize(
    ("delay", "place", "noted"),
    [
        ("1", (SCHEDULE_TOPIC, 0), "1"),
        ("3", (SCHEDULE_TOPIC, 2), "3"),
        ("99", (SCHEDULE_TOPIC, 2), "3"),
        ("0", ("T", 4), "0"),
        ("-1", ("T", 4), "-1"),
    ],
)
def test_a_delayed_message_is_stored_in_the_queue_of_its_level(delay: str, place: tuple[str, int], noted: str) -> None:
    pairs = {DELAY: delay, "a": "b"}
    assert redirect_by_level("T", 4, pairs, 3) == place
    waits = {REAL_TOPIC: "T", REAL_QID: "4"} if place[0] == SCHEDULE_TOPIC else {}
    assert pairs == {DELAY: noted, "a": "b"} | waits


def test_a_delay_level_that_is_not_a_number_is_refused() -> None:
    with raises(InvalidMessage, subject=DELAY):
        redirect_by_level("T", 0, {DELAY: "soon"}, 3)


def test_a_message_is_delivered_when_due_and_not_before(tmp_path: Path) -> None:
    with delayed_store(tmp_path) as here:
        assert here.delayed.deliver(T0) is None
        here.send(T0, 2, b"body", queue_id=3, TAGS="A", UNIQ_KEY="K", colour="red")
        assert here.delayed.deliver(T0) == T0 + 5000
        assert here.delayed.deliver(T0 + 4999) == T0 + 5000
        assert here.bodies(3) == []
        assert here.delayed.deliver(T0 + 5000) is None
        (message,) = here.delivered(3)
        assert (message.body, message.flag, message.born_timestamp) == (b"body", 7, 1)
        assert message.store_timestamp == T0 + 5000
        assert message.properties == {
            DELAY: "2", TAGS: "A", UNIQ_KEY: "K", "colour": "red", REAL_TOPIC: "T", REAL_QID: "3",
        }  # fmt: skip
        assert here.store.units("T", 3, 0, 1)[0][2] == tags_code("A")
        assert here.delayed.deliver(T0 + 9000) is None
        assert len(here.delivered(3)) == 1


def test_levels_are_independent_and_deliver_returns_the_next_due_time(tmp_path: Path) -> None:
    with delayed_store(tmp_path) as here:
        here.send(T0, 3, b"minute")
        here.send(T0 + 1, 1, b"second")
        here.send(T0 + 2, 2, b"five")
        here.send(T0 + 900, 1, b"later second")
        assert here.delayed.deliver(T0 + 900) == T0 + 1001
        assert here.delayed.deliver(T0 + 1001) == T0 + 1900
        assert here.delayed.deliver(T0 + 1900) == T0 + 5002
        assert here.delayed.deliver(T0 + 5500) == T0 + 60_000
        assert here.delayed.deliver(T0 + 60_000) is None
        assert here.bodies() == [b"second", b"later second", b"five", b"minute"]


def test_many_due_messages_are_delivered_in_batches_and_in_order(tmp_path: Path) -> None:
    with delayed_store(tmp_path, mapped_file_size_consume_queue=20 * 1000, mapped_file_size_commit_log=1 << 20) as here:
        bodies = [b"%d" % number for number in range(DELIVERY_BATCH + 10)]
        for body in bodies:
            here.send(T0, 1, body)
        assert here.delayed.deliver(T0 + 1000) == T0 + 1000
        assert here.bodies() == bodies[:DELIVERY_BATCH]
        assert here.delayed.deliver(T0 + 1000) is None
        assert here.bodies() == bodies


def test_delivery_continues_in_the_next_file_of_a_level(tmp_path: Path) -> None:
    with delayed_store(tmp_path) as here:  # ten units a file
        bodies = [b"%d" % number for number in range(25)]
        for body in bodies:
            here.send(T0, 1, body)
        turns = 0
        while here.delayed.deliver(T0 + 1000) == T0 + 1000:
            turns += 1
        assert turns == 2
        assert here.bodies() == bodies


def test_a_restart_delivers_each_remaining_message_once(tmp_path: Path) -> None:
    with delayed_store(tmp_path) as here:
        here.send(T0, 1, b"first")
        here.send(T0 + 10, 1, b"second")
        here.send(T0, 3, b"long")
        here.delayed.deliver(T0 + 1000)
        here.delayed.file.write(here.delayed.progress(), here.store.max_physical_offset)
        assert fastjson.loads(here.offsets_file.read_bytes()) == {
            "offsetTable": {1: 1},
            "logEnd": here.store.max_physical_offset,
        }
    with delayed_store(tmp_path) as here:
        assert here.delayed.deliver(T0 + 1001) == T0 + 1010
        here.delayed.deliver(T0 + 60_000)
        assert here.bodies() == [b"first", b"second", b"long"]


def test_a_crash_repeats_only_messages_without_a_unique_key(tmp_path: Path) -> None:
    with delayed_store(tmp_path / "before") as here:
        here.send(T0, 1, b"noted", UNIQ_KEY="0")
        here.delayed.deliver(T0 + 1000)
        here.delayed.file.write(here.delayed.progress(), here.store.max_physical_offset)
        here.send(T0 + 1000, 1, b"not noted", UNIQ_KEY="1")
        here.send(T0 + 1000, 1, b"has no key")
        here.delayed.deliver(T0 + 2000)
        here.send(T0 + 2000, 1, b"same key as the first", UNIQ_KEY="0")
        here.send(T0 + 2000, 1, b"waits", UNIQ_KEY="2")
        crashed = stores.crashed_copy(here.store, tmp_path / "after")
    crashed.open(T0 + 4000)
    here = DelayedStore(crashed, DELAYS_MS)
    here.delayed.deliver(T0 + 4000)
    assert here.bodies() == [
        b"noted",
        b"not noted",
        b"has no key",
        b"has no key",
        b"same key as the first",
        b"waits",
    ]
    crashed.close()
    assert check(tmp_path / "after") == []


def test_messages_that_differ_only_in_reconsume_times_are_both_delivered(tmp_path: Path) -> None:
    with delayed_store(tmp_path) as here:
        here.send(T0, 1, b"again", UNIQ_KEY="1")
        here.delayed.deliver(T0 + 1000)
        waiting = decode(here.store.get(SCHEDULE_TOPIC, 0, 0, 1).records[0])
        record = MessageInner(
            SCHEDULE_TOPIC, 0, b"again", properties.join(waiting.properties), 7, 0, 1, stores.HOST, reconsume_times=1
        )
        here.store.put(record, T0 + 1000)
        here.store.put(stores.inner("Other"), T0 + 3000)
    with delayed_store(tmp_path) as here:
        here.delayed.deliver(T0 + 3000)
        assert [message.reconsume_times for message in here.delivered()] == [0, 1]


def test_an_undeliverable_message_is_logged_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with delayed_store(tmp_path) as here:
        here.store.put(stores.inner(SCHEDULE_TOPIC, properties=properties.join({DELAY: "1"})), T0)
        half = {DELAY: "1", REAL_TOPIC: "RMQ_SYS_TRANS_HALF_TOPIC", REAL_QID: "0"}
        here.store.put(stores.inner(SCHEDULE_TOPIC, properties=properties.join(half)), T0)
        nowhere = {DELAY: "1", REAL_TOPIC: "../T", REAL_QID: "0"}
        here.store.put(stores.inner(SCHEDULE_TOPIC, properties=properties.join(nowhere)), T0)
        here.send(T0, 1, b"sound")
        assert here.delayed.deliver(T0 + 1000) is None
        assert here.bodies() == [b"sound"]
    assert [word in caplog.text for word in ("name no queue: '', ''", "is a half message", "'../T'")] == [True] * 3


def test_a_clock_that_was_set_back_delays_no_message(tmp_path: Path) -> None:
    with delayed_store(tmp_path) as here:
        here.send(T0, 1, b"body")
        assert here.delayed.deliver(T0 - 3_600_000) is None
        assert here.bodies() == [b"body"]


def test_a_level_that_is_no_longer_configured_is_delivered(tmp_path: Path) -> None:
    with delayed_store(tmp_path) as here:
        here.send(T0, 3, b"minute")
    with delayed_store(tmp_path, delays_ms=[1000]) as here:
        assert here.delayed.deliver(T0) == T0 + 60_000
        assert here.delayed.deliver(T0 + 60_000) is None
        assert here.bodies() == [b"minute"]


def test_an_offset_before_the_queue_is_its_begin(tmp_path: Path) -> None:
    with delayed_store(tmp_path) as here:
        here.delayed.file.write({2: -3}, 0)
        here.send(T0, 2, b"five")
    with delayed_store(tmp_path) as here:
        here.delayed.deliver(T0 + 5000)
        assert here.bodies() == [b"five"]


def test_an_invalid_offset_file_is_named(tmp_path: Path) -> None:
    with delayed_store(tmp_path) as here:
        here.delayed.file.write({1: 1}, 0)
        here.offsets_file.write_text('{"offsetTable":[1]}')
        with pytest.raises(StoreCorrupt):
            here.delayed.load()


def test_an_empty_offset_file_counts_as_none(tmp_path: Path) -> None:
    with delayed_store(tmp_path) as here:
        here.send(T0, 2, b"five")
        here.offsets_file.parent.mkdir(exist_ok=True)
        here.offsets_file.write_text("{}")
    with delayed_store(tmp_path) as here:
        here.delayed.deliver(T0 + 5000)
        assert here.bodies() == [b"five"]


@pytest.mark.parametrize("name", ["g1-clean", "g2-crash"])
@pytest.mark.parametrize("noted", [True, False])
def test_messages_that_apaches_broker_delivered_are_not_repeated(
    golden: Path, tmp_path: Path, name: str, noted: bool
) -> None:
    """By delayOffset.json; and without it by the index, as after a crash."""
    shutil.copytree(golden / name / "store-after-restart", tmp_path / "store")
    store = MessageStore(stores.golden_config(tmp_path / "store", name))
    store.open(T0)
    end = store.max_physical_offset
    waited = sum(end for (topic, _), (_, end) in store.queues().items() if topic == SCHEDULE_TOPIC)
    if not noted:
        for path in (tmp_path / "store" / "config").glob("delayOffset.json*"):
            path.unlink()
    here = DelayedStore(store, [1000] * 17 + [2000])
    assert here.delayed.deliver(store.last_store_timestamp + 60_000) is None
    assert sum(here.delayed.progress().values()) == waited
    assert store.max_physical_offset == end
    assert name == "g2-crash" or waited == 10
    store.close()


# The due task.


async def test_an_alarm_runs_its_step_when_due_and_again_when_the_step_asks(tmp_path: Path) -> None:
    now_ms = 0
    rung: list[int] = []
    done = asyncio.Event()

    def step() -> int | None:
        nonlocal now_ms
        rung.append(now_ms)
        if len(rung) == 1:
            raise OSError("once")
        now_ms += 1
        if len(rung) < 4:
            return now_ms
        done.set()
        return None

    task = DueTask("test", step, lambda: now_ms)
    task.RETRY_DELAY_MS = 0
    task.schedule_at(3_600_000)
    now_ms = 5
    task.schedule_at(5)
    task.schedule_at(50_000)
    await asyncio.wait_for(done.wait(), 10)
    task.stop()
    task.schedule_at(0)
    assert rung == [5, 5, 6, 7]


# A whole broker.


async def test_a_broker_delivers_a_delayed_message(tmp_path: Path) -> None:
    async with broker_with_delays(tmp_path, "1h 0s") as peer:
        await peer.send(b"now")
        sent = await peer.send(b"later", queue_id=0, properties="DELAY\x012\x02WAIT\x01true\x02TAGS\x01A\x02")
        assert (sent.code, sent.ext_fields["queueId"], sent.ext_fields["queueOffset"]) == (0, "0", "0")
        (message,) = await next_messages(peer, queue_offset=1)
        assert (message.topic, message.body, message.tags) == ("T", b"later", "A")
        (waiting,) = decode_many((await peer.pull(topic=SCHEDULE_TOPIC, queue_id=1)).body)
        assert waiting.properties[properties.WAIT] == "true"
        assert waiting.offset_msg_id == sent.ext_fields["msgId"]
        answer = await peer.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        assert fastjson.loads(answer.body) == {"offsetTable": {2: 1}}
    written = fastjson.loads((tmp_path / "config" / "delayOffset.json").read_bytes())
    assert written["offsetTable"] == {2: 1}


# Rolling.


async def test_delayed_messages_outlive_their_log_file(tmp_path: Path) -> None:
    """Copies keep the due time; one message is delivered from the topic of timer messages, and once."""
    with delayed_store(tmp_path / "before") as here:
        here.send(T0, 1, b"due before", UNIQ_KEY="0")
        here.send(T0, 3, b"waits", queue_id=1, UNIQ_KEY="1", KEYS="k")
        here.send(T0, 9, b"also waits", queue_id=1)
        here.delayed.deliver(T0 + 1000)
        fill(here, T0, 4096)
        here.send(T0 + 10, 3, b"in the next file", queue_id=1)
        here.store.write_state.set_disk_full("full")
        assert await roll(here.store, [here.delayed], lambda: T0 + 1000)
        assert await roll(here.store, [here.delayed], lambda: T0 + 1000), "rolled once"
        assert here.delayed.progress() == {1: 1, 3: 2}
        assert here.store.max_offset(TIMER_TOPIC, 0) == 2
        here.store.write_state.set_disk_full(None)
        here.delayed.file.write(here.delayed.progress(), here.store.max_physical_offset)
        force_deletion(here.store)
        assert here.delayed.deliver(T0 + 1000) == T0 + 60_010
        here.store.reput()
        crashed_copy(here.store, tmp_path / "after")
    with timer_store(tmp_path / "after") as here:
        assert here.deliver(T0 + 59_999) == T0 + 60_000
        here.deliver(T0 + 60_000)
        first, second = here.delivered(1)
        assert (first.body, second.body) == (b"waits", b"also waits")
        assert first.properties == {
            "UNIQ_KEY": "1", "KEYS": "k", "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1",
        }  # fmt: skip


async def test_a_full_disk_is_emptied_past_messages_that_cannot_be_rolled(tmp_path: Path) -> None:
    """Without room for the due time, or with one beyond all levels, they are delivered: better early than never."""
    room = MAX_PROPERTIES_SIZE - len("DELAY\x013\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02PAD\x01\x02") - 20
    with delayed_store(tmp_path, mapped_file_size_commit_log=40_000) as here:
        here.send(T0, 3, b"no room", PAD="x" * room)
        here.send(T0, 3, b"beyond")
        fill(here, T0, 40_000)
        here.store.write_state.set_disk_full("full")
        shorter = DelayedStore(here.store, [1000, 5000, 6000])
        assert await roll(here.store, [shorter.delayed], lambda: T0)
        assert shorter.delayed.progress() == {3: 2}
        assert {b"no room", b"beyond"} <= set(here.bodies())


@pytest.mark.parametrize("is_copy_first", [False, True])
async def test_a_delayed_message_that_was_rolled_before_a_crash_is_delivered_once(
    tmp_path: Path, is_copy_first: bool
) -> None:
    with delayed_store(tmp_path / "before") as here:
        here.send(T0, 3, b"waits", UNIQ_KEY="1")
        fill(here, T0, 4096)
        assert await roll(here.store, [here.delayed], lambda: T0)
        crashed_copy(here.store, tmp_path / "after")
    with timer_store(tmp_path / "after") as here:
        deliveries = [DelayedStore(here.store, DELAYS_MS).delayed.deliver, here.deliver]
        for deliver in reversed(deliveries) if is_copy_first else deliveries:
            deliver(T0 + 60_000)
            assert here.bodies() == [b"waits"]


async def test_a_full_disk_deletes_no_message_that_waits(tmp_path: Path) -> None:
    """Delayed, timer, half and retried messages, while the disk forces the deletion of all files but the last."""
    world = ClockAndDisk()
    async with aging_broker(tmp_path, world) as (peer, _):
        assert (await peer.send(b"fails", properties="UNIQ_KEY\x01R\x02")).code == ResponseCode.SUCCESS
        (failed,) = decode_many((await peer.pull()).body)
        assert (await send_back(peer, failed.physical_offset, delay_level=18)).code == ResponseCode.SUCCESS
        for body, pairs in ((b"level", "DELAY\x0118\x02"), (b"timer", "TIMER_DELAY_SEC\x017200\x02")):
            assert (await peer.send(body, properties=pairs)).code == ResponseCode.SUCCESS
        half = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01H\x02"
        answer = await peer.send(b"half", properties=half, sys_flag=4)
        assert answer.code == ResponseCode.SUCCESS
        for _ in range(9):
            await peer.send(bytes(1200))
        world.percent = 92
        first_file = tmp_path / "commitlog" / f"{0:020d}"
        await until(lambda: not first_file.exists())
        world.percent = 50
        _, physical_offset = parse_offset_msg_id(answer.ext_fields["msgId"])
        queue_offset = int(answer.ext_fields["queueOffset"])

        async def committed() -> bool:
            ended = await peer.end_transaction(queue_offset, physical_offset, COMMIT, unique_key="H")
            return ended.code == ResponseCode.SUCCESS

        await until(committed)  # after the round that finds the disk emptier
    world.now_ms += 3 * 3_600_000
    async with aging_broker(tmp_path, world) as (peer, _):

        async def all_delivered() -> bool:
            end = await max_offset(peer, "T", 0)
            answer = await peer.pull(queue_offset=max(0, end - 3))
            return [message.body for message in decode_many(answer.body)][-3:] in (
                [b"half", b"level", b"timer"],
                [b"half", b"timer", b"level"],
            )

        await until(all_delivered)
        (retried,) = await next_messages(peer, topic="%RETRY%g")
        assert (retried.body, retried.reconsume_times) == (b"fails", 1)
