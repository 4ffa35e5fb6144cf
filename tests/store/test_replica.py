"""A log that is a copy of another's: the same bytes, the same queues, and nothing that is not the master's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rucola.errors import StoreError
from rucola.message import sysflag
from rucola.store.config import BrokerRole, PutMessageStatus
from rucola.store.mapped_file import file_name
from rucola.store.message_store import MessageStore
from rucola.store.replica import Replica
from rucola.store.tools.check import check
from support.errors import raises
from support.examples import examples
from support.stores import batch, config, crashed_copy, inner

FILE = 4096


def bytes_of(store: MessageStore, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The log from `begin` on, file by file."""
    end = store.max_physical_offset if end is None else end
    while begin < end:
        held = store.hold_bytes(begin, end - begin)
        assert held is not None
        with held:
            yield begin, bytes(held.view)
            begin += len(held)


def replica(store: MessageStore) -> Replica:
    assert store.replica is not None
    return store.replica


def copy(
    master: MessageStore, slave: MessageStore, end: int | None = None, size: Callable[[], int] = lambda: 64
) -> None:
    """Send what the slave lacks, in pieces."""
    for begin, data in bytes_of(master, replica(slave).begin, end):
        at = 0
        while at < len(data):
            piece = data[at : at + size()]
            replica(slave).append(begin + at, memoryview(piece))
            at += len(piece)


def fill(store: MessageStore, count: int, seed: int = 0) -> None:
    random = Random(seed)
    for number in range(count):
        kind = random.random()
        name = (random.choice(["A", "B"]), random.randrange(2))
        body = random.randbytes(random.choice([0, 20, 200, 900]))
        if kind < 0.2:
            store.put_batch(
                batch(*(inner(*name, body[:50], unique_key=f"{seed}-{number}-{k}") for k in range(3))), 1000 + number
            )
        elif kind < 0.3:
            store.put(inner(*name, body, sys_flag=sysflag.TRANSACTION_PREPARED), 1000 + number)
        else:
            store.put(inner(*name, body, keys=f"k{number}", unique_key=f"{seed}-{number}"), 1000 + number)


