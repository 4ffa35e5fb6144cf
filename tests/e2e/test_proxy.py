"""The client of RocketMQ 5 for Python, against `rucola proxy` before two brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.domain.topic import TopicConfig
from rucola.store.tools.check import check
from support.client_programs import PROGRAMS, Client
from support.processes import ADDRESS, Machines
from support.servers import Server, server

TOPIC = "Orders"


@dataclass
class Proxied:
    client: Client
    endpoint: str
    start: Callable[[str], Server]
    """Starts a broker, again if it was started before: then at other ports."""
    brokers: dict[str, Server]


@pytest.fixture
def proxied(rocketmq_v5: dict[str, Path], tmp_path: Path) -> Iterator[Proxied]:
    with ExitStack() as stack:
        machines = Machines(tmp_path, stack)
        eager = {"transactionTimeOut": "500", "transactionCheckInterval": "200", "mappedFileSizeCommitLog": "1048576"}

        def start(name: str) -> Server:
            return machines.broker(name, **{"brokerName": name} | eager)

        brokers = {name: start(name) for name in ("broker-a", "broker-b")}

        async def create() -> None:
            async with AdminClient(machines.namesrv) as admin:
                for address in machines.addresses.values():
                    config = TopicConfig(topic_name=TOPIC, read_queue_nums=2, write_queue_nums=2)
                    await admin.topics.create_or_update(address, config)

        asyncio.run(create())
        options = ("-n", machines.namesrv, "--listen", "127.0.0.1:0", "--workers", "2")
        proxy = stack.enter_context(server("proxy", *options, log=tmp_path / "proxy.log"))
        match = ADDRESS.search(proxy.first_line)
        assert match, proxy.log.read_text()
        python = str(rocketmq_v5["5.1.2"])
        client = Client(python, PROGRAMS / "rocketmq_v5", machines.namesrv, machines.addresses["broker-a"], tmp_path)
        yield Proxied(client, match[0], start, brokers)
        assert proxy.stop() == 0
        for name, broker in brokers.items():
            assert broker.stop() == 0
            assert check(tmp_path / name) == []


def test_all_kinds_of_messages_and_a_broker_that_dies(proxied: Proxied) -> None:
    arguments = {"endpoint": proxied.endpoint, "topics": [TOPIC]}
    consumer = {"endpoint": proxied.endpoint, "topic": TOPIC}
    plain = [{"topic": TOPIC, "body": f"plain {number}"} for number in range(6)]
    ordered = [{"topic": TOPIC, "body": f"in order {number}", "group": "g"} for number in range(4)]
    delayed = {"topic": TOPIC, "body": "delayed", "due": int(time.time()) + 2}
    half = [{"topic": TOPIC, "body": how, "transaction": how} for how in ("commit", "rollback", "none")]
    with (
        proxied.client.program("producer", group="", **arguments) as producer,
        proxied.client.program("consumer", kind="simple", group="simple", **consumer) as simple,
    ):
        for line in (*plain, *ordered, delayed, *half):
            producer.tell(line)
        assert len(producer.wait("sent", 14)) == 14
        assert "none" in producer.wait("checked", lambda found: "none" in found)
        expected = {str(line["body"]) for line in (*plain, *ordered, delayed)} | {"commit", "none"}
        received = simple.wait("message", lambda found: {one["body"] for one in found} >= expected)
        assert sorted(one["body"] for one in received) == sorted(expected)
        assert [one["body"] for one in received if one["group"]] == [line["body"] for line in ordered]
        with proxied.client.program("consumer", kind="push", group="push", **consumer) as push:
            push.wait("message", lambda found: {one["body"] for one in found} >= expected)
            proxied.brokers["broker-a"].process.kill()
            for count in (20, 26):
                more = {f"message {number}" for number in range(count - 6, count)}
                for body in sorted(more):
                    producer.tell({"topic": TOPIC, "body": body})
                producer.wait("sent", count)
                push.wait("message", lambda found, more=more: {one["body"] for one in found} >= more)
                if count == 20:
                    proxied.brokers["broker-a"] = proxied.start("broker-a")
