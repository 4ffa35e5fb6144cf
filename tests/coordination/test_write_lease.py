"""The deadline of a master, the gate of the event loop, the bounds of the times, and the incarnation of a log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.broker.background.group_commit import GroupCommit
from rucola.broker.config import from_properties
from rucola.broker.coordination import BrokerCoordination
from rucola.broker.durability import Durability, Missing
from rucola.coordination.incarnation import LogIncarnation
from rucola.coordination.write_lease import WriteLease
from rucola.epochs import Epoch
from rucola.errors import ConfigError, StoreCorrupt
from rucola.remoting.batching_event_loop import BatchingEventLoop
from rucola.store.checkpoint import Checkpoint
from rucola.store.config import BrokerRole, PutMessageStatus
from rucola.store.epoch_file import EpochFile, read_epochs
from support.errors import raises
from support.stores import config, sound_store

ELECTED = {"etcdEndpoints": "http://127.0.0.1:2379", "brokerRole": "SLAVE", "brokerId": "1", "brokerName": "a"}


def test_answers_leave_only_while_the_right_holds_by_which_they_were_made() -> None:
    now = [0.0]
    lease = WriteLease(lambda: now[0])
    assert not lease.is_held()
    assert lease.may_send(), "nothing was produced by the right"
    lease.set(10.0)
    assert lease.is_held()
    assert lease.may_send()
    assert lease.is_held()
    now[0] = 10.0  # stopped for ten seconds
    assert not lease.may_send()
    assert lease.may_send(), "later answers are refusals and reads"
    assert not lease.is_held()


def test_a_closed_gate_closes_the_connections_of_the_batch() -> None:
    received: list[bytes] = []

    async def run(loop: BatchingEventLoop) -> None:
        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                received.append(await reader.read())
            except ConnectionResetError:
                received.append(b"")
            writer.close()
            ended.set()

        ended = asyncio.Event()
        server = await asyncio.start_server(read, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for is_open in (True, False):
            ended.clear()
            loop.batching.set_gate(lambda is_open=is_open: is_open)  # type: ignore[misc]
            transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
            loop.batching.writer_of(transport)(b"acknowledged")
            await asyncio.sleep(0)
            loop.batching.set_gate(None)
            transport.close()
            await ended.wait()
        server.close()

    with asyncio.Runner(loop_factory=BatchingEventLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, BatchingEventLoop)
        runner.run(run(loop))
    assert received == [b"acknowledged", b""]


class ConfirmingSlave:
    """A slave that has a message when the time is `at_s`."""

    def __init__(self, now: list[float], at_s: float) -> None:
        self._now = now
        self._at_s = at_s

    def when_replicated(self, physical_offset: int, done: Callable[[Missing | None], None]) -> None:
        self._now[0] = self._at_s
        done(None)


@pytest.mark.parametrize(("at_s", "missing"), [(9.9, None), (10.0, PutMessageStatus.FLUSH_SLAVE_TIMEOUT)])
async def test_a_message_that_was_waited_for_beyond_the_right_is_not_acknowledged(
    tmp_path: Path, at_s: float, missing: PutMessageStatus | None
) -> None:
    now = [0.0]
    lease = WriteLease(lambda: now[0])
    lease.set(10.0)
    with sound_store(tmp_path, broker_role=BrokerRole.SYNC_MASTER) as store:
        durability = Durability(store, GroupCommit(store), ConfirmingSlave(now, at_s).when_replicated, lease)
        outcome: asyncio.Future[PutMessageStatus | None] = asyncio.get_running_loop().create_future()
        durability.when_durable(0, lambda lacking: outcome.set_result(None if lacking is None else lacking[0]))
        assert await outcome is missing
        # An answer that says so leaves in any case, one that acknowledges while the right holds.
        assert lease.may_send()


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"etcdTtl": "3000"}, "etcdTtl"),
        ({"brokerRole": "SYNC_MASTER"}, "brokerRole"),
        ({"haListenPort": "0"}, "haListenPort"),
        ({"etcdEndpoints": "etcd"}, "etcdEndpoints"),
        ({"brokerId": "0"}, "brokerId"),
    ],
)
def test_contradicting_settings_are_errors(changes: dict[str, str], subject: str) -> None:
    from_properties(ELECTED)
    with raises(ConfigError, subject=subject):
        from_properties(ELECTED | changes)


def test_a_log_that_may_have_lost_something_has_another_incarnation(tmp_path: Path) -> None:
    path = tmp_path / "config" / "coordination.json"

    def read(boot: str, *, was_closed: bool = False, is_flushed: bool = False) -> int:
        return incarnation(path, boot, was_closed=was_closed, is_flushed=is_flushed).number

    first = read("boot 1")
    assert read("boot 1") == first, "a killed process loses nothing"
    assert read("boot 2", was_closed=True) == first
    second = read("boot 3")
    assert second != first, "a power cut"
    path.unlink()
    assert read("boot 3") != second, "an empty disk"
    path.write_text("{")
    with pytest.raises(StoreCorrupt):
        read("boot 3")


def incarnation(path: Path, boot: str, *, was_closed: bool = False, is_flushed: bool = False) -> LogIncarnation:
    found = LogIncarnation(path)
    found.begin_run(was_closed=was_closed, is_flushed=is_flushed, boot=boot)
    return found


def test_a_power_cut_is_judged_by_the_flush_disk_type_that_was_set_before(tmp_path: Path) -> None:
    path = tmp_path / "coordination.json"
    first = incarnation(path, "boot 1", is_flushed=True).number
    assert incarnation(path, "boot 2").number == first, "ASYNC_FLUSH, set since"
    second = incarnation(path, "boot 3", is_flushed=True).number
    assert second != first, "SYNC_FLUSH, set since"
    # What a killed run had not flushed may still be in memory only when the next one loses power.
    third = incarnation(path, "boot 4").number
    assert third == second
    assert incarnation(path, "boot 4", is_flushed=True).number == third
    assert incarnation(path, "boot 5", is_flushed=True).number != third
    # An orderly stop flushes it.
    fourth = incarnation(path, "boot 5").number
    assert incarnation(path, "boot 5", was_closed=True, is_flushed=True).number == fourth
    assert incarnation(path, "boot 6").number == fourth


def test_the_end_of_the_log_at_an_orderly_stop_is_kept_until_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "coordination.json"
    first = incarnation(path, "boot 1")
    assert first.least_end == 0
    first.end_run(700)
    assert incarnation(path, "boot 2", was_closed=True).least_end == 700
    killed = incarnation(path, "boot 2")
    assert (killed.number, killed.least_end) == (first.number, 700)
    killed.renew()
    again = incarnation(path, "boot 2")
    assert (again.number, again.least_end) == (killed.number, 0)
    assert again.number != first.number


async def test_a_log_that_ends_before_its_former_end_has_another_incarnation(tmp_path: Path) -> None:
    number = 0

    async def run(end: int, *, closed_at: int | None = None) -> bool:
        """Let a broker find this end and stop at another one; tell whether the incarnation stays."""
        nonlocal number
        coordination = BrokerCoordination(from_properties(ELECTED)[0], config(tmp_path), None)
        await coordination.prepare()
        await coordination.compare(end, EpochFile(tmp_path))
        if closed_at is not None:
            await coordination.keep_end(closed_at)
        before, number = number, json.loads((tmp_path / "config" / "coordination.json").read_text())["incarnation"]
        return number == before

    EpochFile(tmp_path).begin_epoch(1, 0)
    assert not await run(0, closed_at=0)
    assert await run(0, closed_at=500), "a new group without messages"
    assert await run(500)
    assert await run(900), "a kill"
    assert not await run(400, closed_at=400)
    assert read_epochs(tmp_path) == (Epoch(1, 0),)
    # An empty log that was not, as the checkpoint tells also after a kill.
    point = Checkpoint(tmp_path / "checkpoint")
    point.physic_timestamp = 1
    point.write()
    assert not await run(0)
    assert read_epochs(tmp_path) == (), "an epoch would make it a candidate"


def test_a_record_of_an_earlier_version_counts_as_not_flushed(tmp_path: Path) -> None:
    path = tmp_path / "coordination.json"
    old = b'{"incarnation":7,"bootId":"boot 1"}'
    path.write_bytes(old)
    assert incarnation(path, "boot 1").number == 7
    path.write_bytes(old)
    assert incarnation(path, "boot 2", was_closed=True).number == 7
    path.write_bytes(old)
    assert incarnation(path, "boot 2", is_flushed=True).number != 7
