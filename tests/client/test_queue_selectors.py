"""Sending by a key: the same queue for the same key, and the queue that Java would choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.client import Producer, PullConsumer, select_by_hash, select_by_id, select_by_machine_room, select_by_random
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError, InvalidMessage
from rucola.message import Message
from rucola.protocol.codes import ResponseCode
from support.cluster import cluster
from support.errors import raises

# What Java chooses of 1, 3, 4, 7 and 16 queues: Math.abs(key.hashCode() % count).
JAVA = {
    "order-7": (0, 2, 0, 0, 8),
    "Ürümqi": (0, 0, 3, 2, 15),
    "a😀b": (0, 1, 2, 0, 14),
    "polygenelubricants": (0, 2, 0, 2, 0),
    7: (0, 1, 3, 0, 7),
    -7: (0, 1, 3, 0, 7),
    -(1 << 31): (0, 2, 0, 2, 0),
    1 << 40: (0, 1, 0, 4, 0),
    -(1 << 40) - 3: (0, 0, 2, 6, 2),
    (1 << 63) - 1: (0, 2, 0, 2, 0),
}


def queues_of(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("T", broker, queue_id) for queue_id in range(count)]


@pytest.mark.parametrize("key", JAVA)
def test_a_key_selects_the_queue_that_java_selects(key: str | int) -> None:
    chosen = tuple(select_by_hash(key)(queues_of(count)).queue_id for count in (1, 3, 4, 7, 16))
    assert chosen == JAVA[key]


def test_a_number_outside_javas_range_is_refused() -> None:
    with pytest.raises(InvalidMessage):
        select_by_hash(1 << 63)


def test_a_random_selector_reaches_every_queue() -> None:
    assert {select_by_random()(queues_of(3)) for _ in range(200)} == set(queues_of(3))


def test_a_machine_room_selector_selects_queues_of_its_rooms() -> None:
    queues = queues_of(2, "berlin@broker-a") + queues_of(2, "oslo@broker-b") + queues_of(2, "rome@broker-c")
    chosen = {select_by_machine_room(["berlin", "rome"])(queues) for _ in range(200)}
    assert chosen == {*queues[:2], *queues[4:]}
    with pytest.raises(InvalidMessage):
        select_by_machine_room(["paris"])(queues)


async def test_messages_of_a_key_share_a_queue_in_order(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.create_topic(await running.start_broker(), "T", queues=4)
        async with Producer("p", running.namesrv) as producer, PullConsumer("c", running.namesrv) as reader:
            for number in range(12):
                order = f"order-{number % 3}"
                await producer.send(Message("T", b"%d" % number, keys=order), select_by_hash(order))
            await producer.send_oneway(Message("T", b"12", keys="order-0"), select_by_hash("order-0"))
            last = await producer.send_batch(
                [Message("T", b"%d" % number, keys="order-0") for number in (13, 14)], select_by_hash("order-0")
            )
            keys: dict[str, list[int]] = {}
            for queue in await reader.queues("T"):
                for message in (await reader.pull(queue, 0)).messages:
                    assert message.queue_id == select_by_hash(message.keys or "")(queues_of(4)).queue_id
                    keys.setdefault(message.keys or "", []).append(int(message.body))
            assert keys == {
                "order-0": [0, 3, 6, 9, 12, 13, 14],
                "order-1": [1, 4, 7, 10],
                "order-2": [2, 5, 8, 11],
            }
            assert {result.queue for result in last} == {select_by_hash("order-0")(queues_of(4))}


async def test_a_selector_that_leaves_the_topic_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.create_topic(await running.start_broker(), "T", queues=1)
        async with Producer("p", running.namesrv) as producer:
            with pytest.raises(InvalidMessage):
                await producer.send(Message("T", b"x"), lambda queues: MessageQueue("U", "broker-a", 0))
            with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
                await producer.send(Message("T", b"x"), lambda queues: MessageQueue("T", "broker-a", 9))


def test_a_queue_of_the_same_broker_is_preferred() -> None:
    queues = [MessageQueue("T", name, number) for name, count in (("a", 2), ("b", 3)) for number in range(count)]
    assert select_by_id(1, "b")(queues) == MessageQueue("T", "b", 1)
    assert select_by_id(1, "gone")(queues) == select_by_id(1)(queues) == MessageQueue("T", "a", 1)
    assert select_by_id(2, "a")(queues) == MessageQueue("T", "b", 2)
    assert select_by_id(8)(queues) == MessageQueue("T", "b", 1)
