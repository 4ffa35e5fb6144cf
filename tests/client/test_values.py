"""Values: objects as bodies, and bodies that are none, which are retried and become dead letters."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from rucola.client import (
    ConfigError,
    InvalidMessage,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from rucola.client import sync as blocking
from support.broker_thread import servers
from support.cluster import Cluster, Tally, cluster
from support.consumers import FIRST, ScriptedBroker, cluster_with_topic, committed, consumer_of, record_of
from support.waiting import until


class Order(msgspec.Struct):
    dish: str
    price: int = 0


@dataclasses.dataclass
class Meal:
    dish: str
    price: int


class Dish(pydantic.BaseModel):
    dish: str
    price: int


class Reversed:
    """A codec of strings, reversed."""

    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def decode(self, body: bytes) -> str:
        return body.decode()[::-1]


KINDS: list[tuple[Any, Any, bytes]] = [
    (Order, Order("pizza", 9), b'{"dish":"pizza","price":9}'),
    (Meal, Meal("pizza", 9), b'{"dish":"pizza","price":9}'),
    (Dish, Dish(dish="pizza", price=9), b'{"dish":"pizza","price":9}'),
    (dict, {"dish": "pizza"}, b'{"dish":"pizza"}'),
    (list[int], [1, 2], b"[1,2]"),
    (Reversed(), "pizza", b"azzip"),
]


@pytest.mark.parametrize(("kind", "value", "body"), KINDS)
async def test_a_value_arrives_as_it_was_sent(tmp_path: Path, kind: Any, value: Any, body: bytes) -> None:
    async with cluster_with_topic(tmp_path) as (running, _):
        async with Producer("g", running.namesrv, value=kind) as producer:
            message = producer.message("T", value, tags="food", keys="k", properties={"a": "b"})
            assert (message.body, message.tags, message.keys, message.properties["a"]) == (body, "food", "k", "b")
            await producer.send(message)
        async with consumer_of(running, value=kind) as consumer:
            async for received in consumer:
                assert (received.value, received.body) == (value, body)
                consumer.ack(received)
                break
        assert await committed(running) == 1


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_listener_gets_values(tmp_path: Path, orderly: bool) -> None:
    seen: Tally[Order] = Tally()

    async def listen(message: MessageExt) -> None:
        seen.add(message.value)

    async with cluster_with_topic(tmp_path) as (running, _):
        async with Producer("g", running.namesrv, value=Order) as producer:
            for price in range(3):
                await producer.send(producer.message("T", Order("pizza", price)))
        consumer = consumer_of(running, value=Order, orderly=orderly)
        consumer.listen(listen)
        async with consumer:
            await seen.reach(3)
        assert sorted(order.price for order in seen.items) == [0, 1, 2]
        assert await committed(running) == 3


async def dead_letters(running: Cluster) -> list[bytes]:
    async with PullConsumer("reader", running.namesrv) as reader:
        return [
            message.body
            for queue in await reader.queues("%DLQ%c")
            for message in (await reader.pull(queue, 0)).messages
        ]


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("listens", [False, True])
async def test_an_invalid_body_becomes_a_dead_letter_and_the_others_arrive(
    tmp_path: Path, listens: bool, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen: Tally[Order] = Tally()

    async def listen(message: MessageExt) -> None:
        seen.add(message.value)

    async def iterate(consumer: PushConsumer) -> None:
        async for message in consumer:
            seen.add(message.value)

    async with cluster_with_topic(tmp_path, queues=1) as (running, _):
        async with Producer("g", running.namesrv) as producer:
            for body in (b'{"dish":"pizza"}', b"no JSON", b'{"dish":7}', b'{"dish":"pasta"}'):
                await producer.send(Message("T", body))
        consumer = consumer_of(running, value=Order, max_reconsume_times=0, orderly=orderly)
        if listens:
            consumer.listen(listen)
        async with consumer:
            iterating = None if listens else asyncio.create_task(iterate(consumer))
            await seen.reach(2)

            await until(lambda: not consumer.stats()["T"].held)
        if iterating is not None:
            await iterating
        assert sorted(order.dish for order in seen.items) == ["pasta", "pizza"]
        assert sorted(await dead_letters(running)) == [b"no JSON", b'{"dish":7}']
        assert await committed(running) == 4
        assert "of topic T is no Order: JSON is malformed" in caplog.text
        assert "Traceback" not in caplog.text
        assert "of topic T is no Order: Expected `str`, got `int` - at `$.dish`" in caplog.text


async def test_an_invalid_body_is_sent_back_once_and_not_lost(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(0, b"no JSON"), record_of(1, b'{"dish":"pizza"}')])
        await broker.start(running)
        async with consumer_of(running, value=Order) as consumer:
            async for message in consumer:
                assert message.value == Order("pizza")
                consumer.ack(message)
                break
            stats = consumer.stats()["T"]
            assert (stats.consumed, stats.failed, stats.in_hand) == (1, 1, 0)
        assert [(header.offset, header.delay_level) for header in broker.given_back.items] == [(1000, 0)]
        assert broker.committed == 2


def test_blocking_clients_have_values_as_well(tmp_path: Path) -> None:
    with servers(tmp_path) as namesrv:
        with blocking.Producer("g", namesrv, value=Order) as producer:
            producer.send(producer.message("T", Order("pizza")))
        consumer = blocking.PushConsumer("c", namesrv, consume_from=FIRST, value=Order)
        consumer.subscribe("T")
        with consumer:
            for message in consumer:
                assert message.value == Order("pizza")
                consumer.ack(message)
                break


@pytest.mark.parametrize(("kind", "value"), [(Order, {"dish": 7}), (Dish, {"dish": "pizza"}), (list[int], ["a"])])
def test_a_value_of_another_type_is_not_sent(kind: Any, value: Any) -> None:
    with pytest.raises(InvalidMessage):
        Producer("g", "host:1", value=kind).message("T", value)


def test_misuse_of_the_option_is_explained() -> None:
    with pytest.raises(ConfigError):
        TransactionProducer("g", "host:1", check=lambda _: None).message("T", 1)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError):
        Producer("g", "host:1", value=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        PushConsumer("c", "host:1", value=Order).listen_to_batches(print, 2)
