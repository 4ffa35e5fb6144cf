"""The C++ client (1.x, as its Python package carries it) against `rucola standalone`."""

from __future__ import annotations

import platform
import sys
import time
from functools import partial

import pytest

from support.client_programs import PATIENCE_S, QUEUES, Client, Program, bodies, numbered, wait_for

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="this client is there for Linux on x86-64 only"
)


def test_messages_of_every_way_of_sending_are_consumed(cpp: Client) -> None:
    topic = cpp.create_topic()
    rich = {"tags": "标签", "keys": "k1 k2", "properties": {"colour": "grün"}}
    lines = [
        *numbered(topic, 8),
        {"topic": topic, "body": "größer " * 2000, **rich},
        {"topic": topic, "body": "one way", "oneway": True},
        {"topic": topic, "body": "in the background", "background": True},
        {"topic": topic, "body": "to a queue", "shardingKey": 3},
    ]
    answers = cpp.send(lines)
    with cpp.program("consumer", group=f"G{topic}", topic=topic) as consumer:
        received = {message["body"]: message for message in consumer.wait("message", len(lines))}
    assert received.keys() == {line["body"] for line in lines}
    for line, answer in zip(lines, answers, strict=True):
        came = received[line["body"]]
        if "oneway" not in line:
            assert (came["msgId"], came["queueOffset"]) == (answer["msgId"], answer["queueOffset"])
    came = received["größer " * 2000]
    assert (came["tags"], came["keys"], came["colour"]) == ("标签", "k1 k2", "grün")
    assert received["to a queue"]["queueId"] == 3


def test_the_broker_creates_the_topic(cpp: Client) -> None:
    (answer,) = cpp.send(numbered("NobodyMadeThis", 1))
    assert answer["queueOffset"] == 0
    with cpp.program("consumer", group="curious", topic="NobodyMadeThis") as consumer:
        assert bodies(consumer.wait("message", 1)) == ["message 0"]


def test_a_batch_is_consumed_as_single_messages(cpp: Client) -> None:
    topic = cpp.create_topic(queues=1)
    batch = numbered(topic, 3, keys="k", tags="T")
    cpp.send([batch, *numbered(topic, 1, begin=3)])
    with cpp.program("consumer", group=f"G{topic}", topic=topic, orderly=True) as consumer:
        received = consumer.wait("message", 4)
    assert bodies(received) == [f"message {number}" for number in range(4)]
    assert [(message["keys"], message["tags"]) for message in received[:3]] == [("k", "T")] * 3


def test_tags_filter_messages(cpp: Client) -> None:
    topic = cpp.create_topic(queues=1)
    tags = ["TagA", "TagB", "标签", "TagB", "TagA"]
    cpp.send([{"topic": topic, "body": f"{number} {tag}", "tags": tag} for number, tag in enumerate(tags)])
    with cpp.program("consumer", group=f"G{topic}", topic=topic, expression="TagA || 标签", orderly=True) as consumer:
        received = consumer.wait("message", 3)
    assert bodies(received) == ["0 TagA", "2 标签", "4 TagA"]


def test_stored_messages_are_pulled(cpp: Client) -> None:
    topic = cpp.create_topic()
    cpp.send(numbered(topic, 100))
    with cpp.program("consumer", group=f"G{topic}", topic=topic, pull=True) as consumer:
        received = consumer.wait("message", 100)
        consumer.finish()
    assert sorted(bodies(received)) == sorted(f"message {number}" for number in range(100))


def test_a_failed_message_is_retried_with_its_original_topic(cpp: Client) -> None:
    topic = cpp.create_topic()
    cpp.send(numbered(topic, 1, keys="k"))
    # The group has a retry topic from its first heartbeat; this client looks for it again ten seconds later, or at once
    # when it starts.
    with cpp.program("consumer", group=f"G{topic}", topic=topic, failures=2) as consumer:
        tries = consumer.wait("message", 1)
        consumer.finish()
    with cpp.program("consumer", group=f"G{topic}", topic=topic, failures=2) as consumer:
        tries += consumer.wait("message", 2)
    assert [message["reconsumeTimes"] for message in tries] == [0, 1, 2]
    assert {(message["topic"], message["body"], message["keys"]) for message in tries} == {(topic, "message 0", "k")}


