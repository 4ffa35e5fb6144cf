"""Descriptors, disk space and quotas that run out and come back: the store goes on by itself and has lost nothing."""

from __future__ import annotations

import errno
import itertools
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rucola.store.config import PutMessageStatus
from rucola.store.directory_reader import StoreReader
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from rucola.store.write_state import WriteState, WriteStatus
from support.errors import raises
from support.faults import limited, refusing, small_disk
from support.stores import OpenStore, all_bodies, config, crashed_copy, inner

EXHAUSTIONS = [
    ("posix_fallocate", errno.ENOSPC),
    ("posix_fallocate", errno.EDQUOT),
    ("ftruncate", errno.ENOSPC),
    ("open", errno.EMFILE),
    ("open", errno.ENFILE),
    ("mkdir", errno.ENOSPC),
]

QUEUES = 3


def put(store: MessageStore, sent: dict[int, list[bytes]], number: int) -> PutMessageStatus:
    """Put message `number` with three keys into one of three queues, and note it if it is acknowledged."""
    body = b"%d" % number + bytes(200)
    queue_id = number % QUEUES
    status = store.put(inner(body=body, keys=f"k{number} a b", queue_id=queue_id), 1000 * number).status
    if status is PutMessageStatus.PUT_OK:
        sent[queue_id].append(body)
    return status


def check_all(store: MessageStore, sent: dict[int, list[bytes]]) -> None:
    """Every acknowledged message is read once, in order, and found by each of its keys exactly once."""
    for queue_id, expected in sent.items():
        assert all_bodies(store, "T", queue_id) == expected
    numbers = [int(body.rstrip(b"\0")) for bodies in sent.values() for body in bodies]
    for number in numbers:
        assert len(store.query("T", f"k{number}", 64).records) == 1
    for word in ("a", "b"):
        offsets: list[int] = []
        before = 1 << 62
        while found := store.query("T", word, 64, before=before).physical_offsets:
            offsets += found
            before = min(found)
        assert len(offsets) == len(set(offsets)) == len(numbers)


@pytest.mark.parametrize(("call", "number"), EXHAUSTIONS)
def test_an_exhausted_dispatch_is_continued_when_the_condition_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """At whichever step it fails; units and entries that were written before are not written again."""
    for after in range(14):
        root = tmp_path / str(after)
        ends: dict[int, int] = {}
        store = MessageStore(
            config(root, mapped_file_size_commit_log=1 << 20),
            lambda topics, ends=ends: ends.update((queue.queue_id, queue.max_offset) for queue in topics["T"][0]),
        )
        store.open(1)
        sent: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
        for k in range(30):
            assert put(store, sent, k) is PutMessageStatus.PUT_OK
        with refusing(monkeypatch, call, number, after):
            store.reput()
            is_stalled = store.write_state.status is WriteStatus.STALLED
            if is_stalled:
                assert os.strerror(number) in str(store.write_state.reason)
                assert put(store, sent, 30) is PutMessageStatus.SERVICE_NOT_AVAILABLE
                assert store.has_pending
                store.get("T", 0, 0, 32)  # a read does not fail
        assert is_stalled or after > 3
        store.reput()
        assert not store.has_pending
        assert store.write_state.is_writable
        for k in range(31, 60):
            assert put(store, sent, k) is PutMessageStatus.PUT_OK
        check_all(store, sent)
        assert ends == {queue_id: len(bodies) for queue_id, bodies in sent.items()}
        store.checkpoint()
        store.close()
        assert not (root / "abort").exists()
        assert check(root) == []


