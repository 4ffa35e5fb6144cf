"""Members that come, fail and go in every way, at random: nothing is lost, and in order nothing overlaps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from rucola.client import MessageExt, PushConsumer
from support.cluster import Tally
from support.consumers import cluster_with_topic, committed, consumer_of, send, take

MOVES = 12


class Panic(BaseException):
    """What no `except Exception` catches."""


class Ledger:
    """What listeners had in hand and what they were done with."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.done: Tally[tuple[int, int]] = Tally()
        self._at_work: set[int] = set()
        self.overlaps: list[int] = []

    async def listen(self, message: MessageExt) -> None:
        """Take some turns of the loop, and in one of eight calls fail in a way of its own."""
        if message.queue_id in self._at_work:
            self.overlaps.append(message.queue_id)
        self._at_work.add(message.queue_id)
        try:
            for _ in range(self._random.randrange(4)):
                await asyncio.sleep(0)
            if self._random.randrange(8) == 0:
                self._fail()
                await asyncio.sleep(0)
            self.done.add((message.queue_id, message.queue_offset))
        finally:
            self._at_work.discard(message.queue_id)

    def _fail(self) -> None:
        errors = [ValueError(), asyncio.CancelledError(), SystemExit(), StopIteration(), GeneratorExit(), Panic(), None]
        error = self._random.choice(errors)
        if error is not None:
            raise error
        task = asyncio.current_task()
        assert task is not None
        task.cancel()


async def leave(member: PushConsumer, random: Random) -> None:
    """Close a member: properly, cancelled after some turns of the loop, within no time, or twice at a time."""
    match random.randrange(4):
        case 0:
            await member.close()
        case 1:
            closing = asyncio.create_task(member.close())
            for _ in range(random.randrange(1, 20)):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
        case 2:
            try:
                async with asyncio.timeout(0):
                    await member.close()
            except TimeoutError:
                pass
        case 3:
            first, second = (asyncio.create_task(member.close()) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            await second
    assert not member.is_open


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_in_order_failing_members_hand_over_everything(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(seed)
    caplog.set_level("CRITICAL", "rucola.client")

    async with cluster_with_topic(tmp_path, range(80)) as (running, _):
        ledger, count = Ledger(random), 80
        members: list[PushConsumer] = []
        for _ in range(MOVES):
            if not members or (len(members) < 3 and random.randrange(2)):
                member = consumer_of(running, orderly=True, concurrency=2, suspend_current_queue_ms=10)
                member.listen(ledger.listen)
                members.append(member)
                await member.open()
            else:
                await leave(members.pop(random.randrange(len(members))), random)
            await send(running, range(count, count + 8))
            count += 8
            if members:
                wanted = min(len(set(ledger.done.items)) + random.randrange(12), count)
                await ledger.done.reach(lambda items, wanted=wanted: len(set(items)) >= wanted)  # type: ignore[misc]
        for member in members:
            await leave(member, random)
        rest = count - await committed(running)
        async with consumer_of(running, orderly=True) as successor:
            bodies = await take(successor, rest) if rest else []
        assert await committed(running) == count
        assert len(bodies) == rest
    assert ledger.overlaps == []
    for queue_id in range(4):
        offsets = [offset for queue, offset in ledger.done.items if queue == queue_id]
        assert offsets == sorted(offsets)
        assert set(offsets) == set(range(len(set(offsets))))
    assert len(set(ledger.done.items)) + rest >= count


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_concurrent_iterating_members_leave_nothing_behind(tmp_path: Path, seed: int) -> None:
    """Iterations end by errors in their bodies, and members by every kind of close."""
    random = Random(seed)

    async def iterate(member: PushConsumer, done: Tally[int]) -> None:
        while member.is_open:
            try:
                async for message in member:
                    await asyncio.sleep(0)
                    if random.randrange(8) == 0:
                        raise ValueError("the body fails")
                    member.ack(message)
                    done.add(int(message.body))
            except ValueError:
                pass

    async with cluster_with_topic(tmp_path, range(80)) as (running, _):
        done: Tally[int] = Tally()
        count = 80
        members: list[tuple[PushConsumer, list[asyncio.Task[None]]]] = []
        for move in range(MOVES + 1):
            if move < MOVES and (not members or (len(members) < 3 and random.randrange(2))):
                member = consumer_of(running)
                await member.open()
                members.append((member, [asyncio.create_task(iterate(member, done)) for _ in range(2)]))
            elif members:
                member, iterations = members.pop(random.randrange(len(members)))
                await leave(member, random)
                await asyncio.gather(*iterations)
            await send(running, range(count, count + 8))
            count += 8
            if members:
                wanted = min(len(set(done.items)) + random.randrange(8), count)
                await done.reach(lambda items, wanted=wanted: len(set(items)) >= wanted)  # type: ignore[misc]
        for member, iterations in members:
            await leave(member, random)
            await asyncio.gather(*iterations)
        rest = count - await committed(running)
        async with consumer_of(running) as successor:
            bodies = await take(successor, rest) if rest else []
        assert set(done.items) | set(bodies) == set(range(count))
        assert await committed(running) == count
