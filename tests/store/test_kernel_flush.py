"""Flushes by the kernel alone: what they make durable, and when a thread is needed instead."""

from __future__ import annotations

import errno
import os
import platform
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rucola.store import mapped_file
from rucola.store.checkpoint import Checkpoint
from rucola.store.commit_log import CommitLog
from rucola.store.config import FlushDiskType, PutMessageStatus
from rucola.store.kernel_flush import KernelFlush
from rucola.store.mapped_file import MappedFileQueue
from rucola.store.message_store import MessageStore
from support.errors import raises
from support.stores import OpenStore, config, flush_in_kernel, inner, sound_store


@pytest.fixture
def kernel() -> Iterator[KernelFlush]:
    kernel = KernelFlush.open()
    assert kernel is not None, "this kernel offers it"
    yield kernel
    kernel.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A store whose first file has a durable name, so that the kernel alone can flush it."""
    root = tmp_path / "store"
    with sound_store(root, flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
        store.put(inner(), 1)
        store.flush()
        yield store


def wait(kernel: KernelFlush) -> OSError | None:
    assert select.select([kernel.descriptor], [], [], 60)[0]
    return kernel.result()


def test_one_queue_flushes_many_files_one_after_the_other(kernel: KernelFlush, tmp_path: Path) -> None:
    for number in range(5):
        with (tmp_path / str(number)).open("wb", buffering=0) as file:
            file.write(b"x" * 5000)
            assert kernel.submit(file.fileno())
        assert wait(kernel) is None  # the kernel holds the closed file open
        assert not select.select([kernel.descriptor], [], [], 0)[0]


def test_a_file_that_cannot_be_flushed_is_refused(kernel: KernelFlush) -> None:
    reader, writer = os.pipe()
    assert not kernel.submit(writer)
    os.close(reader)
    os.close(writer)
    assert not kernel.submit(writer)
    assert not select.select([kernel.descriptor], [], [], 0)[0]


def test_other_machines_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert KernelFlush.open() is None


def test_what_was_put_before_the_begin_is_durable_at_the_end(
    store: MessageStore, kernel: KernelFlush, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_file, "sync_pages", lambda *_: pytest.fail("no thread is needed"))
    before = store.put(inner(), 5)
    assert store.flusher.begin(kernel)
    after = store.put(inner(), 6)
    assert store.flushed_physical_offset == before.physical_offset, "not before the kernel says so"
    store.flusher.end(wait(kernel))
    assert store.flushed_physical_offset == after.physical_offset
    assert flush_in_kernel(store, kernel)
    assert store.flushed_physical_offset == store.max_physical_offset
    monkeypatch.undo()
    store.reput()
    store.checkpoint()
    assert Checkpoint(store.config.store_path_root_dir / "checkpoint").physic_timestamp == 6


def test_an_error_makes_the_store_read_only(open_store: OpenStore, tmp_path: Path, kernel: KernelFlush) -> None:
    store = open_store(config(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH))
    store.put(inner(), 1)
    store.flush()
    end = store.put(inner(), 2).physical_offset
    assert store.flusher.begin(kernel)
    assert wait(kernel) is None
    with raises(OSError, errno=errno.EIO):
        store.flusher.end(OSError(errno.EIO, os.strerror(errno.EIO)))
    assert store.flushed_physical_offset == end
    assert store.put(inner(), 3).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert not store.flusher.begin(kernel), "the kernel would say yes now"
    for vouch in (store.flush, store.checkpoint):
        with raises(OSError, errno=errno.EIO):
            vouch()
    store.close()
    assert (tmp_path / "abort").exists()
    assert open_store(config(tmp_path)).queues() == {("T", 0): (0, 2)}


def test_a_thread_flushes_what_needs_more_than_one_call(tmp_path: Path, kernel: KernelFlush) -> None:
    with sound_store(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
        assert not flush_in_kernel(store, kernel), "nothing to flush"
        while store.put(inner(body=bytes(500)), 1).physical_offset < store.config.mapped_file_size_commit_log:
            assert flush_in_kernel(store, kernel)
        assert not flush_in_kernel(store, kernel), "two files"
        assert store.flushed_physical_offset == store.max_physical_offset
        store.put(inner(), 1)
        assert flush_in_kernel(store, kernel), "the second file alone"
        assert store.flushed_physical_offset == store.max_physical_offset


def test_a_thread_makes_the_name_of_a_file_durable(tmp_path: Path) -> None:
    log = CommitLog(MappedFileQueue.open(tmp_path, writable=True, file_size=4096), 0)
    log.copy(memoryview(bytes(4096)))  # as a slave, whose bytes end with the file
    assert log.descriptor_of(log.unflushed()) is not None
    log.flush()
    log.copy(memoryview(bytes(100)))
    assert log.descriptor_of(log.unflushed()) is None
    log.flush()
    log.copy(memoryview(bytes(100)))
    assert log.descriptor_of(log.unflushed()) is not None
    log.close()


def test_two_flushes_never_overlap(store: MessageStore, kernel: KernelFlush, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of a thread and one of the kernel: an error is reported to one of them only."""
    sync_pages = mapped_file.sync_pages
    entered, may_return = threading.Event(), threading.Event()

    def slow(*arguments: object) -> None:
        entered.set()
        assert may_return.wait(60)
        sync_pages(*arguments)  # type: ignore[arg-type]

    store.put(inner(), 2)
    with monkeypatch.context() as patch:
        patch.setattr(mapped_file, "sync_pages", slow)
        thread = threading.Thread(target=store.flush)
        thread.start()
        assert entered.wait(60)
        assert not store.flusher.begin(kernel)
        may_return.set()
        thread.join()
    store.put(inner(), 3)
    entered.clear()
    assert store.flusher.begin(kernel)
    with monkeypatch.context() as patch:
        patch.setattr(mapped_file, "sync_pages", slow)
        thread = threading.Thread(target=store.flush)
        thread.start()
        store.put(inner(), 4)
        error = wait(kernel)
        assert not entered.is_set(), "the thread waits until the flush of the kernel is completed"
        store.flusher.end(error)
        thread.join()
    assert store.flushed_physical_offset == store.max_physical_offset


def test_a_flush_that_a_truncation_overtakes_vouches_for_nothing(tmp_path: Path) -> None:
    log = CommitLog(MappedFileQueue.open(tmp_path, writable=True, file_size=4096), 0)
    log.ensure_room(300)
    log.append(bytes(300))
    begun = log.unflushed()
    log.truncate(100)
    log.append(b"other bytes" * 50)
    log.mark_flushed(begun)
    assert log.flushed_end == 0
    log.mark_flushed(log.unflushed())
    assert log.flushed_end == log.end == 650
    log.close()
