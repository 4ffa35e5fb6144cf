"""Two machines, one of which dies: what is left of what was acknowledged, by flushDiskType and brokerRole.

A master that is killed comes back with its disk. Its power is cut where a simulated disk forgets what was not flushed.
Its disk is lost where its directory is removed, and the slave's is served instead. A slave that is far behind, as bad
as can be, has stopped: it is there, and gets nothing more.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from rucola.client import Producer, SendStatus
from rucola.errors import MQError
from rucola.message import Message
from rucola.message.record import decode
from rucola.protocol.replication import ReportDecoder, TransferDecoder, encode_header, encode_report
from rucola.store.config import BrokerRole, FlushDiskType, StoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from simulation.disk import Disk
from support.processes import Machines
from support.replication import same_logs
from support.stores import config, inner, sound_store
from support.waiting import until

pytestmark = pytest.mark.slow

SMALL_FILES = {
    "mapped_file_size_commit_log": 65536,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
MASTERS = ["ASYNC_MASTER", "SYNC_MASTER"]
FLUSHES = [flush.name for flush in FlushDiskType]


class Sent(NamedTuple):
    """A message that a broker vouched for."""

    queue_id: int
    queue_offset: int
    body: bytes


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(tmp_path, stack)


async def is_safe(namesrv: str) -> None:
    """Wait until a SYNC_MASTER has its slave."""
    async with Producer("first", namesrv) as producer:

        async def is_ok() -> bool:
            return (await producer.send(Message("T", b"is a slave there?"))).is_ok

        await until(is_ok)


async def send_until(namesrv: str, process: subprocess.Popen[str], enough: int, seed: int = 0) -> list[Sent]:
    """Eight clients send at once; the process dies as soon as so many messages are vouched for, amid the others."""
    acknowledged: list[Sent] = []
    random = Random(seed)

    async def send(producer: Producer) -> None:
        while process.poll() is None:
            body = random.randbytes(random.choice([10, 300, 3000]))
            try:
                result = await producer.send(Message("T", body))
            except MQError:
                return
            if result.status is SendStatus.SEND_OK:
                acknowledged.append(Sent(result.queue.queue_id, result.queue_offset, body))
            if len(acknowledged) == enough:
                process.kill()
                process.wait()

    async with Producer("senders", namesrv, retry_times=0) as producer:
        await asyncio.gather(*(send(producer) for _ in range(8)))
    return acknowledged


def bodies_of(directory: Path, acknowledged: list[Sent]) -> list[bytes | None]:
    """What a store that nobody serves has at the places of these messages."""
    assert check(directory) == []
    found: list[bytes | None] = []
    with sound_store(directory, **SMALL_FILES) as store:
        for sent in acknowledged:
            records = store.get("T", sent.queue_id, sent.queue_offset, 1).records
            found.append(decode(records[0]).body if records else None)
    return found


def is_prefix(slave: Path, master: Path) -> bool:
    """Whether the slave's log has what the master's has, as far as it goes."""
    logs = [b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir())) for path in (slave, master)]
    end = len(logs[0].rstrip(b"\0"))
    return end > 0 and logs[1].startswith(logs[0][:end])


# a kill ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("role", MASTERS)
async def test_a_kill_of_the_master_loses_no_acknowledged_message(machines: Machines, role: str, flush: str) -> None:
    """Nothing of the master; of the slave nothing where the answer waited for it. Then they go on together."""
    path = machines.path
    slave = machines.broker("slave", "SLAVE", flushDiskType=flush)
    acknowledged: list[Sent] = []
    for enough in (30, 200):
        master = machines.broker("master", role, flushDiskType=flush)
        if role == "SYNC_MASTER":
            await is_safe(machines.namesrv)
        await in_step(machines)
        acknowledged += await send_until(machines.namesrv, master.process, enough, enough)
        assert (path / "master" / "abort").exists()
    slave.stop()
    assert len(acknowledged) >= 230
    assert is_prefix(path / "slave", path / "master")
    bodies = [sent.body for sent in acknowledged]
    if role == "SYNC_MASTER":
        assert bodies_of(path / "slave", acknowledged) == bodies
    master = machines.broker("master", role)
    slave = machines.broker("slave", "SLAVE")
    await in_step(machines)
    assert (master.stop(), slave.stop()) == (0, 0)
    same_logs(path, "master")
    assert bodies_of(path / "master", acknowledged) == bodies
    assert bodies_of(path / "slave", acknowledged) == bodies


async def in_step(machines: Machines) -> None:
    """Wait until the slave has one more message, and all before it."""
    async with Producer("last", machines.namesrv) as producer:
        last = await producer.send(Message("T", b"the last one"))

    def end_of_log(directory: str) -> int:
        files = sorted((machines.path / directory).glob("commitlog/*"))
        return int(files[0].name) + len(b"".join(file.read_bytes() for file in files).rstrip(b"\0")) if files else 0

    async def is_so() -> bool:
        return end_of_log("slave") >= int(last.offset_msg_id[16:], 16) and end_of_log("slave") == end_of_log("master")

    await until(is_so)


@pytest.mark.parametrize("flush", FLUSHES)
async def test_a_kill_of_the_slave_loses_no_acknowledged_message(machines: Machines, flush: str) -> None:
    """Nothing, and messages are taken again as safely as before as soon as it is back."""
    path = machines.path
    master = machines.broker("master", "SYNC_MASTER", slaveTimeout="300")
    acknowledged: list[Sent] = []
    for enough in (1, 40, 120):
        slave = machines.broker("slave", "SLAVE", flushDiskType=flush)
        await is_safe(machines.namesrv)
        acknowledged += await send_until(machines.namesrv, slave.process, enough, enough)
        assert (path / "slave" / "abort").exists()
    # what follows the last kill of the slave is not vouched for by anybody but the master
    slave = machines.broker("slave", "SLAVE", flushDiskType=flush)
    await is_safe(machines.namesrv)
    await in_step(machines)
    assert (master.stop(), slave.stop()) == (0, 0)
    same_logs(path, "master")
    assert bodies_of(path / "slave", acknowledged) == [sent.body for sent in acknowledged]


# a disk that is lost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("role", [*MASTERS, "no slave"])
async def test_a_lost_master_disk_loses_only_unreplicated_messages(machines: Machines, role: str, flush: str) -> None:
    """Everything without a slave; what the slave did not get where nobody waited for it; nothing where they did."""
    path = machines.path
    if role == "no slave":
        master = machines.broker("master", flushDiskType=flush)
        assert await send_until(machines.namesrv, master.process, 20)
        shutil.rmtree(path / "master")
        assert not list(path.glob("*/commitlog/*")), "no machine has them"
        return
    master = machines.broker("master", role, flushDiskType=flush, slaveTimeout="300")
    slave = machines.broker("slave", "SLAVE")
    await in_step(machines)
    acknowledged = await send_some(machines.namesrv)
    assert len(acknowledged) == 5
    await in_step(machines)
    slave.process.send_signal(signal.SIGSTOP)
    lost = await send_some(machines.namesrv)
    assert len(lost) == (0 if role == "SYNC_MASTER" else 5), "a SYNC_MASTER does not vouch for what no slave has"
    if role == "SYNC_MASTER":
        slave.process.send_signal(signal.SIGCONT)
        await is_safe(machines.namesrv)
        acknowledged += await send_until(machines.namesrv, master.process, 100)
    for process in (master.process, slave.process):
        process.kill()
        process.wait()
    shutil.rmtree(path / "master")
    new_master = machines.broker("slave", flushDiskType=flush)
    assert len(await send_some(machines.namesrv)) == 5, "the slave's directory is a master's as well"
    assert new_master.stop() == 0
    assert bodies_of(path / "slave", acknowledged) == [sent.body for sent in acknowledged]
    assert not {sent.body for sent in lost} & {*bodies_of(path / "slave", lost)}


async def send_some(namesrv: str, count: int = 5) -> list[Sent]:
    sent: list[Sent] = []
    async with Producer("some", namesrv, retry_times=0) as producer:
        for number in range(count):
            body = b"%d" % number + os.urandom(8)
            result = await producer.send(Message("T", body), timeout_ms=20_000)
            if result.is_ok:
                sent.append(Sent(result.queue.queue_id, result.queue_offset, body))
    return sent


# a power cut ----------------------------------------------------------------------------------------------------------


class Wire:
    """A master's store and a slave's, with what would go over the wire between them."""

    def __init__(self, master: MessageStore, slave: MessageStore) -> None:
        assert slave.replica is not None
        self.master, self.slave, self.replica = master, slave, slave.replica
        self._transfers = TransferDecoder()
        self._reports = ReportDecoder()
        (self._position,) = self._reports.receive_data(encode_report(self.replica.begin))

    def pump(self) -> int:
        """Send all that the slave does not have; what it reports then."""
        while (held := self.master.hold_bytes(self._position, 1000)) is not None:
            with held:
                stream = encode_header(self._position, len(held)) + bytes(held.view)
                self._position += len(held)
            for physical_offset, piece in self._transfers.receive_data(stream):
                self.replica.append(physical_offset, piece)
        return self._reports.receive_data(encode_report(self.slave.max_physical_offset))[-1]


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("role", [*MASTERS, "no slave"])
def test_a_power_cut_of_the_master_loses_only_unflushed_messages(tmp_path: Path, role: str, flush: str) -> None:
    """The answer comes after the flush with SYNC_FLUSH, and after the report with a SYNC_MASTER. The master's disk
    keeps what was flushed and no more; the slave, whose power is not cut, what it got."""
    root = tmp_path / "master"
    root.mkdir()
    after: StoreConfig = config(tmp_path / "after", **SMALL_FILES)
    with (
        closing(Disk(root)) as disk,
        MessageStore(config(tmp_path / "slave", broker_role=BrokerRole.SLAVE, **SMALL_FILES)) as slave,
    ):
        with disk.recording():
            master = MessageStore(config(root, **SMALL_FILES))
            master.open(1)
            wire = Wire(master, slave)
            put = master.put(inner(body=b"acknowledged"), 1)
            if flush == "SYNC_FLUSH":
                master.flush()
            if role == "SYNC_MASTER":
                assert wire.pump() == put.physical_offset + put.size
        disk.crash(Random(0), tmp_path / "after", "nothing more")
        master.close()
        with MessageStore(after) as again:
            at_master = [decode(record).body for record in again.get("T", 0, 0, 32).records]
        at_slave = [decode(record).body for record in slave.get("T", 0, 0, 32).records]
    assert at_master == ([b"acknowledged"] if flush == "SYNC_FLUSH" else [])
    assert at_slave == ([b"acknowledged"] if role == "SYNC_MASTER" else [])
    for directory in ("after", "slave"):
        assert check(tmp_path / directory) == []


def test_a_power_cut_of_both_loses_only_messages_unflushed_on_both(tmp_path: Path) -> None:
    """Nothing, where the slave's flushDiskType is SYNC_FLUSH, so that it reports what it has flushed."""
    roots = [tmp_path / "all" / name for name in ("master", "slave")]
    for root in roots:
        root.mkdir(parents=True)
    with closing(Disk(tmp_path / "all")) as disk:
        with disk.recording():
            master = MessageStore(config(roots[0], **SMALL_FILES))
            slave = MessageStore(config(roots[1], broker_role=BrokerRole.SLAVE, **SMALL_FILES))
            master.open(1)
            slave.open(1)
            wire = Wire(master, slave)
            for number in range(3):
                put = master.put(inner(body=b"%d" % number), 1)
                wire.pump()
                slave.flush()
                assert slave.flushed_physical_offset == put.physical_offset + put.size
            master.put(inner(body=b"not acknowledged"), 1)
            wire.pump()
        disk.crash(Random(0), tmp_path / "after", "nothing more")
        slave.close()
        master.close()
    with sound_store(tmp_path / "after" / "slave", **SMALL_FILES) as again:
        assert [decode(record).body for record in again.get("T", 0, 0, 32).records] == [b"0", b"1", b"2"]
