"""Name server and broker for tests, with methods to drive and inspect them.

Both are complete servers on an event loop in a separate thread, on free ports of 127.0.0.1. Clients may run in this or
another process, in any language.

`advance` moves the clock of the loop: all timers of the broker fire, while clients and the name server keep the real
time, so that no route is lost.

All methods block. An async test whose client shares its loop calls them through `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from rucola.acl.credentials import Credentials
from rucola.admin import AdminClient
from rucola.broker.broker import Broker, wall_clock_ms
from rucola.broker.config import from_properties
from rucola.client import ClientTls, ConnectionOptions, Message, MessageExt, Producer, PullConsumer, SendResult
from rucola.client.event_loop_thread import EventLoopThread
from rucola.domain.queue import MessageQueue
from rucola.domain.statistics import OffsetWrapper
from rucola.domain.subscription import SUB_ALL
from rucola.domain.topic import TopicConfig
from rucola.errors import ConfigError, TopicNotFound
from rucola.message.topics import dlq_topic
from rucola.name_server_addresses import NAMESRV_VARIABLES
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv

T = TypeVar("T")

HOST = "127.0.0.1"
GROUP = "RUCOLA_TESTING"
"""Group of the producer and the consumer that implement `send` and `messages`."""
TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.01
PULL_COUNT = 1000
SMALL_STORE = {
    "mapped_file_size_commit_log": 16 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
}
"""Sizes of files that hold the largest message and are created quickly."""


class AdvanceableLoop(asyncio.SelectorEventLoop):
    """Event loop whose clock can be advanced; due timers run in order."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