def test_a_delayed_message_is_delivered_when_due(cpp: Client) -> None:
    topic = cpp.create_topic()
    cpp.send([*numbered(topic, 1, delayLevel=2), *numbered(topic, 1, begin=1)])
    with cpp.program("consumer", group=f"G{topic}", topic=topic) as consumer:
        received = {message["body"]: message for message in consumer.wait("message", 2)}
    delayed = received["message 0"]
    assert delayed["topic"] == topic
    assert delayed["storeTimestamp"] >= delayed["bornTimestamp"] + 2000


def told(consumers: list[Program], wanted: list[str]) -> bool:
    """Whether each of these bodies has come to any of the consumers."""
    return {*wanted} <= {body for one in consumers for body in bodies(one.lines("message"))}


def send_until_all_have_some(producer: Program, topic: str, consumers: list[Program]) -> list[str]:
    """What was sent, in waves, each of which somebody got, until each of the consumers had got something."""
    sent: list[str] = []
    until = time.monotonic() + PATIENCE_S
    before = [len(one.lines("message")) for one in consumers]
    while not all(len(one.lines("message")) > count for one, count in zip(consumers, before, strict=True)):
        assert time.monotonic() < until, f"a consumer got nothing of {len(sent)} messages"
        wave = [{**line, "shardingKey": number} for number, line in enumerate(numbered(topic, QUEUES, len(sent)))]
        for line in wave:
            producer.tell(line)
        sent += bodies(wave)
        wait_for(partial(told, consumers, bodies(wave)))
    return sent


@pytest.mark.parametrize("leave", ["finish", "kill"])
def test_queues_are_rebalanced_as_consumers_join_leave_and_crash(cpp: Client, leave: str) -> None:
    topic = cpp.create_topic()
    group = f"G{topic}"
    with cpp.program("producer", group="P") as producer, cpp.program("consumer", group=group, topic=topic) as first:
        send_until_all_have_some(producer, topic, [first])
        with cpp.program("consumer", group=group, topic=topic) as second:
            send_until_all_have_some(producer, topic, [first, second])
            getattr(second, leave)()
        for line in numbered(topic, QUEUES, begin=10_000):
            producer.tell(line)
        first.wait(
            "message", lambda seen: {f"message {10_000 + number}" for number in range(QUEUES)} <= {*bodies(seen)}
        )


def test_messages_of_a_queue_keep_their_order(cpp: Client) -> None:
    topic = cpp.create_topic()
    group = f"G{topic}"
    with (
        cpp.program("consumer", group=group, topic=topic, orderly=True) as one,
        cpp.program("consumer", group=group, topic=topic, orderly=True) as other,
        cpp.program("producer", group="P") as producer,
    ):
        consumers = [one, other]
        send_until_all_have_some(producer, topic, consumers)
        keys = range(QUEUES)
        for step in range(30):
            for key in keys:
                producer.tell({"topic": topic, "body": f"{key} {step:02}", "shardingKey": key})
        wait_for(partial(told, consumers, [f"{key} 29" for key in keys]))
        for key in keys:
            (owner,) = [one for one in consumers if f"{key} 29" in bodies(one.lines("message"))]
            steps = [body for body in bodies(owner.lines("message")) if body.startswith(f"{key} ")]
            assert steps == [f"{key} {step:02}" for step in range(30)]


def test_every_broadcasting_consumer_gets_every_message(cpp: Client) -> None:
    topic = cpp.create_topic(queues=1)
    with (
        cpp.program("consumer", group=f"G{topic}", topic=topic, broadcast=True) as one,
        cpp.program("consumer", group=f"G{topic}", topic=topic, broadcast=True) as other,
        cpp.program("producer", group="P") as producer,
    ):
        # This client begins a broadcast where the queue ends when it comes to it, and does not tell when that was.
        sent: list[str] = []
        until = time.monotonic() + PATIENCE_S
        while not (one.lines("message") and other.lines("message")):
            assert time.monotonic() < until, f"a consumer got nothing of {len(sent)} messages"
            (line,) = numbered(topic, 1, len(sent))
            producer.tell(line)
            sent.append(line["body"])
            producer.wait("msgId", len(sent))
        for consumer in (one, other):
            received = bodies(consumer.wait("message", lambda seen: sent[-1] in bodies(seen)))
            assert {*received} == {*sent[min(map(sent.index, received)) :]}


def test_a_group_resumes_at_its_offsets(cpp: Client) -> None:
    topic = cpp.create_topic()
    for begin in (0, 10):
        messages = numbered(topic, 10, begin)
        cpp.send(messages)
        with cpp.program("consumer", group=f"G{topic}", topic=topic) as consumer:
            received = consumer.wait("message", len(messages))
            consumer.finish()
        assert sorted(bodies(received)) == sorted(bodies(messages))
