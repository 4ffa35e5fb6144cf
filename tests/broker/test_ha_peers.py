"""A master and slaves that are not what they say: old connections, diverged logs, a master that is none any more.

The slaves speak the protocol and have no log.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.broker.background.group_commit import GroupCommit
from rucola.broker.broker import Broker
from rucola.broker.replication import ha_client
from rucola.broker.replication.ha_handshake import LogDiverged, greet, read_exactly, welcome
from rucola.broker.replication.ha_service import HAService
from rucola.client import SendStatus
from rucola.errors import RemotingConnectError
from rucola.protocol.replication import encode_report
from rucola.protocol.replication_epochs import Greeting, Join
from rucola.remoting.byte_stream import MAX_PENDING, Stream, StreamServer, open_stream
from rucola.store.config import BrokerRole, FlushDiskType
from support.cluster import HOST, cluster
from support.proxy import Proxy
from support.replication import follows, lone_master, pair, send, sound_cluster
from support.stores import inner, log_of, sound_store
from support.waiting import DEADLINE_S, until

SYNC = {"broker_role": BrokerRole.SYNC_MASTER}
TIMEOUT_MS = 20_000


async def join(
    master: Broker, member: int, end: int, epochs: tuple[tuple[int, int], ...] = (), address: str = "one:1"
) -> Stream:
    """Connect as a slave that has everything below `end`, and say so."""
    stream = await open_stream(f"{HOST}:{master.config.ha_listen_port}")
    await greet(stream, Join(member, 0, end, end, address, epochs), 0, TIMEOUT_MS)
    await stream.write(encode_report(end))
    return stream


async def ends(stream: Stream) -> None:
    """Wait until the master closes a connection."""
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        with suppress(RemotingConnectError):
            while await stream.read(1000):
                pass
    stream.close()


async def test_what_a_slave_confirmed_by_an_older_connection_does_not_count(tmp_path: Path) -> None:
    """It may be half-open, and of a process whose log is gone."""
    async with lone_master(tmp_path, SYNC) as (running, master):
        await send(running, 5)
        end = master.role.position().end
        before = await join(master, 1, end, ((1, 0),))
        await until(lambda: master.role.in_sync() == {1: end})
        master.role.set_in_sync(frozenset({1}))
        now = await join(master, 1, 0)
        await ends(before)
        assert master.role.in_sync() == {1: 0}
        sending = asyncio.create_task(send(running, 1))
        await until(lambda: master.role.position().end > end)
        assert not sending.done()
        await now.write(encode_report(master.role.position().end))
        assert await sending == [SendStatus.SEND_OK]
        now.close()


async def test_of_two_slaves_with_one_id_the_second_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sound_cluster(tmp_path) as running:
        master = await running.start_broker(store=SYNC)
        first = await join(master, 1, 0)
        await until(lambda: master.role.in_sync() == {1: 0})
        second = await join(master, 1, 0, address="other:1")
        await ends(second)
        assert master.role.in_sync() == {1: 0}
        assert "brokerId 1 is that of the slave at one:1" in caplog.text
        first.close()
        await until(lambda: master.role.in_sync() == {})
        second = await join(master, 1, 0, address="other:1")
        await until(lambda: master.role.in_sync() == {1: 0})
        second.close()


async def test_the_lag_of_an_idle_slave_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with lone_master(tmp_path, SYNC) as (running, master):
        assert master.parts is not None
        service = master.parts.replication
        assert isinstance(service, HAService)

        def lines() -> int:
            service.log_replication_lag()
            return sum("replication lag" in record.getMessage() for record in caplog.records)

        slave = await join(master, 1, master.role.position().end)
        await until(lambda: master.role.in_sync() == {1: master.role.position().end})
        with caplog.at_level("INFO", logger="rucola.broker.replication"):
            assert [lines(), lines()] == [1, 1]
            sending = asyncio.create_task(send(running, 1))
            await until(lambda: master.role.in_sync() != {1: master.role.position().end})
            assert [lines(), lines()] == [2, 3]
            await slave.write(encode_report(master.role.position().end))
            assert await sending == [SendStatus.SEND_OK]
            assert [lines(), lines()] == [4, 4]
        slave.close()


async def test_a_slave_whose_log_has_diverged_is_not_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Though it begins within the master's log: what it confirms would be bytes that it does not have."""
    async with lone_master(tmp_path, SYNC) as (running, master):
        await send(running, 5)
        end = master.role.position().end
        stream = await open_stream(f"{HOST}:{master.config.ha_listen_port}")
        with suppress(LogDiverged, RemotingConnectError):  # the slave's side sees it as well
            await greet(stream, Join(1, 0, 1, end, "one:1", ((7, 0),)), 0, TIMEOUT_MS)
        await stream.write(encode_report(end))
        await ends(stream)
        assert master.role.in_sync() == {}
        assert "they are equal up to 0" in caplog.text


