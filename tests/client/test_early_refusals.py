"""Values that a broker would accept and misunderstand are rejected by the client."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rucola.client import Message, Producer, PullConsumer, PushConsumer
from rucola.errors import ConfigError, InvalidMessage
from support.consumers import cluster_with_topic


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Message("T", b"x", keys=5), "keys are 5: they must be a str"),  # type: ignore[arg-type]
        (lambda: Message("T", b"x", keys=["a", 1]), "must be a str"),  # type: ignore[list-item]
        (lambda: Message("T", b"x", keys=b"k"), "must be a str"),  # type: ignore[arg-type]
        (lambda: Message("T", b"x", tags=5), "tags are 5: they must be a str"),  # type: ignore[arg-type]
        (lambda: Message("T", b"x", properties={"a": 1}), "property 'a' is 1"),  # type: ignore[dict-item]
        (lambda: setattr(Message("T", b"x"), "delay_level", -1), "delay level is -1"),
        (lambda: setattr(Message("T", b"x"), "delay_level", "3"), "delay level is '3'"),
    ],
)
def test_a_message_rejects_values_of_other_types(make: Callable[[], Any], what: str) -> None:
    with pytest.raises(InvalidMessage, match=what):
        make()


def test_keys_may_be_several_words() -> None:
    assert Message("T", b"x", keys=(word for word in ("a", "b"))).keys == "a b"


@pytest.mark.parametrize("expression", ["a && b", "a | b", "a ||| b", "a || b && c"])
def test_an_expression_of_another_language_is_rejected(expression: str) -> None:
    with pytest.raises(InvalidMessage, match="tags can only be joined by `\\|\\|`"):
        PushConsumer("g", "127.0.0.1:1").subscribe("T", expression)


async def test_sends_and_pulls_reject_what_a_broker_misunderstands(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path) as (running, _):
        async with Producer("g", running.namesrv) as producer:
            late = Message("T", b"x")
            late.delay_level = 99
            with pytest.raises(InvalidMessage, match="delay level 99: brokers have the levels 1 to 18"):
                await producer.send(late)
            with pytest.raises(InvalidMessage, match="a message has one tag"):
                await producer.send(Message("T", b"x", tags="a || b"))
            with pytest.raises(InvalidMessage, match="a message has one tag"):
                await producer.send_batch([Message("T", b"x", tags="a || b")])
            with pytest.raises(InvalidMessage, match="the topic is blank"):
                await producer.send(Message("", b"x"))
            for timeout_ms in (-1, math.nan):
                with pytest.raises(ConfigError, match="it must be 0 or more"):
                    await producer.send(Message("T", b"x"), timeout_ms=timeout_ms)
        async with Producer("h", running.namesrv, max_delay_level=100) as producer:
            assert (await producer.send(late)).queue_offset >= 0, "such a broker has more levels"
        async with PullConsumer("p", running.namesrv) as consumer:
            queue = (await consumer.queues("T"))[0]
            with pytest.raises(InvalidMessage, match="tags can only be joined"):
                await consumer.pull(queue, 0, subscription="a && b")


def test_the_clock_of_a_broker_never_runs_back(shared_rocketmq: Any) -> None:
    for seconds in (-5, math.nan):
        with pytest.raises(ConfigError, match="cannot run back"):
            shared_rocketmq.advance(seconds)
