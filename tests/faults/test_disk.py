"""A disk that refuses: full, failing, read-only, or a system out of descriptors; and two brokers on one directory."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rucola.errors import StoreError
from rucola.store import mapped_file
from rucola.store.checkpoint import Checkpoint
from rucola.store.config import PutMessageStatus
from rucola.store.config_files import config_path, read_config, write_config
from rucola.store.directory_reader import StoreReader
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from rucola.store.tools.dump import dump
from rucola.store.tools.grep import SearchQuery, grep
from rucola.store.tools.repair import repair
from rucola.store.write_state import WriteStatus
from rucola.system_calls import EXHAUSTED
from support.errors import raises
from support.faults import limited, patch_sync_pages, refusing, small_disk
from support.servers import run, server
from support.stores import OpenStore, all_bodies, batch, config, crashed_copy, inner, sound_store

FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0")


NO_PLACE = [
    ("posix_fallocate", errno.ENOSPC),
    ("posix_fallocate", errno.EDQUOT),
    ("ftruncate", errno.ENOSPC),
    ("open", errno.EMFILE),
    ("open", errno.ENFILE),
    ("open", errno.ENOSPC),
]


@pytest.mark.parametrize(("call", "number"), NO_PLACE)
@pytest.mark.parametrize("after", range(3))
def test_a_full_disk_fails_a_put_and_passes(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, call: str, number: int, after: int
) -> None:
    """The next file of the log cannot be made, at whichever step; later it can."""
    store = open_store()
    sent = [b"%d" % k + bytes(1500) for k in range(6)]
    put = [store.put(inner(body=body), 1).status for body in sent[:2]]
    store.reput()
    with refusing(monkeypatch, call, number, after):
        refused = store.put(inner(body=sent[2]), 1).status
    assert refused in (PutMessageStatus.CREATE_MAPEDFILE_FAILED, PutMessageStatus.PUT_OK)
    taken = sent[:2] + ([sent[2]] if refused is PutMessageStatus.PUT_OK else [])
    put += [store.put(inner(body=body), 1).status for body in sent[3:]]
    assert set(put) == {PutMessageStatus.PUT_OK}
    assert all_bodies(store) == taken + sent[3:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "number"), [*NO_PLACE, ("sync_pages", errno.EIO), ("fdatasync", errno.EIO), ("fsync", errno.EIO)]
)
def test_failures_of_dispatch_and_checkpoint_are_repaired_by_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    for after in range(12):
        root = tmp_path / str(after)
        store = MessageStore(config(root))
        store.open(1)
        acknowledged = []
        with refusing(monkeypatch, call, number, after):
            for k in range(30):
                body = b"%d" % k + bytes(300)
                if store.put(inner(body=body, keys=f"k{k}", queue_id=0), 1000 * k).status is PutMessageStatus.PUT_OK:
                    acknowledged.append(body)
                try:
                    store.reput()
                    store.checkpoint()
                except OSError:
                    assert number in EXHAUSTED or not store.write_state.is_writable
                    break
            try:
                store.close()
            except OSError:
                assert (root / "abort").exists()
        again = MessageStore(config(root))
        again.open(1)
        assert all_bodies(again) == acknowledged
        assert all(again.query("T", f"k{k}", 64).records for k in range(len(acknowledged)))
        again.close()
        assert check(root) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_store_stays_read_only_after_one_failed_flush(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel has given up the pages; a file system with delayed allocation, also for want of space."""
    store = open_store()
    store.put(inner(body=b"before"), 1)
    with refusing(monkeypatch, "sync_pages", number), raises(OSError, errno=number):
        store.flush()
    for vouch in (store.flush, store.checkpoint):  # the kernel says yes now
        with raises(OSError, errno=number):
            vouch()
    assert store.write_state.status is WriteStatus.FAILED
    assert os.strerror(number) in str(store.write_state.reason)
    assert store.flushed_physical_offset == 0
    assert store.put(inner(), 2).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert store.put_batch(batch(inner()), 2).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert all_bodies(store) == [b"before"]
    store.close()
    assert (store.config.store_path_root_dir / "abort").exists()
    open_store()


