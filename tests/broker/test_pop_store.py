"""POP and its log: what survives the deletion of files, damage, full disks, and what others commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rucola import slices
from rucola.access import Reason, Refused
from rucola.broker.delivery import pop as pop_module
from rucola.broker.delivery import pop_state
from rucola.store.config import PutMessageStatus, PutResult
from rucola.store.tools.check import check
from support import stores
from support.errors import raises
from support.pop_store import Held, PopStore
from support.stores import force_deletion


@contextmanager
def pop_store(path: Path, **settings: Any) -> Iterator[PopStore]:
    pop = PopStore(path / "store", queues=1, **settings)
    yield pop
    pop.close()


def bodies(held: list[Held]) -> list[bytes]:
    return [each.body for each in held]


def test_no_deletion_of_a_log_file_forgets_who_holds_what(tmp_path: Path) -> None:
    with pop_store(tmp_path, mapped_file_size_commit_log=4096) as pop:
        for number in range(4):
            pop.send(b"%d" % number)
        held = pop.receive(2)
        while pop.store.oldest_file_end >= pop.store.max_physical_offset:
            pop.send(b"filler")
        first = pop.store.units("T", 0, 0, 1)[0][0]
        assert first < pop.store.oldest_file_end
        for _ in range(9):
            pop.send(b"new")
        while not (done := pop.pop.roll_some(pop.store.oldest_file_end, pop.now_ms)):
            assert done is None
        before = pop.state()
        force_deletion(pop.store)
        pop.restart()
        kept = pop.store.min_offset("T", 0)
        assert kept > 0
        assert pop.state().pop_time_ms == before.pop_time_ms
        assert pop.state().next_offset == max(2, kept)
        assert pop.ack(*held).accepted == 2, "what is deleted is done"
        assert pop.state().committed_offset >= kept


def test_a_start_reads_a_bounded_part_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_module, "SNAPSHOT_INTERVAL", 10)
    with pop_store(tmp_path) as pop:
        for number in range(60):
            pop.send(b"%d" % number)
            (held,) = pop.receive(1)
            if number != 7:
                pop.ack(held)
        pop.restart()
        log = pop.pop._log
        assert sum(1 for _ in log.read()) <= 13 < log.end
        assert list(pop.state().outstanding) == [7]


def test_a_store_of_the_first_version_is_read(tmp_path: Path) -> None:
    """Its records name each message that is taken, as one without a message group."""
    pop = PopStore(tmp_path / "store", queues=1)
    for number in range(3):
        pop.send(b"%d" % number)
    pop.receive(1)  # the state, and the topic of the log
    record = b'["Pop",%d,100,%d,"c",null,3,[[1,null],[2,null]],[1,2],false]' % (pop.now_ms + 1, pop.now_ms + 101)
    pop.store.put(stores.inner("rmq_sys_pop_log", 0, b'[0,[["T","g",0,%b]]]' % record), pop.now_ms)
    pop.restart()
    assert list(pop.state().outstanding) == [0, 1, 2]
    pop.now_ms += 1000
    assert bodies(pop.receive()) == [b"0", b"1", b"2"], "again, from the retry topic"
    pop.close()


def test_revival_ends_with_its_share_amid_a_receive(tmp_path: Path) -> None:
    with pop_store(tmp_path) as pop:
        for number in range(40):
            pop.send(b"%02d" % number)
        pop.receive(24)
        pop.receive(16)
        pop.now_ms += 1000
        assert pop.pop.revive(pop.now_ms) == pop.now_ms - 900, "the rest is due as well"
        assert pop.store.max_offset("%RETRY%g_T", 0) == pop_module.REVIVAL_BATCH
        assert list(pop.state().outstanding) == list(range(32, 40))
        assert pop.pop.revive(pop.now_ms) is None
        assert [message.body for message in pop.all_of("%RETRY%g_T")] == [b"%02d" % number for number in range(40)]


def test_damage_of_the_log_delivers_again_and_loses_nothing(tmp_path: Path) -> None:
    pop = PopStore(tmp_path / "store", queues=1)
    for number in range(6):
        pop.send(b"%d" % number)
    first = pop.receive(3)
    pop.ack(first[1])
    damaged = pop.store.max_physical_offset
    pop.ack(first[0])
    later = pop.receive(2)
    pop.ack(*later)
    pop.store.close()
    (file,) = sorted((tmp_path / "store" / "commitlog").iterdir())[:1]
    content = bytearray(file.read_bytes())
    at = content.index(b'"Done"', damaged)
    content[at + 1] ^= 1
    file.write_bytes(content)
    pop.open()
    assert pop.state().next_offset == 3, "what came after the damage is not known"
    assert bodies(pop.receive()) == [b"3", b"4", b"5"]
    pop.store.close()
    pop.open()
    assert list(pop.state().outstanding) == [0, 2, 3, 4, 5], "a restart reads on after the damage"
    pop.store.close()
    assert check(tmp_path / "store"), "one damaged record"


def test_what_others_commit_is_followed(tmp_path: Path) -> None:
    with pop_store(tmp_path) as pop:
        for number in range(6):
            pop.send(b"%d" % number)
        held = pop.receive(2)
        pop.offsets.commit("g", "T", 0, 4)
        assert bodies(pop.receive(1)) == [b"4"]
        assert pop.ack(*held).accepted == 2, "what was held below stays held"
        pop.offsets.commit("g", "T", 0, 1)
        assert bodies(pop.receive()) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_group_that_pulls_again_is_left_alone(tmp_path: Path) -> None:
    with pop_store(tmp_path) as pop:
        for number in range(4):
            pop.send(b"%d" % number)
        pop.ack(*pop.receive(2))
        pop.offsets.commit("g", "T", 0, 3)
        slices.run(pop.pop.detach_steps(pop.now_ms))
        assert not pop.pop.states
        pop.restart()
        assert pop.offsets.get("g", "T", 0) == 3
        assert not pop.pop.states


def test_a_bounded_number_of_messages_is_outstanding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_module, "MAX_OUTSTANDING", 5)
    monkeypatch.setattr("rucola.broker.services.pop.MAX_OUTSTANDING", 5)
    with pop_store(tmp_path) as pop:
        for number in range(8):
            pop.send(b"%d" % number)
        held = pop.receive(4) + pop.receive(4)
        assert len(held) == 5
        assert pop.receive() == []
        pop.ack(held[0])
        assert bodies(pop.receive()) == [b"5"]
    assert pop_state.MAX_OUTSTANDING > pop_module.REVIVAL_BATCH


def test_no_state_changes_without_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pop_store(tmp_path) as pop:
        pop.send(b"a")
        (held,) = pop.receive()
        put = pop.store.put
        with monkeypatch.context() as patch:
            patch.setitem(
                pop.store.__dict__, "put", lambda *_, **__: PutResult(PutMessageStatus.CREATE_MAPEDFILE_FAILED)
            )
            with raises(Refused) as refused:
                pop.ack(held)
            assert refused.value.reason is Reason.UNAVAILABLE
            with raises(Refused):
                pop.change(held, 1)
            pop.now_ms += 1000
            assert pop.pop.revive(pop.now_ms) == pop.now_ms + 1000, "the copy is tried again"
        assert pop.store.put == put
        assert pop.ack(held).accepted == 1, "with the same handle"


def test_receives_that_are_recorded_together_take_one_message_of_the_log(tmp_path: Path) -> None:
    with pop_store(tmp_path) as pop:
        for number in range(6):
            pop.send(b"%d" % number)
        with pop.service.together():
            held = [*pop.receive(2), *pop.receive(2)]
        assert pop.pop._log.end == 1
        assert bodies(held) == [b"0", b"1", b"2", b"3"]
        before = pop.state()
        pop.restart()
        assert pop.state() == before
        assert pop.ack(*held).accepted == 4
        assert bodies(pop.receive()) == [b"4", b"5"]


def test_what_could_not_be_recorded_together_precedes_the_next_record_and_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pop_store(tmp_path) as pop:
        for number in range(4):
            pop.send(b"%d" % number)
        (first,) = pop.receive(1)
        with monkeypatch.context() as patch:
            patch.setitem(
                pop.store.__dict__, "put", lambda *_, **__: PutResult(PutMessageStatus.CREATE_MAPEDFILE_FAILED)
            )
            with raises(Refused) as refused, pop.service.together():
                held = pop.receive(2)
            assert refused.value.reason is Reason.UNAVAILABLE
            with raises(Refused), pop.service.together():
                raise AssertionError("nothing more is received before the record")
        while not (done := pop.pop.roll_some(pop.store.max_physical_offset, pop.now_ms)):
            assert done is None
        pop.ack(first, held[0])
        before = pop.state()
        pop.restart()
        assert pop.state() == before
        assert list(before.outstanding) == [2]
        assert bodies(pop.receive()) == [b"3"]
