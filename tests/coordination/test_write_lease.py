"""The deadline of a master, the gate of the event loop, the bounds of the times, and the incarnation of a log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rucola.broker.background.group_commit import GroupCommit
from rucola.broker.config import from_properties
from rucola.broker.durability import Durability
from rucola.coordination.incarnation import incarnation_of
from rucola.coordination.write_lease import WriteLease
from rucola.errors import ConfigError, StoreCorrupt
from rucola.remoting.batching_event_loop import BatchingEventLoop
from rucola.store.config import BrokerRole, PutMessageStatus
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.stores import config

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

    async def wait_replicated(self, physical_offset: int) -> PutMessageStatus:
        self._now[0] = self._at_s
        return PutMessageStatus.PUT_OK


@pytest.mark.parametrize(("at_s", "missing"), [(9.9, None), (10.0, PutMessageStatus.FLUSH_SLAVE_TIMEOUT)])
async def test_a_message_that_was_waited_for_beyond_the_right_is_not_acknowledged(
    tmp_path: Path, at_s: float, missing: PutMessageStatus | None
) -> None:
    now = [0.0]
    lease = WriteLease(lambda: now[0])
    lease.set(10.0)
    with MessageStore(config(tmp_path, broker_role=BrokerRole.SYNC_MASTER)) as store:
        durability = Durability(store, GroupCommit(store), ConfirmingSlave(now, at_s), lease)
        outcome: asyncio.Future[PutMessageStatus | None] = asyncio.get_running_loop().create_future()
        durability.when_durable(0, lambda lacking: outcome.set_result(None if lacking is None else lacking[0]))
        assert await outcome is missing
        # An answer that says so leaves in any case, one that acknowledges while the right holds.
        assert lease.may_send()
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"etcdTtl": "3000"}, "must not exceed 95 % of etcdTtl"),
        ({"brokerRole": "SYNC_MASTER"}, "begins as brokerRole=SLAVE"),
        ({"haListenPort": "0"}, "haListenPort=0"),
        ({"etcdEndpoints": "etcd"}, "'etcd' is no address"),
        ({"brokerId": "0"}, "needs a unique id above 0"),
    ],
)
def test_contradicting_settings_are_errors(changes: dict[str, str], text: str) -> None:
    from_properties(ELECTED)
    with pytest.raises(ConfigError, match=text):
        from_properties(ELECTED | changes)


def test_a_log_that_may_have_lost_something_has_another_incarnation(tmp_path: Path) -> None:
    def read(boot: str, *, was_closed: bool = False, is_flushed: bool = False) -> int:
        return incarnation_of(tmp_path, was_closed=was_closed, is_flushed=is_flushed, boot=boot)

    first = read("boot 1")
    assert read("boot 1") == first, "a killed process loses nothing"
    assert read("boot 2", was_closed=True) == first
    assert read("boot 3", is_flushed=True) == first
    second = read("boot 4")
    assert second != first, "a power cut"
    (tmp_path / "config" / "coordination.json").unlink()
    assert read("boot 4") != second, "an empty disk"
    (tmp_path / "config" / "coordination.json").write_text("{")
    with pytest.raises(StoreCorrupt, match=r"coordination\.json"):
        read("boot 4")
