"""Blocking clients, for scripts and notebooks.

    with Producer("group", "host:9876") as producer:
        producer.send(Message("Flights", b"..."))

Each client drives its asyncio counterpart, which has the full documentation, on an event loop in its own thread.
Methods may be called on any other thread. An interrupted call (Ctrl-C) is cancelled. Clients that are still open are
closed when the program ends. Every call switches threads twice (50 to 100 microseconds), `send_many` once per CHUNK.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar, Unpack

from rucola.client.connection_options import ConnectionOptions
from rucola.client.consumer import pull_consumer as pull_module
from rucola.client.consumer import push_consumer as push_module
from rucola.client.consumer import simple_consumer as simple_module
from rucola.client.consumer.pull_consumer import PULL_BATCH_SIZE, PullResult
from rucola.client.consumer.push_consumer import PushConsumerArguments
from rucola.client.consumer.simple_consumer import ReceiveKeywords
from rucola.client.event_loop_thread import EventLoopThread
from rucola.client.group_client import GroupClient, GroupClientKeywords
from rucola.client.producer import producer as producer_module
from rucola.client.producer import transaction as transaction_module
from rucola.client.producer.producer import IN_FLIGHT, SEND_TIMEOUT_MS, ProducerArguments
from rucola.client.producer.queue_selectors import QueueChoice
from rucola.client.producer.send_request import SendResult
from rucola.client.producer.transaction import LocalTransactionState, TransactionSendResult
from rucola.client.stats import ConsumerStats, ProducerStats
from rucola.domain.queue import MessageQueue
from rucola.domain.subscription import SUB_ALL
from rucola.errors import MQError, RemotingError
from rucola.message import Message
from rucola.message.message import MessageExt, V

__all__ = [
    "LocalTransactionState",
    "Message",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
]

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=GroupClient)
T = TypeVar("T")

CHUNK = 4096


class _Blocking(Generic[C]):
    """A blocking client around an asyncio client; `with` opens and closes it, repeatedly."""

    def __init__(self, client: C) -> None:
        self._client = client
        client.owns_instance = True  # a shared one too, since it is used on the loop that ends with this client
        self._thread: EventLoopThread | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self.open()

    async def __aenter__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is a blocking client: write `with`, or import it from rucola.client")

    async def __aexit__(self, *error: object) -> None:
        raise NotImplementedError  # never called; without it `async with` would raise another error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def asyncio_client(self) -> C:
        return self._client

    @property
    def group(self) -> str:
        return self._client.group

    def open(self) -> Self:
        """Start the thread and open the client; no effect if open. If that fails, everything is closed again."""
        if self._thread is not None:
            self._thread.check_caller()
        with self._lock:
            if self._thread is None:
                self._thread = EventLoopThread(f"{type(self).__name__} of {self.group}")
                _open_clients.add(self)
                try:
                    self._run(self._client.open())
                except BaseException:
                    self.close()
                    raise
        return self

    def close(self) -> None:
        """Close the client and end the thread, or wait until another thread has. Idempotent. No effect in a fork."""
        thread = self._thread
        if thread is None or thread.is_inherited:
            return
        thread.check_caller()
        with self._lock:
            if self._thread is not thread:
                return
            try:
                thread.run(self._client.close())
            except KeyboardInterrupt:
                # The interrupted call is cancelled, and so expedited; this one waits for it.
                thread.run(self._client.close())
                raise
            finally:
                thread.stop()
                self._thread = None
                _open_clients.discard(self)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise self._not_open()
        return self._thread.run(work)

    def _not_open(self) -> MQError:
        return RemotingError(f"{type(self).__name__} of group {self.group} is not open: use it inside `with`")

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        if self._thread is None:
            return function(*arguments)

        async def call() -> T:
            return function(*arguments)

        return self._run(call())


_open_clients: set[_Blocking[Any]] = set()
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_open_clients.clear)  # the open clients belong to the parent


@atexit.register
def _close_all() -> None:
    """Close open clients at exit, while their threads run: else brokers keep locks and redeliver messages."""
    for client in list(_open_clients):
        try:
            client.close()
        except Exception:
            logger.warning("%s of group %s could not be closed", type(client).__name__, client.group, exc_info=True)


class Producer(_Blocking[producer_module.Producer[V]], Generic[V]):
    """Sends messages. For `options` see the asyncio Producer."""

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None = None,
        **options: Unpack[ProducerArguments[V]],
    ) -> None:
        super().__init__(producer_module.Producer(group, namesrv, **options))

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        return self._run(self._client.queues(topic))

    def stats(self) -> dict[str, ProducerStats]:
        return self._client.stats()

    def message(
        self,
        topic: str,
        value: V,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: dict[str, str] | None = None,
    ) -> Message:
        """Return a message whose body is a value, encoded by the option `value`."""
        return self._client.message(topic, value, tags, keys, properties)

    def send(self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS) -> SendResult:
        return self._run(self._client.send(message, queue, timeout_ms))

    def request(self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS) -> MessageExt:
        """Send a message and wait for the reply of its consumer."""
        return self._run(self._client.request(message, queue, timeout_ms))

    def reply(self, request: MessageExt, body: bytes, timeout_ms: float = SEND_TIMEOUT_MS) -> SendResult:
        return self._run(self._client.reply(request, body, timeout_ms))

    def send_oneway(self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS) -> None:
        """Send a message without a response, so that its outcome is unknown."""
        self._run(self._client.send_oneway(message, queue, timeout_ms))

    def send_batch(
        self, messages: Iterable[Message], queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> list[SendResult]:
        """Send messages of one topic together; return one result per message, in order."""
        return self._run(self._client.send_batch(messages, queue, timeout_ms))

    def send_many(
        self, messages: Iterable[Message], in_flight: int = IN_FLIGHT, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> list[SendResult]:
        """Send messages, up to `in_flight` at a time; return one result per message, in order."""

        async def send(chunk: list[Message]) -> list[SendResult]:
            return await self._client.send_many(chunk, in_flight, timeout_ms)

        results: list[SendResult] = []
        stream = iter(messages)
        while chunk := list(islice(stream, CHUNK)):
            results += self._run(send(chunk))
        return results


class TransactionProducer(Producer[V]):
    """Sends messages with local transactions. `check` and `execute` are plain functions, which run in threads."""

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None = None,
        *,
        check: Callable[[MessageExt], LocalTransactionState],
        topics: Iterable[str] = (),
        **options: Unpack[ProducerArguments[V]],
    ) -> None:
        self._transactions = transaction_module.TransactionProducer(
            group, namesrv, check=check, topics=topics, **options
        )
        _Blocking.__init__(self, self._transactions)

    def send_in_transaction(
        self,
        message: Message,
        execute: Callable[[Message], LocalTransactionState],
        timeout_ms: float = SEND_TIMEOUT_MS,
    ) -> TransactionSendResult:
        """Send a half message, execute the local transaction, and end the message's transaction."""
        return self._run(self._transactions.send_in_transaction(message, execute, timeout_ms))


