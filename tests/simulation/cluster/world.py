"""The world of one run: machines with their processes, clocks and disks, and all chance drawn from the seed.

What of a program is not the event loop's is replaced in `simulated_world`, in one place: time, sockets, random numbers,
process ids, threads, and the calls that wait for the disk.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import random
import resource
import secrets
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from rucola.broker import coordination
from rucola.broker.background import group_commit
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.broker.mastership import Mastership
from rucola.coordination.config import CoordinationConfig
from rucola.coordination.write_lease import WriteLease
from rucola.message import ids
from rucola.namesrv.server import Namesrv
from rucola.store import consume_queue, flusher, index, mapped_file, retention
from rucola.store.config import BrokerRole, FlushDiskType, StoreConfig
from rucola.store.consume_queue import ConsumeQueue
from rucola.store.kernel_flush import KernelFlush
from rucola.store.message_store import MessageStore
from rucola.store.retention import DiskUsage
from simulation.cluster import expiry
from simulation.cluster.etcd import ETCD_PORT, Etcd, EtcdData
from simulation.cluster.plan import Plan
from simulation.disk import SyncedDisk
from simulation.in_memory import FlushOnLoop
from simulation.network import (
    SimulatedLoop,
    SimulatedSocket,
    _machine,
    current_machine,
    machine_of,
    on_machine,
    same_gather,
    simulated_sockets,
    simulated_time,
)

with suppress(ImportError):  # only elections need them; once, before the processes of the runs are forked
    import anyio._backends._asyncio  # noqa: F401
    import httpx  # noqa: F401

HOST = "127.0.0.1"
NAMESRV_PORT = 9876
BROKER_PORT = 10_000
START_TIMEOUT_S = 60.0
MOST_STARTS = 100
RESTART_PAUSE_S = 1.0
"""What a supervisor waits before it starts a server again."""
FILES = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "clean_file_forcibly_enable": False,
    "message_delay_level": "1s 5s 10s 10s 10s 10s 10s 10s 10s 10s 10s 10s 10s 10s 10s 10s 10s 10s",
}

EXPIRING = {
    "mapped_file_size_commit_log": 8 * 1024,
    "mapped_file_size_consume_queue": 400,
    "clean_file_forcibly_enable": True,
    "clean_resource_interval": round(expiry.ROUND_S * 1000),
}
"""What differs when files expire."""


COORDINATION = CoordinationConfig(
    etcd_endpoints=f"http://{HOST}:{ETCD_PORT}",
    etcd_ttl=8000,
    etcd_loop_wait=2000,
    etcd_retry_timeout=2500,
    etcd_in_sync_timeout=6000,
)


class Transcript:
    """What happened, one line each."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.lines: list[str] = []
        self._now_s = now_s

    def add(self, who: str, what: str) -> None:
        self.lines.append(f"{self._now_s():10.4f}  {who:<15} {what}")


class Machine:
    """A machine: one process at a time, a disk, a clock."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.generation = 0
        self.process = ""
        """Empty while nothing runs."""
        self.power_cuts = 0
        self.busy = asyncio.Lock()
        """Held by the fault that ends the process and starts another."""
        self._copies = 0
        self.directory = world.root / f"{name}.0"

    def begin(self) -> str:
        """Begin a process, and return its name."""
        self.generation += 1
        self.process = f"{self.name}/{self.generation}"
        return self.process

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in the process; the world keeps it, in case the process is ended."""
        with on_machine(self.process):
            task = self.world.loop.create_task(work, context=contextvars.copy_context())
        self.world.kept.append(task)
        return task

    def end(self) -> None:
        """End the process as `kill -9` does; the next one finds the files as they are."""
        self.world.loop.end(self.process)
        self.process = ""
        if self.directory.exists():
            before = self._next_directory()
            shutil.copytree(before, self.directory, symlinks=True)
            self.world.disk.copy(before, self.directory)

    def lose_power(self, chance: Random) -> str:
        """End the process, and what of its files was not synced; return what is left of them."""
        self.world.loop.power_off(self.name, self.process)
        self.process = ""
        self.power_cuts += 1
        before = self._next_directory()
        return self.world.disk.crash_of(before, chance, self.directory)

    def lose_disk(self) -> None:
        """Let the next process find no files."""
        self._next_directory()

    def _next_directory(self) -> Path:
        before, self._copies = self.directory, self._copies + 1
        self.directory = self.world.root / f"{self.name}.{self._copies}"
        return before


