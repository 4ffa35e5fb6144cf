"""Dispatcher: calls the listener with deliveries from the ready queue, on several workers.

A worker gets a delivery, counts it as in flight, and calls the listener: a coroutine function on the event loop, a
plain function in the thread pool. If it returns, the delivery is complete; if it raises, it is retried (`retry`).

A visit of a thread costs more than most plain functions, so one that takes microseconds gets a run of deliveries: twice
as many as in the worker's last run, up to MAX_RUN. Those that the thread has not begun after RUN_S go to other workers.

A worker survives every failure of its listener, including SystemExit and the listener's own CancelledError. It ends
when the consumer closes, and when `asyncio.run` ends and cancels all tasks; the interrupted delivery neither completes
nor fails. The same holds for a delivery that no thread accepts, since the system has none. A call of a plain function
cannot be stopped from outside: it may outlast the consumer, but not the program.

Corresponds to the two `ConsumeMessage…Service` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.callbacks import Outcome, is_addressed_to
from rucola.client.consumer.assigned_queue import Delivery
from rucola.client.consumer.context import ConsumerContext
from rucola.client.consumer.in_flight_deliveries import InFlightDeliveries
from rucola.client.consumer.listener import (
    ListenerAdapter,
    ListenerNotCalled,
    ReconsumeLater,
    SuspendCurrentQueueAMoment,
    UnknownStatus,
)
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.client.consumer.retry import ConsumeRetry
from rucola.client.daemon_threads import DaemonThreads
from rucola.client.trace_hooks import HookContext
from rucola.client.values import Values
from rucola.errors import InvalidBody
from rucola.message import MessageExt
from rucola.outages import LINE_INTERVAL_S, in_one_line

logger = logging.getLogger(__name__)

NOT_CALLED_PAUSE_MS = 1000
MAX_RUN = 64
RUN_S = 0.005


class Dispatcher:
    """Calls one consumer's listener, on one event loop."""

    def __init__(
        self,
        context: ConsumerContext,
        ready_queue: ReadyQueue,
        in_flight: InFlightDeliveries,
        retry: ConsumeRetry,
        values: Values,
    ) -> None:
        self.listener: ListenerAdapter | None = None
        self._group = context.group
        self._concurrency = context.options.concurrency
        self._trace = context.options.trace
        self._ready_queue = ready_queue
        self._in_flight = in_flight
        self._retries = retry
        self._values = values
        self._threads = DaemonThreads(self._concurrency, f"listener of {self._group}")
        self._has_warned = False
        self._next_traceback_s = 0.0
        """A failure before has one line; a later one has its traceback as well."""
        self._has_reported_status = False
        self._tasks = BackgroundTasks()
        self._closing = asyncio.Event()
        self._sentinel: asyncio.Task[None] | None = None
        """A task that only ends, or is cancelled, together with the workers, see `_is_ending`."""

    def start(self) -> None:
        """Start the workers, if there is a listener. No effect if they run."""
        if self._sentinel is not None or self.listener is None:
            return
        if self.listener.needs_thread:
            with suppress(RuntimeError):  # the first call says so
                self._threads.start()
        self._closing = asyncio.Event()
        self._sentinel = self._tasks.start(self._wait_for_closing(), f"sentinel of {self._group}")
        for number in range(self._concurrency):
            self._tasks.start(self._work(self.listener), f"listener {number} of {self._group}")

    async def call(self, listener: ListenerAdapter, messages: list[MessageExt]) -> None:
        """Call the listener once, within the context of the trace; raise its exception. InvalidBody."""
        if not listener.takes_list:
            self._values.decode(messages[0])
        if self._trace is None:
            await listener(messages, self._threads)
        else:
            with HookContext(self._trace.consuming, self._group, messages):
                await listener(messages, self._threads)

    def owns_task(self, task: asyncio.Task[Any] | None) -> bool:
        return task in self._tasks

    async def close(self, grace_ms: float) -> None:
        """Stop the workers after a grace period, which a second call ends. The ready queue must be closed before."""
        if self._closing.is_set():
            grace_ms = 0
        self._closing.set()
        await self._tasks.wait(grace_ms)
        if self.listener and grace_ms and (running := self._in_flight.messages()):
            first = running[0]
            logger.warning(
                "group %s: closing, although the listener has not returned for %d s; the group receives its messages "
                "again: %d, the first is %s of topic %s",
                self._group, grace_ms // 1000, len(running), first.msg_id, first.topic,
            )  # fmt: skip
        await self._tasks.close()
        self._sentinel = None
        self._threads.close()

    async def _work(self, listener: ListenerAdapter) -> None:
        task = asyncio.current_task()
        assert task is not None
        # A trace sees each call, and values are decoded on the event loop: then a thread gets one delivery.
        takes_runs = listener.needs_thread and not (listener.takes_list or self._trace or self._values.is_used)
        get_nowait, max_count, run_size = self._ready_queue.get_nowait, listener.max_count, 1
        while (delivery := get_nowait(max_count) or await self._ready_queue.get(max_count)) is not None:
            run = [delivery]
            try:
                if takes_runs:
                    while len(run) < run_size and (following := get_nowait()) is not None:
                        run.append(following)
                    run_size = await self._deliver_run(listener, run, task)
                else:
                    self._in_flight.begin(delivery)
                    await self._deliver(delivery, self.call(listener, delivery.messages), task)
            except ListenerNotCalled as error:
                self._requeue_uncalled(run, error)
                await self._pause_until_closing()

    async def _deliver_run(self, listener: ListenerAdapter, run: list[Delivery], task: asyncio.Task[Any]) -> int:
        """Deliver those that a thread begins within RUN_S, requeue the others, and return the size of the next run."""
        size, begin_s = len(run), time.monotonic()
        messages = deque([delivery.messages[0] for delivery in run])
        outcomes: list[Outcome] = []

        async def end(calls: slice) -> None:
            # What succeeded is complete even if this worker ends while failures are retried.
            called = sorted(zip(run[calls], outcomes[calls], strict=True), key=lambda each: each[1][1] is not None)
            for delivery, outcome in called:
                await self._deliver(delivery, listener.end(outcome), task)

        for delivery in run:
            self._in_flight.begin(delivery)
        try:
            running = listener.start_in_thread(messages, outcomes, self._threads)
            await asyncio.wait([running], timeout=RUN_S if size > 1 else None)
            is_fast = time.monotonic() - begin_s < RUN_S
            with suppress(IndexError):  # the thread takes them as well
                while True:
                    messages.pop()
                    uncalled = run.pop()
                    self._in_flight.end(uncalled, None)
                    self._ready_queue.requeue(uncalled)
            ended = len(outcomes)
            await end(slice(ended))  # they do not wait for a call that hangs
            await running
            await end(slice(ended, None))
        finally:
            messages.clear()  # a cancelled worker has no use for further calls
            for delivery in run:
                self._in_flight.end(delivery, None)  # no effect on those that have ended
        return min(2 * size, MAX_RUN) if is_fast else 1

    async def _deliver(self, delivery: Delivery, call: Coroutine[Any, Any, None], task: asyncio.Task[Any]) -> None:
        """Await a call, and complete or retry its delivery; raise ListenerNotCalled and what must end the worker."""
        failure: BaseException | None = None
        completed: int | None = None  # unknown if the worker ends, or the listener was not called
        try:
            await call
            completed = len(delivery.messages)
        except ReconsumeLater as error:
            # The listener decided on redelivery itself; a part of the batch may be consumed.
            failure = error
            completed = min(max(0, error.ack_index + 1), len(delivery.messages))
        except ListenerNotCalled:
            raise
        except BaseException as error:
            # A cancellation by the listener itself is a failure, one that is addressed to this worker ends it, and
            # everything else is a failure again.
            is_listeners_own = isinstance(error, asyncio.CancelledError) and not self._is_ending()
            if not is_listeners_own and is_addressed_to(task, error):
                raise
            failure = error
            completed = 0
        finally:
            self._in_flight.end(delivery, completed)
        if task.cancelling() and not self._is_ending():
            await self._withdraw_cancellation(task)
        if failure is None:
            self._ready_queue.complete(delivery)
        else:
            await self._retry(delivery, failure)
        if task.cancelling():
            raise asyncio.CancelledError  # the listener suppressed it

    async def _retry(self, delivery: Delivery, failure: BaseException) -> None:
        match failure:
            case ReconsumeLater():
                delivery.complete(delivery.messages[: max(0, failure.ack_index + 1)])
                await self._retries.retry(delivery, failure.delay_level)
            case SuspendCurrentQueueAMoment():
                await self._retries.retry(delivery, suspend_ms=failure.suspend_ms)
            case UnknownStatus():  # a mistake of the program, for each message
                if not self._has_reported_status:
                    self._has_reported_status = True
                    logger.warning("group %s: messages are retried: %s", self._group, failure)
                await self._retries.retry(delivery)
            case InvalidBody():
                logger.warning("group %s: %s; it is retried", self._group, failure)
                await self._retries.retry(delivery)
            case _:
                first, now_s = delivery.messages[0], time.monotonic()
                has_traceback = now_s >= self._next_traceback_s
                if has_traceback:
                    self._next_traceback_s = now_s + LINE_INTERVAL_S
                others = f" and {len(delivery.messages) - 1} more of its batch" if len(delivery.messages) > 1 else ""
                logger.warning(
                    "group %s: the listener failed on message %s%s of topic %s (retry %d): %s",
                    self._group, first.msg_id, others, first.topic, first.reconsume_times,
                    in_one_line(failure), exc_info=failure if has_traceback else None,
                )  # fmt: skip
                await self._retries.retry(delivery)

    def _requeue_uncalled(self, deliveries: list[Delivery], error: ListenerNotCalled) -> None:
        """Requeue deliveries that the listener has not seen, and that therefore have not failed."""
        for delivery in reversed(deliveries):
            self._ready_queue.requeue(delivery)
        if not self._has_warned:
            self._has_warned = True
            logger.warning("group %s: messages wait, uncommitted: %s", self._group, error)

    async def _pause_until_closing(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(NOT_CALLED_PAUSE_MS / 1000):
                await self._closing.wait()

    # Cancellations: by the end of the event loop, or by the listener itself.

    async def _wait_for_closing(self) -> None:
        """Run the sentinel. If it is cancelled before the consumer closes, so are all other tasks of the loop."""
        await self._closing.wait()

    def _is_ending(self) -> bool:
        """Return whether a cancelled worker must end; `asyncio.run` cancels the sentinel too, a listener does not."""
        return self._closing.is_set() or self._sentinel is None or self._sentinel.cancelling() > 0

    async def _withdraw_cancellation(self, task: asyncio.Task[None]) -> None:
        """Undo a `task.cancel()` that the listener applied to the worker."""
        while task.uncancel():
            pass
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # raises the CancelledError, if nothing was awaited since
        if task.cancelling() and self._is_ending():
            raise asyncio.CancelledError
