"""What a page costs: its bytes, and its requests to brokers with 5,000 topics, 2,000 groups, and 15,000 on a topic."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from rucola.console.broker_state import ACCESS_REQUESTS, PENDING_REQUESTS
from rucola.console.charts import RANGES
from rucola.console.collector import MAX_SENDER_QUEUES
from rucola.console.pages.clients import GROUPS as CLIENT_GROUPS
from rucola.domain.client import ClientConnection, ConsumerConnection, ProducerInfo, ProducerTableInfo
from rucola.domain.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rucola.domain.subscription import SubscriptionData
from rucola.domain.topic import TopicConfig, TopicConfigSerializeWrapper
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection
from support.cluster import cluster
from support.console import Visitor, visitor

TOPICS, GROUPS, GROUPS_ON_A_TOPIC, QUEUES, MEMBERS = 5000, 2000, 15_000, 200, 500
STATIC = "public, max-age=31536000, immutable"
PAGE_BYTES, ALL_BYTES = 30_000, 100_000
NAME = "a-rather-long-name-of-a-topic-or-group"
BY_TURNS = {RequestCode.GET_CONSUME_STATS, RequestCode.VIEW_BROKER_STATS_DATA}
"""Requests that the collector sends in turn as well, for groups and topics that nobody looks at."""


def topic(number: int) -> str:
    return f"{NAME}-t-{number:04}"


def group(number: int) -> str:
    return f"{NAME}-g-{number:05}"


def bodies() -> dict[RequestCode, Any]:
    """What each broker answers to any request of a code."""
    far_ms = 2_000_000_000_000
    return {
        RequestCode.GET_BROKER_RUNTIME_INFO: {"table": {"putTps": "1.0 1.0 1.0", "commitLogDiskRatio": "0.5"}},
        RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigSerializeWrapper(
            topic_config_table={topic(n): TopicConfig(topic_name=topic(n)) for n in range(TOPICS)}
        ),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupWrapper(
            subscription_group_table={group(n): SubscriptionGroupConfig(group_name=group(n)) for n in range(GROUPS)}
        ),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: {"groupList": [group(n) for n in range(GROUPS_ON_A_TOPIC)]},
        RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerConnection(
            connection_set=[
                ClientConnection(client_addr=f"10.0.0.1:{n}", client_id=f"{NAME}@{n}", language="JAVA", version=409)
                for n in range(MEMBERS)
            ],
            subscription_table={topic(n): SubscriptionData(topic=topic(n)) for n in range(20)},
            message_model="CLUSTERING", consume_type="CONSUME_PASSIVELY",
        ),
        RequestCode.GET_ALL_PRODUCER_INFO: ProducerTableInfo(
            data={
                group(n): [
                    ProducerInfo(
                        client_id=f"{NAME}@{n}", language="JAVA", last_update_timestamp=1, remote_ip="1", version=409
                    )
                ]
                for n in range(GROUPS)
            }
        ),
        RequestCode.AUTH_LIST_USER: [{"username": f"{NAME}-{n}", "userType": "Normal"} for n in range(20)],
        RequestCode.AUTH_LIST_ACL: [],
        RequestCode.QUERY_CONSUME_QUEUE: {
            "maxQueueIndex": 200, "minQueueIndex": 0,
            "queueData": [
                {"eval": False, "physicOffset": n, "physicSize": 1, "tagsCode": far_ms + n} for n in range(200)
            ],
        },
    }  # fmt: skip


def table(broker: str, name: str, count: int, value: dict[str, int]) -> bytes:
    """A table of queues, whose keys are objects in fastjson's dialect."""
    queues = [{"brokerName": broker, "topic": name, "queueId": number} for number in range(count)]
    encoded = b",".join(msgspec.json.encode(queue) + b":" + msgspec.json.encode(value) for queue in queues)
    return b'{"consumeTps":0.5,"offsetTable":{' + encoded + b"}}"


def offsets(broker: str, name: str) -> bytes:
    count = {SCHEDULE_TOPIC: 18, TIMER_TOPIC: 1, TRANS_CHECK_MAX_TIME_TOPIC: 1}.get(name, QUEUES)
    return table(broker, name, count, {"lastUpdateTimestamp": 1, "maxOffset": 200, "minOffset": 0})


