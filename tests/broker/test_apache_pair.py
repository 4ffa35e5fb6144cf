"""The other side is Apache's: a master and a slave that do what HAConnection and HAClient of 4.9.8 do, step by step."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from rucola.broker.broker import Broker
from rucola.broker.config import TransferFrom
from rucola.client import Producer
from rucola.message import Message
from rucola.remoting.byte_stream import Stream, StreamServer, open_stream
from rucola.store.config import BrokerRole
from support.cluster import HOST, Cluster, cluster
from support.replication import end_of, send, sound_cluster
from support.waiting import until

READ_MAX_BUFFER_SIZE = 4 * 1024 * 1024
BATCH = 32 * 1024
FILE = 1 << 20


class ApacheSlave:
    """HAClient: one buffer, transfers taken whole, each held against the end of its log, which is reported after it."""

    def __init__(self, log_begin: int = 0) -> None:
        self.begin = log_begin
        self.log = b""

    @property
    def end(self) -> int:
        return self.begin + len(self.log)

    async def follow(self, address: str, enough: int) -> None:
        stream = await open_stream(address)
        await stream.write(struct.pack(">q", self.end if self.log else 0))
        buffer = b""
        while self.end < enough:
            data = await stream.read(READ_MAX_BUFFER_SIZE - len(buffer))
            assert data, "it was let go"
            buffer += data
            while len(buffer) >= 12:
                physical_offset, size = struct.unpack_from(">qi", buffer)
                if self.log:
                    assert physical_offset == self.end, "master pushed offset not equal the max phy offset in slave"
                else:
                    self.begin = physical_offset
                assert 12 + size <= READ_MAX_BUFFER_SIZE, "it would wait for ever"
                if len(buffer) < 12 + size:
                    break
                self.log += buffer[12 : 12 + size]
                buffer = buffer[12 + size :]
                if size:
                    await stream.write(struct.pack(">q", self.end))
        stream.close()


class ApacheMaster:
    """HAConnection over the files of a log: begins where the first report says, closes on one beyond its end."""

    def __init__(self, log: bytes, read_size: int) -> None:
        self.log = log
        self.read_size = read_size
        self.acknowledged = -1
        self.first_reports: list[int] = []
        self.server = StreamServer(HOST, 0, self.serve)

    async def serve(self, stream: Stream) -> None:
        position = -1
        while position == -1:  # slaveRequestOffset: nothing is sent before it is another number
            (position,) = struct.unpack(">q", (await stream.read(self.read_size))[-8:])
        self.first_reports.append(position)
        self.acknowledged = position
        if position == 0:
            position = len(self.log) - len(self.log) % FILE
        reading = asyncio.create_task(self.read(stream))
        while not reading.done():
            if position < len(self.log):
                size = min(BATCH, len(self.log) - position, FILE - position % FILE)
                await stream.write(struct.pack(">qi", position, size), self.log[position : position + size])
                position += size
            else:
                await stream.write(struct.pack(">qi", position, 0))
                await asyncio.wait([reading], timeout=0.02)
        await reading

    async def read(self, stream: Stream) -> None:
        buffer = b""
        while data := await stream.read(1 << 20):
            buffer += data
            whole = len(buffer) - len(buffer) % 8
            if whole:
                (self.acknowledged,) = struct.unpack(">q", buffer[whole - 8 : whole])
                assert self.acknowledged <= len(self.log), "request offset greater than local commitLog offset"
                buffer = buffer[whole:]


def log_of(directory: Path, end: int) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((directory / "commitlog").iterdir()))[:end]


async def filled_master(running: Cluster, begin: TransferFrom = TransferFrom.begin) -> Broker:
    master = await running.start_broker(store={"broker_role": BrokerRole.SYNC_MASTER}, ha_transfer_from=begin)
    await running.create_topic(master, "T", queues=1)
    await send(running, 30, 50_000)
    return master


@pytest.mark.parametrize("begin", TransferFrom)
async def test_a_slave_of_apaches_follows_our_master(tmp_path: Path, begin: TransferFrom) -> None:
    async with cluster(tmp_path) as running, asyncio.timeout(60):
        master = await filled_master(running, begin)
        end = await end_of(running, master)
        slave = ApacheSlave()
        address = f"{HOST}:{master.config.ha_listen_port}"
        await slave.follow(address, end)
        assert slave.begin == (0 if begin is TransferFrom.begin else end - end % FILE)
        async with Producer("p", running.namesrv, retry_times=0) as producer:
            following = asyncio.create_task(slave.follow(address, end + 200_000))

            async def is_safe() -> bool:
                return (await producer.send(Message("T", b"x" * 1000))).is_ok

            await until(is_safe)
            while not following.done():
                await producer.send(Message("T", b"y" * 1000))
            await following
        log = log_of(tmp_path / "broker-a", slave.end)
        assert log[slave.begin :] == slave.log


@pytest.mark.parametrize("read_size", [8, 1 << 20], ids=["a report at a time", "all at once"])
async def test_our_slave_follows_a_master_of_apaches(tmp_path: Path, read_size: int) -> None:
    async with sound_cluster(tmp_path) as running, asyncio.timeout(60):
        source = await filled_master(running)
        end = await end_of(running, source)
        log = log_of(tmp_path / "broker-a", end)
        await source.stop()
        master = ApacheMaster(log[: end // 2], read_size)
        master.server.start()

        async def has_all() -> bool:
            return master.acknowledged == len(master.log)

        slave = await running.start_slave(ha_master_address=f"{HOST}:{master.server.port}")
        await until(has_all)
        master.log = log
        await until(has_all)
        await slave.stop()
        master.acknowledged = -1
        await running.start_slave(ha_master_address=f"{HOST}:{master.server.port}")
        await until(has_all)
        first, again = master.first_reports
        assert (first, again < end) == (0, True)
        await master.server.stop()
    assert log_of(tmp_path / "slave", end) == log[end // 2 - end // 2 % FILE :]