@pytest.mark.parametrize(("call", "number"), EXHAUSTIONS[:1] + EXHAUSTIONS[3:4])
def test_a_store_that_stops_while_its_dispatch_is_exhausted_recovers(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    store = open_store(config(tmp_path, mapped_file_size_commit_log=1 << 20))
    sent: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
    for k in range(30):
        assert put(store, sent, k) is PutMessageStatus.PUT_OK
    with refusing(monkeypatch, call, number, 4):
        store.reput()
        assert store.has_pending
        with suppress(OSError):
            store.close()
    assert (tmp_path / "abort").exists()
    check_all(open_store(store.config), sent)


def test_a_flush_without_a_descriptor_fails_and_the_next_one_succeeds(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fsync was tried, so nothing is unknown."""
    store = open_store()
    sent: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
    for k in range(20):  # more than a file of the log, whose name the flush makes durable
        put(store, sent, k)
    store.reput()
    for flush in (store.flush, store.checkpoint):
        for number in (errno.EMFILE, errno.ENFILE):
            with refusing(monkeypatch, "open", number), raises(OSError, errno=number):
                flush()
        assert store.write_state.is_writable
        flush()
    assert store.flushed_physical_offset == store.max_physical_offset


@pytest.mark.parametrize("call", ["open", "ftruncate", "pwrite"])
def test_a_checkpoint_without_space_fails_and_the_next_one_succeeds(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = open_store()
    store.put(inner(), 1000)
    store.reput()
    if call != "ftruncate":  # which only the first checkpoint calls
        store.checkpoint()
    with refusing(monkeypatch, call, errno.ENOSPC), raises(OSError, errno=errno.ENOSPC):
        store.checkpoint()
    assert store.put(inner(), 2000).status is PutMessageStatus.PUT_OK
    store.checkpoint()
    store.close()
    assert not (tmp_path / "store" / "abort").exists()


def test_a_process_without_descriptors_takes_messages_again(open_store: OpenStore, tmp_path: Path) -> None:
    """Not injected: there is no descriptor for the files of new queues and of the index."""
    store = open_store(config(tmp_path / "store", mapped_file_size_commit_log=1 << 20))
    sent: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
    assert put(store, sent, 0) is PutMessageStatus.PUT_OK
    store.reput()
    for k in range(1, 30):
        assert put(store, sent, k) is PutMessageStatus.PUT_OK
    probe = os.open(tmp_path, os.O_RDONLY)
    os.close(probe)
    with limited(resource.RLIMIT_NOFILE, probe):
        store.reput()
        assert store.write_state.status is WriteStatus.STALLED
        assert put(store, sent, 30) is PutMessageStatus.SERVICE_NOT_AVAILABLE
        with raises(OSError, errno=errno.EMFILE):
            store.checkpoint()
    store.reput()
    assert put(store, sent, 31) is PutMessageStatus.PUT_OK
    check_all(store, sent)


def limit_with_free(count: int) -> int:
    """Return the limit below which so many descriptors are free now."""
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    return next(islice((number for number in itertools.count() if number not in used), count, None))


def test_more_queues_than_descriptors(tmp_path: Path) -> None:
    """Each has messages, is read and flushed, and recovered after a crash and after a clean stop."""
    count, settings = 600, config(tmp_path / "store", mapped_file_size_commit_log=1 << 20)

    def put_in_each(store: MessageStore, body: bytes) -> None:
        for queue_id in range(count):
            assert store.put(inner(body=body, queue_id=queue_id), 1000).status is PutMessageStatus.PUT_OK
        store.reput()
        assert store.stall is None

    with limited(resource.RLIMIT_NOFILE, limit_with_free(160)):
        store = MessageStore(settings)
        store.open(1)
        put_in_each(store, b"first")
        store.checkpoint()
        put_in_each(store, b"second")
        crashed_copy(store, tmp_path / "crashed")
        store.close()
        for path in (tmp_path / "store", tmp_path / "crashed"):
            again = MessageStore(replace(settings, store_path_root_dir=path))
            again.open(1)
            for queue_id in range(count):
                assert all_bodies(again, "T", queue_id) == [b"first", b"second"]
            put_in_each(again, b"third")
            again.close()
            with StoreReader(path) as reader:
                assert set(reader.queues().values()) == {(0, 3)}
                assert [len(reader.units("T", queue_id)) for queue_id in range(count)] == [3] * count
            assert check(path) == []


def test_a_disk_that_is_full_during_a_dispatch_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not injected where a disk can be mounted; the log has its blocks, and the queues and the index get none."""
    sizes = {
        "mapped_file_size_commit_log": 1 << 18,
        "mapped_file_size_consume_queue": 20000,
        "max_hash_slot_num": 100,
        "max_index_num": 400,
    }
    with small_disk(tmp_path / "disk", monkeypatch, size="2m", ballast=500_000) as make_space:
        root = tmp_path / "disk" / "store"
        store = MessageStore(config(root, **sizes))
        store.open(1)
        sent: list[bytes] = []
        while (status := _put_one(store, sent)) is PutMessageStatus.PUT_OK:
            store.reput()
        assert status is PutMessageStatus.SERVICE_NOT_AVAILABLE, "the dispatch failed, and puts are refused"
        assert store.write_state.status is WriteStatus.STALLED
        make_space()
        store.reput()
        assert _put_one(store, sent) is PutMessageStatus.PUT_OK
        store.reput()
        found = [store.get("T", number, 0, 1).records for number in range(len(sent))]
        assert [len(records) for records in found] == [1] * len(sent)
        store.close()
        assert check(root) == []


def _put_one(store: MessageStore, sent: list[bytes]) -> PutMessageStatus:
    """Put a message into a new queue, which needs a file of its own."""
    body = b"%d" % len(sent)
    status = store.put(inner(body=body, keys=f"k{len(sent)}", queue_id=len(sent)), 1000).status
    if status is PutMessageStatus.PUT_OK:
        sent.append(body)
    return status


@pytest.mark.parametrize("is_slave", [False, True])
def test_each_condition_of_the_write_state_is_left_on_its_own(is_slave: bool) -> None:
    """A disk with space does not end a stall, nor the reverse; a failure outlasts both."""
    state = WriteState(is_slave=is_slave)
    state.open()
    steps: list[tuple[Callable[[Any], None], str | None, WriteStatus]] = [
        (state.set_stalled, "no descriptor", WriteStatus.STALLED),
        (state.set_disk_full, "full", WriteStatus.STALLED),
        (state.set_stalled, None, WriteStatus.DISK_FULL),
        (state.set_stalled, "no descriptor", WriteStatus.STALLED),
        (state.set_disk_full, None, WriteStatus.STALLED),
        (state.set_stalled, None, WriteStatus.WRITABLE),
        (state.fail, "EIO", WriteStatus.FAILED),
        (state.set_stalled, "no descriptor", WriteStatus.FAILED),
        (state.set_stalled, None, WriteStatus.FAILED),
        (state.set_disk_full, None, WriteStatus.FAILED),
    ]
    for step, argument, expected in steps:
        step(argument)
        if is_slave and expected is not WriteStatus.FAILED:
            expected = WriteStatus.SLAVE
        assert state.status is expected
        assert state.is_writable == (expected is WriteStatus.WRITABLE)
