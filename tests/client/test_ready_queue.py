"""The line: everything is given out once, in its queue's order, and in order to one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.client.consumer.assigned_queue import AssignedQueue, Delivery
from rucola.client.consumer.process_queue import PullLimits, ReadAhead
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.domain.queue import MessageQueue
from rucola.message import MessageExt, MessageInner
from rucola.message.record import decode, encode

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])
STORED = decode(encode(MessageInner("T", 0, b"body", b"", 0, 0, 0, HOST), 0, 0, 0, HOST))


def own_queue(queue_id: int = 0) -> AssignedQueue:
    return AssignedQueue(MessageQueue("T", "broker-a", queue_id), 0, PullLimits(), ReadAhead())


def pulled(own: AssignedQueue, count: int) -> list[MessageExt]:
    """So many more messages of the queue."""
    begin = own.process_queue.next_offset
    messages = [replace(STORED, queue_id=own.queue.queue_id, queue_offset=begin + i) for i in range(count)]
    return own.process_queue.put(messages, begin + count)


def line_of(*, in_order: bool, can_deliver: Callable[[AssignedQueue], bool] = lambda own: True) -> ReadyQueue:
    line = ReadyQueue(in_order=in_order, can_deliver=can_deliver)
    line.open()
    return line


@given(
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    max_count=st.integers(1, 6),
    takers=st.integers(1, 5),
    in_order=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_message_is_taken_once_in_queue_order(
    counts: list[int], max_count: int, takers: int, in_order: bool, seed: int
) -> None:
    """Several take while messages come in, each letting the others in at random."""
    random = Random(seed)

    async def run() -> None:
        line = line_of(in_order=in_order)
        queues = [own_queue(queue_id) for queue_id in range(len(counts))]
        taken: dict[int, list[int]] = {queue_id: [] for queue_id in range(len(counts))}
        at_work: list[AssignedQueue] = []

        async def take() -> None:
            while (delivery := await line.get(max_count)) is not None:
                assert 1 <= len(delivery.messages) <= max_count
                assert not (in_order and delivery.assigned in at_work)
                taken[delivery.assigned.queue.queue_id] += [message.queue_offset for message in delivery.messages]
                at_work.append(delivery.assigned)
                for _ in range(random.randrange(3)):
                    await asyncio.sleep(0)
                at_work.remove(delivery.assigned)
                line.complete(delivery)

        async def put() -> None:
            left = list(counts)
            while any(left):
                queue_id = random.choice([queue_id for queue_id, count in enumerate(left) if count])
                some = random.randint(1, left[queue_id])
                left[queue_id] -= some
                line.put(queues[queue_id], pulled(queues[queue_id], some))
                await asyncio.sleep(0)

        taking = [asyncio.create_task(take()) for _ in range(takers)]
        await put()
        async with asyncio.timeout(20):
            while any(len(own.process_queue) for own in queues):  # noqa: ASYNC110
                await asyncio.sleep(0)
        line.close()
        await asyncio.gather(*taking)
        assert taken == {queue_id: list(range(count)) for queue_id, count in enumerate(counts)}

    asyncio.run(run())


async def test_queues_are_served_in_turn() -> None:
    line = line_of(in_order=False)
    for queue_id, count in enumerate((5, 1, 2)):
        own = own_queue(queue_id)
        line.put(own, pulled(own, count))
    order = [delivery.assigned.queue.queue_id for delivery in iter(line.get_nowait, None)]
    assert order == [0, 1, 2, 0, 2, 0, 0, 0]


@pytest.mark.parametrize("in_order", [True, False])
async def test_a_cancelled_taker_passes_its_turn_to_the_next(in_order: bool) -> None:
    line = line_of(in_order=in_order)
    first, second = asyncio.create_task(line.get()), asyncio.create_task(line.get())
    await asyncio.sleep(0)
    own = own_queue()
    line.put(own, pulled(own, 1))
    first.cancel()
    async with asyncio.timeout(20):
        assert isinstance(await second, Delivery)
    assert first.cancelled()


async def test_requeued_messages_come_first_when_the_queue_resumes() -> None:
    line = line_of(in_order=True)
    own = own_queue()
    line.put(own, pulled(own, 4))
    delivery = line.get_nowait(2)
    assert delivery is not None
    assert not own.idle.is_set()
    line.requeue_blocked(delivery, delivery.messages)
    assert own.idle.is_set()
    assert line.get_nowait() is None
    line.unblock(own)
    again = line.get_nowait(4)
    assert again is not None
    assert [message.queue_offset for message in again.messages] == [0, 1, 2, 3]


async def test_a_reset_or_dropped_queue_delivers_no_old_messages() -> None:
    line = line_of(in_order=True)
    own = own_queue()
    line.put(own, pulled(own, 3))
    delivery = line.get_nowait()
    assert delivery is not None
    own.reset(10)
    line.put(own, pulled(own, 1))
    line.requeue_blocked(delivery, delivery.messages)
    line.unblock(own)
    new = line.get_nowait(5)
    assert new is not None
    assert [message.queue_offset for message in new.messages] == [10]
    assert delivery.incomplete == []
    line.put(own, pulled(own, 1))
    own.is_revoked = True
    line.complete(new)
    assert line.get_nowait() is None


async def test_a_suspended_queue_is_skipped_until_it_resumes() -> None:
    may: list[bool] = [False]
    line = line_of(in_order=True, can_deliver=lambda own: may[0])
    own = own_queue()
    line.put(own, pulled(own, 1))
    assert line.get_nowait() is None
    may[0] = True
    assert line.get_nowait() is None  # nobody asks again by himself
    line.unblock(own)
    assert line.get_nowait() is not None


async def test_a_closed_ready_queue_delivers_nothing_and_reopens_empty() -> None:
    line = line_of(in_order=False)
    waiting = asyncio.create_task(line.get())
    await asyncio.sleep(0)
    line.close()
    assert await waiting is None
    own = own_queue()
    line.put(own, pulled(own, 1))
    assert line.get_nowait() is None
    assert await line.get() is None
    line.open()
    assert line.get_nowait() is None


@given(count=st.integers(1, 12), takers=st.integers(1, 4), in_order=st.booleans(), seed=st.integers(0, 1000))
def test_a_requeued_message_is_delivered_until_completed(count: int, takers: int, in_order: bool, seed: int) -> None:
    """Each taker requeues at random, and at random takes by name what it has requeued, unless another was faster."""
    random = Random(seed)

    async def run() -> None:
        line = line_of(in_order=in_order)
        queues = [own_queue(queue_id) for queue_id in range(2)]
        done: dict[int, list[int]] = {0: [], 1: []}
        at_work: list[AssignedQueue] = []

        async def complete(delivery: Delivery) -> None:
            own = delivery.assigned
            assert not (in_order and own in at_work)
            at_work.append(own)
            for _ in range(random.randrange(3)):
                await asyncio.sleep(0)
            at_work.remove(own)
            done[own.queue.queue_id] += [message.queue_offset for message in delivery.messages]
            line.complete(delivery)

        async def take() -> None:
            while (delivery := await line.get()) is not None:
                if random.random() < 0.5:
                    await complete(delivery)
                    continue
                line.requeue(delivery)
                for _ in range(random.randrange(3)):
                    await asyncio.sleep(0)
                if random.random() < 0.5 and line.reclaim(delivery):
                    await complete(delivery)

        for own in queues:
            line.put(own, pulled(own, count))
        taking = [asyncio.create_task(take()) for _ in range(takers)]
        async with asyncio.timeout(20):
            while any(len(own.process_queue) for own in queues):  # noqa: ASYNC110
                await asyncio.sleep(0)
        line.close()
        await asyncio.gather(*taking)
        for offsets in done.values():
            assert (offsets if in_order else sorted(offsets)) == list(range(count))

    asyncio.run(run())


@pytest.mark.parametrize(("in_order", "woken"), [(False, 1), (True, 3)])
async def test_a_taker_without_pauses_wakes_no_others_for_what_it_takes(in_order: bool, woken: int) -> None:
    """Three takers wait; each queue that may be delivered beside others has its taker."""
    line = line_of(in_order=in_order)
    queues = [own_queue(queue_id) for queue_id in range(woken)]
    left, is_empty = 30 if woken == 1 else woken, asyncio.Event()

    async def take() -> None:
        nonlocal left
        delivery = await line.get()
        while delivery is not None:
            left -= 1
            delivery = line.get_nowait()
        if not left:
            is_empty.set()

    takers = [asyncio.ensure_future(take()) for _ in range(3)]
    await asyncio.sleep(0)
    for own in queues:
        line.put(own, pulled(own, 30 if woken == 1 else 1))
    waiting = [*line._waiters]
    await is_empty.wait()
    assert sum(waiter.done() for waiter in waiting) <= 1, "woken for nothing"
    line.close()
    await asyncio.gather(*takers)
