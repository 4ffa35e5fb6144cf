"""Internal puts that fail: at limits that were lowered since a message was admitted, and on a disk without room."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rucola.broker.delivery import internal_puts
from rucola.broker.delivery.internal_puts import LAST_RETRY_MS, Backoff, InternalPuts
from rucola.broker.delivery.timer import TimerCheckpoint
from rucola.message import MessageInner, properties
from rucola.message.properties import DELAY, TIMER_ROLL_TIMES
from rucola.message.record import decode, decode_many
from rucola.message.topics import OFFSET_MOVED_EVENT, TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_OP_HALF_TOPIC
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.store.config import PutMessageStatus
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support import stores
from support.aging_broker import ClockAndDisk, aging_broker
from support.broker_peer import broker_peer, broker_with_delays, next_messages, send_back
from support.delayed_store import T0, DelayedStore, delayed_store
from support.metrics import BROKER_LABELS, sample_value, scrape
from support.peer import Peer
from support.requester import REPLY_TOPIC, requester, send_reply
from support.timer_store import DAY_MS, fill, timer_store
from support.transaction_store import COMMIT, ROLLBACK, TIMEOUT_MS, checked_body, transaction_store
from support.waiting import until

LARGE = bytes(1500)


def leave(store: MessageStore, room: int) -> None:
    """Fill the last file of the log until it has room for one record of so many bytes, and the blank behind it."""
    size = store.config.mapped_file_size_commit_log
    left = -store.max_physical_offset % size or size
    fixed = store.put(stores.inner("Other", body=b""), T0).size
    assert store.put(stores.inner("Other", body=bytes(left - room - 8 - 2 * fixed)), T0).status.name == "PUT_OK"
    assert -store.max_physical_offset % size == room + 8


@contextmanager
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the disk have no room for another file of the log."""
    real = os.posix_fallocate

    def allocate(descriptor: int, position: int, size: int) -> None:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, position, size)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", allocate)
        yield


def errors(caplog: pytest.LogCaptureFixture, logger: str = internal_puts.__name__) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger and record.levelno > 30]


# A limit that was lowered.


async def test_a_timer_message_above_a_lowered_limit_is_delivered_and_rolled(tmp_path: Path) -> None:
    with timer_store(tmp_path) as here:
        here.send(T0, T0 + 1000, LARGE)
        here.send(T0, T0 + DAY_MS, LARGE, UNIQ_KEY="far")
        fill(here, T0, 4096)
        here.store.config.max_message_size = 10
        here.deliver(T0 + 1000)
        assert await here.roll(T0 + 1000)
        assert here.store.max_offset(TIMER_TOPIC, 0) == 3
        here.deliver(T0 + DAY_MS)
        assert here.bodies() == [LARGE, LARGE]


def test_a_half_message_above_a_lowered_limit_is_checked_committed_and_discarded(tmp_path: Path) -> None:
    with transaction_store(tmp_path, check_max=1) as here:
        committed = here.prepare(T0, LARGE)
        here.prepare(T0, LARGE + b"never ended")
        here.store.config.max_message_size = 10
        first, second = here.check(T0 + TIMEOUT_MS)
        assert [checked_body(first), checked_body(second)] == [LARGE, LARGE + b"never ended"]
        assert here.end(committed, COMMIT) is None
        assert here.bodies() == [LARGE]
        assert here.check(T0 + 2 * TIMEOUT_MS) == []
        assert here.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [LARGE + b"never ended"]


async def test_a_message_above_a_lowered_limit_is_retried_and_dead_lettered(tmp_path: Path) -> None:
    async with broker_with_delays(tmp_path, "0s " * 20) as peer:
        await peer.send(LARGE)
        changed = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=10")
        assert changed.code == ResponseCode.SUCCESS
        assert (await peer.send(LARGE)).code == ResponseCode.MESSAGE_ILLEGAL, "what is not admitted yet has to keep it"
        (message,) = decode_many((await peer.pull()).body)
        assert (await send_back(peer, message.physical_offset)).code == ResponseCode.SUCCESS
        (again,) = await next_messages(peer, topic="%RETRY%g")
        assert (await send_back(peer, again.physical_offset, delay_level=-1)).code == ResponseCode.SUCCESS
        (dead,) = await next_messages(peer, topic="%DLQ%g")
        assert (again.body, dead.body) == (LARGE, LARGE)