class PullConsumer(_Blocking[pull_module.PullConsumer]):
    """Reads queues at offsets that the caller chooses."""

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None = None,
        **options: Unpack[GroupClientKeywords],
    ) -> None:
        super().__init__(pull_module.PullConsumer(group, namesrv, **options))

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        return self._run(self._client.queues(topic))

    def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        max_count: int = PULL_BATCH_SIZE,
        subscription: str = SUB_ALL,
        *,
        suspend_ms: int = 0,
    ) -> PullResult:
        """Pull messages from `queue_offset` on; the result has them and the next offset."""
        return self._run(self._client.pull(queue, queue_offset, max_count, subscription, suspend_ms=suspend_ms))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset of the oldest message."""
        return self._run(self._client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset that the next message will have."""
        return self._run(self._client.max_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the queue offset from which messages were stored at `timestamp_ms` or later."""
        return self._run(self._client.search_offset(queue, timestamp_ms))

    def committed(self, queue: MessageQueue) -> int | None:
        return self._run(self._client.committed(queue))

    def commit(self, queue: MessageQueue, queue_offset: int) -> None:
        self._run(self._client.commit(queue, queue_offset))


class SimpleConsumer(_Blocking[simple_module.SimpleConsumer]):
    """Receives messages by POP, and acknowledges them one by one."""

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None = None,
        *,
        orderly: bool = False,
        begin_at_end: bool = False,
        **options: Unpack[GroupClientKeywords],
    ) -> None:
        super().__init__(
            simple_module.SimpleConsumer(group, namesrv, orderly=orderly, begin_at_end=begin_at_end, **options)
        )

    def receive(
        self, topic: str, max_messages: int = simple_module.MAX_MESSAGES, **options: Unpack[ReceiveKeywords]
    ) -> list[MessageExt]:
        """Return messages, hidden from other receives for `invisible_ms`; none after `wait_ms` without any."""
        return self._run(self._client.receive(topic, max_messages, **options))

    def ack(self, messages: MessageExt | Iterable[MessageExt]) -> None:
        """Finish messages."""
        self._run(self._client.ack(messages))

    def change_invisible(self, message: MessageExt, invisible_ms: int) -> None:
        """Hide a message from other receives for `invisible_ms` from now."""
        self._run(self._client.change_invisible(message, invisible_ms))


class PushConsumer(_Blocking[push_module.PushConsumer[V]], Generic[V]):
    """Consumes topics, by iteration (`for message in consumer`) or by a listener in threads."""

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None = None,
        **options: Unpack[PushConsumerArguments[V]],
    ) -> None:
        super().__init__(push_module.PushConsumer(group, namesrv, **options))

    def subscribe(self, topic: str, expression: str = SUB_ALL, expression_type: str = "TAG") -> None:
        """Subscribe to messages by tags, or by an SQL92 expression."""
        self._call(self._client.subscribe, topic, expression, expression_type)

    def unsubscribe(self, topic: str) -> None:
        self._call(self._client.unsubscribe, topic)

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that are assigned to this member now."""
        return self._call(lambda: self._client.queues)

    def stats(self) -> dict[str, ConsumerStats]:
        return self._client.stats()

    def listen(self, listener: Callable[[MessageExt[V]], Any]) -> None:
        """Call `listener` with each message; if it raises, the message is retried."""
        self._call(self._client.listen, listener)

    def listen_to_batches(self, listener: Callable[[list[MessageExt[V]]], Any], max_count: int) -> None:
        """Call `listener` with up to `max_count` waiting messages of one queue."""
        self._call(self._client.listen_to_batches, listener, max_count)

    def suspend(self) -> None:
        """Stop pulling until `resume`; messages that were pulled are still delivered."""
        self._call(self._client.suspend)

    def resume(self) -> None:
        self._call(self._client.resume)

    def __iter__(self) -> Iterator[MessageExt[V]]:
        return self.messages()

    def messages(self, idle_timeout_ms: float | None = None) -> Iterator[MessageExt[V]]:
        """Iterate over messages until the consumer is closed, or until none has arrived for `idle_timeout_ms`.

        Requesting the next message acknowledges the one before; one in flight when the loop ends is redelivered.
        """
        if (thread := self._thread) is None:
            raise self._not_open()
        thread.check_caller()
        return self._messages(thread, idle_timeout_ms)

    def _messages(self, thread: EventLoopThread, idle_timeout_ms: float | None) -> Iterator[MessageExt]:
        stream = self._client.messages(idle_timeout_ms)

        async def next_message() -> MessageExt | None:
            return await anext(stream, None)

        try:
            while self._thread is thread and (message := thread.run(next_message())) is not None:
                yield message
        finally:
            # Without waiting: this may run in the garbage collector, on any thread.
            thread.post(stream.aclose())

    def ack(self, message: MessageExt) -> None:
        self._call(self._client.ack, message)

    def reconsume_later(self, message: MessageExt, delay_level: int = 0) -> None:
        self._run(self._client.reconsume_later(message, delay_level))
