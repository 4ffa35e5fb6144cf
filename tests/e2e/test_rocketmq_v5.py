"""The client of RocketMQ 5 for Python, in two versions, against `rucola standalone`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rucola.client import Message, MessageExt, Producer, PullConsumer
from rucola.store.tools.check import check
from support.client_programs import PATIENCE_S, PROGRAMS, Client
from support.servers import server
from support.waiting import wait_until

VERSIONS = ("5.1.2", "5.1.1")


class V5Client(Client):
    """`endpoint` is the address for gRPC."""

    endpoint: str

    def produce(self, *lines: dict[str, Any]) -> list[dict[str, Any]]:
        topics = sorted({line["topic"] for line in lines})
        return self.send(lines, endpoint=self.endpoint, topics=topics)

    def send_4x(self, topic: str, body: bytes, tags: str) -> None:
        """Send with a client of 4.x."""

        async def send() -> None:
            async with Producer("producers", self.namesrv) as producer:
                await producer.send(Message(topic, body, tags=tags))

        asyncio.run(send())

    def received(self, topic: str) -> list[MessageExt]:
        """What a client of 4.x finds in a topic, by queue."""

        async def pull() -> list[MessageExt]:
            found: list[MessageExt] = []
            async with PullConsumer("reader", self.namesrv) as consumer:
                for queue in await consumer.queues(topic):
                    begin, end = 0, 1
                    while begin < end:
                        result = await consumer.pull(queue, begin, 100)
                        found += result.messages
                        begin, end = result.next_begin_offset, result.max_offset
            return found

        return asyncio.run(pull())


@pytest.fixture(scope="module", params=VERSIONS)
def client(
    request: pytest.FixtureRequest, rocketmq_v5: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[V5Client]:
    path = tmp_path_factory.mktemp("e2e_v5")
    (path / "broker.conf").write_text("transactionTimeOut=500\ntransactionCheckInterval=200\n", encoding="utf-8")
    ports = ("--namesrv-port", "0", "--broker-port", "0", "-c", path / "broker.conf")
    with server("standalone", "--store", path / "store", *ports, log=path / "log") as running:
        client = V5Client(str(rocketmq_v5[request.param]), PROGRAMS / "rocketmq_v5", *running.addresses(), path)
        client.endpoint = running.grpc_endpoint()
        yield client
        assert running.stop() == 0
    assert check(path / "store") == []


def test_a_client_of_4x_finds_what_was_sent(client: V5Client) -> None:
    topic = client.create_topic()
    lines = [
        {"topic": topic, "body": "plain"},
        {"topic": topic, "body": "größer " * 2000, "tag": "标签", "keys": "k1", "properties": {"colour": "grün"}},
        *({"topic": topic, "body": f"in order {number}", "group": "g"} for number in range(5)),
        {"topic": topic, "body": "x" * (4 << 20)},
    ]
    answers = client.produce(*lines)
    ids = [answer["sent"]["messageId"] for answer in answers]
    received = client.received(topic)
    assert sorted(message.msg_id for message in received) == sorted(ids)
    (rich,) = [message for message in received if message.tags]
    assert (rich.body.decode(), rich.tags, rich.keys) == (lines[1]["body"], "标签", "k1")
    assert rich.properties["colour"] == "grün"
    ordered = [message for message in received if message.body.startswith(b"in order")]
    assert [message.body.decode() for message in ordered] == [f"in order {number}" for number in range(5)]
    assert len({message.queue_id for message in ordered}) == 1


def test_the_first_message_creates_the_topic(client: V5Client) -> None:
    (answer,) = client.produce({"topic": "NobodyMadeThis", "body": "first"})
    assert "sent" in answer
    assert [message.body for message in client.received("NobodyMadeThis")] == [b"first"]


def test_delayed_messages_come_in_time(client: V5Client) -> None:
    topic = client.create_topic(queues=1)
    due_s = int(time.time()) + 2
    assert "sent" in client.produce({"topic": topic, "body": "later", "due": due_s})[0]
    wait_until(lambda: bool(client.received(topic)), PATIENCE_S)
    (message,) = client.received(topic)
    assert message.store_timestamp >= due_s * 1000


def test_transactions_end_as_the_producer_says(client: V5Client) -> None:
    topic = client.create_topic(queues=1)
    arguments = {"group": "", "endpoint": client.endpoint, "topics": [topic]}
    with client.program("producer", **arguments) as producer:
        for how in ("commit", "rollback", "none"):
            producer.tell({"topic": topic, "body": how, "transaction": how})
        producer.wait("sent", 3)
        producer.wait("checked", lambda found: "none" in found)
        wait_until(lambda: len(client.received(topic)) == 2, PATIENCE_S)
        producer.finish()
    assert sorted(message.body for message in client.received(topic)) == [b"commit", b"none"]


def test_both_kinds_of_consumers_receive(client: V5Client) -> None:
    topic = client.create_topic()
    arguments = {"endpoint": client.endpoint, "topic": topic}
    lines = [{"topic": topic, "body": f"message {n}", "tag": "ab"[n % 2]} for n in range(8)]
    with (
        client.program("consumer", kind="simple", group=f"S{topic}", tag="a", **arguments) as simple,
        client.program("consumer", kind="push", group=f"P{topic}", failing=["message 3"], **arguments) as push,
    ):
        client.produce(*lines)
        client.send_4x(topic, b"from 4.x", "a")
        chosen = simple.wait("message", 5)
        every = push.wait("message", 10)
    assert {one["body"] for one in chosen} == {"message 0", "message 2", "message 4", "message 6", "from 4.x"}
    assert {one["body"] for one in every} == {line["body"] for line in lines} | {"from 4.x"}
    assert [one["attempt"] for one in every if one["body"] == "message 3"] == [1, 2]


def test_messages_of_a_group_stay_in_order(client: V5Client) -> None:
    topic = client.create_topic(order=True)
    lines = [{"topic": topic, "body": f"{group} {n}", "group": group} for n in range(4) for group in ("g", "h")]
    arguments = {"endpoint": client.endpoint, "topic": topic, "kind": "push", "group": f"P{topic}"}
    with client.program("consumer", failing=["g 1"], **arguments) as push:
        client.produce(*lines)
        received = push.wait("message", 9)
    for group, numbers in (("g", [0, 1, 1, 2, 3]), ("h", [0, 1, 2, 3])):
        assert [one["body"] for one in received if one["group"] == group] == [f"{group} {n}" for n in numbers]


def test_wrong_messages_are_errors(client: V5Client) -> None:
    topic = client.create_topic()
    answers = client.produce(
        {"topic": topic, "body": "x", "properties": {"UNIQ_KEY": "mine"}},
        {"topic": topic, "body": "x", "due": int(time.time()) + 200 * 365 * 86_400},
        {"topic": topic, "body": "x"},
    )
    assert [next(iter(answer)) for answer in answers] == ["error", "error", "sent"]
    assert ["BadRequestException" in answer.get("error", "") for answer in answers] == [True, True, False]