class Server(Machine):
    """A machine with a name server, a broker or etcd."""

    server: Namesrv | Broker | Etcd | None = None
    recovered: dict[tuple[str, int], int] = {}
    """The end of each queue when its store was opened last."""
    disk_error = 0
    """The errno of calls that need disk space, or 0."""
    sync_error = 0
    """The errno of the next sync, or 0."""
    disk_percent = 1
    """Of the disk, in use."""
    slave_id = 0
    """The brokerId that an operator has given a former master, for its start as slave."""

    async def start(self) -> None:
        """Start the server, again after each failure."""
        for _ in range(MOST_STARTS):
            self.begin()
            self.server = self.make()
            task = self.run(self.server.start())
            self.world.kept.append(self.server)
            await asyncio.wait([task], timeout=START_TIMEOUT_S)
            if task.done() and task.exception() is None:
                self.world.transcript.add(self.name, f"runs as {self.process}")
                if isinstance(self.server, Broker):
                    failed = self.run(self.server.wait_failed())
                    failed.add_done_callback(partial(self._restart, self.process))
                return
            why = task.exception() if task.done() else "no end of its start"
            self.world.transcript.add(self.name, f"does not start: {why}".replace(str(self.world.root), ""))
            self.world.failed_starts += 1
            self.end()
            await asyncio.sleep(RESTART_PAUSE_S)
        raise AssertionError(f"{self.name} does not start")

    def _restart(self, process: str, failed: asyncio.Task[None]) -> None:
        """Start a broker again that a failed change of its role has left stopped, as a supervisor does."""

        async def restart() -> None:
            async with self.busy:
                if self.process == process:
                    why = str(failed.exception()).replace(str(self.world.root), "")
                    self.world.transcript.add(self.name, f"ends: {why}")
                    await self.stop()
                    await asyncio.sleep(RESTART_PAUSE_S)
                    await self.start()

        self.world.kept.append(self.world.loop.create_task(restart()))

    async def stop(self) -> None:
        """Stop the server; end it if that takes too long."""
        assert self.server is not None
        task = self.run(self.server.stop())
        await asyncio.wait([task], timeout=START_TIMEOUT_S)
        if not task.done():
            self.world.transcript.add(self.name, "does not stop, and is ended")
            self.world.failed_stops += 1
            self.end()
        else:
            if task.exception() is not None:
                why = f"{type(task.exception()).__name__}: {task.exception()}"
                self.world.transcript.add(self.name, f"stops with {why}".replace(str(self.world.root), ""))
            self.world.loop.end(self.process)
            self.process = ""

    def make(self) -> Namesrv | Broker | Etcd:
        plan = self.world.plan
        with on_machine(self.process):
            if self.name == "etcd":
                return Etcd(self.world.loop, self.world.etcd)
            _, number, *member = self.name.split("-")
            if self.name.startswith("namesrv"):
                return Namesrv(HOST, NAMESRV_PORT + int(number))
            broker_id = int(member[0].replace("slave", "1")) if member else 0
            role = BrokerRole.SYNC_MASTER if plan.is_sync_master else BrokerRole.ASYNC_MASTER
            port = BROKER_PORT + 10 * int(number) + 3 * broker_id
            broker_id = self.slave_id or broker_id
            config = BrokerConfig(
                broker_name=f"broker-{number}",
                bind_address=HOST,
                broker_ip1=HOST,
                broker_ip2=HOST,
                listen_port=port,
                ha_listen_port=port + 1,
                broker_id=broker_id,
                namesrv_addr=self.world.namesrv,
                grpc_server_enabled=False,
                vip_channel_enabled=False,
                transaction_check_interval=5000,
                transaction_time_out=3000,
                register_name_server_period=10_000,
                coordination=COORDINATION if plan.elected else CoordinationConfig(),
            )
            expiring: dict[str, object] = {}
            if plan.reserved_s:
                delete_when = expiry.ALL_HOURS if plan.is_always_expiring else expiry.NO_HOUR
                expiring = EXPIRING | {"file_reserved_time": plan.reserved_s, "delete_when": delete_when}
            store = StoreConfig(
                store_path_root_dir=self.directory,
                broker_role=BrokerRole.SLAVE if broker_id else role,
                flush_disk_type=FlushDiskType.SYNC_FLUSH if plan.is_sync_flush else FlushDiskType.ASYNC_FLUSH,
                **FILES | expiring,  # type: ignore[arg-type]
            )
            return Broker(config, store, probe_disk=lambda path: DiskUsage(path, self.disk_percent, 100))