PAGES = {
    "/": 0,
    "/broker?address=ADDRESS": 0,
    f"/topic?name={topic(0)}": 2 * (2 + 1) + MAX_SENDER_QUEUES,
    f"/group?name={group(0)}": 2,
    "/clients": 2 * CLIENT_GROUPS,
    "/clients?kind=producers": 2,
    "/configuration?all=1": 2,
    "/access": 2 * ACCESS_REQUESTS,
    "/delayed": 2 * PENDING_REQUESTS,
    "/topics": 0,
    "/groups": 0,
    f"/tail?topic={topic(0)}": None,
}
"""The requests that a page may send, besides those of its rows; a tail goes on."""


async def test_pages_keep_to_their_bytes_and_requests(tmp_path: Path) -> None:
    asked: list[RequestCode] = []

    def answering(broker: str) -> Any:
        encoded = {
            code: body if isinstance(body, bytes) else msgspec.json.encode(body) for code, body in bodies().items()
        }
        encoded[RequestCode.GET_BROKER_CONFIG] = "".join(f"{NAME}-{n}=value of {broker}\n" for n in range(300)).encode()

        at = {"brokerOffset": 1_000_000, "consumerOffset": 1, "lastTimestamp": 1}
        consume_stats = table(broker, topic(0), QUEUES, at)

        def answer(_: Connection, command: RemotingCommand) -> RemotingCommand:
            asked.append(RequestCode(command.code))
            if command.code == RequestCode.GET_CONSUME_STATS:
                return command.response(ResponseCode.SUCCESS, body=consume_stats)
            if command.code == RequestCode.GET_TOPIC_STATS_INFO:
                return command.response(ResponseCode.SUCCESS, body=offsets(broker, command.ext_fields["topic"]))
            return command.response(ResponseCode.SUCCESS, body=encoded[RequestCode(command.code)])

        return dict.fromkeys([*encoded, RequestCode.GET_CONSUME_STATS, RequestCode.GET_TOPIC_STATS_INFO], answer)

    async with cluster(tmp_path) as running:
        for broker in ("broker-a", "broker-b"):
            await running.scripted_broker(broker, topic(0), answering(broker), queues=QUEUES)
        async with visitor(running.namesrv, interval_s=3600, requests_per_second=10_000) as console:
            collector = console.console.collector
            await collector.wait_first(60)
            await fill_history(console)
            sizes: dict[str, int] = {}
            for path, most in PAGES.items():
                path = path.replace("ADDRESS", collector.snapshot.brokers[0].address)
                before = Counter(asked)
                page = await console.get(path)
                assert page.status_code == 200, page.text
                for _ in range(3):
                    await console.get(path)
                sizes[path] = len(page.content)
                sent = Counter(asked) - before
                cost = sum(count for code, count in sent.items() if code not in BY_TURNS)
                assert most is None or cost <= most, (path, sent)
            assert {path: size for path, size in sizes.items() if size > PAGE_BYTES} == {}, sizes
            text = await console.text(f"/topic?name={topic(0)}&page=300")
            assert group(GROUPS_ON_A_TOPIC - 1) in text
            assert f"{GROUPS_ON_A_TOPIC:,} rows" in text


async def fill_history(console: Visitor) -> None:
    series = ["puts_per_s broker-a", "gets_per_s broker-a", "disk_ratio broker-a", f"topic puts_per_s {topic(0)}"]
    series += [f"group {kind} {group(0)}" for kind in ("backlog", "delay_s", "consumed_per_s")]
    end_s = int(time.time())
    for at_s in range(end_s - RANGES["2h"], end_s, 60):
        await console.console.history.add(at_s, dict.fromkeys(series, 123_456.789))


async def test_a_page_with_its_scripts_and_styles_is_small(tmp_path: Path) -> None:
    """As a browser loads them, once for each version: their addresses have their hashes."""
    async with cluster(tmp_path) as running, visitor(running.namesrv) as console:
        for path in ("/", "/commands"):
            page = await console.get(path)
            total = len(page.content)
            for address in re.findall(r'(?:src|href)="(/static/[^"]*)"', page.text):
                loaded = await console.get(address)
                assert (loaded.status_code, loaded.headers["cache-control"]) == (200, STATIC)
                total += loaded.num_bytes_downloaded
            assert total <= ALL_BYTES, path
