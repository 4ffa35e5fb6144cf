"""ali-ons, a RocketMQ client in JavaScript, against `rucola standalone`: sending, and everything about consuming."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rucola.admin import AdminClient
from rucola.message import MessageExt
from rucola.message.topics import dlq_topic, retry_topic
from rucola.testing.rocketmq import RocketMQ
from support.client_programs import QUEUES, Client, bodies, numbered
from support.ports import free_ports
from support.servers import server


def covers(queues: set[int]) -> Callable[[list[list[int]]], bool]:
    """Whether a consumer's share is now these queues."""
    return lambda shares: bool(shares) and set(shares[-1]) == queues


def test_sent_messages_are_consumed(ali_ons: Client) -> None:
    topic = ali_ons.create_topic()
    large = {"body": "größer " * 2000, "tags": "标签", "keys": ["k1", "k2"], "properties": {"färbe": "grün"}}
    messages = [*numbered(topic, 10), {"topic": topic, **large}]
    sent = ali_ons.send(messages)
    assert {answer["queueId"] for answer in sent} == set(range(QUEUES))
    with ali_ons.program("consumer", group=f"G{topic}", topic=topic) as consumer:
        received = consumer.wait("message", len(messages))
    assert sorted(bodies(received)) == sorted(message["body"] for message in messages)
    by_body = {message["body"]: message for message in received}
    for message, answer in zip(messages, sent, strict=True):
        assert by_body[message["body"]]["msgId"] == answer["msgId"]
        assert by_body[message["body"]]["queueId"] == answer["queueId"]
    came = by_body[large["body"]]
    assert (came["tags"], came["keys"], came["properties"]["färbe"]) == ("标签", "k1 k2", "grün")


def test_a_message_is_found_by_the_id_and_key_that_it_was_sent_with(ali_ons: Client) -> None:
    topic = ali_ons.create_topic()
    (answer,) = ali_ons.send([{"topic": topic, "body": "one pizza", "keys": ["order-1"]}])

    async def find() -> tuple[MessageExt, list[MessageExt]]:
        async with AdminClient(ali_ons.namesrv) as admin:
            by_id = await admin.messages.get(answer["msgId"])
            return by_id, (await admin.messages.query_by_key(topic, "order-1")).messages

    by_id, by_key = asyncio.run(find())
    assert by_id.body == b"one pizza"
    assert [message.offset_msg_id for message in by_key] == [answer["msgId"]]


def test_an_unknown_topic_is_refused(ali_ons: Client) -> None:
    (answer,) = ali_ons.send(numbered("NobodyMadeThis", 1))
    assert "NobodyMadeThis" in answer["error"]


def test_tags_filter_messages(ali_ons: Client) -> None:
    topic = ali_ons.create_topic(queues=1)
    tags = ["TagA", "TagB", "标签", "TagB", "TagA"]
    ali_ons.send([{"topic": topic, "body": f"{number} {tag}", "tags": tag} for number, tag in enumerate(tags)])
    with ali_ons.program("consumer", group=f"G{topic}", topic=topic, expression="TagA || 标签") as consumer:
        received = consumer.wait("message", lambda seen: "4 TagA" in bodies(seen))
    assert bodies(received) == ["0 TagA", "2 标签", "4 TagA"]


def test_sql92_filters_messages_by_properties(ali_ons: Client) -> None:
    topic = ali_ons.create_topic(queues=1)
    ali_ons.send(
        [
            {"topic": topic, "body": body, "tags": "T", "properties": {"price": price, "where": where}}
            for body, price, where in (
                ("cheap here", "4", "here"),
                ("dear here", "40", "here"),
                ("dear there", "40", "there"),
                ("last", "41", "here"),
            )
        ]
    )
    expression = {"expressionType": "SQL92", "subString": "price BETWEEN 10 AND 50 AND where = 'here'"}
    with ali_ons.program("consumer", group=f"G{topic}", topic=topic, expression=expression) as consumer:
        received = consumer.wait("message", lambda seen: "last" in bodies(seen))
    assert bodies(received) == ["dear here", "last"]