class World:
    """Everything of one run."""

    def __init__(self, plan: Plan, root: Path) -> None:
        self.plan = plan
        self.root = root
        self.loop = SimulatedLoop()
        self.transcript = Transcript(self.loop.time)
        self.kept: list[Any] = []
        """What ended processes hold. None of it is closed: a process that is ended runs no code."""
        self.failed_starts = self.failed_stops = 0
        self.etcd = EtcdData()
        self.on_right: Callable[[WriteLease], None] = lambda lease: None
        """Called with the right to acknowledge of a broker, whenever that uses it."""
        self.watches: dict[str, Callable[..., Any]] = {}
        """By name of a method of the product, what its calls go through."""
        self.events: Counter[str] = Counter()
        root.mkdir(parents=True)
        self.disk = SyncedDisk(root)
        self.namesrv = ";".join(f"{HOST}:{NAMESRV_PORT + number}" for number in range(plan.namesrvs))
        self.servers = {name: Server(self, name) for name in plan.servers}
        self.machines: dict[str, Machine] = dict(self.servers)
        network = Random(f"{plan.seed}/network")
        latencies: dict[tuple[str, str], float] = {}

        def latency(source: str, target: str) -> float:
            link = source, target
            if link not in latencies:
                latencies[link] = plan.latency_s * Random(f"{plan.seed}/{link}").uniform(0.5, 2.0)
            return latencies[link] * (1 + network.random() ** 4 * 4)

        self.loop.latency_of = latency
        threads = Random(f"{plan.seed}/threads")
        self.loop.thread_time = lambda: threads.expovariate(1 / plan.thread_s)
        self._pids: dict[str, int] = {}

    def client(self, name: str) -> Machine:
        """The machine of a client."""
        if name not in self.machines:
            self.machines[name] = Machine(self, name)
        return self.machines[name]

    def pid(self) -> int:
        return self._pids.setdefault(_machine.get(), len(self._pids) + 1000)

    def boot_id(self) -> str:
        """What Linux tells about the last start of the running machine."""
        machine = current_machine()
        return f"{machine}, {self.machines[machine].power_cuts}"

    def disk_error(self, is_sync: bool) -> None:
        """Raise the error that the disk of the running machine has now, if any."""
        server = self.servers.get(current_machine())
        if server is None:
            return
        number = server.sync_error if is_sync else server.disk_error
        if number:
            self.events[f"{errno.errorcode[number]} in {'sync' if is_sync else 'growth'}"] += 1
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        self.disk.close()
        shutil.rmtree(self.root, ignore_errors=True)


class _InlineThread:
    """A thread that has ended as soon as it is started."""

    def __init__(self, target: Callable[..., Any], **options: Any) -> None:
        self._target = target

    def start(self) -> None:
        self._target()


class _InlineThreads:
    """A pool of threads whose calls have ended as soon as they are made."""

    def __init__(self, *options: Any) -> None: ...

    def __enter__(self) -> _InlineThreads:
        return self

    def __exit__(self, *error: object) -> None: ...

    def map(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return [work(*each) for each in zip(*arguments, strict=True)]

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*arguments))
        return done


class SimulatedKernelFlush(KernelFlush):
    """A kernel that needs some time for a flush of a simulated disk."""

    world: World
    running: ClassVar[dict[str, SimulatedKernelFlush]] = {}
    """By process."""

    def __init__(self) -> None:
        self._ended = SimulatedSocket(self.world.loop)
        self.descriptor: Any = self._ended
        self._content: tuple[int, str, bytes] | None = None

    @classmethod
    def open(cls) -> KernelFlush | None:
        return cls()

    def submit(self, fd: int) -> bool:
        self._content = os.fstat(fd).st_ino, *self.world.disk.snapshot(fd)
        self.running[self._ended.process] = self
        assert self.world.loop.thread_time is not None
        self._timer = self.world.loop.call_later(self.world.loop.thread_time(), self._ended.received, b"1")
        return True

    def result(self) -> OSError | None:
        self._ended.recv(1)
        self.running.pop(self._ended.process, None)
        assert self._content is not None
        try:
            self.world.disk_error(is_sync=True)
        except OSError as error:
            return error
        self.world.disk.became_durable(*self._content)
        return None

    def finish(self) -> None:
        """End the flush now: a thread waits for it."""
        self._timer.cancel()
        if not self._ended.has_data():
            self._ended.received(b"1")
        assert self._ended.callback is not None
        self._ended.callback()

    def close(self) -> None:
        self.running.pop(self._ended.process, None)
        self._ended.close()