async def test_a_slave_follows_no_older_master_than_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has not got a byte of the newer one's log."""
    monkeypatch.setattr(ha_client, "LONG_WAIT_S", 0.01)
    joins: list[Join] = []

    async def serve(stream: Stream) -> None:
        greeting = Greeting(4 if joins else 5, 0, 0, True, ())
        join, _ = await welcome(stream, b"", greeting, TIMEOUT_MS)
        assert join is not None
        joins.append(join)
        if greeting.epoch == 4:
            await ends(stream)

    async with sound_cluster(tmp_path) as running:
        server = StreamServer(HOST, 0, serve)
        server.start()
        await running.start_slave(ha_master_address=f"{HOST}:{server.port}")
        await until(lambda: len(joins) > 2)
        await server.stop()
    assert [join.newest_epoch for join in joins[:3]] == [0, 5, 5]


async def test_a_slave_joins_a_new_master_as_soon_as_that_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempts follow each other closely: slaves hear of the master before it has begun."""
    for delay in ("WAIT_S", "LONG_WAIT_S"):
        monkeypatch.setattr(ha_client, delay, 600.0)
    attempts = 0

    async def serve(stream: Stream) -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 3:
            await welcome(stream, b"", Greeting(1, 0, 0, True, ()), TIMEOUT_MS)
            await ends(stream)

    async with sound_cluster(tmp_path) as running:
        server = StreamServer(HOST, 0, serve)
        server.start()
        slave = await running.start_slave(ha_master_address=f"{HOST}:{server.port}")
        await until(lambda: attempts > 3)
        await slave.stop()
        await server.stop()


async def test_a_slave_follows_a_master_of_rucola_before_epochs(tmp_path: Path) -> None:
    """It takes the introduction for a report below 0, and closes the connection; these are the bytes that it sends."""
    with sound_store(tmp_path / "source") as store:
        store.put(inner(body=b"from an older master"), 1_700_000_000_000)
    _, end, log = log_of(tmp_path / "source")
    reports: list[int] = []

    async def serve(stream: Stream) -> None:
        report = int.from_bytes(await read_exactly(stream, 8, TIMEOUT_MS), "big", signed=True)
        reports.append(report)
        if report < 0:
            return
        await stream.write(bytes(8) + len(log).to_bytes(4, "big") + log)
        reports.append(int.from_bytes(await read_exactly(stream, 8, TIMEOUT_MS), "big", signed=True))
        await ends(stream)

    async with sound_cluster(tmp_path) as running:
        server = StreamServer(HOST, 0, serve)
        server.start()
        await running.start_slave({"mapped_file_size_commit_log": 4096}, ha_master_address=f"{HOST}:{server.port}")
        await until(lambda: end in reports)
        await server.stop()
    assert reports[: ha_client.INTRODUCTIONS + 2] == [-1] * ha_client.INTRODUCTIONS + [0, end]
    assert log_of(tmp_path / "slave") == (0, end, log)


async def test_a_fenced_master_serves_no_slave(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with pair(tmp_path, register_name_server_period=200) as (running, first, second):
        await send(running, 5)
        await until(lambda: first.role.in_sync() == {1: first.role.position().end})
        await second.role.become_master(2, None)
        await until(lambda: "fenced: this broker was master in epoch 1" in caplog.text)
        stream = await open_stream(f"{HOST}:{first.config.ha_listen_port}")
        with pytest.raises(RemotingConnectError):
            await greet(stream, Join(3, 0, 0, 0, "one:1", ()), 0, TIMEOUT_MS)
        await ends(stream)
        assert first.role.in_sync() == {}
        await first.role.become_slave(2, 1, f"{HOST}:{second.config.ha_listen_port}")
        await until(lambda: second.role.in_sync() == {1: second.role.position().end})


async def test_a_slave_joins_once_the_log_before_its_first_report_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report confirms it, and an earlier session may have ended before the flush."""
    waits: list[int] = []
    joins: list[tuple[int, list[int]]] = []
    wait_flushed = GroupCommit.wait_flushed

    async def noted(commit: GroupCommit, physical_offset: int, timeout_ms: int) -> bool:
        waits.append(physical_offset)
        return await wait_flushed(commit, physical_offset, timeout_ms)

    async def serve(stream: Stream) -> None:
        join, _ = await welcome(stream, b"", Greeting(5, 0, 0, True, ()), TIMEOUT_MS)
        assert join is not None
        joins.append((join.begin, list(waits)))

    monkeypatch.setattr(GroupCommit, "wait_flushed", noted)
    other = StreamServer(HOST, 0, serve)
    other.start()
    async with lone_master(tmp_path) as (running, master):
        slave = await running.start_slave({"flush_disk_type": FlushDiskType.SYNC_FLUSH})
        await send(running, 3)
        await follows(master, slave)
        waits.clear()
        await slave.role.become_slave(5, 0, f"{HOST}:{other.port}")
        await until(lambda: bool(joins))
    await other.stop()
    begin, flushed = joins[0]
    assert begin > 0
    assert begin in flushed


