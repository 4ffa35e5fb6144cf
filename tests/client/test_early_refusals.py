"""Values that a broker would accept and misunderstand are rejected by the client."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rucola.client import Message, MessageQueue, Producer, PullConsumer, PushConsumer, Router, SimpleConsumer, sync
from rucola.errors import ConfigError, InvalidMessage, RemotingError
from rucola.testing.rocketmq import RocketMQ
from support.consumers import cluster_with_topic
from support.errors import raises


@pytest.mark.parametrize(
    "make",
    [
        lambda: Message("T", b"x", keys=5),  # type: ignore[arg-type]
        lambda: Message("T", b"x", keys=["a", 1]),  # type: ignore[list-item]
        lambda: Message("T", b"x", keys=b"k"),  # type: ignore[arg-type]
        lambda: Message("T", b"x", tags=5),  # type: ignore[arg-type]
        lambda: Message("T", b"x", properties={"a": 1}),  # type: ignore[dict-item]
        lambda: setattr(Message("T", b"x"), "delay_level", -1),
        lambda: setattr(Message("T", b"x"), "delay_level", "3"),
    ],
)
def test_a_message_rejects_values_of_other_types(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidMessage):
        make()


def test_keys_may_be_several_words() -> None:
    assert Message("T", b"x", keys=(word for word in ("a", "b"))).keys == "a b"


@pytest.mark.parametrize(
    "expression", ["a && b", "a | b", "a ||| b", "a || b && c", "price > 3", "kind = 'x'", "a OR b", "x in (1, 2)"]
)
def test_an_expression_of_another_language_is_rejected(expression: str) -> None:
    with pytest.raises(InvalidMessage):
        PushConsumer("g", "127.0.0.1:1").subscribe("T", expression)


@pytest.mark.parametrize("expression", ["a=1 || b>2", "in || or", "price>3", "new order || not-in-stock"])
def test_a_tag_may_look_a_little_like_a_condition(expression: str) -> None:
    PushConsumer("g", "127.0.0.1:1").subscribe("T", expression)


@pytest.mark.parametrize("kind", [Producer, PushConsumer, sync.Producer, sync.PushConsumer])
def test_a_trace_without_hooks_is_rejected(kind: Callable[..., object]) -> None:
    """As of those who look for a switch."""
    with raises(ConfigError, subject="trace"):
        kind("g", "127.0.0.1:1", trace=True)


async def test_what_is_no_message_is_rejected() -> None:
    producer = Producer("g", "127.0.0.1:1")
    with pytest.raises(InvalidMessage):
        await producer.send(b"one pizza")  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage):
        await producer.send("Orders", b"one pizza")  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage):
        await producer.send_oneway("one pizza")  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage):
        await producer.request(None)  # type: ignore[arg-type]


async def test_what_was_not_received_is_not_acknowledged(shared_rocketmq: RocketMQ) -> None:
    sent: Any = Message("T", b"one pizza")
    consumer = PushConsumer("g", shared_rocketmq.namesrv)
    consumer.subscribe("NotAcknowledged")
    async with consumer, SimpleConsumer("s", shared_rocketmq.namesrv) as simple:
        for message in (sent, "one pizza", None):
            with pytest.raises(InvalidMessage):
                consumer.ack(message)
            with pytest.raises(InvalidMessage):
                await consumer.reconsume_later(message)
            with pytest.raises(InvalidMessage):
                await simple.ack(message)


async def test_what_is_no_queue_or_offset_is_rejected(shared_rocketmq: RocketMQ) -> None:
    async with PullConsumer("g", shared_rocketmq.namesrv) as consumer:
        queue: Any = "T"
        for call in (
            consumer.pull(queue, 0), consumer.min_offset(queue), consumer.max_offset(queue),
            consumer.search_offset(queue, 0), consumer.committed(queue), consumer.commit(queue, 0),
        ):  # fmt: skip
            with raises(ConfigError, subject="queue"):
                await call
        queue = MessageQueue("T", "broker-a", 0)
        with raises(ConfigError, subject="queue_offset"):
            await consumer.commit(queue, -1)
        with raises(ConfigError, subject="max_count"):
            await consumer.pull(queue, 0, 0)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Producer, "retry_times", -1),
        (Producer, "retry_times", "1"),
        (Producer, "retry_times", True),
        (Producer, "retry_times", 1.5),
        (Producer, "retry_times", None),
        (Producer, "linger_ms", "5"),
        (Producer, "linger_ms", math.nan),
        (Producer, "latency_fault_tolerance", 1),
        (sync.Producer, "max_message_size", "4 MB"),
        (PushConsumer, "concurrency", 0),
        (PushConsumer, "concurrency", "4"),
        (PushConsumer, "orderly", "yes"),
        (PushConsumer, "max_reconsume_times", -1),
        (PushConsumer, "consume_timestamp_ms", "20240101"),
        (PushConsumer, "consume_timeout_ms", "15min"),
        (sync.PushConsumer, "pull_batch_size", 0),
        (Router, "retry_times", "1"),
    ],
)
def test_an_option_of_another_type_or_range_is_rejected(kind: Callable[..., Any], name: str, value: object) -> None:
    with raises(ConfigError, subject=name):
        kind("g", "127.0.0.1:1", **{name: value})


def test_options_may_be_numbers_of_any_library() -> None:
    assert Producer("g", "127.0.0.1:1", retry_times=np.int64(3), linger_ms=np.float32(0.5)).options.retry_times == 3
    assert PushConsumer("g", "127.0.0.1:1", max_reconsume_times=None, consume_timeout_ms=1000).options.orderly is False


def test_a_misspelt_option_is_named_with_those_like_it() -> None:
    for kind, name, meant in (
        (Producer, "retries", "retry_times"),
        (sync.Producer, "name_server", "namesrv"),
        (PushConsumer, "consumer_from", "consume_from"),
        (Router, "retries", "retry_times"),
    ):
        with pytest.raises(TypeError, match=rf"{name}.*{meant}"):
            kind("g", **{name: 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="retries"):
        Router("g").subscriber("T", group="h", retries=3)  # type: ignore[call-arg]


async def test_a_topic_or_timeout_of_another_type_is_rejected(shared_rocketmq: RocketMQ) -> None:
    async with Producer("g", shared_rocketmq.namesrv) as producer:
        with pytest.raises(InvalidMessage):
            await producer.send(Message(["Orders"], b"x"))  # type: ignore[arg-type]
        with raises(ConfigError, subject="timeout_ms"):
            await producer.send(Message("T", b"x"), timeout_ms="3s")  # type: ignore[arg-type]
    with raises(ConfigError, subject="idle_timeout_ms"):
        PushConsumer("g", shared_rocketmq.namesrv).messages("1s")  # type: ignore[arg-type]
    async with SimpleConsumer("s", shared_rocketmq.namesrv) as simple:
        for name, value in (("wait_ms", "1s"), ("invisible_ms", None), ("max_messages", 0)):
            with raises(ConfigError, subject=name):
                await simple.receive("T", **{name: value})  # type: ignore[arg-type]


def test_a_listener_that_cannot_take_a_message_is_rejected() -> None:
    async def late(message: object, session: object) -> None: ...

    def none() -> None: ...

    consumer = PushConsumer("g", "127.0.0.1:1")
    for listener in (none, late):
        with pytest.raises(ConfigError):
            consumer.listen(listener)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        consumer.listen_to_batches(none, 10)  # type: ignore[arg-type]
    consumer.listen(lambda message, retries=3: None)

    @functools.wraps(late)
    async def with_session(message: object) -> None:
        await late(message, object())

    PushConsumer("g", "127.0.0.1:1").listen(with_session)


async def test_the_other_kind_of_with_names_the_other_kind_of_client() -> None:
    with pytest.raises(TypeError, match=r"async with.*rucola\.client\.sync"), Producer("g", "127.0.0.1:1"):
        pass
    with pytest.raises(TypeError, match=r"with.*rucola\.client$"):
        async with sync.Producer("g", "127.0.0.1:1"):
            pass


async def test_a_client_that_is_not_open_raises_one_class() -> None:
    with pytest.raises(RemotingError):
        await Producer("g", "127.0.0.1:1").send(Message("T", b"x"))
    with pytest.raises(RemotingError):
        sync.Producer("g", "127.0.0.1:1").send(Message("T", b"x"))


@pytest.mark.parametrize("kind", [Producer, PushConsumer, PullConsumer, sync.Producer, sync.PushConsumer])
def test_a_group_that_cannot_be_is_refused(kind: Callable[[Any], Any]) -> None:
    for group in ("a b", "", "g" * 300, None, 3, b"g"):
        with raises(ConfigError, subject="group"):
            kind(group)


async def test_consuming_without_a_subscription_is_refused(shared_rocketmq: Any) -> None:
    async with PushConsumer("nothing-subscribed", shared_rocketmq.namesrv) as consumer:
        with raises(ConfigError, subject="subscribe"):
            await anext(consumer.messages())
        with raises(ConfigError, subject="subscribe"):
            consumer.listen(lambda message: None)
    listening = PushConsumer("nothing-subscribed", shared_rocketmq.namesrv)
    listening.listen(lambda message: None)
    with raises(ConfigError, subject="subscribe"):
        await listening.open()


def test_a_name_server_has_a_default_port() -> None:
    for addresses in ("localhost;10.0.0.1,other:1234; [::1]", "[::1]:5;::1"):
        found = Producer("g", addresses).instance.name_servers.addresses
        assert found in (["localhost:9876", "10.0.0.1:9876", "other:1234", "[::1]:9876"], ["[::1]:5", "::1"])


def test_clients_are_imported_from_the_package_when_they_are_asked_for() -> None:
    """Commands and servers must not pay for them."""
    program = """