@pytest.mark.parametrize("after", [1, 20, 39])
def test_failed_flush_of_one_queue_makes_the_store_read_only(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Many queues are flushed by several threads, of which only one hears of the error."""
    store = open_store()
    for queue_id in range(40):
        store.put(inner(queue_id=queue_id), 1000)
    store.reput()
    store.flush()
    real, calls = mapped_file.sync_pages, itertools.count()

    def fail_once(*arguments: Any) -> None:
        if next(calls) == after:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(*arguments)

    patch_sync_pages(monkeypatch, fail_once)
    with raises(OSError, errno=errno.EIO):
        store.close()
    assert (tmp_path / "store" / "abort").exists()
    assert Checkpoint(tmp_path / "store" / "checkpoint").logics_timestamp == 0
    assert open_store().queues() == {("T", queue_id): (0, 1) for queue_id in range(40)}


def test_failed_directory_sync_before_a_flush_fails_the_flush(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that touches pages goes on after any error, and the kernel tells of one only once."""
    store = open_store()
    store.put(inner(body=bytes(3900)), 1)
    store.flush()
    store.put(inner(body=bytes(3900)), 1)  # makes the second file
    with refusing(monkeypatch, "fsync", errno.EIO):
        store.warm()
    with raises(OSError, errno=errno.EIO):
        store.flush()
    assert store.put(inner(), 1).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    store.close()
    assert all_bodies(open_store()) == [bytes(3900)] * 2


def test_failed_flush_fails_every_waiter_of_the_group(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of a lost page once, to the first who asks."""
    store = open_store()
    store.put(inner(), 1)
    is_second_there = threading.Event()
    calls = itertools.count()

    def fail_the_first(*_: object) -> None:
        if next(calls) == 0:
            assert is_second_there.wait(30)
            raise OSError(errno.EIO, "Input/output error")

    def flush_second() -> None:
        is_second_there.set()
        store.flush()

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch_sync_pages(patch, fail_the_first)
        first = threads.submit(store.flush)
        second = threads.submit(flush_second)
        for flush in (first, second):
            with raises(OSError, errno=errno.EIO):
                flush.result(30)
    assert store.flushed_physical_offset == 0
    store.close()
    assert (store.config.store_path_root_dir / "abort").exists()
    open_store()


def test_full_disk_loses_no_acknowledged_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not injected where it can be mounted: a mapped write to a page that such a disk cannot give ends the process."""
    sizes = {
        "mapped_file_size_commit_log": 65536,
        "mapped_file_size_consume_queue": 20000,
        "max_hash_slot_num": 100,
        "max_index_num": 400,
    }
    sent: list[bytes] = []
    with small_disk(tmp_path / "disk", monkeypatch) as make_space:
        store = MessageStore(config(tmp_path / "disk" / "store", **sizes))
        store.open(1)

        def put() -> PutMessageStatus:
            body = b"%d" % len(sent) + bytes(300)
            status = store.put(inner(body=body, keys=f"k{len(sent)}"), 1000 + len(sent)).status
            if status is PutMessageStatus.PUT_OK:
                sent.append(body)
            return status

        while (status := put()) is PutMessageStatus.PUT_OK:
            if store.write_state.failure is None and len(sent) % 20 == 0:
                with suppress(OSError):
                    store.reput()
        assert status in (PutMessageStatus.CREATE_MAPEDFILE_FAILED, PutMessageStatus.SERVICE_NOT_AVAILABLE)
        make_space()
        store.reput()  # as a broker does until it succeeds, if the queues or the index were full before the log
        assert put() is PutMessageStatus.PUT_OK
        store.close()
        store = MessageStore(store.config)
        store.open(9_000)
        assert all_bodies(store) == sent
        assert put() is PutMessageStatus.PUT_OK
        store.close()
        assert check(tmp_path / "disk" / "store") == []


def test_file_size_limit_counts_as_a_full_disk(open_store: OpenStore) -> None:
    """Not injected: the system itself refuses the next file."""
    store = open_store()
    assert store.put(inner(body=bytes(3000)), 1).status is PutMessageStatus.PUT_OK
    with limited(resource.RLIMIT_FSIZE, 2000):
        assert store.put(inner(body=bytes(3000)), 1).status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
        assert not store.is_accepting, "from the first refusal on"
        assert store.put_batch(batch(inner(body=bytes(3000))), 1).status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
    assert store.put(inner(body=bytes(2000)), 1).queue_offset == 1
    assert store.is_accepting
    assert all_bodies(store) == [bytes(3000), bytes(2000)]


def test_store_recovers_from_running_out_of_descriptors(open_store: OpenStore, tmp_path: Path) -> None:
    """Not injected either: this process has no descriptor left when a file has to be made."""
    store = open_store()
    assert store.put(inner(body=bytes(3000)), 1).status is PutMessageStatus.PUT_OK
    store.reput()
    probe = os.open(tmp_path, os.O_RDONLY)
    os.close(probe)
    with limited(resource.RLIMIT_NOFILE, probe):
        assert store.put(inner(body=bytes(3000)), 1).status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
        with raises(StoreError, subject=str(tmp_path / "other")):
            MessageStore(config(tmp_path / "other")).open(1)
    assert store.put(inner(body=bytes(2000)), 1).queue_offset == 1


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["open", "mkdir", "pwrite", "fsync"])
def test_unusable_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    with refusing(monkeypatch, call, number), pytest.raises(StoreError) as caught:
        MessageStore(config(tmp_path / "store")).open(1)
    assert str(tmp_path / "store") in str(caught.value)
    if call == "pwrite" and number != errno.EACCES:
        assert "another process" not in str(caught.value), "a full disk is no second broker"
    with MessageStore(config(tmp_path / "store")) as store:
        assert store.put(inner(), 1).status is PutMessageStatus.PUT_OK


@contextmanager
def read_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk at `path` that is mounted for reading only; for a user who may not mount one, one on which nothing can be
    opened for writing, or made."""
    with ExitStack() as cleaning:
        bind = subprocess.run(["mount", "--bind", path, path], capture_output=True) if shutil.which("mount") else None
        if bind is not None and bind.returncode == 0:
            cleaning.callback(subprocess.run, ["umount", "--lazy", path], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
        else:
            open_file, make = os.open, os.mkdir

            def open_to_read(name: Any, flags: int, *more: Any, **named: Any) -> int:
                if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and Path(name).is_relative_to(path):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(name))
                return open_file(name, flags, *more, **named)

            def make_elsewhere(name: Any, *more: Any) -> None:
                if Path(name).is_relative_to(path):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(name))
                make(name, *more)

            patch = cleaning.enter_context(monkeypatch.context())
            patch.setattr(os, "open", open_to_read)
            patch.setattr(os, "mkdir", make_elsewhere)
        yield


@pytest.mark.parametrize("is_crashed", [False, True], ids=["clean stop", "crash"])
def test_read_only_disk_can_be_read_but_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_crashed: bool
) -> None:
    root = tmp_path / "disk" / "store"
    sent = [b"%d" % number + bytes(500) for number in range(20)]
    with MessageStore(config(tmp_path / "origin")) as store:
        for number, body in enumerate(sent):
            store.put(inner(body=body, keys=f"k{number}"), 1)
        store.reput()
        crashed_copy(store, root)
    if not is_crashed:
        MessageStore(config(root)).__enter__().close()
    with read_only(tmp_path / "disk", monkeypatch):
        assert ("not closed cleanly" in str(check(root))) == is_crashed
        assert [row["queueOffset"] for row in dump(root)] == [*range(20)]
        with StoreReader(root) as reader:
            assert reader.queues() == {("T", 0): (0, 20)}
            (found,) = grep(reader, SearchQuery(topic="T", key="k7"))
            assert found.body == sent[7]
        assert repair(root, tmp_path / "copy", settings=config(root)).kept == 20
        for place in (root, tmp_path / "disk" / "new"):
            with raises(StoreError, subject=str(place)):
                MessageStore(config(place)).open(1)
    for place in (root, tmp_path / "copy"):
        with sound_store(place) as store:
            assert all_bodies(store) == sent
            assert store.put(inner(), 1).status is PutMessageStatus.PUT_OK


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["open", "ftruncate", "posix_fallocate"])
def test_failing_disk_makes_the_store_read_only(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """The kernel makes a disk that has errors read-only; unlike a full one, it is not asked again."""
    store = open_store()
    assert store.put(inner(body=b"before" + bytes(3000)), 1).status is PutMessageStatus.PUT_OK
    with refusing(monkeypatch, call, number):
        assert store.put(inner(body=bytes(3000)), 1).status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
    assert store.put(inner(), 1).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert os.strerror(number) in str(store.write_state.reason)
    assert all_bodies(store) == [b"before" + bytes(3000)]
    store.close()
    assert (tmp_path / "store" / "abort").exists()
    assert all_bodies(open_store()) == [b"before" + bytes(3000)]


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_unwritable_config_file_stays_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = config_path(tmp_path, "topics")
    write_config(path, {"v": 1})
    for after in range(3):
        with refusing(monkeypatch, call, errno.ENOSPC, after), suppress(OSError):
            write_config(path, {"v": 2})
        assert read_config(path)["v"] in (1, 2)
        write_config(path, {"v": 1})
    assert read_config(path) == {"v": 1}


@pytest.mark.slow
def test_second_broker_process_on_a_store_is_refused(tmp_path: Path) -> None:
    with server("standalone", "--store", tmp_path / "store", *FREE_PORTS, log=tmp_path / "log") as first:
        first.addresses()
        second = run("standalone", "--store", tmp_path / "store", *FREE_PORTS)
        assert second.returncode != 0
        assert "served by another process; stop that broker first" in second.stderr
        assert "Traceback" not in second.stderr
        program = (
            "import sys; from support.stores import config; from pathlib import Path; from rucola.store.message_store "
        )
        program += "import MessageStore; MessageStore(config(Path(sys.argv[1]))).open(1)"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        third = subprocess.run(
            [sys.executable, "-c", program, tmp_path / "store"], capture_output=True, text=True, env=environment
        )
        assert "StoreLocked" in third.stderr
        assert first.stop() == 0