def records(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    found: dict[tuple[str, int], list[bytes]] = {}
    for name, (begin, end) in store.queues().items():
        while begin < end:
            page = store.get(*name, begin, 32)
            found.setdefault(name, []).extend(page.records)
            begin = page.next_begin_offset
    return found


def slave_of(path: Path) -> MessageStore:
    return MessageStore(config(path, broker_role=BrokerRole.SLAVE))


@settings(max_examples=examples(10))
@given(st.lists(st.integers(1, 1500), min_size=1, max_size=6))
def test_replica_log_is_equal_byte_for_byte(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    size = cycle(sizes).__next__
    path = tmp_path_factory.mktemp("pair")
    with MessageStore(config(path / "m")) as master, slave_of(path / "s") as slave:
        for turn in range(3):
            fill(master, 30, turn)
            copy(master, slave, size=size)
            assert list(bytes_of(slave)) == list(bytes_of(master))
            assert records(slave) == records(master)
            assert slave.queues() == master.queues()
        key = "k3"
        assert slave.query("A", key, 64).records == master.query("A", key, 64).records
    assert check(path / "s") == []


def test_a_slave_refuses_puts(tmp_path: Path) -> None:
    with slave_of(tmp_path / "s") as slave:
        assert slave.put(inner(), 1).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert slave.put_batch(batch(inner()), 1).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        slave.begin_retention_round(1, 4, [])
        assert slave.write_state.reason == "the broker is a slave: its log takes only what the master sends"


def test_an_empty_slave_starts_with_the_newest_file(tmp_path: Path) -> None:
    with MessageStore(config(tmp_path / "m")) as master, slave_of(tmp_path / "s") as slave:
        fill(master, 40)
        begin = master.max_physical_offset // FILE * FILE
        assert begin > 0
        assert replica(slave).begin == 0
        for at, data in bytes_of(master, begin):
            replica(slave).append(at, memoryview(data))
        assert slave.min_physical_offset == begin
        assert list(bytes_of(slave, begin)) == list(bytes_of(master, begin))
        for name, (first, end) in slave.queues().items():
            assert end == master.max_offset(*name)
            assert slave.get(*name, first, 32).records == master.get(*name, first, 32).records
        fill(master, 40, 1)
        copy(master, slave)
        assert list(bytes_of(slave, begin)) == list(bytes_of(master, begin))
    assert check(tmp_path / "s") == []
    with slave_of(tmp_path / "s") as again:
        assert again.min_physical_offset == begin


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_partial_record_is_truncated(tmp_path: Path, is_killed: bool) -> None:
    with MessageStore(config(tmp_path / "m")) as master, slave_of(tmp_path / "s") as slave:
        fill(master, 20)
        whole = master.max_physical_offset
        master.put(inner(body=bytes(300)), 5000)
        copy(master, slave, whole + 150)
        assert slave.max_physical_offset == whole + 150
        if is_killed:
            after = crashed_copy(slave, tmp_path / "after")
        else:
            slave.close()
            after = slave_of(tmp_path / "s")
            assert check(tmp_path / "s") == []
        with after:
            assert after.max_physical_offset == whole
            assert 0 < replica(after).begin < whole
            copy(master, after)
            assert list(bytes_of(after)) == list(bytes_of(master))
            assert records(after) == records(master)
    assert check(after.config.store_path_root_dir) == []


@pytest.mark.parametrize("damage", ["zeros", "bits", "magic"])
def test_a_damaged_tail_is_truncated_and_copied_again(tmp_path: Path, damage: str) -> None:
    """What a crash of the slave's machine leaves of its last record; the master's is whole."""
    with MessageStore(config(tmp_path / "m")) as master, slave_of(tmp_path / "s") as slave:
        fill(master, 10)
        last = master.put(inner(body=bytes(range(200))), 5000)
        copy(master, slave)
        after = crashed_copy(slave, tmp_path / "after")
        with open(tmp_path / "after" / "commitlog" / file_name(last.physical_offset // FILE * FILE), "r+b") as file:
            file.seek(last.physical_offset % FILE + {"zeros": 150, "bits": 150, "magic": 4}[damage])
            file.write(bytes(last.size - 150) if damage == "zeros" else b"\x55")
        with after:
            assert after.max_physical_offset == last.physical_offset
            copy(master, after)
            assert list(bytes_of(after)) == list(bytes_of(master))
            assert records(after) == records(master)
    assert check(tmp_path / "after") == []


def test_a_full_disk_stops_the_copy_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageStore(config(tmp_path / "m")) as master, slave_of(tmp_path / "s") as slave:
        fill(master, 5)
        copy(master, slave)
        fill(master, 40, 1)
        with monkeypatch.context() as full:

            def no_room(*arguments: int) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            full.setattr(os, "posix_fallocate", no_room)
            with raises(OSError, errno=errno.ENOSPC):
                copy(master, slave)
        replica(slave).truncate()
        assert slave.max_physical_offset < master.max_physical_offset
        copy(master, slave)
        assert list(bytes_of(slave)) == list(bytes_of(master))
        assert records(slave) == records(master)
    assert check(tmp_path / "s") == []


def test_a_master_that_lost_its_end_is_detected(tmp_path: Path) -> None:
    """Its new messages lie where the slave has others, record for record as long as they."""
    with MessageStore(config(tmp_path / "m")) as master, slave_of(tmp_path / "s") as slave:
        master.put(inner(body=b"both have it"), 1)
        with closing(crashed_copy(master, tmp_path / "lost")) as lost:
            lost.open(2)
            master.put(inner(body=b"only slave 1"), 2)
            copy(master, slave)
            end = slave.max_physical_offset
            lost.put(inner(body=b"not to come."), 3)
            lost.put(inner(body=b"nor this one"), 4)
            assert lost.max_physical_offset > end
            with pytest.raises(StoreError):
                copy(lost, slave)
        assert slave.max_physical_offset == end
        assert list(bytes_of(slave)) == list(bytes_of(master))
    assert check(tmp_path / "s") == []


def test_bytes_that_are_no_record_are_not_kept(tmp_path: Path) -> None:
    large = {"mapped_file_size_commit_log": 1 << 16}
    with (
        MessageStore(config(tmp_path / "m", **large)) as master,
        MessageStore(config(tmp_path / "s", broker_role=BrokerRole.SLAVE, **large)) as slave,
    ):
        master.put(inner(), 1)
        copy(master, slave)
        end = master.put(inner(), 1).physical_offset
        record = master.record_at(end)
        assert record is not None
        assert end == slave.max_physical_offset
        for data in (
            bytes(100),
            record[:28] + (97).to_bytes(8, "big") + record[36:],
            record[:20] + (7).to_bytes(8, "big") + record[28:],
            record[:12] + b"\xff" * 4 + record[16:],
            bytes.fromhex("0000000ccbd43194") + bytes(4),
            bytes(4) + record[4:],
        ):
            with pytest.raises(StoreError):
                replica(slave).append(end, memoryview(data))
            replica(slave).truncate()
            assert slave.max_physical_offset == end
        fill(master, 30)
        copy(master, slave)
        assert records(slave) == records(master)
    assert check(tmp_path / "s") == []


def test_bytes_that_do_not_continue_the_log_are_refused(tmp_path: Path) -> None:
    with MessageStore(config(tmp_path / "m")) as master, slave_of(tmp_path / "s") as slave:
        with raises(StoreError, subject="mappedFileSizeCommitLog"):
            replica(slave).append(FILE + 1, memoryview(b"x"))
        fill(master, 10)
        copy(master, slave)
        end = slave.max_physical_offset
        with pytest.raises(StoreError):
            replica(slave).append(end + 1, memoryview(b"x"))
        replica(slave).append(end, memoryview(b""))


def test_a_recreated_topic_starts_at_offset_zero(tmp_path: Path) -> None:
    with MessageStore(config(tmp_path / "m", file_reserved_time=0)) as master, slave_of(tmp_path / "s") as slave:
        master.put(inner("Old", body=bytes(3000)), 1)
        copy(master, slave)
        slave.reput()
        fill(master, 40)
        copy(master, slave)
        master.request_manual_deletion()
        master.begin_retention_round(1 << 50, 4, [])
        while master.expire(1 << 50):
            master.delete_expired()
        assert master.delete_queue("Old", 0)
        master.put(inner("Old", body=b"again"), 1 << 50)
        copy(master, slave)
        assert slave.queues()["Old", 0] == (0, 1)
        assert slave.get("Old", 0, 0, 32).records == master.get("Old", 0, 0, 32).records


def test_an_empty_file_does_not_fix_where_a_slave_starts(tmp_path: Path) -> None:
    directory = tmp_path / "s" / "commitlog"
    directory.mkdir(parents=True)
    (directory / file_name(0)).write_bytes(bytes(FILE))
    with MessageStore(config(tmp_path / "m")) as master, slave_of(tmp_path / "s") as slave:
        fill(master, 40)
        begin = master.max_physical_offset // FILE * FILE
        assert replica(slave).begin == 0
        for at, data in bytes_of(master, begin):
            replica(slave).append(at, memoryview(data))
        assert [path.name for path in directory.iterdir()] == [file_name(begin)]
    assert check(tmp_path / "s") == []
