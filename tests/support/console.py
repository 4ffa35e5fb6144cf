"""A console of a live cluster, and requests to it as a browser without JavaScript sends them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from rucola.admin import AdminClient, MessageQueue, SubscriptionGroupConfig, TopicConfig, dlq_topic
from rucola.client import Producer, SendResult
from rucola.client.connection_options import ConnectionOptions
from rucola.console.config import ConsoleConfig
from rucola.console.console import Console
from rucola.console.server import ConsoleServer
from rucola.message import Message
from rucola.message.properties import RETRY_TOPIC
from support.cluster import Cluster, cluster
from support.waiting import until


class Visitor:
    """Keeps the cookies; `path` begins with / and lies below the console's prefix."""

    def __init__(self, server: ConsoleServer, http: httpx.AsyncClient) -> None:
        self.server = server
        self.http = http

    @property
    def console(self) -> Console:
        return self.server.console

    def url(self, path: str) -> str:
        return self.server.url.rstrip("/") + path

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.http.get(self.url(path), headers=headers)

    async def text(self, path: str) -> str:
        """The page at a path, which must exist, without its tags."""
        response = await self.get(path)
        assert response.status_code == 200, response.text
        return text_of(response)

    async def shows(self, path: str, wanted: str) -> str:
        """The page at a path when it has a text: what is measured may come a moment later."""
        found = ""

        async def has_text() -> bool:
            nonlocal found
            found = await self.text(path)
            return wanted in found

        await until(has_text)
        return found

    async def post(self, path: str, fields: dict[str, str], form: str | None = None) -> httpx.Response:
        """Send a form with the token of the page `form`, by default the one at `path`."""
        page = await self.get(form or path)
        return await self.http.post(self.url(path), data=fields | {"token": field(page, "token")})


def text_of(response: httpx.Response) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", response.text)))


def field(response: httpx.Response, name: str) -> str:
    """The value of a hidden field."""
    found = re.search(rf'name="{name}" value="([^"]*)"', response.text)
    assert found, f"{urlsplit(str(response.url)).path} has no field {name}"
    return unescape(found[1])


@asynccontextmanager
async def visitor(namesrv: str | ConnectionOptions, **config: Any) -> AsyncIterator[Visitor]:
    settings = ConsoleConfig(**{"port": 0, "interval_s": 0.2} | config)
    async with ConsoleServer(namesrv, settings) as server, httpx.AsyncClient(timeout=60) as http:
        yield Visitor(server, http)


async def add_dead_letters(running: Cluster, count_by_cause: dict[str, int], body: bytes = b"dead") -> list[SendResult]:
    """Dead letters of group billing from topic Orders; their properties name the causes."""
    topic = dlq_topic("billing")
    async with AdminClient(running.namesrv) as admin, Producer("shop", running.namesrv) as producer:
        for address in (await admin.cluster.masters("DefaultCluster")).values():
            config = TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
            await admin.topics.create_or_update(address, config)
        return [
            await producer.send(
                Message(
                    topic, body, tags="paid",
                    properties={RETRY_TOPIC: "Orders"} | ({"Exception": cause} if cause else {}),
                )
            )
            for cause, count in count_by_cause.items()
            for _ in range(count)
        ]  # fmt: skip


@asynccontextmanager
async def live_cluster(path: Path) -> AsyncIterator[Cluster]:
    """Two brokers with the topic Orders, two queues and 20 messages on each; group billing has consumed 5 of 20."""
    async with cluster(path) as running, AdminClient(running.namesrv) as admin:
        for name in ("broker-a", "broker-b"):
            broker = await running.start_broker(name, trace_topic_enable=True)
            await running.create_topic(broker, "Orders", 2)
            await admin.groups.create_or_update(broker.address, SubscriptionGroupConfig(group_name="billing"))
        async with Producer("shop", running.namesrv) as producer:
            for number in range(40):
                await producer.send(Message("Orders", b"order %d" % number, keys=str(number)))
        for name, address in (await admin.cluster.masters("DefaultCluster")).items():
            for queue_id in range(2):
                queue = MessageQueue("Orders", name, queue_id)
                await admin.offsets.commit(address, "billing", queue, 5 if queue_id == 0 else 0)
        yield running