async def test_waiting_messages_are_delivered_by_a_broker_with_a_lower_limit(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, store={"message_delay_level": "1h"}) as peer:
        await peer.send(b"now")
        await peer.send(LARGE, properties="DELAY\x011\x02")
    async with broker_peer(tmp_path, store={"message_delay_level": "0s", "max_message_size": 10}) as peer:
        (message,) = await next_messages(peer, queue_offset=1)
        assert message.body == LARGE


# A disk without room.


def test_a_delay_level_does_not_advance_while_its_puts_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with delayed_store(tmp_path) as here:
        here.send(T0, 1, LARGE, UNIQ_KEY="U")
        here.send(T0 + 1, 1, b"behind it")
        leave(here.store, 400)
        with full(monkeypatch):
            now_ms, waits = T0 + 1000, []
            for _ in range(8):
                retry_ms = here.delayed.deliver(now_ms)
                assert retry_ms is not None
                assert here.delayed.deliver(retry_ms - 1) == retry_ms, "not before"
                waits.append(retry_ms - now_ms)
                now_ms = retry_ms
            assert waits == [1000, 2000, 4000, 8000, 16_000, *[LAST_RETRY_MS] * 3]
            assert here.delayed.progress() == {}
        (error,) = errors(caplog)
        assert error == "delay level 1: put of message U for T failed and is retried: the disk is full"
        assert here.puts.failures == {"delay level 1": 8}
        assert caplog.text.count("no space for a record") == 1
        here.send(now_ms - 6000, 2, b"another level")
        assert here.delayed.deliver(now_ms - 500) == now_ms
        assert here.bodies() == [b"another level"], "one level does not hold up another"
        assert here.delayed.deliver(now_ms) is None
        assert here.bodies() == [b"another level", LARGE, b"behind it"]
        assert "delay level 1: puts succeed again" in caplog.text
        here.send(now_ms, 1, LARGE)
        leave(here.store, 100)
        with full(monkeypatch):
            assert here.delayed.deliver(now_ms + 1000) == now_ms + 2000, "the next failure waits for a second again"
        assert len(errors(caplog)) == 2
        assert caplog.text.count("no space for a record") == 2


def test_a_clock_that_is_set_back_ends_the_backoff() -> None:
    backoff = Backoff()
    assert backoff.next_ms(T0) is None
    assert backoff.failed(T0) == T0 + 1000
    assert (backoff.next_ms(T0 + 999), backoff.next_ms(T0 + 1000)) == (T0 + 1000, None)
    assert backoff.next_ms(T0 - 3_600_000) is None


def test_timer_delivery_does_not_advance_while_its_puts_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with timer_store(tmp_path) as here:
        here.send(T0, T0 + 1000, LARGE, UNIQ_KEY="U")
        here.send(T0, T0 + 1001, b"behind it")
        here.deliver(T0)
        leave(here.store, 400)
        with full(monkeypatch):
            assert here.deliver(T0 + 2000) == T0 + 3000
            assert here.deliver(T0 + 2500) == T0 + 3000
            assert here.deliver(T0 + 3000) == T0 + 5000
            assert here.timed.progress() == TimerCheckpoint(T0 + 999, 2, 0)
            assert here.bodies() == []
        assert here.puts.failures == {"timer message": 2}
        assert len(errors(caplog)) == 1
        here.deliver(T0 + 5000)
        assert here.bodies() == [LARGE, b"behind it"]


async def test_a_roll_keeps_the_file_while_its_puts_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with timer_store(tmp_path) as here:
        here.send(T0, T0 + DAY_MS, LARGE, UNIQ_KEY="far")
        fill(here, T0, 4096)
        leave(here.store, 400)
        with full(monkeypatch):
            assert not await here.roll(T0)
            assert here.timed.progress().rolled_offset == 0
        assert here.puts.failures == {"timer roll": 1}
        assert await here.roll(T0)
        assert here.timed.progress().rolled_offset == 1
        here.deliver(T0 + DAY_MS)
        assert here.bodies() == [LARGE]