class RocketMQ:
    """A name server and a broker; `with RocketMQ(directory) as rocketmq` starts and stops them.

    `namesrv` is the address for clients, "127.0.0.1:port", `grpc_endpoint` that for clients of RocketMQ 5. `settings`
    maps keys of broker.conf to values; ConfigError names unknown keys. `tls.config.file` applies to both servers.
    `credentials` sign the fixture's own requests; the default is from the environment.
    """

    namesrv: str
    broker: str
    grpc_endpoint: str

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str | int | bool] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._credentials = credentials
        self.store = directory / "store"
        self._settings = {key: _text(value) for key, value in (settings or {}).items()}
        # 0 until the first start; a restarted broker keeps its port.
        self._listen_port = self._grpc_port = 0
        # Everything that runs until `__exit__`; and the broker alone, which `broker_down` stops. Used on the loop only.
        self._running = AsyncExitStack()
        self._running_broker = AsyncExitStack()

    def __enter__(self) -> Self:
        self._loop = AdvanceableLoop()
        self._thread = EventLoopThread("rocketmq for tests", self._loop)
        try:
            self._thread.run(self._start())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables from which clients read the name server's address and their TLS file."""
        file = self._settings.get("tls.config.file")
        return dict.fromkeys(NAMESRV_VARIABLES, self.namesrv) | ({ClientTls.VARIABLE: file} if file else {})

    # Actions.

    def create_topic(self, topic: str, queues: int = 4, *, order: bool = False) -> None:
        """Create or change a topic. Not needed before a send: the broker creates unknown topics."""
        config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, order=order)
        self._thread.run(self._admin.topics.create_or_update(self.broker, config))

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        delay_level: int = 0,
        properties: dict[str, str] | None = None,
        queue_id: int | None = None,
    ) -> SendResult:
        """Send a message, to queue `queue_id` if given. SendFailed or BrokerError if the broker refuses it."""
        message = Message(topic, body, tags=tags, keys=keys, properties=properties)
        if delay_level:
            message.delay_level = delay_level
        return self._thread.run(self._send(message, queue_id))

    def unique(self, name: str) -> str:
        """Return a unique name of a topic or group, for tests that share a broker."""
        return f"{name}-{uuid.uuid4().hex[:12]}"

    def advance(self, seconds: float) -> None:
        """Advance the broker's clock: delayed messages, retries and transaction checks become due.

        The broker closes connections after 120 s of its time without a heartbeat; clients reconnect. ConfigError if
        negative.
        """
        if not seconds >= 0:  # also refuses NaN
            raise ConfigError(f"advance({seconds}): the clock of a broker cannot run back")
        self._thread.run(self._advance(seconds))

    @contextmanager
    def broker_down(self) -> Iterator[None]:
        """Stop the broker inside `with`, then start it again on the same store and port."""
        self._thread.run(self._running_broker.aclose())
        try:
            yield
        finally:
            self._thread.run(self._start_broker())

    # Inspection.

    def messages(self, topic: str, tags: str = SUB_ALL) -> list[MessageExt]:
        """Return a topic's messages with one of the tags ("food || drinks"), in log order. Consumes nothing."""
        return self._thread.run(self._messages(topic, tags))

    def wait_for_messages(
        self, topic: str, count: int = 1, *, tags: str = SUB_ALL, timeout_s: float = TIMEOUT_S
    ) -> list[MessageExt]:
        """Wait for and return at least `count` messages. After `timeout_s` an AssertionError lists those found."""
        __tracebackhide__ = True
        found = self._poll(lambda: self.messages(topic, tags), lambda found: len(found) >= count, timeout_s)
        if len(found) < count:
            raise AssertionError(self._describe_topic(topic, tags, found, count, timeout_s))
        return found

    def dead_letters(self, group: str) -> list[MessageExt]:
        """Return the messages in the group's dead letter queue."""
        return self.messages(dlq_topic(group))

    def wait_for_dead_letters(self, group: str, count: int = 1, *, timeout_s: float = TIMEOUT_S) -> list[MessageExt]:
        """Wait for and return at least `count` dead letters of a group, as `wait_for_messages` does."""
        __tracebackhide__ = True
        return self.wait_for_messages(dlq_topic(group), count, timeout_s=timeout_s)

    def offsets(self, group: str, topic: str) -> dict[int, OffsetWrapper]:
        """Return the group's committed and end offsets by queue id. Without a commit the offset is 0."""
        stats = self._thread.run(self._admin.groups.consume_stats(group, topic))
        return {queue.queue_id: offset for queue, offset in stats.offset_table.items() if queue.topic == topic}

    def wait_until_consumed(self, group: str, topic: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until a group has committed a topic's end offsets. AssertionError with its offsets after `timeout_s`."""
        __tracebackhide__ = True
        behind = self._poll(lambda: self._backlog(group, topic), lambda behind: not behind, timeout_s)
        if behind:
            raise AssertionError(
                f"after {timeout_s:g} s group {group} had not consumed all of topic {topic}:\n  " + "\n  ".join(behind)
            )

    # Coroutines on the loop of the servers.

    async def _start(self) -> None:
        broker_config, _, _ = from_properties(self._settings)
        self._tls = broker_config.tls.of_own_client()
        client_tls = ClientTls.of(self._tls)
        namesrv = await self._running.enter_async_context(Namesrv(HOST, 0, config=NamesrvConfig(tls=self._tls)))
        self.namesrv = f"{HOST}:{namesrv.port}"
        self._running.push_async_callback(lambda: self._running_broker.aclose())
        await self._start_broker()
        enter, keys = self._running.enter_async_context, self._credentials
        connection = ConnectionOptions(self.namesrv, client_tls, keys)
        self._admin = await enter(AdminClient(connection))
        self._producer = await enter(Producer(GROUP, connection))
        self._reader = await enter(PullConsumer(GROUP, connection))

    async def _start_broker(self) -> None:
        config, store_config, unknown = from_properties(
            self._settings,
            broker_name="broker-a",
            broker_ip1=HOST,
            bind_address=HOST,
            listen_port=self._listen_port,
            grpc_server_port=self._grpc_port,
            ha_listen_port=0,
            namesrv_addr=self.namesrv,
            store_path_root_dir=self.store,
            **SMALL_STORE,
        )
        if unknown:
            raise ConfigError(f"unknown settings: {', '.join(sorted(unknown))}; write keys as in broker.conf")
        config.tls = self._tls
        self._running_broker = AsyncExitStack()
        broker = await self._running_broker.enter_async_context(Broker(config, store_config, clock=self._clock_ms))
        self._listen_port, self._grpc_port = config.listen_port, config.grpc_server_port
        self.broker, self.grpc_endpoint = broker.address, broker.grpc_endpoint

    def _stop(self) -> None:
        try:
            self._thread.run(self._running.aclose())
        finally:
            self._thread.stop()

    def _clock_ms(self) -> int:
        return wall_clock_ms() + int(self._loop.ahead_s * 1000)

    async def _advance(self, seconds: float) -> None:
        self._loop.ahead_s += seconds

    async def _send(self, message: Message, queue_id: int | None) -> SendResult:
        if queue_id is None:
            return await self._producer.send(message)
        queues = {queue.queue_id: queue for queue in await self._producer.queues(message.topic)}
        if queue_id not in queues:
            raise ConfigError(f"topic {message.topic} has no queue {queue_id}, only {', '.join(map(str, queues))}")
        return await self._producer.send(message, queues[queue_id])

    async def _messages(self, topic: str, tags: str) -> list[MessageExt]:
        try:
            ends = await self._admin.topics.stats(topic)
        except TopicNotFound:
            return []
        found: list[MessageExt] = []
        for queue, end in ends.items():
            found += await self._messages_of_queue(queue, end.min_offset, end.max_offset, tags)
        return sorted(found, key=lambda message: message.physical_offset)

    async def _messages_of_queue(self, queue: MessageQueue, begin: int, end: int, tags: str) -> list[MessageExt]:
        found: list[MessageExt] = []
        while begin < end:
            result = await self._reader.pull(queue, begin, PULL_COUNT, tags)
            found += result.messages
            if result.next_begin_offset <= begin:
                break
            begin = result.next_begin_offset
        return found

    # Polling, and the messages of failed expectations.

    def _poll(self, look: Callable[[], T], is_enough: Callable[[T], bool], timeout_s: float) -> T:
        deadline = time.monotonic() + timeout_s
        while not is_enough(seen := look()) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        return seen

    def _backlog(self, group: str, topic: str) -> list[str]:
        offsets = self.offsets(group, topic)
        if not offsets:
            return ["there is no such topic"]
        return [
            f"queue {queue_id}: {place.consumer_offset} of {place.broker_offset}"
            for queue_id, place in offsets.items()
            if place.consumer_offset < place.broker_offset
        ]

    def _describe_topic(self, topic: str, tags: str, found: list[MessageExt], count: int, timeout_s: float) -> str:
        with_tags = "" if tags == SUB_ALL else f" with tags {tags}"
        lines = [f"after {timeout_s:g} s topic {topic} had {len(found)} of {count} messages{with_tags}"]
        lines += [f"  there is queue {_summary_of(message)}" for message in found]
        others = Counter(message.tags for message in self.messages(topic)) - Counter(m.tags for m in found)
        lines += [f"  with other tags: {tag or 'no tag'} ({number})" for tag, number in others.items()]
        lines += [f"  topic {other} has {number}" for other, number in self._message_counts().items() if other != topic]
        return "\n".join(lines)

    def _message_counts(self) -> dict[str, int]:
        async def count() -> dict[str, int]:
            topics = await self._admin.topics.names()
            stats = {topic: await self._admin.topics.stats(topic) for topic in topics}
            return {topic: sum(q.max_offset - q.min_offset for q in queues.values()) for topic, queues in stats.items()}

        return {topic: number for topic, number in self._thread.run(count()).items() if number}


def _summary_of(message: MessageExt) -> str:
    words = [f"{message.queue_id} offset {message.queue_offset}"]
    words += [f"tags {message.tags}"] if message.tags else []
    words += [f"keys {message.keys}"] if message.keys else []
    body = message.body if len(message.body) <= 60 else message.body[:60] + b"..."
    return f"{', '.join(words)}: {body!r}"


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
