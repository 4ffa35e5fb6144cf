"""The visible end: what consumers see with SYNC_FLUSH and in-sync sets, of slaves, and of a master that returns."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rucola.admin import LATEST, AdminClient
from rucola.broker.broker import Broker
from rucola.broker.pop_hold import PopHold
from rucola.broker.pull_request_hold import HeldPull, PullRequestHold
from rucola.broker.replication.visible_end import VisibleEnd
from rucola.broker.services.results import Waiting
from rucola.client import MessageExt, PushConsumer, SendStatus
from rucola.message.record import decode_many
from rucola.protocol import pull
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.offset import SearchOffsetRequestHeader
from rucola.store import mapped_file
from rucola.store.config import BrokerRole, FlushDiskType
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from simulation.turns import Turns
from support.broker_peer import broker_peer, max_offset
from support.cluster import HOST, Cluster, cluster
from support.faults import flush_in_threads, patch_sync_pages
from support.proxy import Proxy
from support.replication import lone_master, send
from support.stores import config, inner
from support.waiting import DEADLINE_S, until

SYNC = {"broker_role": BrokerRole.SYNC_MASTER}
SLAVE = {"broker_role": BrokerRole.SLAVE}
LATE_MS = 2**60


@asynccontextmanager
async def in_sync(path: Path, slaves: int) -> AsyncIterator[tuple[Any, ...]]:
    """A cluster, its master with a topic of one queue, and slaves, all of which an acknowledged message needs."""
    numbers = range(1, slaves + 1)
    async with cluster(path) as running:
        master = await running.start_broker(store=SYNC)
        await running.create_topic(master, "T", queues=1)
        others = [await running.start_slave(directory=f"slave-{number}", broker_id=number) for number in numbers]
        await until(lambda: master.role.in_sync().keys() == {*numbers})
        master.role.set_in_sync(frozenset(numbers))
        yield running, master, *others
    for broker in (master, *others):
        assert check(broker.store_config.store_path_root_dir) == []


async def seen(running: Cluster, broker: Broker, queue_offset: int = 0, wait_ms: int = 0) -> list[int]:
    """The queue offsets that a broker returns to a consumer from one on, and at most waits for."""
    flags = pull.SUBSCRIPTION | (pull.SUSPEND if wait_ms else 0)
    answer = await running.peer(broker).pull(
        queue_offset=queue_offset, sys_flag=flags, suspend_timeout_millis=wait_ms, max_msg_nums=100
    )
    return [message.queue_offset for message in decode_many(answer.body)]


async def sees(running: Cluster, broker: Broker, count: int) -> None:
    """Wait until consumers of a broker see so many messages, and no more."""

    async def is_so() -> bool:
        found = len(await seen(running, broker))
        assert found <= count
        return found == count

    await until(is_so)


async def ends(running: Cluster, broker: Broker) -> list[int]:
    """What a broker tells clients about the queue: its end, and the offset of its last message by time."""
    by_time = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=LATE_MS)
    last = await running.peer(broker).ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, by_time)
    return [await max_offset(running.peer(broker), "T", 0), int(last.ext_fields["offset"])]


async def nothing(message: MessageExt) -> None:
    """Consume a message."""


class Channel:
    """A client as the broker sees it."""

    peer = "127.0.0.1:1"
    is_open = True
    is_congested = False

    def close(self) -> None:
        """It stays open."""


class Readers:
    """One held pull per queue, which reads the visible messages of a store, and waits for the next ones."""

    def __init__(self, path: Path, queues: int) -> None:
        self.hold = PullRequestHold(loop=Turns())
        self.store = MessageStore(config(path), lambda topics: self.visible.on_arrival(topics))
        self.visible = VisibleEnd(self.store, self.hold, PopHold(loop=Turns()))
        self.seen = [0] * queues

    def read(self, queue_id: int) -> None:
        if (waiting := self._read(queue_id)) is not None:
            self.hold.hold(HeldPull(Channel(), "T", queue_id, waiting, lambda *_: self._read(queue_id)), 1)

    def _read(self, queue_id: int) -> Waiting | None:
        found = self.store.get("T", queue_id, self.seen[queue_id], 32)
        self.seen[queue_id] += found.count
        return None if found.count else Waiting(self.seen[queue_id], found.max_offset, None)


@given(st.lists(st.tuples(st.sampled_from(["put", "dispatch", "show", "read"]), st.integers(0, 2)), max_size=40))
@example([("put", 0), ("put", 1), ("dispatch", 0), ("read", 0), ("put", 2), ("show", 1)])
def test_a_pull_is_answered_as_soon_as_its_messages_are_visible(steps: list[tuple[str, int]]) -> None:
    """The retry of one dispatches new messages, while the others are being woken."""
    with tempfile.TemporaryDirectory() as directory:
        readers = Readers(Path(directory), queues=3)
        with (store := readers.store):
            readers.visible.advance(0)
            ends = [0]
            for step, number in steps:
                if step == "put":
                    store.put(inner(queue_id=number), 1)
                    ends.append(store.max_physical_offset)
                elif step == "dispatch":
                    store.reput()
                elif step == "show":
                    readers.visible.advance(max(store.visible_end or 0, ends[-1 - min(number, len(ends) - 1)]))
                elif ("T", number) not in readers.hold.held:
                    readers.read(number)
                for queue in store.consume_queues():  # without a read, which would dispatch
                    if (queue.topic, queue.queue_id) in readers.hold.held:
                        assert queue.end_before(store.visible_end) == readers.seen[queue.queue_id]
        assert check(Path(directory)) == []


async def test_a_slave_shows_what_all_in_sync_members_have(tmp_path: Path) -> None:
    """It may have more: that is lost if it is lost together with its master."""
    async with in_sync(tmp_path, 2) as (running, master, slave, third):
        assert set(await send(running, 3)) == {SendStatus.SEND_OK}
        await sees(running, slave, 3)
        await third.stop()
        assert set(await send(running, 3)) == {SendStatus.SLAVE_NOT_AVAILABLE}
        await until(lambda: slave.role.position() == master.role.position())
        # What was seen before stays so without the third, and a pull of the rest waits.
        assert await seen(running, master) == await seen(running, slave) == [0, 1, 2]
        waiting = asyncio.create_task(seen(running, slave, 3, 20_000))
        await third.start()
        assert (await waiting)[0] == 3
        for broker in (master, slave, third):
            await sees(running, broker, 6)
        # As soon as there is no other member, everything is visible, also to a slave that is none.
        await third.stop()
        assert set(await send(running, 1)) == {SendStatus.SLAVE_NOT_AVAILABLE}
        await until(lambda: slave.role.position() == master.role.position())
        assert len(await seen(running, slave)) == 6
        master.role.set_in_sync(frozenset())
        await sees(running, slave, 7)


async def test_what_was_visible_stays_so_when_a_slave_joins(tmp_path: Path) -> None:
    async with lone_master(tmp_path, SYNC) as (running, master):
        master.role.set_in_sync(frozenset())
        await send(running, 3)
        master.role.set_in_sync(frozenset({1}))  # it is not even connected
        await send(running, 1)
        assert await seen(running, master) == [0, 1, 2]
        await running.start_slave()
        await sees(running, master, 4)


async def test_a_queue_ends_for_clients_where_its_messages_are_visible(tmp_path: Path) -> None:
    async with in_sync(tmp_path, 2) as (running, master, slave, third), AdminClient(running.namesrv) as admin:
        await send(running, 3)
        await sees(running, slave, 3)
        await third.stop()
        await send(running, 2)
        await until(lambda: slave.role.position() == master.role.position())
        # 1. Both brokers have five messages; what they say is about three.
        assert await ends(running, master) == await ends(running, slave) == [3, 2]
        (topic,) = (await admin.topics.stats("T")).values()
        assert topic.max_offset == 3
        # 2. So are offsets that members of a group are reset to.
        async with PushConsumer("g", running.namesrv) as consumer:
            consumer.subscribe("T")
            consumer.listen(nothing)
            await until(lambda: len(consumer.queues) == 1)
            (queue,) = consumer.queues
            await admin.offsets.commit(master.address, "g", queue, 1)
            for time_ms in (LATEST, LATE_MS):
                reset = await admin.offsets.reset_by_time("T", "g", time_ms)
                assert (reset.online, reset.offsets) == (True, {queue: 3})
        # 3. And the backlog, which does not become negative if an offset is behind them already.
        for committed, end in ((1, 3), (4, 4)):
            await admin.offsets.commit(master.address, "g", queue, committed)
            stats = (await admin.groups.consume_stats("g", "T")).offset_table[queue]
            assert (stats.consumer_offset, stats.broker_offset) == (committed, end)
            (span,) = await admin.groups.consume_time_spans("T", "g")
            assert span.max_time_stamp == topic.last_update_timestamp
            assert (span.delay_time > 0) == (committed < 3)
        # 4. The third is back: the rest becomes visible.
        await third.start()
        await sees(running, master, 5)
        assert await ends(running, master) == [5, 4]


async def test_a_group_that_begins_at_the_end_skips_nothing_after_a_failover(tmp_path: Path) -> None:
    """The new master stores other messages at the offsets of those that only the old one had."""
    async with in_sync(tmp_path, 1) as (running, first, second):
        await send(running, 3)
        await second.stop()
        await send(running, 3)
        begin, _ = await ends(running, first)
        await first.stop()
        await second.start()
        await second.role.become_master(2, frozenset())
        await send(running, 5)
        assert await seen(running, second, begin) == [3, 4, 5, 6, 7]


async def test_a_new_master_shows_what_it_showed_as_slave(tmp_path: Path) -> None:
    """Also before the other members are connected to it: a queue whose end moved back would look like a loss."""
    async with in_sync(tmp_path, 2) as (running, first, second, third):
        await send(running, 3)
        await sees(running, second, 3)
        await third.stop()
        await send(running, 2)
        await until(lambda: second.role.position() == first.role.position())
        await first.stop()
        await second.role.become_master(2, frozenset({2}))
        assert await seen(running, second) == [0, 1, 2]
        assert await ends(running, second) == [3, 2]
        await third.start()
        await sees(running, second, 5)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_returning_master_shows_nothing_before_it_has_compared_its_log(tmp_path: Path, restarts: bool) -> None:
    """The new master has stored other messages at the same queue offsets."""
    async with in_sync(tmp_path, 1) as (running, first, second):
        assert set(await send(running, 3)) == {SendStatus.SEND_OK}
        await second.stop()
        await send(running, 3)
        assert await seen(running, first) == [0, 1, 2]
        await first.stop()
        await second.start()
        await second.role.become_master(2, frozenset())
        await send(running, 5)
        async with Proxy(f"{HOST}:{second.config.ha_listen_port}") as way:
            way.freeze()
            await first.start()
            await first.role.become_slave(2, 1, way.address)
            if restarts:
                await first.stop()
                await first.start()
            assert await seen(running, first) == []
            way.thaw()
            await until(lambda: second.role.in_sync() == {1: second.role.position().end})
            await sees(running, first, 8)


# SYNC_FLUSH.


async def test_consumers_see_only_what_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut takes the rest, and then others are stored at its offsets."""
    may_flush = threading.Event()
    may_flush.set()
    sync_pages = mapped_file.sync_pages

    def sync_later(mapped: mmap, begin: int, end: int) -> None:
        assert may_flush.wait(DEADLINE_S)
        sync_pages(mapped, begin, end)

    patch_sync_pages(monkeypatch, sync_later)
    flush_in_threads(monkeypatch)
    # No flush by the clock, so that only messages can have asked for one.
    settings = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "flush_interval_commit_log": 3_600_000}
    async with broker_peer(tmp_path, settings) as peer:
        assert (await peer.send()).code == ResponseCode.SUCCESS
        flags = pull.SUBSCRIPTION | pull.SUSPEND
        held = asyncio.create_task(peer.pull(queue_offset=1, sys_flag=flags, suspend_timeout_millis=3_600_000))
        may_flush.clear()
        sending = asyncio.create_task(peer.send(b"flushed"))
        store = peer.broker.parts.storage.store
        await until(lambda: store.max_physical_offset > store.flushed_physical_offset)
        assert (await peer.pull(queue_offset=1)).code == ResponseCode.PULL_NOT_FOUND
        assert await max_offset(peer, "T", 0) == 1
        assert not held.done()
        may_flush.set()
        assert (await sending).code == ResponseCode.SUCCESS
        assert [message.body for message in decode_many((await held).body)] == [b"flushed"]
        # Nobody waits for this one, as for what the broker itself puts.
        held = asyncio.create_task(peer.pull(queue_offset=2, sys_flag=flags, suspend_timeout_millis=3_600_000))
        assert (await peer.send(b"alone", properties="WAIT\x01false\x02")).code == ResponseCode.SUCCESS
        assert [message.body for message in decode_many((await held).body)] == [b"alone"]