import sys, rucola
assert "rucola.client" not in sys.modules
from rucola import Message, Producer, PushConsumer
import rucola.client
assert (Producer, PushConsumer, Message) == (rucola.client.Producer, rucola.client.PushConsumer, rucola.client.Message)
try:
    from rucola import Consumer
except ImportError:
    print("ok")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "ok\n"


async def test_sends_and_pulls_reject_what_a_broker_misunderstands(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path) as (running, _):
        async with Producer("g", running.namesrv) as producer:
            late = Message("T", b"x")
            late.delay_level = 99
            with pytest.raises(InvalidMessage):
                await producer.send(late)
            with pytest.raises(InvalidMessage):
                await producer.send(Message("T", b"x", tags="a || b"))
            with pytest.raises(InvalidMessage):
                await producer.send_batch([Message("T", b"x", tags="a || b")])
            with pytest.raises(InvalidMessage):
                await producer.send(Message("", b"x"))
            for timeout_ms in (-1, math.nan):
                with raises(ConfigError, subject="timeout_ms"):
                    await producer.send(Message("T", b"x"), timeout_ms=timeout_ms)
        async with Producer("h", running.namesrv, max_delay_level=100) as producer:
            assert (await producer.send(late)).queue_offset >= 0, "such a broker has more levels"
        async with PullConsumer("p", running.namesrv) as consumer:
            queue = (await consumer.queues("T"))[0]
            with pytest.raises(InvalidMessage):
                await consumer.pull(queue, 0, subscription="a && b")


def test_the_clock_of_a_broker_never_runs_back(shared_rocketmq: Any) -> None:
    for seconds in (-5, math.nan):
        with pytest.raises(ConfigError):
            shared_rocketmq.advance(seconds)
