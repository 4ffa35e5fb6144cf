"""Messages for unit tests of handlers: as consumers receive them, without a broker."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import pytest

from rucola.client import PushConsumer
from rucola.client.consumer.options import ConsumeFromWhere
from rucola.errors import ConfigError, InvalidMessage
from rucola.testing import message
from rucola.testing.rocketmq import RocketMQ


@dataclass
class Order:
    dish: str
    price: int


async def test_it_is_as_one_from_a_broker(rocketmq: RocketMQ) -> None:
    consumer = PushConsumer("kitchen", consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, value=Order)
    consumer.subscribe("Orders")
    body = b'{"dish":"pizza","price":9}'
    await asyncio.to_thread(rocketmq.send, "Orders", body, tags="food", keys="a b", properties={"p": "q"})
    async with consumer:
        received = await anext(consumer.messages())
    made = message(
        "Orders", value=Order("pizza", 9), tags="food", keys=["a", "b"], properties={"p": "q"},
        queue_id=received.queue_id, timestamp_ms=received.store_timestamp,
    )  # fmt: skip
    assert (made.value, made.body, made.tags, made.keys) == (received.value, received.body, "food", "a b")
    assert made.properties.keys() <= received.properties.keys()
    assert (made.body_crc, made.stored_size, made.flag) == (received.body_crc, received.stored_size, received.flag)
    assert (made.queue_id, made.queue_offset, made.reconsume_times) == (received.queue_id, received.queue_offset, 0)
    assert len(made.msg_id) == len(received.msg_id)
    assert len(made.offset_msg_id) == len(received.offset_msg_id)


def test_each_is_another_message_of_now() -> None:
    before = time.time_ns() // 1_000_000
    first, second = message("Orders", b"x", reconsume_times=3), message("Orders")
    assert before <= first.born_timestamp == first.store_timestamp <= time.time_ns() // 1_000_000
    assert first.msg_id != second.msg_id
    assert (first.body, first.reconsume_times, first.value, second.body) == (b"x", 3, None, b"")


def test_what_no_broker_would_deliver_is_refused() -> None:
    with pytest.raises(ConfigError):
        message("Orders", b"x", value=Order("pizza", 9))
    with pytest.raises(InvalidMessage):
        message("no topic")
    with pytest.raises(InvalidMessage):
        message("Orders", queue_id=1 << 40)
