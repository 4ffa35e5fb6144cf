"""A master and its slaves: the log goes over byte for byte, and senders wait for as much as brokerRole says."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rucola.broker.replication import ha_client
from rucola.client import Producer, SendStatus
from rucola.errors import BrokerError, RemotingConnectError
from rucola.message import Message
from rucola.message.record import place_of
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.replication import TransferDecoder, encode_header, encode_report
from rucola.remoting.byte_stream import Stream, StreamServer, open_stream
from rucola.store import mapped_file
from rucola.store.config import BrokerRole, FlushDiskType
from rucola.store.kernel_flush import KernelFlush
from rucola.store.tools.check import check
from support.cluster import HOST, cluster
from support.errors import raises
from support.faults import flush_in_threads
from support.replication import caught_up, end_of, figures, is_stored_safely, lone_master, pair, send, sound_cluster
from support.waiting import until

SYNC = {"broker_role": BrokerRole.SYNC_MASTER}
FILE = 1 << 20


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_the_slave_copies_every_byte(tmp_path: Path, flush: FlushDiskType) -> None:
    async with pair(tmp_path, slave={"flush_disk_type": flush}) as (running, master, slave):
        assert set(await send(running, 50)) == {SendStatus.SEND_OK}
        await caught_up(running, master, slave)
        async with Producer("p", running.namesrv) as producer:
            async for _ in producer.send_many(Message("T", bytes(5000), keys=f"k{n}") for n in range(500)):
                pass
        await caught_up(running, master, slave)


async def test_sync_master_answers_when_slave_has_it(tmp_path: Path) -> None:
    async with (
        pair(tmp_path, SYNC) as (running, master, slave),
        Producer("p", running.namesrv, retry_times=0) as producer,
    ):
        await until(lambda: is_stored_safely(producer))
        for _ in range(20):
            result = await producer.send(Message("T", b"x"))
            assert result.status is SendStatus.SEND_OK
            assert await end_of(running, slave) == await end_of(running, master)
        results = [result async for result in producer.send_many(Message("T", b"%d" % n) for n in range(500))]
        assert {result.status for result in results} == {SendStatus.SEND_OK}


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_a_sync_master_without_a_slave_reports_slave_not_available(tmp_path: Path, flush: FlushDiskType) -> None:
    async with lone_master(tmp_path, SYNC | {"flush_disk_type": flush}) as (running, _):
        assert await send(running, 2) == [SendStatus.SLAVE_NOT_AVAILABLE] * 2
        assert await send(running, 1, properties={"WAIT": "false"}) == [SendStatus.SEND_OK]
        async with Producer("p", running.namesrv, retry_times=0) as producer:
            result = await producer.send(Message("T", b"x"))
        assert (result.queue_offset, len(result.offset_msg_id)) == (3, 32), "it is stored all the same"


@pytest.mark.parametrize("flushing", ["kernel", "thread"])
@pytest.mark.parametrize("who", ["master", "slave"])
async def test_a_send_waits_for_the_flush_of_each_sync_flush_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, flushing: str
) -> None:
    """Both have the message, and still the sender waits for the disk of the one whose flushDiskType is SYNC_FLUSH."""
    may_flush = threading.Event()
    may_flush.set()
    sync_pages, submit = mapped_file.sync_pages, KernelFlush.submit

    def patient(*arguments: Any) -> None:
        assert may_flush.wait(30)
        sync_pages(*arguments)

    def patient_in_kernel(kernel: KernelFlush, fd: int) -> bool:
        threading.Thread(target=lambda: may_flush.wait(30) and submit(kernel, fd)).start()
        return True

    monkeypatch.setattr(mapped_file, "sync_pages", patient)
    monkeypatch.setattr(KernelFlush, "submit", patient_in_kernel)
    if flushing == "thread":
        flush_in_threads(monkeypatch)
    flushed = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}

    settings = (SYNC | flushed, {}) if who == "master" else (SYNC, flushed)
    async with (
        pair(tmp_path, *settings) as (running, master, slave),
        Producer("p", running.namesrv, retry_times=0) as producer,
    ):
        await until(lambda: is_stored_safely(producer))
        before = await end_of(running, slave)
        may_flush.clear()
        sending = asyncio.create_task(producer.send(Message("T", b"x")))

        async def has_it() -> bool:
            return await end_of(running, slave) == await end_of(running, master) > before

        await until(has_it)
        assert not sending.done()
        may_flush.set()
        assert (await sending).status is SendStatus.SEND_OK


@pytest.mark.slow
async def test_a_send_waits_for_a_silent_slave_until_its_timeout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async with cluster(tmp_path) as running:
        settings = {"slave_timeout": 100, "ha_housekeeping_interval": 4000, "ha_send_heartbeat_interval": 50}
        master = await running.start_broker(store=SYNC, **settings)
        await running.create_topic(master, "T", queues=1)
        slave = await open_stream(f"{HOST}:{master.config.ha_listen_port}")
        none = SendStatus.SLAVE_NOT_AVAILABLE
        assert set(await send(running, 300)) == {none}, "it has not said where it begins"
        await slave.write(encode_report(0))
        decoder = TransferDecoder()
        log = b""
        while len(log) < await end_of(running, master):
            data = await slave.read(1 << 16)
            assert data, "the master has closed the connection"
            log += b"".join(bytes(piece) for _, piece in decoder.receive_data(data))
        assert await send(running, 1) == [SendStatus.FLUSH_SLAVE_TIMEOUT]
        heartbeats = 0
        while data := await slave.read(1 << 16):
            heartbeats += sum(not piece for _, piece in decoder.receive_data(data))
        assert heartbeats > 5
        assert "no report within 4000 ms (haHousekeepingInterval)" in caplog.text
        slave.close()
        assert await send(running, 1) == [SendStatus.SLAVE_NOT_AVAILABLE]


@pytest.mark.slow
async def test_sends_do_not_wait_for_a_disconnected_slave(tmp_path: Path) -> None:
    async with lone_master(tmp_path, SYNC, slave_timeout=60_000) as (running, master):
        slaves = [await open_stream(f"{HOST}:{master.config.ha_listen_port}") for _ in range(2)]
        for slave in slaves:
            await slave.write(encode_report(0))
            await slave.read(1)
        sending = asyncio.create_task(send(running, 3))

        async def is_stored() -> bool:
            return await end_of(running, master) > 0

        await until(is_stored)
        slaves[0].close()
        await slaves[1].read(1)
        assert not sending.done(), "there is another one"
        slaves[1].close()
        assert await sending == [SendStatus.SLAVE_NOT_AVAILABLE] * 3


async def test_sends_that_wait_together_are_answered_one_by_one(tmp_path: Path) -> None:
    settings = {"slave_timeout": 60_000, "ha_send_heartbeat_interval": 50}
    async with lone_master(tmp_path, SYNC, **settings) as (running, master):
        slave = await open_stream(f"{HOST}:{master.config.ha_listen_port}")
        await slave.write(encode_report(0))
        decoder, log, ends = TransferDecoder(), b"", [0]
        assert not any(piece for _, piece in decoder.receive_data(await slave.read(1 << 16))), "a heartbeat"
        sends = [asyncio.create_task(send(running, 1)) for _ in range(3)]
        while len(ends) < 4:
            log += b"".join(bytes(piece) for _, piece in decoder.receive_data(await slave.read(1 << 16)))
            while len(log) > ends[-1]:
                ends.append(ends[-1] + place_of(log, ends[-1])[0])
        for count, end in enumerate(ends[1:], 1):
            await slave.write(encode_report(end))
            await until(lambda: any(task.done() for task in sends))
            (done,) = [task for task in sends if task.done()]
            assert done.result() == [SendStatus.SEND_OK], count
            sends.remove(done)
        slave.close()


async def test_a_slave_with_too_much_lag_counts_as_unavailable(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        master = await running.start_broker(
            store=SYNC, ha_slave_fallbehind_max=1000, slave_timeout=50, ha_send_heartbeat_interval=50
        )
        await running.create_topic(master, "T", queues=1)
        slave = await open_stream(f"{HOST}:{master.config.ha_listen_port}")
        await slave.write(encode_report(0))
        await slave.read(1)
        assert await send(running, 1, 200) == [SendStatus.FLUSH_SLAVE_TIMEOUT]
        assert await send(running, 1, 900) == [SendStatus.SLAVE_NOT_AVAILABLE]
        slave.close()


async def test_a_second_slave_can_acknowledge(tmp_path: Path) -> None:
    async with pair(tmp_path, SYNC) as (running, master, slave):
        third = await running.start_broker(store={"broker_role": BrokerRole.SLAVE}, directory="third", broker_id=2)
        await send(running, 30)
        await caught_up(running, master, slave)
        await caught_up(running, master, third)
        await third.stop()
        async with Producer("p", running.namesrv, retry_times=0) as producer:
            await until(lambda: is_stored_safely(producer))
        await caught_up(running, master, slave)
    assert check(tmp_path / "third") == []


@pytest.mark.slow
async def test_replication_resumes_after_restarts_of_either_side(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, master, slave):
        await send(running, 20)
        await slave.stop()
        await send(running, 20, 20_000)
        slave = await running.start_slave()
        await caught_up(running, master, slave)
        port = master.config.listen_port
        await master.stop()
        master = await running.start_broker(port=port)
        await send(running, 20)
        await caught_up(running, master, slave)


async def test_a_slave_that_reads_slowly_gets_every_byte(tmp_path: Path) -> None:
    async with lone_master(tmp_path) as (running, master):
        slave = await open_stream(f"{HOST}:{master.config.ha_listen_port}")
        await slave.write(encode_report(0))
        await send(running, 1)
        decoder, log = TransferDecoder(), bytearray()

        async def receive() -> None:
            end = await end_of(running, master)
            while len(log) < end:
                for _, piece in decoder.receive_data(await slave.read(1 << 16)):
                    log.extend(piece)

        await receive()
        await send(running, 120, 100_000)  # more than the buffers of the sockets hold
        await receive()
        await send(running, 1)
        await receive()
        slave.close()
        (store,) = running.stores
        files = sorted((store / "commitlog").iterdir())
        assert b"".join(file.read_bytes() for file in files).startswith(log)


@pytest.mark.slow
async def test_a_slave_whose_offset_was_deleted_stops(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(tmp_path) as running:
        master = await running.start_broker(
            store={"file_reserved_time": 0, "clean_resource_interval": 50, "delete_commit_log_files_interval": 1}
        )
        await running.create_topic(master, "T", queues=1)
        slave = await running.start_slave()
        await send(running, 3)
        await caught_up(running, master, slave)
        await slave.stop()
        await send(running, 40, 100_000)

        async def is_gone() -> bool:
            answer = RemotingCommand.request(RequestCode.DELETE_EXPIRED_COMMITLOG)
            await running.remoting.invoke_ok(master.address, answer)
            return int((await figures(running, master))["commitLogMinOffset"]) > FILE

        await until(is_gone)
        await running.start_slave()
        await until(lambda: ": stop the slave, remove its store directory, and start it again" in caplog.text)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"\xfe" * 8, "a report of physical offset -72340172838076674"),
        (encode_report(1 << 40), "ends at 1099511627776, and that of this master at"),
        (b"GET / HTTP/1.1\r\n\r\n", "and that of this master at"),
    ],
)
async def test_garbage_on_the_replication_port_closes_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes, words: str
) -> None:
    async with pair(tmp_path) as (running, master, slave):
        stranger = await open_stream(f"{HOST}:{master.config.ha_listen_port}")
        await stranger.write(sent)
        with suppress(RemotingConnectError):  # or it is reset, since not all that it sent was read
            assert not await stranger.read(1)
        stranger.close()
        assert len([record for record in caplog.records if words in record.getMessage()]) == 1
        await send(running, 5)
        await caught_up(running, master, slave)


async def test_slaves_that_disconnect_for_ever_new_reasons_have_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as running:
        master = await running.start_broker()
        for offset in range(10**9, 10**9 + 20):
            peer = await open_stream(f"{HOST}:{master.config.ha_listen_port}")
            await peer.write(encode_report(offset))
            assert await peer.read(1) == b""
            peer.close()
    (line,) = [record.getMessage() for record in caplog.records if "disconnected" in record.getMessage()]
    assert "its log ends at 1000000000, and that of this master at 0" in line


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (encode_header(-5, 4), "a transfer of 4 bytes at physical offset -5"),
        (encode_header(-1, 4) + b"abcd", "4 bytes about a log"),
        (encode_header(-1, 1 << 30), "-1 with 1073741824 bytes"),
        (encode_header(77, 4) + b"abcd", "the master's log begins at 77"),
        (encode_header(0, 8) + b"no record", "the master sent no record at 0"),
        (encode_header(0, 5)[:7], "it closed the connection"),
    ],
)
async def test_a_slave_reconnects_after_garbage_from_its_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, sent: bytes, words: str
) -> None:
    monkeypatch.setattr(ha_client, "LONG_WAIT_S", 0.01)

    async with sound_cluster(tmp_path) as running:
        turns = 0

        async def serve(stream: Stream) -> None:
            nonlocal turns
            turns += 1
            assert await stream.read(16) == encode_report(-1) + encode_report(0)
            await stream.write(sent)
            if not words.startswith("it closed"):
                assert not await stream.read(8), "the slave ends it"

        server = StreamServer(HOST, 0, serve)
        server.start()
        slave = await running.start_slave(ha_master_address=f"{HOST}:{server.port}")

        async def is_cut() -> bool:
            return await end_of(running, slave) == 0

        await until(lambda: words in caplog.text and turns > 1)
        await server.stop()
        await until(is_cut)
    assert len([record for record in caplog.records if words in record.getMessage()]) == 1


async def test_a_slave_refuses_requests_that_change_it(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, master, slave):
        await send(running, 1)
        await caught_up(running, master, slave)
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await running.create_topic(slave, "Another")
        for code, refused in (
            (RequestCode.SEND_MESSAGE_V2, ResponseCode.SERVICE_NOT_AVAILABLE),
            (RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SERVICE_NOT_AVAILABLE),
            (RequestCode.END_TRANSACTION, ResponseCode.SLAVE_NOT_AVAILABLE),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, ResponseCode.SYSTEM_ERROR),
        ):
            with raises(BrokerError, code=refused):
                await running.remoting.invoke_ok(slave.address, RemotingCommand.request(code))


async def test_a_stop_of_the_replication_passes_a_cancellation_on(tmp_path: Path) -> None:
    """A coordinator that is cancelled while its broker stops to follow must not go on."""
    async with pair(tmp_path) as (running, master, slave):
        stopping = asyncio.create_task(slave.role.stop_following())
        await asyncio.sleep(0)  # it has begun
        assert slave.role.changing.locked()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert not slave.role.changing.locked()
        await slave.role.become_slave(1, 0, f"{HOST}:{master.config.ha_listen_port}")
        assert set(await send(running, 3)) == {SendStatus.SEND_OK}
        await caught_up(running, master, slave)