async def test_a_message_without_room_for_the_roll_property_is_rolled_without_it(tmp_path: Path) -> None:
    with timer_store(tmp_path, mapped_file_size_commit_log=1 << 16) as here:
        here.send(T0, T0 + DAY_MS, b"far", a="x")
        (record,) = here.store.get(TIMER_TOPIC, 0, 0, 1).records
        size = len(properties.join(decode(record).properties))
        here.send(T0, T0 + DAY_MS, b"full of properties", a="x" * (properties.MAX_PROPERTIES_SIZE - size + 1))
        fill(here, T0, 1 << 16)
        assert await here.roll(T0)
        rolled = [decode(record).properties for record in here.store.get(TIMER_TOPIC, 0, 2, 2).records]
        assert [TIMER_ROLL_TIMES in pairs for pairs in rolled] == [True, False]
        here.deliver(T0 + DAY_MS)
        assert here.bodies() == [b"far", b"full of properties"]


def test_a_transaction_stays_open_while_its_commit_cannot_be_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, LARGE)
        leave(here.store, 400)
        with full(monkeypatch):
            assert here.end(half, COMMIT) == "the disk is full"
            assert here.check(T0 + TIMEOUT_MS) == []
        assert here.puts.failures == {"commit": 1, "transaction check": 1}
        assert len(errors(caplog)) == 2
        (question,) = here.check(T0 + TIMEOUT_MS)
        assert here.end(question, COMMIT) is None
        assert here.bodies() == [LARGE]


def test_a_commit_whose_op_message_cannot_be_put_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, LARGE)
        other = here.prepare(T0, b"other")
        leave(here.store, half.size - len("RMQ_SYS_TRANS_HALF_TOPIC") + len("T") + 20)
        with full(monkeypatch):
            assert here.end(half, COMMIT) is None
            assert here.end(half, COMMIT) is None
            assert here.end(half, ROLLBACK) is None, "it is committed"
            assert here.check(T0 + TIMEOUT_MS) == [], "a producer is not asked about what is committed"
            assert here.end(other, ROLLBACK) == "the disk is full"
        assert here.puts.failures == {"op message": 3}
        (question,) = here.check(T0 + TIMEOUT_MS)
        assert checked_body(question) == b"other"
        assert here.bodies(TRANS_OP_HALF_TOPIC) == [b"0"]
        assert here.bodies() == [LARGE]
        assert here.end(half, COMMIT) is None
        here.note()
    with transaction_store(tmp_path) as here:
        assert [checked_body(question) for question in here.check(T0 + 3 * TIMEOUT_MS)] == [b"other"]
        assert here.bodies() == [LARGE]


def test_a_missing_op_message_pauses_a_running_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with transaction_store(tmp_path) as here:
        here.prepare(T0, b"first")
        half = here.prepare(T0, LARGE)
        questions = here.questions(T0 + TIMEOUT_MS)
        assert checked_body(next(questions)) == b"first"
        leave(here.store, half.size - len("RMQ_SYS_TRANS_HALF_TOPIC") + len("T") + 20)
        with full(monkeypatch):
            assert here.end(half, COMMIT) is None
            assert list(questions) == []
        assert [checked_body(question) for question in here.check(T0 + TIMEOUT_MS)] == [b"first"]
        assert here.bodies() == [LARGE]


def test_a_half_message_is_discarded_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with transaction_store(tmp_path, check_max=0) as here:
        here.prepare(T0, LARGE)
        leave(here.store, 400)
        with full(monkeypatch):
            assert here.check(T0 + TIMEOUT_MS) == []
            assert here.check(T0 + TIMEOUT_MS) == []
        assert "was not ended" not in caplog.text
        assert here.check(T0 + TIMEOUT_MS) == []
        assert here.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [LARGE]
        assert caplog.text.count("was not ended") == 1


