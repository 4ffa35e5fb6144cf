"""TransactionalMessageService, with a clock that the test winds: ends, checks, repeats, restarts; then a whole
broker."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rucola import refusals
from rucola.access import Refusal
from rucola.broker.delivery import transactions
from rucola.broker.delivery.rolling import roll
from rucola.broker.delivery.transactions import TRANSACTION_GROUP, TransactionCheckRequest
from rucola.domain.client import HeartbeatData, ProducerData
from rucola.message import MessageInner, properties, sysflag
from rucola.message.record import decode, decode_many
from rucola.message.topics import (
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.transaction import CheckTransactionStateRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Connection
from rucola.store.config import PutMessageStatus, PutResult
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support import stores
from support.broker_peer import broker_peer
from support.cluster import Tally
from support.examples import examples
from support.peer import Peer
from support.recorded_frames import decode as decode_frame
from support.recorded_frames import frames
from support.transaction_store import (
    COMMIT,
    ROLLBACK,
    T0,
    TIMEOUT_MS,
    TransactionStore,
    checked_body,
    transaction_store,
)

OWN_KEY, OTHER_KEY = "0A" * 16, "0B" * 16

# Ends.


def test_a_message_is_invisible_before_its_commit(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, b"body", queue_id=2, TAGS="A", UNIQ_KEY="U", KEYS="k")
        assert here.bodies(queue_id=2) == []
        assert here.end(half, COMMIT, T0 + 5) is None
        (message,) = here.messages(queue_id=2)
        assert (message.body, message.flag, message.tags, message.keys) == (b"body", 7, "A", "k")
        assert message.sys_flag == COMMIT
        assert message.prepared_transaction_offset == half.physical_offset
        assert (message.born_timestamp, message.store_timestamp) == (T0, T0 + 5)
        assert message.properties == {
            "TRAN_MSG": "true", "PGROUP": "p", "TAGS": "A", "UNIQ_KEY": "U", "KEYS": "k",
            "REAL_TOPIC": "T", "REAL_QID": "2",
        }  # fmt: skip
        (mark,) = here.messages(TRANS_OP_HALF_TOPIC)
        assert (mark.body, mark.properties) == (b"0", {"TAGS": "d", "WAIT": "true"})
        assert here.topics.get(TRANS_HALF_TOPIC) is not None


def test_a_repeated_end_counts_once(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        early, late = here.prepare(T0, b"early"), here.prepare(T0, b"late")
        for half in (late, late, early, early, late):
            assert here.end(half, COMMIT) is None
        assert here.end(early, ROLLBACK) is None
        assert sorted(here.bodies()) == [b"early", b"late"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"producer_group": "other"}, refusals.HALF_OF_OTHER_GROUP),
        ({"half_queue_offset": 1}, refusals.HALF_OFFSET_WRONG),
        ({"physical_offset": 1}, refusals.HALF_NOT_FOUND),
        ({"physical_offset": 1 << 40}, refusals.HALF_NOT_FOUND),
    ],
)
def test_an_end_that_contradicts_its_half_message_is_refused(
    tmp_path: Path, fields: dict[str, Any], why: Refusal
) -> None:
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, b"body")
        assert here.end(half, COMMIT, **fields) == why
        assert here.bodies() == []
        assert [checked_body(question) for question in here.check(T0 + TIMEOUT_MS)] == [b"body"]


def test_a_commit_of_an_ordinary_message_is_refused(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        put = here.store.put(stores.inner(), T0)
        assert here.end(put, COMMIT) == refusals.HALF_NOT_FOUND
        assert len(here.messages()) == 1


def test_a_store_that_refuses_puts_leaves_the_transaction_open(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, b"body")
        here.store.write_state.set_disk_full("full")
        assert here.end(half, COMMIT) == "full"
        assert here.end(half, ROLLBACK) == "full"
        assert here.check(T0 + TIMEOUT_MS) == []
        here.store.write_state.set_disk_full(None)
        (question,) = here.check(T0 + TIMEOUT_MS)
        assert here.end(question, COMMIT) is None
        assert here.bodies() == [b"body"]


def test_a_committed_message_may_be_delayed(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, b"body", queue_id=1, DELAY="2")
        assert here.end(half, COMMIT) is None
        (waiting,) = here.messages(SCHEDULE_TOPIC, 1)
        assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("T", "1")
        assert here.bodies(queue_id=1) == []


# Checks.


def test_a_check_that_no_producer_gets_is_not_counted(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, b"body", UNIQ_KEY="U")
        for minute in range(1, 18):
            assert here.check(T0 + minute * 60_000, is_connected=False) == []
        assert here.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == []
        for minute in range(20, 23):
            (question,) = here.check(T0 + minute * 60_000)
            times = decode(question.record).properties[properties.TRANSACTION_CHECK_TIMES]
            assert times == str(minute - 19)
        assert here.end(half, COMMIT) is None, "the first message still names the transaction"
        assert here.bodies() == [b"body"]
        assert here.check(T0 + 3_600_000) == []


def test_a_transaction_without_producers_is_discarded_when_the_log_would_be(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        here.prepare(T0, b"body", UNIQ_KEY="U")
        here.prepare(T0, b"of a producer without a clock", UNIQ_KEY="V", born_timestamp="1")
        reserved_ms = here.store.config.file_reserved_time * 3_600_000
        here.check(T0 + reserved_ms - 1, is_connected=False)
        assert here.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == []
        here.check(T0 + reserved_ms, is_connected=False)
        assert len(here.bodies(TRANS_CHECK_MAX_TIME_TOPIC)) == 2


def test_a_discarded_transaction_is_resumed_once(tmp_path: Path) -> None:
    with transaction_store(tmp_path, check_max=1) as here:
        half = here.prepare(T0, b"body", UNIQ_KEY="U")
        for minute in (1, 2):
            here.check(T0 + minute * 60_000)
        (discarded,) = here.messages(TRANS_CHECK_MAX_TIME_TOPIC)
        assert here.transactions.resume(discarded.physical_offset, T0 + 180_000) is None
        here.store.reput()
        refused = here.transactions.resume(discarded.physical_offset, T0 + 180_000)
        assert refused is not None
        assert discarded.msg_id in refused
        (question,) = here.check(T0 + 180_000)
        assert decode(question.record).properties[properties.TRANSACTION_CHECK_TIMES] == "1"
        assert here.end(half, COMMIT) is None, "an end of the first message that is late counts for the resumed one"
        assert here.end(question, COMMIT) is None
        assert here.bodies() == [b"body"]
        assert here.check(T0 + 1_000_000) == []
        assert here.transactions.resume(half.physical_offset, T0) is not None, "it is in the half topic"
        assert here.transactions.resume(1 << 40, T0) is not None


def connected(here: TransactionStore, now_ms: int, *groups: str) -> list[TransactionCheckRequest]:
    """Check while these groups have producers."""
    checks = here.transactions.check(now_ms, lambda group, topic: group if group in groups else None)
    return [found[1] for found in checks if found is not None]


def test_halves_without_a_producer_keep_their_places_and_block_nobody(tmp_path: Path) -> None:
    minutes = iter(range(1, 1000))
    with transaction_store(tmp_path, check_max=3) as here:
        absent = [here.prepare(T0, b"absent %d" % number, UNIQ_KEY=f"A{number}") for number in range(2)]
        here.prepare(T0, b"silent", UNIQ_KEY="S", PGROUP="q")
        for times in range(1, 4):
            (question,) = connected(here, T0 + next(minutes) * 60_000, "q")
            assert (question.group, checked_body(question)) == ("q", b"silent")
            assert decode(question.record).properties[properties.TRANSACTION_CHECK_TIMES] == str(times)
        for _ in range(100):
            now_ms = T0 + next(minutes) * 60_000
            busy = here.prepare(now_ms - TIMEOUT_MS, b"busy", UNIQ_KEY="B", PGROUP="q")
            (question,) = connected(here, now_ms, "q")
            assert question.half_queue_offset == busy.queue_offset
            assert here.end(question, COMMIT, producer_group="q") is None
            assert here.end(question, COMMIT, producer_group="q") is None
        assert len(here.messages(TRANS_HALF_TOPIC)) == 2 + 1 + 100, "no copies"
        assert here.end(absent[1], COMMIT) is None
        here.note()
    with transaction_store(tmp_path, check_max=3) as here:
        questions = connected(here, T0 + next(minutes) * 60_000, "p", "q")
        assert [checked_body(question) for question in questions] == [b"absent 0", b"silent"]
        for _ in range(2):
            assert here.end(absent[0], COMMIT) is None
        while here.bodies(TRANS_CHECK_MAX_TIME_TOPIC) != [b"silent"]:
            connected(here, T0 + next(minutes) * 60_000, "p", "q")
        assert sorted(here.bodies()) == [b"absent 0", b"absent 1", *[b"busy"] * 100]
        assert connected(here, T0 + next(minutes) * 60_000, "p", "q") == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("prepare"), st.sampled_from(["p", "q", "immune"])),
            st.tuples(st.just("end"), st.integers(0, 30), st.sampled_from([COMMIT, ROLLBACK])),
            st.tuples(st.just("check"), st.sets(st.sampled_from(["p", "q"])), st.sampled_from([1, 60, 600])),
            st.tuples(st.just("restart")),
        ),
        max_size=40,
    )
)
@example(
    [("prepare", "p"), ("check", (), 600), ("check", {"p"}, 1), ("check", (), 600), ("restart",), ("end", 0, COMMIT)]
)
@settings(max_examples=examples(25))
def test_every_transaction_is_delivered_as_it_ended(steps: list[tuple[Any, ...]]) -> None:
    """One that ends after a restart, by the message before a check, may be asked for again, and counts once."""
    with TemporaryDirectory() as root, ExitStack() as stack, pytest.MonkeyPatch.context() as patched:
        patched.setattr(transactions, "SEGMENT_SIZE", 2)
        here = stack.enter_context(transaction_store(Path(root), check_max=2))
        open_places: dict[str, tuple[str, PutResult | TransactionCheckRequest]] = {}
        committed: list[bytes] = []
        since_restart: set[str] = set()
        late: dict[str, int] = {}
        now_ms, count = T0, 0

        def checked(groups: set[str]) -> None:
            for question in list(connected(here, now_ms, *groups)):
                key = str(question.unique_key)
                if key in open_places:
                    open_places[key] = (question.group, question)
                    since_restart.add(key)
                else:
                    assert key in late, "ended"
                    assert here.end(question, late.pop(key), now_ms, producer_group=question.group) is None

        def end(key: str, outcome: int) -> None:
            group, place = open_places.pop(key)
            assert here.end(place, outcome, now_ms, producer_group=group) is None
            if key not in since_restart:
                late[key] = outcome
            committed.extend([key.encode()] * (outcome == COMMIT))

        for name, *values in [*steps, ("check", {"p", "q"}, 600), ("restart",)]:
            if name == "prepare":
                count += 1
                patience = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "300"} if values[0] == "immune" else {}
                group = "p" if patience else values[0]
                half = here.prepare(now_ms, b"%d" % count, UNIQ_KEY=str(count), PGROUP=group, **patience)
                open_places[str(count)] = (group, half)
                since_restart.add(str(count))
            elif name == "end" and open_places:
                end(list(open_places)[values[0] % len(open_places)], values[1])
            elif name == "check":
                now_ms += values[1] * 60_000
                checked(values[0])
            elif name == "restart":
                since_restart.clear()
                here.note()
                stack.close()
                here = stack.enter_context(transaction_store(Path(root), check_max=2))
        for key in list(open_places):
            end(key, COMMIT)
        now_ms += 86_400_000
        checked({"p", "q"})
        assert sorted(here.bodies()) == sorted(committed)


def test_a_check_skips_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "SEGMENT_SIZE", 8)

    def steps(now_ms: int, *groups: str) -> int:
        return len(list(here.transactions.check(now_ms, lambda group, topic: group if group in groups else None)))

    with transaction_store(tmp_path) as here:
        halves = [here.prepare(T0, b"%d" % number, PGROUP="pq"[number // 40]) for number in range(80)]
        immune = [here.prepare(T0, b"", PGROUP="q", CHECK_IMMUNITY_TIME_IN_SECONDS="600") for _ in range(16)]
        assert steps(T0 + 60_000) == 96
        assert steps(T0 + 120_000) == steps(T0 + 180_000, "r") == 8 + 11, "the first segment, which comes next"
        assert here.end(halves[20], COMMIT) is None
        questions = connected(here, T0 + 240_000, "q")
        assert [checked_body(question) for question in questions] == [b"%d" % number for number in range(40, 80)]
        assert steps(T0 + 300_000, "q") == 8 + 4 + 40 + 2
        assert len(connected(here, T0 + 600_000, "p", "q")) == 79 + len(immune)


def test_a_check_in_its_place_counts_when_the_message_is_copied(tmp_path: Path) -> None:
    with transaction_store(tmp_path, check_max=2) as here:
        here.prepare(T0, b"absent", UNIQ_KEY="A")
        half = here.prepare(T0, b"body", UNIQ_KEY="U", PGROUP="q")
        (first,) = connected(here, T0 + 60_000, "q")
        _, second = connected(here, T0 + 120_000, "p", "q")
        assert decode(second.record).properties[properties.TRANSACTION_CHECK_TIMES] == "2"
        connected(here, T0 + 180_000, "p", "q")
        assert here.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"body"]
        for late in (first, half, second):
            assert here.end(late, COMMIT, producer_group="q") is None
        assert here.bodies() == [b"body"]


def test_a_half_without_a_producer_is_copied_a_few_times_in_file_reserved_time(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, b"body", UNIQ_KEY="U")
        reserved_ms = here.store.config.file_reserved_time * 3_600_000
        for quarter_hour in range(1, reserved_ms // 900_000):
            assert here.check(T0 + quarter_hour * 900_000, is_connected=False) == []
        assert len(here.messages(TRANS_HALF_TOPIC)) <= 9
        assert here.end(half, COMMIT) is None
        assert here.bodies() == [b"body"]


def test_a_copy_whose_first_message_was_ended_after_a_restart_stays_ended_after_one_that_waits(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        here.prepare(T0, b"absent", UNIQ_KEY="A")
        half = here.prepare(T0, b"body", UNIQ_KEY="U")
        assert here.check(T0 + 36_000_000, is_connected=False) == []
        assert len(here.messages(TRANS_HALF_TOPIC)) == 4
        here.note()
    with transaction_store(tmp_path) as here:
        assert here.end(half, ROLLBACK) is None
        for _ in range(2):
            assert here.check(T0 + 36_060_000, is_connected=False) == []
        assert [checked_body(question) for question in here.check(T0 + 36_120_000)] == [b"absent"]


def test_a_half_without_a_producer_is_copied_after_many_ended_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ENDED_MAX", 20)
    with transaction_store(tmp_path) as here:
        here.prepare(T0, b"absent", UNIQ_KEY="A")
        for minute in range(1, 101):
            assert here.end(here.prepare(T0, b"ended"), ROLLBACK) is None
            here.check(T0 + minute * 60_000, is_connected=False)
            begin, end = here.transactions.progress()[TRANS_HALF_TOPIC], here.store.max_offset(TRANS_HALF_TOPIC, 0)
            assert end - begin <= 22
        assert here.bodies(TRANS_HALF_TOPIC).count(b"absent") == 5
        (question,) = here.check(T0 + 102 * 60_000)
        assert checked_body(question) == b"absent"


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("discarded_by", ["checks", "age"])
def test_a_late_end_of_the_first_message_reaches_its_discarded_copy(
    tmp_path: Path, discarded_by: str, resumed: bool
) -> None:
    with transaction_store(tmp_path, check_max=2) as here:
        half = here.prepare(T0, b"body", UNIQ_KEY="U")
        here.check(T0 + 60_000)
        if discarded_by == "checks":
            here.check(T0 + 120_000)
            here.check(T0 + 180_000)
        else:
            here.check(T0 + 60_000 + here.store.config.file_reserved_time * 3_600_000, is_connected=False)
        (discarded,) = here.messages(TRANS_CHECK_MAX_TIME_TOPIC)
        if resumed:
            assert here.transactions.resume(discarded.physical_offset, T0 + 180_000) is None
        for _ in range(2):
            assert here.end(half, COMMIT) is None
            assert here.bodies() == [b"body"]
            here.check(T0 + 240_000, is_connected=False)
        assert here.end(half, COMMIT) is None
        assert here.check(T0 + 1_000_000) == []
        assert here.bodies() == [b"body"]


@pytest.mark.parametrize("delay", [{}, {"DELAY": "2"}])
def test_a_discarded_transaction_that_was_committed_late_is_not_resumed(tmp_path: Path, delay: dict[str, str]) -> None:
    with transaction_store(tmp_path, check_max=1) as here:
        here.prepare(T0, b"body", UNIQ_KEY="U", **delay)
        here.prepare(T0, b"another with this key", UNIQ_KEY="U")
        late, _ = here.check(T0 + 60_000)
        assert here.check(T0 + 120_000) == []
        discarded, other = here.messages(TRANS_CHECK_MAX_TIME_TOPIC)
        assert here.end(late, COMMIT) is None
        here.note()
    with transaction_store(tmp_path, check_max=1) as here:
        refused = here.transactions.resume(discarded.physical_offset, T0 + 180_000)
        assert refused is not None
        assert discarded.msg_id in refused
        assert here.check(T0 + 180_000) == []
        assert here.transactions.resume(other.physical_offset, T0 + 180_000) is None
        assert [checked_body(question) for question in here.check(T0 + 240_000)] == [b"another with this key"]
        assert here.bodies(*((SCHEDULE_TOPIC, 1) if delay else ("T", 0))) == [b"body"]


@pytest.mark.parametrize("seconds", ["99999999999999999999", "-1", "soon", str(1 << 63)])
def test_an_immunity_time_that_is_no_time_leaves_the_timeout_of_the_broker(tmp_path: Path, seconds: str) -> None:
    with transaction_store(tmp_path) as here:
        here.prepare(T0, b"body", CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
        assert here.check(T0 + TIMEOUT_MS - 1) == []
        assert [checked_body(question) for question in here.check(T0 + TIMEOUT_MS)] == [b"body"]


@pytest.mark.parametrize("seconds", ["9223372036854775807", "1000000000"])
def test_an_immunity_time_ends_with_the_time_for_which_the_log_is_kept(tmp_path: Path, seconds: str) -> None:
    with transaction_store(tmp_path) as here:
        here.prepare(T0, b"body", CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
        reserved_ms = here.store.config.file_reserved_time * 3_600_000
        assert here.check(T0 + reserved_ms - 1) == []
        assert [checked_body(question) for question in here.check(T0 + reserved_ms)] == [b"body"]


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
async def test_an_end_of_a_message_that_a_crash_has_taken_ends_no_other(tmp_path: Path, outcome: int) -> None:
    """The half message that is stored after the crash has the offsets of the one before."""
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, b"later", UNIQ_KEY=OWN_KEY)
        assert here.end(half, outcome, unique_key=OTHER_KEY) == refusals.HALF_NOT_FOUND
        assert here.bodies() == []
        assert here.end(half, outcome, unique_key=OWN_KEY) is None
        assert here.bodies() == [b"later"] * (outcome == COMMIT)


# Rolling.


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
async def test_an_open_half_message_outlives_its_log_file(tmp_path: Path, outcome: int) -> None:
    with transaction_store(tmp_path) as here:
        half, ended = here.prepare(T0, b"open", UNIQ_KEY=OWN_KEY), here.prepare(T0, b"ended", UNIQ_KEY="E")
        here.end(ended, COMMIT)
        while here.store.max_physical_offset < 8192:
            here.store.put(stores.inner(body=bytes(1000)), T0)
        here.store.write_state.set_disk_full("full")
        assert await roll(here.store, [here.transactions], lambda: T0 + 1)
        assert [message.body for message in here.messages(TRANS_HALF_TOPIC)[2:]] == [b"open"]
        here.store.write_state.set_disk_full(None)
        stores.force_deletion(here.store)
        assert here.store.min_physical_offset > half.physical_offset
        assert here.end(half, outcome, unique_key=OTHER_KEY) == refusals.HALF_NOT_FOUND
        assert here.end(half, outcome, unique_key=OWN_KEY) is None, "the producer knows only the message it sent"
        assert here.end(half, outcome, unique_key=OWN_KEY) is None
        assert here.check(T0 + 1_000_000) == []
        found = [message.body for message in here.messages("T", first=here.store.min_offset("T", 0))]
        assert (b"open" in found) == (outcome == COMMIT)


def crashed_after_a_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch, **pairs: str
) -> tuple[TransactionStore, PutResult, PutResult]:
    """Return the store after a crash that took the op message of the first of two half messages, and these."""
    with transaction_store(path / "before") as here:
        half = here.prepare(T0, b"body", UNIQ_KEY="U", **pairs)
        other = here.prepare(T0, b"other", UNIQ_KEY="V", **pairs)
        failed = PutResult(PutMessageStatus.UNKNOWN_ERROR)
        monkeypatch.setattr(here.transactions, "_put_op", lambda *place, **kind: failed)
        assert here.end(half, COMMIT) is None
        crashed = stores.crashed_copy(here.store, path / "after")
    crashed.open(T0)
    return TransactionStore(crashed), half, other


async def test_a_commit_without_its_op_message_outlives_its_log_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _, other = crashed_after_a_commit(tmp_path, monkeypatch)
    while here.store.max_physical_offset < 8192:
        here.store.put(stores.inner(body=bytes(1000)), T0)
    assert await roll(here.store, [here.transactions], lambda: T0 + 1)
    stores.force_deletion(here.store)
    assert here.store.min_physical_offset > other.physical_offset
    assert [checked_body(question) for question in here.check(T0 + 1_000_000)] == [b"other"]
    here.store.close()
    assert check(tmp_path / "after") == []


def test_the_producer_is_checked_after_the_timeout(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        done = here.prepare(T0, b"done", UNIQ_KEY="D")
        here.prepare(T0, b"open", queue_id=3, UNIQ_KEY="O")
        here.prepare(T0 + 1, b"young")
        here.end(done, COMMIT)
        assert here.check(T0 + TIMEOUT_MS - 1) == []
        (question,) = here.check(T0 + TIMEOUT_MS)
        copy = here.messages(TRANS_HALF_TOPIC)[-1]
        assert question[:-1] == ("p", 3, copy.physical_offset, "O", copy.offset_msg_id)
        told = decode(question.record)
        assert (told.topic, told.queue_id, told.body) == ("T", 3, b"open")
        assert (told.queue_offset, told.physical_offset) == (3, copy.physical_offset)
        assert told.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert copy.properties == told.properties
        assert here.end(question, COMMIT) is None
        assert here.bodies(queue_id=3) == [b"open"]


def test_a_transaction_without_an_end_is_discarded(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, b"body", UNIQ_KEY="U")
        now_ms = T0
        for times in (1, 2, 3):
            now_ms += 60_000
            (question,) = here.check(now_ms)
            assert decode(question.record).properties["TRANSACTION_CHECK_TIMES"] == str(times)
        assert here.check(now_ms + 60_000) == []
        assert here.check(now_ms + 120_000) == []
        (aside,) = here.messages(TRANS_CHECK_MAX_TIME_TOPIC)
        assert (aside.body, aside.properties["TRANSACTION_CHECK_TIMES"]) == (b"body", "3")
        assert here.bodies() == []
        for _ in range(2):
            assert here.end(question, COMMIT) is None, "late, but not too late"
            assert here.end(half, COMMIT) is None
        assert here.bodies() == [b"body"]


def test_a_late_end_after_a_check_counts_once(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, b"body")
        (first,) = here.check(T0 + 60_000)
        (second,) = here.check(T0 + 120_000)
        assert here.end(half, COMMIT) is None
        assert here.end(second, COMMIT) is None
        assert here.end(first, ROLLBACK) is None
        assert here.check(T0 + 180_000) == []
        assert here.bodies() == [b"body"]


def test_ends_between_the_requests_of_one_check_count(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        halves = [here.prepare(T0, b"%d" % number) for number in range(4)]
        questions = here.questions(T0 + TIMEOUT_MS)
        assert checked_body(next(questions)) == b"0"
        here.end(halves[1], COMMIT)
        here.end(halves[0], COMMIT)
        here.end(halves[3], ROLLBACK)
        assert [checked_body(question) for question in questions] == [b"2"]
        assert here.bodies() == [b"1", b"0"]
        assert [checked_body(question) for question in here.check(T0 + 60_000)] == [b"2"]


def test_a_producer_whose_clock_is_ahead_is_checked_at_once(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        here.prepare(T0, b"body")
        assert len(here.check(T0 - 1)) == 1


def test_a_message_may_ask_for_its_own_time(tmp_path: Path) -> None:
    with transaction_store(tmp_path, check_max=2) as here:
        here.prepare(T0, b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        here.prepare(T0, b"hasty", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
        here.prepare(T0, b"unclear", CHECK_IMMUNITY_TIME_IN_SECONDS="-1")
        assert [checked_body(question) for question in here.check(T0 + 1000)] == [b"hasty"]
        assert {checked_body(question) for question in here.check(T0 + TIMEOUT_MS)} == {b"unclear", b"hasty"}
        for minute in range(1, 10):
            assert b"patient" not in [checked_body(question) for question in here.check(T0 + minute * 60_000)]
        (question,) = here.check(T0 + 600_000)
        assert checked_body(question) == b"patient"
        assert sorted(here.bodies(TRANS_CHECK_MAX_TIME_TOPIC)) == [b"hasty", b"unclear"]


def test_a_copy_that_no_longer_fits_a_record_is_laid_aside(tmp_path: Path) -> None:
    store = MessageStore(stores.config(tmp_path, mapped_file_size_commit_log=1 << 17))
    store.open(T0)
    here = TransactionStore(store)
    named = {"TRAN_MSG": "true", "PGROUP": "p", "REAL_TOPIC": "T", "REAL_QID": "0", "a": "x"}
    named["a"] = "x" * (32_767 - len(properties.join(named)) + 1)
    large = MessageInner(TRANS_HALF_TOPIC, 0, b"large", properties.join(named), 7, 0, T0, stores.HOST)
    assert store.put(large, T0).status is PutMessageStatus.PUT_OK, "as Apache's broker would"
    here.prepare(T0, b"small")
    assert [checked_body(question) for question in here.check(T0 + TIMEOUT_MS)] == [b"small"]
    assert here.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"large"]
    store.close()


# Restarts.


def test_open_transactions_survive_a_restart(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        here.prepare(T0, b"0")
        committed = here.prepare(T0, b"1")
        rolled_back = here.prepare(T0, b"2")
        late = here.prepare(T0, b"3")
        here.end(committed, COMMIT)
        here.end(rolled_back, ROLLBACK)
        here.note()
    with transaction_store(tmp_path) as here:
        assert here.end(committed, COMMIT) is None, "it was ended before"
        here.end(late, COMMIT)
        assert [checked_body(question) for question in here.check(T0 + TIMEOUT_MS)] == [b"0"]
        assert here.bodies() == [b"1", b"3"]


def test_progress_stops_at_the_oldest_open_transaction(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        halves = [here.prepare(T0, b"%d" % number) for number in range(4)]
        for number in (3, 1, 0):
            here.end(halves[number], COMMIT)
        assert tuple(here.transactions.progress().values()) == (2, 0)
        here.end(halves[2], COMMIT)
        assert tuple(here.transactions.progress().values()) == (4, 4)
        here.note()
        assert here.offsets.get(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) == 4
        assert here.offsets.get(TRANSACTION_GROUP, TRANS_OP_HALF_TOPIC, 0) == 4


def test_an_end_after_a_restart_reaches_a_half_message_with_its_own_check_time(tmp_path: Path) -> None:
    with transaction_store(tmp_path) as here:
        half = here.prepare(T0, b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        here.check(T0 + 60_000)
        here.note()
    with transaction_store(tmp_path) as here:
        assert here.end(half, COMMIT) is None
        assert here.check(T0 + 600_000) == []
        assert here.bodies() == [b"patient"]


def test_a_crash_before_progress_was_written_loses_no_end(tmp_path: Path) -> None:
    with transaction_store(tmp_path / "before") as here:
        halves = [here.prepare(T0, b"%d" % number) for number in range(30)]
        for half in halves[:20]:
            here.end(half, COMMIT)
        crashed = stores.crashed_copy(here.store, tmp_path / "after")
    crashed.open(T0)
    here = TransactionStore(crashed)
    assert [checked_body(question) for question in here.check(T0 + TIMEOUT_MS)] == [b"%d" % n for n in range(20, 30)]
    assert len(here.messages()) == 20
    crashed.close()
    assert check(tmp_path / "after") == []


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("delay", [{}, {"DELAY": "1"}])
def test_a_power_failure_between_a_commit_and_its_op_message_delivers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay: dict[str, str], is_checked: bool
) -> None:
    here, half, other = crashed_after_a_commit(tmp_path, monkeypatch, **delay)
    ends = here.check(T0 + TIMEOUT_MS) if is_checked else [half, other]
    for each in (*ends, *ends):
        assert here.end(each, COMMIT) is None
    assert here.bodies(SCHEDULE_TOPIC if delay else "T") == [b"body", b"other"]
    assert len(here.messages(TRANS_OP_HALF_TOPIC)) == 2
    here.store.close()
    assert check(tmp_path / "after") == []


@pytest.mark.parametrize("noted", [True, False])
def test_transactions_that_apaches_broker_ended_stay_ended(golden: Path, tmp_path: Path, noted: bool) -> None:
    shutil.copytree(golden / "g1-clean" / "store-after-restart", tmp_path / "store")
    if not noted:
        for path in (tmp_path / "store" / "config").glob("consumerOffset.json*"):
            path.unlink()
    store = MessageStore(stores.golden_config(tmp_path / "store", "g1-clean"))
    store.open(T0)
    here = TransactionStore(store)
    before = store.max_offset("GTx", 0), store.max_offset("GTx", 1)
    questions = here.check(store.last_store_timestamp + 1_000_000)
    if noted:
        assert questions == []
        assert tuple(here.transactions.progress().values()) == (20, 8)
    else:  # two were laid aside, six went on as copies; only the notes tell that of their older copies
        assert {decode(question.record).keys for question in questions} == {
            "tx-2", "tx-3", "tx-4", "tx-7", "tx-8", "tx-9",
        }  # fmt: skip
    assert (store.max_offset("GTx", 0), store.max_offset("GTx", 1)) == before == (2, 2)
    store.close()


# A whole broker.


async def prepare(peer: Peer, body: bytes) -> tuple[int, int]:
    """Send half of a transaction; its offsets in queue and log."""
    sent = await peer.send(body, properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U\x02WAIT\x01true\x02")
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    return int(sent.ext_fields["queueOffset"]), int(sent.ext_fields["msgId"][16:], 16)


async def test_a_broker_delivers_commits_and_drops_rollbacks(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send(b"plain")
        good, bad = await prepare(peer, b"good"), await prepare(peer, b"bad")
        assert (await peer.end_transaction(*good, COMMIT)).code == ResponseCode.SUCCESS
        assert (await peer.end_transaction(*bad, ROLLBACK)).code == ResponseCode.SUCCESS
        refused = await peer.end_transaction(*good, COMMIT, "stranger")
        assert (refused.code, "producer group wrong" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        assert [message.body for message in decode_many((await peer.pull()).body)] == [b"plain", b"good"]
        (half, _) = decode_many((await peer.pull(topic=TRANS_HALF_TOPIC)).body)
        assert half.properties["WAIT"] == "true"


async def test_an_unknown_outcome_gets_no_response_and_an_invalid_one_a_refusal(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send(b"plain")
        half = await prepare(peer, b"half")
        waiting = asyncio.ensure_future(peer.end_transaction(*half, sysflag.TRANSACTION_NOT))
        await peer.pull()  # answered after the request before it, being on one connection
        assert not waiting.done()
        waiting.cancel()
        for outcome in (sysflag.TRANSACTION_PREPARED, 77, -1):
            refused = await peer.end_transaction(*half, outcome)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert (refused.remark or "").startswith(f"commitOrRollback is {outcome}; 8 (commit), 12 (rollback)")
        assert (await peer.end_transaction(*half, COMMIT)).code == ResponseCode.SUCCESS
        assert [message.body for message in decode_many((await peer.pull()).body)] == [b"plain", b"half"]


async def test_a_broker_may_refuse_transactions(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, reject_transaction_message=True) as peer:
        await peer.send()
        refused = await peer.send(properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "rejectTransactionMessage" in (refused.remark or "")


async def test_a_broker_checks_transactions_after_a_restart(golden: Path, tmp_path: Path) -> None:
    settings = {"transaction_time_out": 0, "transaction_check_interval": 1, "transaction_check_max": 1_000_000}
    recorded = next(row for row in frames(golden) if row["code"] == RequestCode.CHECK_TRANSACTION_STATE)

    async with broker_peer(tmp_path) as peer:
        await peer.send(b"plain")
        await prepare(peer, b"half")
    async with broker_peer(tmp_path, **settings) as peer:
        questions: Tally[RemotingCommand] = Tally()

        def checked(connection: Connection, command: RemotingCommand) -> None:
            questions.add(command)

        producer = RemotingClient({RequestCode.CHECK_TRANSACTION_STATE: checked})
        heartbeat = HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name="p")])
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_body(heartbeat))
        await producer.invoke_ok(peer.broker.address, request)
        question = (await questions.reach(1))[0]
        assert question.is_oneway
        assert question.ext_fields.keys() == decode_frame(bytes.fromhex(recorded["frame"])).ext_fields.keys()
        place = question.decode_header(CheckTransactionStateRequestHeader)
        ended = await peer.end_transaction(place.tran_state_table_offset, place.commit_log_offset, COMMIT)
        assert ended.code == ResponseCode.SUCCESS
        (message,) = decode_many((await peer.pull(queue_offset=1)).body)
        assert (message.topic, message.body, message.sys_flag) == ("T", b"half", COMMIT)
        await producer.close()
