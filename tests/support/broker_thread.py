"""A cluster in a thread of its own, for tests that block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from rucola.client.sync import EventLoopThread
from support.cluster import cluster


@contextmanager
def servers(path: Path, queues: int = 2, port: int = 0) -> Iterator[str]:
    """A name server and a broker with topic T, in a thread of their own; gives the name server's address."""
    thread = EventLoopThread("servers")
    context = cluster(path, port)
    running = thread.run(context.__aenter__())

    async def fill() -> None:
        await running.create_topic(await running.start_broker(), "T", queues)

    try:
        thread.run(fill())
        yield running.namesrv
    finally:
        thread.run(context.__aexit__(None, None, None))
        thread.stop()


@contextmanager
def broker_thread(path: Path, *topics: str) -> Iterator[str]:
    """The name server of a broker with these topics. It runs in a thread: Spark wants the one that made the session."""

    async def start() -> str:
        running = await stack.enter_async_context(cluster(path))
        started = await running.start_broker()
        for topic in topics:
            await running.create_topic(started, topic)
        return running.namesrv

    thread, stack = EventLoopThread("broker"), AsyncExitStack()
    try:
        yield thread.run(start())
    finally:
        thread.run(stack.aclose())
        thread.stop()
