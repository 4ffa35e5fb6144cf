"""The clients of RocketMQ 5 for Python, in two versions, and for Node, against `rucola standalone`."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from rucola.admin import AdminClient
from rucola.client import Message, MessageExt, Producer, PullConsumer, select_by_hash
from rucola.domain.group import SubscriptionGroupConfig
from rucola.message.topics import dlq_topic
from rucola.store.tools.check import check
from support.client_programs import PATIENCE_S, PROGRAMS, Client, Program, bodies, numbered
from support.ports import free_ports
from support.servers import Server, server
from support.waiting import wait_until

CLIENTS = (
    pytest.param("rocketmq_v5/5.1.2", id="python-5.1.2"),
    pytest.param("rocketmq_v5/5.1.1", id="python-5.1.1"),
    pytest.param("rocketmq_nodejs", id="node"),
)


class V5Client(Client):
    """`endpoint` is the address for gRPC."""

    endpoint: str
    max_body = 4 << 20
    """The largest one that it receives."""

    def consumer(self, topic: str, kind: str, group: str = "", **arguments: Any) -> AbstractContextManager[Program]:
        named = {"endpoint": self.endpoint, "topic": topic, "kind": kind, "group": group or f"{kind}{topic}"}
        return self.program("consumer", **named, **arguments)

    def create_group(self, group: str, retries: int) -> None:
        async def create() -> None:
            async with AdminClient(self.namesrv) as admin:
                config = SubscriptionGroupConfig(group_name=group, retry_max_times=retries)
                await admin.groups.create_or_update(self.broker, config)

        asyncio.run(create())

    def backlog(self, group: str) -> int:
        """Messages of a group that are not acknowledged, or follow one that is not."""

        async def stats() -> int:
            async with AdminClient(self.namesrv) as admin:
                table = (await admin.groups.consume_stats(group)).offset_table
                return sum(offsets.broker_offset - offsets.consumer_offset for offsets in table.values())

        return asyncio.run(stats())

    def produce(self, *lines: dict[str, Any]) -> list[dict[str, Any]]:
        topics = sorted({line["topic"] for line in lines})
        return self.send(lines, endpoint=self.endpoint, topics=topics)

    def send_4x(self, *messages: Message) -> None:
        """Send with a client of 4.x."""

        async def send() -> None:
            async with Producer("producers", self.namesrv) as producer:
                for message in messages:
                    await producer.send(message)

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


@pytest.fixture(scope="module", params=CLIENTS)
def installed_client(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """An interpreter, and the programs for it."""
    fixture, _, version = request.param.partition("/")
    installed = request.getfixturevalue(fixture)
    return (str(installed[version]), PROGRAMS / fixture) if version else ("node", installed)


def standalone(
    path: Path, namesrv_port: int = 0, broker_port: int = 0, grpc_port: int = 0
) -> AbstractContextManager[Server]:
    """A server with SQL filters and short delays: level 2 is two seconds, all others are one."""
    conf = "transactionTimeOut=500\ntransactionCheckInterval=200\nmessageDelayLevel=1s 2s 1s 1s\n"
    conf += "enablePropertyFilter=true\ncleanFileForciblyEnable=false\n"
    (path / "broker.conf").write_text(conf, encoding="utf-8")
    ports = ("--namesrv-port", str(namesrv_port), "--broker-port", str(broker_port), "--grpc-port", str(grpc_port))
    return server("standalone", "--store", path / "store", *ports, "-c", path / "broker.conf", log=path / "log")


def client_of(running: Server, installed_client: tuple[str, Path], path: Path) -> V5Client:
    interpreter, programs = installed_client
    client = V5Client(interpreter, programs, *running.addresses(), path)
    client.endpoint = running.grpc_endpoint()
    if interpreter == "node":
        client.max_body -= 16 << 10  # of a response, with all that is in it
    return client


@pytest.fixture(scope="module")
def client(installed_client: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[V5Client]:
    path = tmp_path_factory.mktemp("e2e_v5")
    with standalone(path) as running:
        yield client_of(running, installed_client, path)
        assert running.stop() == 0
    assert check(path / "store") == []


def test_a_client_of_4x_finds_what_was_sent(client: V5Client) -> None:
    topic = client.create_topic()
    lines = [
        {"topic": topic, "body": "plain"},
        {"topic": topic, "body": "größer " * 2000, "tag": "标签", "keys": ["k1"], "properties": {"colour": "grün"}},
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
    lines = [{"topic": topic, "body": f"message {n}", "tag": "ab"[n % 2]} for n in range(8)]
    with (
        client.consumer(topic, "simple", tag="a") as simple,
        client.consumer(topic, "push", failing=["message 3"]) as push,
    ):
        client.produce(*lines)
        client.send_4x(Message(topic, b"from 4.x", tags="a"))
        chosen = simple.wait("message", 5)
        every = push.wait("message", 10)
    assert {one["body"] for one in chosen} == {"message 0", "message 2", "message 4", "message 6", "from 4.x"}
    assert {one["body"] for one in every} == {line["body"] for line in lines} | {"from 4.x"}
    assert [one["attempt"] for one in every if one["body"] == "message 3"] == [1, 2]


def test_messages_of_a_group_stay_in_order(client: V5Client) -> None:
    topic = client.create_topic(order=True)
    lines = [{"topic": topic, "body": f"{group} {n}", "group": group} for n in range(4) for group in ("g", "h")]
    with client.consumer(topic, "push", failing=["g 1"]) as push:
        client.produce(*lines)
        received = push.wait("message", 9)
    for group, numbers in (("g", [0, 1, 1, 2, 3]), ("h", [0, 1, 2, 3])):
        assert [one["body"] for one in received if one["group"] == group] == [f"{group} {n}" for n in numbers]


def test_messages_that_keep_failing_become_dead_letters(client: V5Client) -> None:
    """In order, the message group goes on behind one."""
    for order in (False, True):
        topic = client.create_topic(order=order)
        client.create_group(f"push{topic}", retries=1)
        group = {"group": "g"} if order else {}
        with client.consumer(topic, "push", failing=["message 1"] * 2) as push:
            client.produce(*numbered(topic, 4, **group))
            received = push.wait("message", 5)
            with client.consumer(dlq_topic(f"push{topic}"), "simple") as undertaker:
                (letter,) = undertaker.wait("message", 1)
            wait_until(lambda topic=topic: client.backlog(f"push{topic}") == 0, PATIENCE_S)
        assert letter["body"] == "message 1"
        if order:  # the client calls its listener again
            assert bodies(received) == [f"message {n}" for n in (0, 1, 1, 2, 3)]
        else:
            assert [one["attempt"] for one in received if one["body"] == "message 1"] == [1, 2]
        assert sorted(bodies(push.lines("message"))) == [f"message {n}" for n in (0, 1, 1, 2, 3)]


def test_filters_by_properties(client: V5Client) -> None:
    topic = client.create_topic()
    lines = [{"topic": topic, "body": f"{n}", "tag": "t", "properties": {"n": f"{n}"}} for n in range(8)]
    with client.consumer(topic, "push", sql="n BETWEEN 3 AND 5 AND TAGS = 't'") as push:
        client.produce(*lines, {"topic": topic, "body": "3 without tag", "properties": {"n": "3"}})
        push.wait("message", 3)
        wait_until(lambda: client.backlog(f"push{topic}") == 0, PATIENCE_S)
        assert sorted(bodies(push.lines("message"))) == ["3", "4", "5"]
    with client.consumer(topic, "simple", sql="n BETWEEN") as wrong:
        wrong.wait("error", 1)
        assert wrong.lines("message") == []


def test_an_invisible_duration_is_changed(client: V5Client) -> None:
    topic = client.create_topic(queues=1)
    with client.consumer(topic, "simple", changed=["message 1"]) as simple:
        client.produce(*numbered(topic, 3))
        received = simple.wait("message", 4)
        wait_until(lambda: client.backlog(f"simple{topic}") == 0, PATIENCE_S)
    assert [one["attempt"] for one in received if one["body"] == "message 1"] == [1, 2]


@pytest.mark.parametrize("kind", ["simple", "push"])
def test_consumers_share_the_messages(client: V5Client, kind: str) -> None:
    topic = client.create_topic()
    with client.consumer(topic, kind) as one, client.consumer(topic, kind) as other:
        sent = 0
        while sent == 0 or not (one.lines("message") and other.lines("message")):
            assert sent < 4000, "one of them gets nothing"
            client.produce(*numbered(topic, 40, begin=sent))
            sent += 40
            wait_until(lambda sent=sent: len(one.lines("message") + other.lines("message")) >= sent, PATIENCE_S)
        received = bodies(one.lines("message") + other.lines("message"))
    assert sorted(received) == sorted(f"message {n}" for n in range(sent))


def test_a_large_body_is_received(client: V5Client) -> None:
    topic = client.create_topic()
    with client.consumer(topic, "simple") as simple, client.consumer(topic, "push") as push:
        client.produce({"topic": topic, "body": "x" * client.max_body})
        for consumer in (simple, push):
            (received,) = consumer.wait("message", 1)
            assert (len(received["body"]), received["attempt"]) == (client.max_body, 1)


def test_what_4x_sends_is_received_whole(client: V5Client) -> None:
    topic, ordered = client.create_topic(), client.create_topic(order=True)
    delayed = Message(topic, b"delayed", properties={"DELAY": "1"})
    timed = Message(topic, b"timed", properties={"TIMER_DELAY_MS": "500"})
    rich = Message(topic, "größer".encode() * 2000, "标签", ["k1", "k2"], {"colour": "grün"})
    in_order = [Message(ordered, b"%d" % n, properties={"__SHARDINGKEY": "g"}) for n in range(8)]

    async def send_in_order() -> None:
        async with Producer("producers", client.namesrv) as producer:
            for message in in_order:
                await producer.send(message, select_by_hash("g"))

    with client.consumer(topic, "simple") as simple, client.consumer(ordered, "push") as push:
        client.send_4x(delayed, timed, rich)
        asyncio.run(send_in_order())
        received = {one["body"]: one for one in simple.wait("message", 3)}
        assert bodies(push.wait("message", 8)) == [f"{n}" for n in range(8)]
        assert {one["group"] for one in push.lines("message")} == {"g"}
    assert received.keys() == {"delayed", "timed", rich.body.decode()}
    found = received[rich.body.decode()]
    assert (found["tag"], found["keys"], found["properties"]["colour"]) == ("标签", ["k1", "k2"], "grün")
    assert found["messageId"] == rich.unique_key


def test_a_delayed_message_is_recalled(client: V5Client) -> None:
    topic = client.create_topic(queues=1)
    with client.program("producer", endpoint=client.endpoint, topics=[topic]) as producer:
        producer.tell({"topic": topic, "body": "at once"})
        producer.wait("sent", 1)
        due_s = int(time.time()) + 6
        for body in ("recalled", "kept"):
            producer.tell({"topic": topic, "body": body, "due": due_s})
        _, recalled, kept = producer.wait("sent", 3)
        for handle in (recalled["recallHandle"], "no handle"):
            producer.tell({"topic": topic, "recall": handle})
        assert producer.wait("recalled", 1) == [recalled["messageId"]]
        producer.wait("error", 1)
        wait_until(lambda: len(client.received(topic)) > 1, PATIENCE_S)
        producer.tell({"topic": topic, "recall": kept["recallHandle"]})
        producer.wait("error", 2)
    assert [message.body for message in client.received(topic)] == [b"at once", b"kept"]


@pytest.mark.slow
def test_consumers_survive_a_crash_and_a_restart_of_the_server(
    installed_client: tuple[str, Path], tmp_path: Path
) -> None:
    """What they held before the crash they acknowledge after it, by the same handle."""
    namesrv_port, broker_port, grpc_port = free_ports(3, 1)
    with ExitStack() as stack:

        def start() -> Server:
            return stack.enter_context(standalone(tmp_path, namesrv_port, broker_port, grpc_port))

        running = start()
        client = client_of(running, installed_client, tmp_path)
        topic = client.create_topic()
        simple = stack.enter_context(client.consumer(topic, "simple", held=["held"]))
        push = stack.enter_context(client.consumer(topic, "push", failing=["failing"]))
        client.produce({"topic": topic, "body": "held"}, {"topic": topic, "body": "failing"})
        for consumer in (simple, push):
            consumer.wait("message", lambda found: {"held", "failing"} <= set(bodies(found)))
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        running = start()
        simple.tell({"acknowledge": "held"})
        simple.wait("acknowledged", 1)
        push.wait("message", lambda found: bodies(found).count("failing") >= 2)
        assert running.stop() == 0
        running = start()
        client.produce({"topic": topic, "body": "after"})
        for consumer, kind in ((simple, "simple"), (push, "push")):
            consumer.wait("message", lambda found: "after" in bodies(found))
            wait_until(lambda kind=kind: client.backlog(f"{kind}{topic}") == 0, PATIENCE_S)
        assert bodies(simple.lines("message")).count("held") == 1
        assert running.stop() == 0
    assert check(tmp_path / "store") == []


def test_wrong_messages_are_errors(client: V5Client) -> None:
    topic = client.create_topic()
    answers = client.produce(
        {"topic": topic, "body": "x", "properties": {"UNIQ_KEY": "mine"}},
        {"topic": topic, "body": "x", "due": int(time.time()) + 200 * 365 * 86_400},
        {"topic": topic, "body": "x"},
    )
    assert [next(iter(answer)) for answer in answers] == ["error", "error", "sent"]
    assert ["BadRequestException" in answer.get("error", "") for answer in answers] == [True, True, False]