async def test_a_message_whose_retry_cannot_be_put_stays_with_its_consumer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with aging_broker(tmp_path, metrics_exporter_type=MetricsExporterType.PROM, metrics_prom_exporter_port=0) as (
        peer,
        world,
    ):
        await peer.send()
        (message,) = decode_many((await peer.pull()).body)
        world.percent = 91
        answer = None

        async def is_refused() -> bool:
            nonlocal answer
            answer = await send_back(peer, message.physical_offset, delay_level=-1)
            return answer.code != ResponseCode.SUCCESS

        await until(is_refused)
        assert isinstance(answer, RemotingCommand)
        assert (answer.code, "is 91 % full" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
        assert (await send_back(peer, message.physical_offset)).code == ResponseCode.SYSTEM_ERROR
        samples = await scrape(peer.broker)
        assert sample_value(samples, "rocketmq_internal_put_failures_total", **BROKER_LABELS, put="retry") == 2
        world.percent = 50

        async def is_taken() -> bool:
            return not await is_refused()

        await until(is_taken)
    assert len(errors(caplog)) == 1
    assert "retry: put of message without a unique key for %DLQ%g failed and is retried" in caplog.text


async def fill_disk(peer: Peer, world: ClockAndDisk) -> None:
    """Return once the broker refuses messages."""
    world.percent = 91

    async def is_refused() -> bool:
        return (await peer.send()).code != ResponseCode.SUCCESS

    await until(is_refused)


@pytest.mark.slow
async def test_replies_and_events_are_kept_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with aging_broker(tmp_path) as (peer, world):
        await peer.send()
        await fill_disk(peer, world)
        async with requester(peer) as asker:
            for body in (b"first", b"second"):
                answer = await send_reply(peer, body)
                assert (answer.code, answer.ext_fields["msgId"]) == (ResponseCode.SUCCESS, "0")
            assert [pushed.body for pushed in asker.pushed] == [b"first", b"second"]
        moved = await peer.pull(queue_offset=100)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        world.percent = 50
        world.now_ms += 1000
        (event,) = await next_messages(peer, topic=OFFSET_MOVED_EVENT)
        assert json.loads(event.body)["offsetRequest"] == 100
        stored = decode_many((await peer.pull(topic=REPLY_TOPIC)).body)
        assert [message.body for message in stored] == [b"first", b"second"]
    assert sorted(line.partition(":")[0] for line in errors(caplog)) == ["reply"], "the event waits behind the replies"


async def test_a_stopping_broker_logs_what_it_could_not_put(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with aging_broker(tmp_path) as (peer, world):
        await peer.send()
        await fill_disk(peer, world)
        for _ in range(2):
            assert (await peer.pull(queue_offset=100)).code == ResponseCode.PULL_OFFSET_MOVED
    assert "buffered messages lost at the stop, as they could not be put: {'offset moved event': 2}" in caplog.text


def test_puts_kept_for_a_retry_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rings: list[int] = []
    store = MessageStore(stores.config(tmp_path))
    store.open(T0)
    puts = InternalPuts(store, rings.append)
    store.write_state.set_disk_full("full")
    for number in range(internal_puts.MAX_BUFFERED + 2):
        put = puts.put_or_buffer("event", stores.inner(body=b"%d" % number), T0)
        assert put.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert rings == [T0 + 1000]
    assert puts.put_buffered(T0 + 999) == T0 + 1000
    assert puts.put_buffered(T0 + 1000) == T0 + 3000
    assert caplog.text.count("further messages are lost") == 1
    assert puts.failures == {"event": 4}, "two attempts and two that are lost"
    store.write_state.set_disk_full(None)
    assert puts.put_buffered(T0 + 3000) is None
    assert store.max_offset("T", 0) == internal_puts.MAX_BUFFERED
    store.write_state.set_disk_full("full")
    kept = internal_puts.MAX_BUFFERED_BYTES // (1 << 20)
    for _ in range(kept + 1):
        puts.put_or_buffer("reply", stores.inner(body=bytes(1 << 20)), T0 + 4000)
    assert caplog.text.count("further messages are lost") == 2
    puts.close(T0 + 4000)
    assert f"{{'reply': {kept}}}" in caplog.text
    store.write_state.set_disk_full(None)
    store.close()
    assert check(tmp_path) == []


# Damage, and other records.


def flip(store: MessageStore, physical_offset: int) -> None:
    """Change a byte of the log as it lies in memory."""
    (path,) = store.config.commit_log_directory.iterdir()
    with path.open("r+b") as file:
        file.seek(physical_offset)
        byte = file.read(1)[0]
        file.seek(physical_offset)
        file.write(bytes([byte ^ 0xFF]))


def test_damage_to_another_message_of_the_same_key_blocks_no_delivery(tmp_path: Path) -> None:
    store = MessageStore(stores.config(tmp_path, message_delay_level="1s 5s 1m"))
    store.open(T0)
    here = DelayedStore(store, [1000, 5000, 60_000])
    other = store.put(stores.inner(unique_key="U"), T0)
    here.send(T0, 1, b"waits", UNIQ_KEY="U")
    store.reput()
    flip(store, other.physical_offset + 52)  # the port of its bornHost
    store.put(stores.inner("Other"), T0 + 1000)
    here.delayed.load()  # what may have been delivered before that is looked for by its key
    assert here.delayed.deliver(T0 + 1000) is None
    assert [decode(record).body for record in store.get("T", 0, 1, 1).records] == [b"waits"]
    store.close()


def test_a_damaged_message_is_skipped_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MessageStore(stores.config(tmp_path, message_delay_level="1s 5s 1m"))
    store.open(T0)
    here = DelayedStore(store, [1000, 5000, 60_000])
    here.send(T0, 1, b"damaged")
    here.send(T0, 1, b"sound")
    store.reput()
    flip(store, 88)  # the first byte of its body
    assert here.delayed.deliver(T0 + 1000) is None
    assert here.bodies() == [b"sound"]
    assert "delay level 1: skipping a message that cannot be delivered: the record at physical offset 0" in caplog.text
    assert "the body's CRC" in caplog.text
    store.close()


async def test_sending_back_a_damaged_message_names_it(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, check_store=False) as peer:
        await peer.send()
        (message,) = decode_many((await peer.pull()).body)
        with next((tmp_path / "commitlog").iterdir()).open("r+b") as file:
            file.seek(88)
            file.write(b"B")
        answer = await send_back(peer, message.physical_offset)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the record at physical offset 0 is damaged" in str(answer.remark)
        assert "the body's CRC" in str(answer.remark)


def test_delayed_messages_that_leave_the_log_before_they_are_due_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with delayed_store(tmp_path, file_reserved_time=1) as here:
        here.send(T0, 3, b"gone")
        fill(here, T0, 2 * 4096)  # type: ignore[arg-type]
        now_ms = T0 + 3 * 3_600_000
        here.store.request_manual_deletion()
        here.store.begin_retention_round(now_ms, 12, [])
        while here.store.expire(now_ms):
            here.store.delete_expired()
        here.send(now_ms, 3, b"stays")
        here.delayed.deliver(now_ms)
        here.delayed.deliver(now_ms + 60_000)
        assert here.bodies() == [b"stays"]
    assert "delay level 3: retention deleted 1 messages before they were due" in caplog.text


def test_an_exception_in_a_delivery_loses_no_timed_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with timer_store(tmp_path) as here:
        here.send(T0, T0 + 1000, b"body")
        here.deliver(T0)
        with monkeypatch.context() as patch:
            patch.setattr(MessageStore, "record_at", _fail)
            with pytest.raises(OSError, match="once"):
                here.deliver(T0 + 1000)
        here.deliver(T0 + 1000)
        assert here.bodies() == [b"body"]


def _fail(*_: object) -> bytes:
    raise OSError("once")


# What is acknowledged can go all its ways.


@pytest.mark.parametrize(
    ("marks", "why"),
    [
        ("DELAY\x01soon\x02", "DELAY is 'soon'"),
        ("TIMER_DELIVER_MS\x01soon\x02", "TIMER_DELIVER_MS is 'soon'"),
        ("a\x01" + "v" * 32_600, "a half message with 32672 bytes of properties; 32639 are allowed"),
    ],
)
async def test_a_half_message_that_could_never_be_committed_is_refused(tmp_path: Path, marks: str, why: str) -> None:
    async with broker_peer(tmp_path) as peer:
        refused = await peer.send(sys_flag=4, properties=f"TRAN_MSG\x01true\x02PGROUP\x01p\x02{marks}")
        assert (refused.code, why in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True), refused.remark


def test_a_half_message_of_another_broker_is_committed_whatever_its_delay(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        place = here.transactions.prepare("T", 0, pairs := {"TRAN_MSG": "true", "PGROUP": "p"}, T0)
        half = here.store.put(
            MessageInner(*place, b"body", properties.join(pairs | {DELAY: "soon"}), 0, 0, T0, stores.HOST), T0
        )
        assert here.end(half, COMMIT) is None
        assert here.bodies() == [b"body"]


@pytest.mark.parametrize(
    "marks", ["DELAY\x011\x02", "TIMER_DELAY_SEC\x01100\x02", "TRAN_MSG\x01true\x02PGROUP\x01p\x02"]
)
async def test_a_message_that_waits_must_leave_room_in_its_file(tmp_path: Path, marks: str) -> None:
    """It is put again with a longer topic and more properties, into a file of the same size."""

    async with broker_peer(tmp_path) as peer:
        refused = await peer.send(bytes((1 << 20) - 300), properties=marks)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "1048064 are allowed for a message that waits (mappedFileSizeCommitLog)" in str(refused.remark)
        assert (await peer.send(bytes((1 << 20) - 300))).code == ResponseCode.SUCCESS
