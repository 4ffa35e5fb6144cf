"""The console: its CPU time for a page, beside the bare call of AdminClient, and the broker's with fifty open pages."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Coroutine
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from figures import Aim, Figure
from floors import Options
from rucola.admin import AdminClient, MessageQueue, SubscriptionGroupConfig, TopicConfig
from rucola.client import Message, Producer
from servers import Server, standalone

TOPICS = 500
GROUPS = 200
VIEWS = 100
"""Views of each page in a round."""
TABS = 50
REFRESH_S = 10
"""The interval in which an open page asks again."""
QUIET_S = 20
OPEN_S = 60
"""In which the collector reads the tables of topics and groups once."""

Call = Callable[[AdminClient], Coroutine[Any, Any, object]]
PAGES: dict[str, Callable[[AdminClient, str], Coroutine[Any, Any, object]]] = {
    "/": lambda admin, address: admin.brokers.runtime_stats(address),
    "/topics": lambda admin, address: admin.topics.configs(address),
    "/topic?name=topic-7": lambda admin, address: admin.topics.stats("topic-7"),
    "/group?name=group-7": lambda admin, address: admin.groups.consume_stats("group-7"),
}
"""Each page, and the call of AdminClient that a program would make for the same."""


def measure(options: Options) -> list[Figure]:
    """View pages in turns with the bare calls; then leave fifty of them open."""
    with TemporaryDirectory(prefix="rucola-bench-") as folder, standalone(Path(folder) / "store") as broker:
        _progress(f"{TOPICS} topics and {GROUPS} groups")
        address = asyncio.run(_fill(broker))
        rucola = str(Path(sys.executable).with_name("rucola"))
        command = [rucola, "console", "-n", broker.namesrv, "--port", "0", "--directory", f"{folder}/console"]
        _progress("the broker without a console")
        quiet = _share(broker, options.count(QUIET_S))
        with Server(command) as console:
            pages = [
                _views(console, broker, path, lambda admin, call=call: call(admin, address), options)
                for path, call in PAGES.items()
            ]
            _progress(f"{TABS} open pages")
            opened = _share(broker, options.count(OPEN_S), console)
    percent = {"without a console": quiet * 100, "50 pages open": opened * 100}
    return [
        *pages,
        Figure(
            "console_50_pages", max(0.0, opened - quiet) * 100, "% CPU of the broker", aims=[Aim("value", 1.0)],
            more=percent | {"seconds": options.count(OPEN_S)},
        ),
    ]  # fmt: skip


def _progress(what: str) -> None:
    print(f"console: {what}", file=sys.stderr, flush=True)


async def _fill(broker: Server) -> str:
    async with AdminClient(broker.namesrv) as admin:
        (data,) = (await admin.cluster.info()).broker_addr_table.values()
        address = data.broker_addrs[0]
        for number in range(TOPICS):
            topic = TopicConfig(topic_name=f"topic-{number}", read_queue_nums=4, write_queue_nums=4)
            await admin.topics.create_or_update(address, topic)
        for number in range(GROUPS):
            await admin.groups.create_or_update(address, SubscriptionGroupConfig(group_name=f"group-{number}"))
        async with Producer("bench", broker.namesrv) as producer:
            for _ in range(100):
                await producer.send(Message("topic-7", b"x" * 100))
        for queue_id in range(4):
            await admin.offsets.commit(address, "group-7", MessageQueue("topic-7", data.broker_name, queue_id), 5)
        return address


def _connection(console: Server) -> HTTPConnection:
    return HTTPConnection(urlsplit(f"http://127.0.0.1:{console.port}").netloc)


def _get(connection: HTTPConnection, path: str) -> int:
    """Return the size of a page."""
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status}")
    return len(body)


def _views(console: Server, broker: Server, path: str, call: Call, options: Options) -> Figure:
    _progress(path)
    views = options.count(VIEWS)
    connection = _connection(console)
    size = _get(connection, path)

    def view() -> float:
        begin = console.cpu_ns()
        for _ in range(views):
            _get(connection, path)
        return (console.cpu_ns() - begin) / views / 1e6

    async def ask() -> float:
        async with AdminClient(broker.namesrv) as admin:
            await call(admin)
            begin = time.process_time_ns()
            for _ in range(views):
                await call(admin)
            return (time.process_time_ns() - begin) / views / 1e6

    view()
    rounds = [(view(), asyncio.run(ask())) for _ in range(options.rounds)]
    viewed, asked = (sorted(column)[len(rounds) // 2] for column in zip(*rounds, strict=True))
    return Figure(
        f"console_page {path.partition('?')[0]}", viewed, "ms CPU", floor=asked,
        floor_is="the bare call of AdminClient", ratios=[one / other for one, other in rounds],
        aims=[Aim("value", 10.0)], more={"bytes": size},
    )  # fmt: skip


def _share(broker: Server, seconds: int, console: Server | None = None) -> float:
    """Return the share of a core that the broker uses while each open page of a console asks in its interval."""
    begin_s, begin_ns = time.monotonic(), broker.cpu_ns()
    if console is not None:
        connection, paths = _connection(console), itertools.cycle(PAGES)
        for number in range(seconds * TABS // REFRESH_S):
            _get(connection, next(paths))
            time.sleep(max(0.0, begin_s + (number + 1) * REFRESH_S / TABS - time.monotonic()))
    time.sleep(max(0.0, begin_s + seconds - time.monotonic()))
    return (broker.cpu_ns() - begin_ns) / 1e9 / (time.monotonic() - begin_s)