def test_a_failed_message_is_retried_with_its_original_topic(ali_ons: Client) -> None:
    topic = ali_ons.create_topic()
    (answer,) = ali_ons.send(numbered(topic, 1, keys=["k"]))
    with ali_ons.program("consumer", group=f"G{topic}", topic=topic, failures=2) as consumer:
        tries = consumer.wait("message", 3)
    assert [message["reconsumeTimes"] for message in tries] == [0, 1, 2]
    assert {(message["topic"], message["body"], message["keys"]) for message in tries} == {(topic, "message 0", "k")}
    assert [message.get("originMessageId") for message in tries] == [None, answer["msgId"], answer["msgId"]]


def test_a_message_that_keeps_failing_becomes_a_dead_letter(ali_ons: Client) -> None:
    topic = ali_ons.create_topic()
    group = f"G{topic}"
    ali_ons.send(numbered(topic, 1))
    with ali_ons.program("consumer", group=group, topic=topic, failures=99, maxReconsumeTimes=1) as consumer:
        consumer.wait("message", 2)
        with ali_ons.program("consumer", group="undertakers", topic=dlq_topic(group)) as undertaker:
            (letter,) = undertaker.wait("message", 1)
        assert [message["reconsumeTimes"] for message in consumer.lines("message")] == [0, 1]
    assert letter["body"] == "message 0"
    assert letter["properties"]["RETRY_TOPIC"] == topic


@pytest.mark.parametrize(
    "wish", [{"delayLevel": 2}, {"properties": {"TIMER_DELAY_MS": "2000"}}], ids=["level", "timer"]
)
def test_a_delayed_message_is_delivered_when_due(ali_ons: Client, wish: dict[str, Any]) -> None:
    topic = ali_ons.create_topic()
    ali_ons.send(numbered(topic, 1, **wish) + numbered(topic, 1, begin=1))
    with ali_ons.program("consumer", group=f"G{topic}", topic=topic) as consumer:
        received = consumer.wait("message", 2)
    (delayed,) = [message for message in received if message["body"] == "message 0"]
    assert delayed["topic"] == topic
    assert delayed["storeTimestamp"] >= delayed["bornTimestamp"] + 2000


def sharding_keys(count: int) -> list[str]:
    """Keys that this client gives a queue of their own: it takes those of queue 0 for no key at all."""
    names = (f"order-{number}" for number in range(1000))
    return [name for name in names if int.from_bytes(hashlib.md5(name.encode()).digest()[:4], "big") % QUEUES][:count]