class FlushLock:
    """The lock of a store's flushes. Who waits for it, waits for a flush by the kernel, which ends then."""

    def __init__(self) -> None:
        self._is_held = False

    def acquire(self, blocking: bool = True) -> bool:
        if self._is_held:
            if not blocking:
                return False
            SimulatedKernelFlush.running[_machine.get()].finish()
        assert not self._is_held
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class _FlushThreading:
    """What the flusher needs of `threading`."""

    Lock = FlushLock


class _OnlyLock:
    """What the modules of the store need of `threading`."""

    Lock = staticmethod(threading.Lock)
    Thread = _InlineThread


@contextmanager
def simulated_world(plan: Plan, root: Path) -> Iterator[World]:
    """The world of a plan; within, the whole process belongs to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    world = World(plan, root)
    chance = Random(f"{plan.seed}/secrets")
    random.seed(f"{plan.seed}/random")
    SimulatedKernelFlush.world = world
    with (
        pytest.MonkeyPatch.context() as patch,
        simulated_time(world.loop),
        simulated_sockets(world.loop),
        same_gather(),
    ):
        patch.setattr(time, "sleep", lambda seconds: None)
        patch.setattr(secrets, "token_bytes", lambda size=32: chance.randbytes(size))
        patch.setattr(secrets, "token_hex", lambda size=32: chance.randbytes(size).hex())
        patch.setattr(secrets, "randbits", chance.getrandbits)
        patch.setattr(secrets, "randbelow", chance.randrange)
        patch.setattr(os, "urandom", chance.randbytes)
        patch.setattr(os, "getpid", world.pid)
        patch.setattr(ids, "_ids", ids._of_this_process())
        patch.setattr(group_commit, "FlushThread", FlushOnLoop)
        patch.setattr(group_commit, "KernelFlush", SimulatedKernelFlush)
        patch.setattr(consume_queue, "ThreadPoolExecutor", _InlineThreads)
        patch.setattr(index, "threading", _OnlyLock)
        patch.setattr(flusher, "threading", _FlushThreading)
        # For sets of them, which are flushed in the order of their hashes.
        patch.setattr(ConsumeQueue, "__hash__", lambda queue: hash((queue.topic, queue.queue_id)))
        patch.setattr(MessageStore, "open", _opened(world, MessageStore.open))
        patch.setattr(WriteLease, "is_held", _watched(world, WriteLease.is_held))
        for owner, method in ((MessageStore, "expire"), (MessageStore, "delete_queue"), (Mastership, "begin")):
            patch.setattr(owner, method, expiry.watched(partial(world.watches.get, method), getattr(owner, method)))
        patch.setattr(retention, "_HOUR_MS", expiry.HOUR_MS)
        patch.setattr(coordination, "boot_id", world.boot_id)
        patch.setitem(sys.modules, "sniffio", None)  # httpcore looks for it at each request, for Trio
        world.disk.recorded(patch)
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, _failing(world, getattr(os, name), is_sync=True))
        for name in ("posix_fallocate", "ftruncate", "mkdir", "pwrite"):
            patch.setattr(os, name, _failing(world, getattr(os, name), is_sync=False))
        patch.setattr(mapped_file, "sync_pages", _failing(world, mapped_file.sync_pages, is_sync=True))
        try:
            yield world
        finally:
            world.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _opened(world: World, call: Callable[..., None]) -> Callable[..., None]:
    def opened(store: MessageStore, *arguments: Any) -> None:
        call(store, *arguments)
        world.servers[current_machine()].recovered = {name: end for name, (_, end) in store.queues().items()}

    return opened


def _watched(world: World, call: Callable[[WriteLease], bool]) -> Callable[[WriteLease], bool]:
    def watched(lease: WriteLease) -> bool:
        is_held = call(lease)
        if is_held:
            world.on_right(lease)
        return is_held

    return watched


def _failing(world: World, call: Callable[..., Any], *, is_sync: bool) -> Callable[..., Any]:
    def failing(*arguments: Any, **named: Any) -> Any:
        world.disk_error(is_sync)
        return call(*arguments, **named)

    return failing


__all__ = ["HOST", "Machine", "Server", "World", "machine_of", "simulated_world"]
