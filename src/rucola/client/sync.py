"""The clients in plain blocking calls, for scripts and notebooks.

    with Producer("group", "host:9876") as producer:
        producer.send(Message("Flights", b"..."))

Each client here drives its asyncio counterpart of the same name, which has the full contracts, on an event loop in a
thread of its own; so heartbeats and pulls go on while the caller computes, and an asyncio loop that the caller may
have (a notebook's) is left alone. Calls may come from any thread except that loop's. A call that is interrupted
(Ctrl-C) is cancelled. A client that is open when the program ends is closed by an exit handler.

Every call costs a change of threads and back, some 50 to 100 microseconds; for many messages at a time there are
`send_many`, `send_batch` and `pull`.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rucola.client.consumer import pull_consumer as pull_module
from rucola.client.consumer import push_consumer as push_module
from rucola.client.consumer.pull_consumer import PULL_BATCH_SIZE, PullResult
from rucola.client.instance import GroupClient
from rucola.client.producer import producer as producer_module
from rucola.client.producer import transaction as transaction_module
from rucola.client.producer.producer import IN_FLIGHT, SEND_TIMEOUT_MS, QueueChoice
from rucola.client.producer.send_request import SendResult
from rucola.client.producer.transaction import LocalTransactionState, TransactionSendResult
from rucola.client.stats import ConsumerStats, ProducerStats
from rucola.errors import MQError
from rucola.message import Message, MessageExt
from rucola.protocol.heartbeat import SUB_ALL
from rucola.protocol.queue import MessageQueue

__all__ = ["LocalTransactionState", "Message", "Producer", "PullConsumer", "PushConsumer", "TransactionProducer"]

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=GroupClient)
T = TypeVar("T")

CHUNK = 4096
"""How many messages `send_many` reads ahead: results are fetched from the loop's thread in one go for so many."""


