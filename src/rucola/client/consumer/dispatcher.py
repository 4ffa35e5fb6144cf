"""Dispatcher: the calls of a listener, several at a time, and the watch over how long they take.

Side by side, what the application has in hand for longer than `consume_timeout_ms` is given back to the broker, so that
one message that never ends does not hold the queue's offset for ever; what its listener says of it later counts for
nothing. A plain function keeps its thread until it ends. In order there is no such limit: nothing may overtake.

A worker survives every failure of its listener, SystemExit and a CancelledError of the listener's own included. It ends
when the consumer closes, and when the event loop ends: `asyncio.run` then cancels all tasks. A delivery that such a
cancellation interrupts is neither done nor failed. The same holds for a delivery that no thread took: after the main
thread has ended, Python's thread pools refuse calls, though the consumer still runs.

Answers to the two `ConsumeMessage…Service` and to `ProcessQueue.cleanExpiredMsg` of Apache RocketMQ 4.9.8. Deliberate
difference: the time is looked at when it is up, where Apache looks once per timeout and so takes up to twice as long.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.clock import precise_monotonic_ms
from rucola.client.consumer.assigned_queue import Delivery
from rucola.client.consumer.listener import (
    ListenerAdapter,
    ListenerNotCalled,
    ReconsumeLater,
    SuspendCurrentQueueAMoment,
    is_addressed_to,
)
from rucola.client.consumer.options import ConsumeOptions
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.client.consumer.retry import EXPIRED_DELAY_LEVEL, RetryPolicy
from rucola.client.stats import ConsumeCounters, TopicConsumeCounters
from rucola.client.trace_hooks import HookContext
from rucola.message import MessageExt

logger = logging.getLogger(__name__)

NOT_CALLED_PAUSE_MS = 1000
"""How long a worker pauses after no thread took its call."""


class InFlightDeliveries:
    """What the application has in hand, in the order in which it got it. Counts what becomes of it."""

    def __init__(self, returns: RetryPolicy, counts: ConsumeCounters, timeout_ms: float) -> None:
        self._returns = returns
        self._counts = counts
        self._timeout_ms = timeout_ms
        self._held: dict[Delivery, tuple[float, TopicConsumeCounters]] = {}

    def take(self, delivery: Delivery) -> None:
        """The application gets this."""
        counts = self._counts.of(delivery.own.queue.topic)
        counts.in_hand += len(delivery.messages)
        self._held[delivery] = precise_monotonic_ms(), counts

    def leave(self, delivery: Delivery, done: int | None) -> bool:
        """Count a delivery as finished with `done` messages done; None counts neither success nor failure.

        Returns whether it was still in hand: it may have timed out and gone back to the broker.
        """
        held = self._held.pop(delivery, None)
        if held is None:
            return False
        since_ms, counts = held
        counts.left(len(delivery.messages), done, precise_monotonic_ms() - since_ms)
        return True

    async def watch(self) -> None:
        """Give back what is in hand for too long, for ever."""
        while True:
            delivery = next(iter(self._held), None)
            since_ms = precise_monotonic_ms() if delivery is None else self._held[delivery][0]
            left_ms = since_ms + self._timeout_ms - precise_monotonic_ms()
            if delivery is None or left_ms > 0:
                await asyncio.sleep(left_ms / 1000)
                continue
            self.leave(delivery, 0)
            logger.warning(
                "%s: messages from offset %d on were not consumed in %d s: they go back to the broker",
                delivery.own.queue, delivery.messages[0].queue_offset, self._timeout_ms / 1000,
            )  # fmt: skip
            await self._returns.take_back(delivery, EXPIRED_DELAY_LEVEL)


class Dispatcher:
    """Calls a listener with the messages of the line, several calls at a time.

    `on_stranded` is called if no call is possible any more: the main thread has ended, other threads have not.
    """

    def __init__(
        self,
        group: str,
        line: ReadyQueue,
        in_hand: InFlightDeliveries,
        returns: RetryPolicy,
        options: ConsumeOptions,
        on_stranded: Callable[[], None],
    ) -> None:
        self._group = group
        self._on_stranded = on_stranded
        self._line = line
        self._in_hand = in_hand
        self._returns = returns
        self._concurrency = options.concurrency
        self._trace = options.trace
        self._threads: ThreadPoolExecutor | None = None
        self._has_warned = False
        self._tasks = BackgroundTasks()
        self._closing = asyncio.Event()
        self._sentinel: asyncio.Task[None] | None = None

    def start(self, call: ListenerAdapter) -> None:
        """Begin to call this listener. No effect until `close` if it has begun already."""
        if self._sentinel is not None:
            return
        self._closing.clear()
        self._sentinel = self._tasks.start(self._until_closing(), f"sentinel of {self._group}")
        for number in range(self._concurrency):
            self._tasks.start(self._work(call), f"listener {number} of {self._group}")

    async def call(self, call: ListenerAdapter, messages: list[MessageExt]) -> None:
        """One call. Whatever the listener raises is raised."""
        if call.needs_thread and self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, f"listener of {self._group}")
        if self._trace is None:
            await call(messages, self._threads)
        else:
            with HookContext(self._trace.consuming, self._group, messages):
                await call(messages, self._threads)

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is one in which the listener is called."""
        return task in self._tasks

    async def close(self, grace_ms: float) -> None:
        """End, after a grace for running calls, which a second call cuts short. The line must be closed before."""
        if self._closing.is_set():
            grace_ms = 0
        self._closing.set()
        await self._tasks.close(grace_ms)
        self._sentinel = None
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def _work(self, call: ListenerAdapter) -> None:
        """Call the listener with one delivery after the other until the line is closed."""
        task = asyncio.current_task()
        assert task is not None
        while (delivery := await self._line.take(call.max_count)) is not None:
            failure: BaseException | None = None
            done: int | None = None  # unknown, if this worker is cancelled
            self._in_hand.take(delivery)
            try:
                await self.call(call, delivery.messages)
                done = len(delivery.messages)
            except ReconsumeLater as later:
                failure = later
                done = min(max(0, later.ack_index + 1), len(delivery.messages))
            except ListenerNotCalled as error:
                await self._not_called(delivery, error)
                continue
            except BaseException as error:
                is_listeners_own = isinstance(error, asyncio.CancelledError) and not self._is_ending()
                if not is_listeners_own and is_addressed_to(task, error):
                    raise
                failure = error
                done = 0
            finally:
                self._in_hand.leave(delivery, done)
            if task.cancelling() and not self._is_ending():
                await self._withdraw_cancellation(task)
            if failure is None:
                delivery.done()
                self._line.leave(delivery)
            else:
                await self._give_back(delivery, failure)
            if task.cancelling():
                raise asyncio.CancelledError  # the listener has suppressed it

    async def _not_called(self, delivery: Delivery, error: ListenerNotCalled) -> None:
        """Requeue a delivery that the listener has not seen, and which therefore has not failed, and pause."""
        self._in_hand.leave(delivery, None)
        self._line.requeue(delivery)
        if not self._has_warned:
            self._has_warned = True
            logger.warning("group %s: messages wait, uncommitted: %s", self._group, error)
        if not threading.main_thread().is_alive():
            self._on_stranded()
        with suppress(TimeoutError):
            async with asyncio.timeout(NOT_CALLED_PAUSE_MS / 1000):
                await self._closing.wait()

    async def _give_back(self, delivery: Delivery, failure: BaseException) -> None:
        """The listener has failed on a delivery, or says that it comes again."""
        match failure:
            case ReconsumeLater():
                delivery.done(delivery.messages[: max(0, failure.ack_index + 1)])
                await self._returns.take_back(delivery, failure.delay_level)
            case SuspendCurrentQueueAMoment():
                await self._returns.take_back(delivery, suspend_ms=failure.suspend_ms)
            case _:
                first = delivery.messages[0]
                logger.warning(
                    "group %s: the listener failed on message %s of topic %s, tried %d times before, and %d after it",
                    self._group, first.msg_id, first.topic, first.reconsume_times, len(delivery.messages) - 1,
                    exc_info=failure,
                )  # fmt: skip
                await self._returns.take_back(delivery)

    async def _until_closing(self) -> None:
        """Wait until the consumer closes. If this task is cancelled before, all tasks of the loop are."""
        await self._closing.wait()

    def _is_ending(self) -> bool:
        """Whether a worker that is cancelled must end; if not, its listener has cancelled it.

        A task does not know its canceller. The end of `asyncio.run` cancels the sentinel together with the workers; a
        listener that cancels its current task, or a library that forgets `task.uncancel()`, does not.
        """
        return self._closing.is_set() or self._sentinel is None or self._sentinel.cancelling() > 0

    async def _withdraw_cancellation(self, task: asyncio.Task[None]) -> None:
        """Undo a `task.cancel()` of the listener on the worker that runs it."""
        while task.uncancel():
            pass
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # which raises it, if nothing has awaited since
        if task.cancelling() and self._is_ending():
            raise asyncio.CancelledError
