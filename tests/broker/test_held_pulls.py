"""Held pulls: only those that a new message can answer are retried, in slices, and their number is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rucola import refusals
from rucola.access import Refused
from rucola.broker import pull_request_hold
from rucola.broker.pull_request_hold import HeldPull, PullRequestHold
from rucola.broker.services.results import Waiting
from rucola.domain.client import ConsumerData, HeartbeatData
from rucola.domain.subscription import SubscriptionData
from rucola.message.hashing import tags_code
from rucola.message.record import decode_many
from rucola.protocol import pull
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.pull import PullMessageResponseHeader
from rucola.store.dispatch import TopicArrivals
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from simulation.turns import Turns
from support.broker_peer import broker_peer
from support.errors import raises
from support.peer import Peer
from support.stores import config, inner

HELD = pull.SUBSCRIPTION | pull.SUSPEND


class Channel:
    """A client as the broker sees it."""

    def __init__(self) -> None:
        self.peer = "127.0.0.1:1"
        self.is_open = True
        self.is_congested = False

    def close(self) -> None:
        self.is_open = False


class Desk:
    """Held pulls on a real store, the retries of which are noted."""

    def __init__(self, path: Path, *, tick_s: float = 0.0, **bounds: int) -> None:
        self._path = path
        self.channel = Channel()
        self.loop = Turns(tick_s)
        self.hold = PullRequestHold(loop=self.loop, **bounds)
        self.store = MessageStore(config(path), self._arrived)
        self.retried: list[tuple[str, int]] = []
        self.last: list[tuple[str, int]] = []

    def __enter__(self) -> Desk:
        self.store.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
        assert check(self._path) == []

    def _arrived(self, topics: Mapping[str, TopicArrivals]) -> None:
        for queues, _, _ in topics.values():
            for queue in dict.fromkeys(queues):
                self.hold.arrived(queue)

    def pull(
        self,
        name: str,
        tags: str | None,
        channel: Channel | None = None,
        *,
        wait_ms: int = 1000,
        at: int = 0,
        queue_id: int = 0,
    ) -> None:
        codes = None if tags is None else frozenset(map(tags_code, tags.split()))
        waiting = Waiting(at, self.store.max_offset("T", queue_id), codes)

        def retry(waiting: Waiting, checked: int, is_last: bool) -> Waiting | None:
            (self.last if is_last else self.retried).append((name, checked))
            return None

        self.hold.hold(HeldPull(channel or self.channel, "T", queue_id, waiting, retry), wait_ms)

    def put(self, *tags: str, queue_id: int = 0) -> None:
        for tag in tags:
            self.store.put(inner(tags=tag, tags_code=tags_code(tag), queue_id=queue_id), 1)
        self.store.reput()

    def expire(self, now_ms: int) -> None:
        self.loop.pass_until(now_ms / 1000)


def test_only_pulls_that_accept_a_new_tag_are_retried_from_its_first_message(tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        for name, tags in [("a", "A"), ("ab", "A B"), ("c", "C"), ("all", None)]:
            desk.pull(name, tags)
        desk.put("A", queue_id=1)
        assert desk.retried == []
        desk.put("X", "X")
        assert desk.retried == [("all", 0)]
        desk.put("X", "B", "A", "A")
        assert desk.retried[1:] == [("a", 4), ("ab", 3)]
        assert len(desk.hold) == 1
        desk.put(*["X"] * 30)  # more than a file of the queue
        desk.put("C")
        assert desk.retried[3:] == [("c", 36)]
        assert not desk.hold.held
        assert len(desk.hold) == 0


def test_a_pull_at_its_deadline_is_answered_from_the_end_of_what_was_compared(tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        desk.pull("first", "A", wait_ms=1000)
        desk.pull("second", "A", wait_ms=1001)
        desk.put("X", "X", "X")
        desk.expire(999)
        assert desk.last == []
        desk.expire(1000)
        assert desk.last == [("first", 3)]
        desk.expire(5000)
        assert desk.last == [("first", 3), ("second", 3)]
        assert desk.retried == []


def test_a_pull_of_a_congested_connection_waits_until_its_peer_reads(tmp_path: Path) -> None:
    slow, good = Channel(), Channel()
    with Desk(tmp_path) as desk:
        for name in ("slow 1", "slow 2"):
            desk.pull(name, None, slow)
        desk.pull("good", None, good)
        slow.is_congested = True
        desk.put("A")
        assert desk.retried == [("good", 0)]
        desk.expire(5000)
        assert desk.last == []
        slow.is_congested = False
        desk.hold.writable(slow)
        assert desk.last == [("slow 1", 0), ("slow 2", 0)]
        assert len(desk.hold) == 0


def test_the_pulls_of_a_closed_connection_are_dropped(tmp_path: Path) -> None:
    gone, good = Channel(), Channel()
    with Desk(tmp_path) as desk:
        for channel in (gone, good):
            for tags in ("A", "B", None):
                desk.pull(str(tags), tags, channel)
        gone.is_congested = True
        desk.put("X")  # one of each is retried, or would be
        desk.hold.closed(gone)
        assert len(desk.hold) == 2
        desk.loop.turn()
        desk.put("A", "B")
        assert desk.retried == [("None", 0), ("A", 1), ("B", 2)]
        assert len(desk.hold) == 0


def test_a_connection_may_hold_so_many_pulls_and_the_refusal_names_the_limit(tmp_path: Path) -> None:
    greedy, other = Channel(), Channel()
    with Desk(tmp_path, max_per_connection=3) as desk:
        for number in range(3):
            desk.pull(str(number), "A", greedy)
        with raises(Refused, refusal=refusals.PULLS_HELD, count=3):
            desk.pull("3", "A", greedy)
        desk.pull("other", "A", other)
        assert len(desk.hold) == 4
        desk.expire(5000)
        desk.pull("3", "A", greedy)


def test_a_full_broker_answers_pulls_of_the_connection_with_most(tmp_path: Path) -> None:
    greedy, small = Channel(), Channel()
    with Desk(tmp_path, max_count=64) as desk:
        desk.pull("small", "A", small)
        for number in range(63):
            desk.pull(str(number), "A", greedy)
        desk.pull("new", "A", Channel())
        assert desk.last == [("0", 0)]
        assert len(desk.hold) == 64
        for number in range(40):
            desk.pull(f"new {number}", "A", Channel())
        assert [name for name, _ in desk.last] == [str(number) for number in range(41)]
        assert len(desk.hold) == 64


def test_a_pull_with_a_long_filter_counts_as_several(tmp_path: Path) -> None:
    """400 tags take 40 KB, as much as 20 pulls."""
    greedy, good = Channel(), Channel()
    with Desk(tmp_path, max_per_connection=50, max_count=64) as desk:
        for number in range(2):
            desk.pull(f"long {number}", " ".join(f"{number}-{tag}" for tag in range(400)), greedy)
        with raises(Refused, refusal=refusals.PULLS_HELD, count=2, weight=40):
            desk.pull("third", " ".join(map(str, range(400))), greedy)
        for number in range(30):
            desk.pull(str(number), "A", good)
        assert desk.last == [("long 0", 0)]
        assert len(desk.hold) == 31
        desk.put("1-399")
        assert desk.retried == [("long 1", 0)]
        with raises(Refused, refusal=refusals.PULL_TOO_LARGE):
            desk.pull("huge", " ".join(map(str, range(1200))), Channel())
        desk.hold.closed(good)
        desk.loop.turn()
        assert not desk.hold.held


def test_a_message_is_compared_with_a_bounded_number_of_filters(tmp_path: Path) -> None:
    """Pulls with further ones are retried after each."""
    with Desk(tmp_path) as desk:
        for number in range(pull_request_hold.MAX_FILTERS + 2):
            desk.pull(str(number), f"tag-{number}")
        desk.put("X", "tag-9")
        assert desk.retried == [("9", 1), ("512", 0), ("513", 0)]
        assert len(desk.hold) == pull_request_hold.MAX_FILTERS - 1


def test_many_retries_are_spread_over_iterations(tmp_path: Path) -> None:
    with Desk(tmp_path, tick_s=0.001) as desk:
        for number in range(20):
            desk.pull(str(number), "A")
        desk.put("A")
        counts = [len(desk.retried)]
        while desk.loop.calls:
            desk.loop.turn()
            counts.append(len(desk.retried))
        assert counts[0] < 10
        assert counts[-1] == 20
        assert desk.retried == [(str(number), 0) for number in range(20)]


def test_a_pull_whose_filter_has_changed_continues_where_its_last_read_ended(tmp_path: Path) -> None:
    """The retry reads a part of the messages that the former filter rejected; the rest has its turn next."""
    with Desk(tmp_path) as desk:
        former, wanted = (frozenset(map(tags_code, tags)) for tags in ("A", "AB"))
        checked: list[int] = []

        def retry(waiting: Waiting, from_offset: int, is_last: bool) -> Waiting | None:
            checked.append(from_offset)
            return Waiting(1, 4, wanted) if len(checked) == 1 else None

        desk.hold.hold(HeldPull(desk.channel, "T", 0, Waiting(0, 0, former), retry), 1000)
        desk.put("X", "B", "B", "A")
        assert checked == [3, 1]
        assert len(desk.hold) == 0


def test_queues_take_turns(tmp_path: Path) -> None:
    """The one pull of a queue is not retried after the thousands of another that was woken before."""
    with Desk(tmp_path, tick_s=0.001) as desk:
        for number in range(100):
            desk.pull(str(number), "A")
        desk.pull("only", "A", queue_id=1)
        desk.put("A")
        desk.put("A", queue_id=1)
        while desk.loop.calls:
            desk.loop.turn()
        assert ("only", 0) in desk.retried[:12]
        assert len(desk.retried) == len({name for name, _ in desk.retried}) == 101
        assert not desk.hold.held
        assert len(desk.hold) == 0


def test_woken_pulls_that_expire_or_are_dropped_are_answered_once_or_not_at_all(tmp_path: Path) -> None:
    """Between two slices, pulls that were woken can reach their deadline, and connections close."""
    gone, good = Channel(), Channel()
    with Desk(tmp_path, tick_s=0.001) as desk:
        for number in range(20):
            desk.pull(f"good {number}", "A", good)
            desk.pull(f"gone {number}", "A", gone)
        desk.pull("other", "B", good)
        desk.put("A")
        before = set(desk.retried)
        desk.expire(1100)
        gone.is_open = False
        desk.hold.closed(gone)
        while desk.loop.calls:
            desk.loop.turn()
        answered = desk.retried + desk.last
        names = [name for name, _ in answered]
        assert len(names) == len(set(names))
        assert {f"good {number}" for number in range(20)} < set(names)
        assert ("other", 1) in desk.last
        assert all(name.startswith("good") for name, _ in set(answered) - before - {("other", 1)})
        assert not desk.hold.held
        assert len(desk.hold) == 0


def test_all_pulls_are_answered_when_the_broker_stops(tmp_path: Path) -> None:
    """Those that wait and those that were woken; a congested connection only closes."""
    slow, good = Channel(), Channel()
    with Desk(tmp_path, tick_s=0.01) as desk:
        for number in range(3):
            desk.pull(f"woken {number}", "A", good)
        desk.pull("waits", "B", good)
        desk.pull("slow", "A", slow)
        slow.is_congested = True
        desk.put("A")
        assert len(desk.retried) == 1
        desk.hold.release_all()
        assert sorted(desk.last) == [("waits", 1), ("woken 1", 0), ("woken 2", 0)]
        assert len(desk.hold) == 0
        desk.loop.turn()
        assert len(desk.retried) == 1


async def test_a_held_pull_passes_by_thousands_of_other_messages(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send(properties="TAGS\x01X\x02")
        waiting = await _hold(peer, sys_flag=HELD, subscription="A")
        for number in range(1000):  # more units than one read looks at
            await peer.send(b"%d" % number, properties="TAGS\x01X\x02")
        assert not waiting.done()
        await peer.send(b"wanted", properties="TAGS\x01A\x02")
        answer = await waiting
        assert [message.body for message in decode_many(answer.body)] == [b"wanted"]
        assert answer.decode_header(PullMessageResponseHeader).next_begin_offset == 1002


async def test_a_subscription_that_changes_while_a_pull_is_held_loses_no_message(tmp_path: Path) -> None:
    """Messages that the former tags rejected are read again with the new ones."""
    async with broker_peer(tmp_path) as peer:
        await peer.send(properties="TAGS\x01X\x02")
        await _subscribe(peer, "A", 1)
        waiting = await _hold(peer, sys_flag=pull.SUSPEND, subscription="", sub_version=1)
        await peer.send(b"for the new tag", properties="TAGS\x01B\x02")
        await peer.send(b"for neither", properties="TAGS\x01X\x02")
        await _subscribe(peer, "A || B", 2)
        await peer.send(b"for both", properties="TAGS\x01A\x02")
        answer = await waiting
        assert [message.body for message in decode_many(answer.body)] == [b"for the new tag", b"for both"]


async def test_a_pull_may_wait_for_any_number_of_milliseconds(tmp_path: Path) -> None:
    """Clients send a long integer, and an attacker any."""
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        waiting = [
            asyncio.create_task(peer.pull(sys_flag=HELD, queue_offset=1, suspend_timeout_millis=wait_ms))
            for wait_ms in (10**400, (1 << 63) - 1, -(10**400))
        ]
        assert (await waiting[2]).code == ResponseCode.PULL_NOT_FOUND
        assert not any(held.done() for held in waiting[:2])
        await peer.send()
        assert [answer.code for answer in await asyncio.gather(*waiting[:2])] == [ResponseCode.SUCCESS] * 2


async def test_too_many_held_pulls_of_a_connection_are_refused_as_busy(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, max_held_pulls_per_connection=2) as peer:
        await peer.send()
        held = [await _hold(peer, sys_flag=HELD) for _ in range(2)]
        refused = await peer.pull(sys_flag=HELD, queue_offset=1, suspend_timeout_millis=20_000)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "maxHeldPullsPerConnection" in (refused.remark or "")
        assert (await peer.pull(queue_offset=0)).code == ResponseCode.SUCCESS
        await peer.send()
        assert [answer.code for answer in await asyncio.gather(*held)] == [ResponseCode.SUCCESS] * 2


async def _hold(peer: Peer, **fields: Any) -> asyncio.Task[RemotingCommand]:
    """A pull at offset 1, sent before the next request."""
    held = asyncio.create_task(peer.pull(queue_offset=1, suspend_timeout_millis=20_000, **fields))
    await asyncio.sleep(0)
    return held


async def _subscribe(peer: Peer, tags: str, version: int) -> None:
    subscribed = SubscriptionData(topic="T", sub_string=tags, sub_version=version)
    consumer = ConsumerData(group_name="g", subscription_data_set=[subscribed])
    body = encode_body(HeartbeatData(client_id="c", consumer_data_set=[consumer]))
    assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