class EventLoopThread:
    """An event loop, a new one unless it is given, that runs in a thread of its own until it is stopped and closed."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.new_event_loop()
        self._lock = threading.RLock()
        """Held to submit work, so that none comes behind the last. Taken again if garbage collection posts some."""
        self._process_id = os.getpid()
        self._is_stopping = False
        self._has_ended = False
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` there and wait for its result here. MQError on the loop's own thread, and once it is stopped."""
        future = self._submit(work)
        try:
            return future.result()
        except CancelledError:
            if self._is_stopping:
                raise MQError("the client was closed before this call had ended") from None
            raise
        except BaseException:
            future.cancel()
            raise

    def post(self, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` there, from any thread, and wait for nothing. Once it is stopped: no effect."""
        try:
            self._submit(work, waits=False)
        except MQError:
            pass

    def stop(self) -> None:
        """Cancel all tasks of the loop, and end the loop and its thread. In a fork: no effect."""
        if self.is_inherited:
            return
        with self._lock:
            if self._is_stopping:
                return
            self._is_stopping = True
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join()
        self._loop.close()

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that has the thread: here there is neither thread nor loop."""
        return os.getpid() != self._process_id

    def check_caller(self) -> None:
        """Make sure that a blocking call from here does not wait for ever.

        MQError on the loop's own thread, and in a fork.
        """
        if self.is_inherited:
            raise MQError(
                f"the client was opened in process {self._process_id}, of which this one is a fork: its thread and its "
                "connections belong to that process; make a new client here"
            )
        if threading.current_thread() is self._thread:
            raise MQError(
                "a blocking call on the event loop's own thread would wait for itself: await the asyncio client"
            )

    def _submit(self, work: Coroutine[Any, Any, T], *, waits: bool = True) -> Future[T]:
        try:
            if waits or self.is_inherited:
                self.check_caller()
            with self._lock:
                if self._is_stopping:
                    raise MQError("the client is closed")
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except MQError:
            work.close()
            raise

    async def _finish(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        with suppress(RuntimeError):  # at the end of the program no thread can be started, which this wants to
            await self._loop.shutdown_default_executor()

    def _end(self) -> None:
        self._has_ended = True
        self._loop.stop()

    def _run_loop(self) -> None:
        """Run the loop until `stop`.

        asyncio lets SystemExit and KeyboardInterrupt of any task end the loop, for the sake of a main thread. Here they
        are errors of that task alone: its caller gets them, and the loop continues.
        """
        while not self._has_ended:
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()


class _Blocking(Generic[C]):
    """An asyncio client, driven from here. `with` opens and closes it; it can be opened once.

    One that is still open when the program ends is closed then.
    """

    def __init__(self, client: C) -> None:
        self._client = client
        self._thread: EventLoopThread | None = None
        self._lock = threading.RLock()
        """Held while the client is opened or closed."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def asyncio_client(self) -> C:
        """The client that is driven from here."""
        return self._client

    @property
    def group(self) -> str:
        return self._client.group

    def open(self) -> None:
        """Start."""
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

    def close(self) -> None:
        """Leave the group and end the thread. If another thread is closing the client, wait until it is closed.

        In a fork of the process that opened it: no effect.
        """
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
                thread.run(self._client.close())  # the first one is expedited now; it is waited for
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
        return MQError(f"{type(self).__name__} of group {self.group} is not open: use it inside `with`")

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a plain function on the loop's thread, where the client's state belongs."""
        if self._thread is None:
            return function(*arguments)

        async def call() -> T:
            return function(*arguments)

        return self._run(call())


_open_clients: set[_Blocking[Any]] = set()
os.register_at_fork(after_in_child=_open_clients.clear)  # they are the parent's


@atexit.register
def _close_all() -> None:
    """Close the clients that the program leaves open, while their threads still run.

    Python has waited for the threads of listeners before, and thread pools take no more calls. Without this, brokers
    keep the locks of queues for a minute, and everything since the last commit is delivered again.
    """
    for client in list(_open_clients):
        try:
            client.close()
        except Exception:
            logger.warning("%s of group %s could not be closed", type(client).__name__, client.group, exc_info=True)


class Producer(_Blocking[producer_module.Producer]):
    """Sends messages; `options` are those of the asyncio Producer."""

    def __init__(self, group: str, namesrv: str | None = None, **options: Any) -> None:
        super().__init__(producer_module.Producer(group, namesrv, **options))

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues that `send` chooses from."""
        return self._run(self._client.queues(topic))

    def stats(self) -> dict[str, ProducerStats]:
        """What was counted since the producer was made, by topic."""
        return self._client.stats()

    def send(self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS) -> SendResult:
        """Send one message and wait until it is stored."""
        return self._run(self._client.send(message, queue, timeout_ms))

    def request(self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS) -> MessageExt:
        """Send one message and wait for the reply of whoever consumes it."""
        return self._run(self._client.request(message, queue, timeout_ms))

    def reply(self, request: MessageExt, body: bytes, timeout_ms: float = SEND_TIMEOUT_MS) -> SendResult:
        """Answer a request that was consumed."""
        return self._run(self._client.reply(request, body, timeout_ms))

    def send_oneway(self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS) -> None:
        """Send one message without an answer."""
        self._run(self._client.send_oneway(message, queue, timeout_ms))

    def send_batch(
        self, messages: Iterable[Message], queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> list[SendResult]:
        """Send messages of one topic together; one result a message, in order."""
        return self._run(self._client.send_batch(messages, queue, timeout_ms))

    def send_many(
        self, messages: Iterable[Message], in_flight: int = IN_FLIGHT, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> list[SendResult]:
        """Send a stream of messages, many under way at a time; one result a message, in order."""

        async def send(chunk: list[Message]) -> list[SendResult]:
            return [result async for result in self._client.send_many(chunk, in_flight, timeout_ms)]

        results: list[SendResult] = []
        stream = iter(messages)
        while chunk := list(islice(stream, CHUNK)):
            results += self._run(send(chunk))
        return results


class TransactionProducer(Producer):
    """Sends messages that hang on local transactions; `check` and `execute` are plain functions, run in threads."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        check: Callable[[MessageExt], LocalTransactionState],
        **options: Any,
    ) -> None:
        self._transactions = transaction_module.TransactionProducer(group, namesrv, check=check, **options)
        _Blocking.__init__(self, self._transactions)

    def send_in_transaction(
        self,
        message: Message,
        execute: Callable[[Message], LocalTransactionState],
        timeout_ms: float = SEND_TIMEOUT_MS,
    ) -> TransactionSendResult:
        """Send half of the message, execute the local transaction, and end both as it says."""
        return self._run(self._transactions.send_in_transaction(message, execute, timeout_ms))


class PullConsumer(_Blocking[pull_module.PullConsumer]):
    """Reads queues from where it is told."""

    def __init__(self, group: str, namesrv: str | None = None, **options: Any) -> None:
        super().__init__(pull_module.PullConsumer(group, namesrv, **options))

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The topic's readable queues."""
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
        """The next messages from `queue_offset` on, and where to go on."""
        return self._run(self._client.pull(queue, queue_offset, max_count, subscription, suspend_ms=suspend_ms))

    def min_offset(self, queue: MessageQueue) -> int:
        """The queue offset of the oldest message."""
        return self._run(self._client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The queue offset that the next message will have."""
        return self._run(self._client.max_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Where to begin for what was stored at `timestamp_ms` or later."""
        return self._run(self._client.search_offset(queue, timestamp_ms))

    def committed(self, queue: MessageQueue) -> int | None:
        """How far the group has come."""
        return self._run(self._client.committed(queue))

    def commit(self, queue: MessageQueue, queue_offset: int) -> None:
        """Record how far the group has come."""
        self._run(self._client.commit(queue, queue_offset))


class PushConsumer(_Blocking[push_module.PushConsumer]):
    """Consumes topics for a group: by iteration (`for message in consumer`), or by a listener, run in threads."""

    def __init__(self, group: str, namesrv: str | None = None, **options: Any) -> None:
        super().__init__(push_module.PushConsumer(group, namesrv, **options))

    def subscribe(self, topic: str, expression: str = SUB_ALL, expression_type: str = "TAG") -> None:
        """Consume the topic's messages with one of the tags in `expression`, or that an SQL92 expression selects."""
        self._call(self._client.subscribe, topic, expression, expression_type)

    def unsubscribe(self, topic: str) -> None:
        """Consume the topic no more."""
        self._call(self._client.unsubscribe, topic)

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """This member's share at the moment."""
        return self._call(lambda: self._client.queues)

    def stats(self) -> dict[str, ConsumerStats]:
        """What was counted since the consumer was made, by topic."""
        return self._client.stats()

    def listen(self, listener: Callable[[MessageExt], Any]) -> None:
        """Call `listener` with each message; one that raises gives the message back."""
        self._call(self._client.listen, listener)

    def listen_to_batches(self, listener: Callable[[list[MessageExt]], Any], max_count: int) -> None:
        """Call `listener` with up to `max_count` messages of one queue that wait."""
        self._call(self._client.listen_to_batches, listener, max_count)

    def suspend(self) -> None:
        """Pull nothing more until `resume`; what has been pulled is still delivered."""
        self._call(self._client.suspend)

    def resume(self) -> None:
        """Go on after `suspend`."""
        self._call(self._client.resume)

    def __iter__(self) -> Iterator[MessageExt]:
        return self.messages()

    def messages(self, idle_timeout_ms: float | None = None) -> Iterator[MessageExt]:
        """Messages as they come, until closed, or until none came for `idle_timeout_ms`.

        Requesting the next message acknowledges the one before. A message in hand when the loop is left is not done:
        the next iteration begins with it.
        """
        if (thread := self._thread) is None:
            raise self._not_open()
        thread.check_caller()
        return self._messages(thread, idle_timeout_ms)

    def _messages(self, thread: EventLoopThread, idle_timeout_ms: float | None) -> Iterator[MessageExt]:
        stream = self._client.messages(idle_timeout_ms)

        async def following() -> MessageExt | None:
            return await anext(stream, None)

        try:
            while self._thread is thread and (message := thread.run(following())) is not None:
                yield message
        finally:
            thread.post(stream.aclose())  # waits for nothing: this may be the garbage collector, on any thread

    def ack(self, message: MessageExt) -> None:
        """The message is done."""
        self._call(self._client.ack, message)

    def reconsume_later(self, message: MessageExt, delay_level: int = 0) -> None:
        """Give the message back, to come again later."""
        self._run(self._client.reconsume_later(message, delay_level))