def test_messages_with_one_sharding_key_keep_their_order(ali_ons: Client) -> None:
    topic = ali_ons.create_topic()
    keys = sharding_keys(5)
    messages = [{"topic": topic, "body": f"{key} {step:02}", "shardingKey": key} for step in range(20) for key in keys]
    with (
        ali_ons.program("consumer", group=f"G{topic}", topic=topic) as one,
        ali_ons.program("consumer", group=f"G{topic}", topic=topic) as other,
    ):
        one.wait("queues", lambda shares: bool(shares) and len(shares[-1]) == QUEUES // 2)
        other.wait("queues", lambda shares: bool(shares) and len(shares[-1]) == QUEUES // 2)
        sent = ali_ons.send(messages)
        for key in keys:
            ((queue_id),) = {answer["queueId"] for message, answer in zip(messages, sent, strict=True)
                             if message["shardingKey"] == key}  # fmt: skip
            owner = one if queue_id in one.lines("queues")[-1] else other
            wanted = [f"{key} {step:02}" for step in range(20)]
            received = owner.wait("message", lambda seen, last=wanted[-1]: last in bodies(seen))
            assert [body for body in bodies(received) if body.startswith(key + " ")] == wanted


def test_every_broadcasting_consumer_gets_every_message(ali_ons: Client) -> None:
    topic = ali_ons.create_topic()
    messages = numbered(topic, 8)
    with (
        ali_ons.program("consumer", group=f"G{topic}", topic=topic, broadcast=True) as one,
        ali_ons.program("consumer", group=f"G{topic}", topic=topic, broadcast=True) as other,
    ):
        ali_ons.send(messages)
        for consumer in (one, other):
            received = consumer.wait("message", len(messages))
            assert sorted(bodies(received)) == sorted(message["body"] for message in messages)


def test_queues_are_rebalanced_as_consumers_join_leave_and_crash(ali_ons: Client) -> None:
    topic = ali_ons.create_topic()
    everything = set(range(QUEUES))
    sent = iter(range(0, 1000, QUEUES * 3))

    def all_come(*consumers: Any) -> None:
        """Send some more; every message comes to the consumer that has its queue now."""
        messages = numbered(topic, QUEUES * 3, begin=next(sent))
        answers = ali_ons.send(messages)
        for message, answer in zip(messages, answers, strict=True):
            (owner,) = [one for one in consumers if answer["queueId"] in one.lines("queues")[-1]]
            owner.wait("message", lambda seen, wanted=message["body"]: wanted in bodies(seen))

    group = f"G{topic}"
    with ali_ons.program("consumer", group=group, topic=topic) as first:
        first.wait("queues", covers(everything))
        all_come(first)
        for leave in ("finish", "kill"):
            with ali_ons.program("consumer", group=group, topic=topic) as second:
                first.wait("queues", lambda shares: len(shares[-1]) == QUEUES // 2)
                second.wait("queues", covers(everything - set(first.lines("queues")[-1])))
                all_come(first, second)
                getattr(second, leave)()
                first.wait("queues", covers(everything))
                all_come(first)


def test_a_group_resumes_at_its_offsets(ali_ons: Client) -> None:
    topic = ali_ons.create_topic()
    group = f"G{topic}"
    for begin in (0, 10):
        messages = numbered(topic, 10, begin)
        ali_ons.send(messages)
        with ali_ons.program("consumer", group=group, topic=topic) as consumer:
            received = consumer.wait("message", len(messages))
            consumer.finish()
        assert sorted(bodies(received)) == sorted(message["body"] for message in messages)


def test_a_group_has_a_retry_topic_from_its_first_heartbeat(ali_ons: Client) -> None:
    topic = ali_ons.create_topic()
    with ali_ons.program("consumer", group=f"G{topic}", topic=topic) as consumer:
        consumer.wait("queues", covers(set(range(QUEUES))))

        async def topics() -> list[str]:
            async with AdminClient(ali_ons.namesrv) as admin:
                return await admin.topics.names()

        assert retry_topic(f"G{topic}") in asyncio.run(topics())


@pytest.mark.slow
def test_clients_survive_a_server_restart(installed: Path, tmp_path: Path) -> None:
    namesrv_port, broker_port = free_ports(2, 1)
    options = ("--store", tmp_path / "store", "--namesrv-port", str(namesrv_port), "--broker-port", str(broker_port))
    with ExitStack() as stack:
        for turn in range(2):
            with server("standalone", *options, log=tmp_path / "log") as running:
                if turn == 0:
                    ali_ons = Client("node", installed, *running.addresses(), tmp_path)
                    topic = ali_ons.create_topic()
                    consumer = stack.enter_context(ali_ons.program("consumer", group="G", topic=topic))
                    producer = stack.enter_context(ali_ons.program("producer", group="P"))
                for message in numbered(topic, 5, begin=turn * 5):
                    producer.tell(message)
                consumer.wait("message", lambda seen, wanted=(turn + 1) * 5: len(set(bodies(seen))) == wanted)
                assert running.stop() == 0


def test_the_testing_fixture_serves_this_client(installed: Path, tmp_path: Path, rocketmq: RocketMQ) -> None:
    rocketmq.create_topic("Orders")
    (sent,) = Client("node", installed, rocketmq.namesrv, rocketmq.broker, tmp_path).send(
        numbered("Orders", 1, tags="food")
    )
    (message,) = rocketmq.wait_for_messages("Orders", tags="food")
    assert (message.body, message.offset_msg_id) == (b"message 0", sent["msgId"])