async def test_silent_connections_keep_no_slave_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A connection takes a place of maxSlaves with its first report."""
    async with lone_master(tmp_path, SYNC, max_slaves=1) as (running, master):
        address = f"{HOST}:{master.config.ha_listen_port}"
        silent = [await open_stream(address) for _ in range(MAX_PENDING)]
        await running.start_slave()
        await until(lambda: master.role.in_sync() == {1: master.role.position().end})
        assert await send(running, 3) == [SendStatus.SEND_OK] * 3
        await ends(silent[0])  # it made room for the slave
        await silent[1].write(encode_report(0))
        await ends(silent[1])
        assert "than maxSlaves=1 failed, retrying: the newest is closed" in caplog.text
        assert await send(running, 3) == [SendStatus.SEND_OK] * 3
        for stream in silent[2:]:
            stream.close()


@pytest.mark.slow
async def test_a_connection_without_a_report_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the time that a slave may be silent; that of Apache is silent for 5 s before its first report."""
    async with cluster(tmp_path) as running:
        master = await running.start_broker(ha_housekeeping_interval=1000)
        silent = await open_stream(f"{HOST}:{master.config.ha_listen_port}")
        await silent.write(b"\0\0\0")
        await ends(silent)
        assert "no first report within 1000 ms (haHousekeepingInterval)" in caplog.text


@pytest.mark.parametrize("reconnects", [True, False], ids=["half-open", "cut"])
async def test_a_pair_that_hears_nothing_of_each_other_says_so(tmp_path: Path, reconnects: bool) -> None:
    """No side is told that the connection has ended, and what is written to it vanishes."""
    intervals = {"ha_send_heartbeat_interval": 100, "ha_housekeeping_interval": 4000}
    async with (
        asyncio.timeout(DEADLINE_S),
        lone_master(tmp_path, SYNC, **intervals) as (running, master),
        AdminClient(running.namesrv) as admin,
        Proxy(f"{HOST}:{master.config.ha_listen_port}") as proxy,
    ):
        slave = await running.start_slave(ha_master_address=proxy.address, **intervals)
        await follows(master, slave)
        await until(lambda: is_following(admin, slave))
        connections = proxy.accepted
        if reconnects:
            proxy.half_open()
        else:
            proxy.swallow()

            async def is_known() -> bool:
                of_master, of_slave = [await admin.roles.status(each.address) for each in (master, slave)]
                return not (of_master.slaves or of_slave.is_following)

            await until(is_known, DEADLINE_S)
            # The slave connects, which the proxy answers, and hears nothing: that is no reason to follow.
            await until(lambda: proxy.accepted > connections + 1, DEADLINE_S)
            assert await is_known()
            assert await send(running, 1) == [SendStatus.SLAVE_NOT_AVAILABLE]
            proxy.heal()
        await until(lambda: proxy.accepted > connections)
        await follows(master, slave)
        await until(lambda: is_following(admin, slave))
        assert await send(running, 1) == [SendStatus.SEND_OK]
        [shown] = (await admin.roles.status(master.address)).slaves
        assert (shown.broker_id, shown.lag_bytes) == (1, 0)


async def is_following(admin: AdminClient, slave: Broker) -> bool:
    return (await admin.roles.status(slave.address)).is_following
