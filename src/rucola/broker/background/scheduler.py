"""Scheduler: all the work of a broker that no request asks for, each step bounded and never on the way of a message.

    at once       dispatch what was put: ConsumeQueues, index, held pulls (see `ReputService`)
    when due      deliver delayed messages (see `DueTask`)
    every 20 ms   see whether requests wait too long (see `broker.congestion`)
    every 100 ms  answer the held pulls whose time is up; touch the pages that the next messages will take
    every 500 ms  flush the log (flushIntervalCommitLog)
    every second  flush what was dispatched, and write the checkpoint that vouches for it
    every 5 s     write the consumer offsets (flushConsumerOffsetInterval)
    every 10 s    close the connections of clients that have fallen silent and those that are idle
                  (serverChannelMaxIdleTimeSeconds), forget locks that have expired, sample the statistics, write how
                  far delayed messages are delivered and what groups filter by, look at the disks and let old files go
                  (cleanResourceInterval)
    every 30 s    register with the name servers (registerNameServerPeriod)
    every minute  ask about transactions that are open for too long (transactionCheckInterval); log how far slaves are
                  behind

Instead of delivering and asking, a slave takes over its master's tables, every 10 s (see
`broker.replication.synchronize`).

Answers to the scheduled services of `BrokerController` and `DefaultMessageStore` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rucola.broker.pull_request_hold import PullRequestHold
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

DISPATCH_DELAY_S = 0.005
MESSAGES_PER_ITERATION = 256
NEW_QUEUES_PER_ITERATION = 4
"""Making the file of one can take a millisecond."""


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a thread; whoever is cancelled meanwhile waits until it has returned.

    So nothing of a step goes on after the clockwork has stopped, and writes a file that is written at the end as well.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


class ReputService:
    """Dispatches soon after a put: at the end of this turn of the loop where a pull waits, else within 5 ms.

    The wait makes batches: dispatched a hundred at a time, a message costs a fifth of what it costs alone. Nobody can
    notice it, since every read of the store dispatches first what is pending; much longer, and a batch would keep the
    loop for a time that senders notice. What is much goes in several turns of the loop, others between them.
    `on_dispatch` is called at each.
    """

    def __init__(
        self, store: MessageStore, hold: PullRequestHold, on_dispatch: Callable[[], None] | None = None
    ) -> None:
        self.on_dispatch = on_dispatch
        self._store = store
        self._held = hold.held
        self._next: asyncio.Handle | None = None
        self._later: asyncio.Handle | None = None

    def on_pending(self) -> None:
        if self._held:
            if self._next is None:
                self._next = asyncio.get_running_loop().call_soon(self._dispatch)
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(DISPATCH_DELAY_S, self._dispatch)

    def stop(self) -> None:
        """Let what is due be: closing the store, on a thread of its own, dispatches it."""
        for handle in (self._next, self._later):
            if handle is not None:
                handle.cancel()
        self._next = self._later = None

    def _dispatch(self) -> None:
        self.stop()
        try:
            self._store.reput(MESSAGES_PER_ITERATION, NEW_QUEUES_PER_ITERATION)
            if self.on_dispatch is not None:
                self.on_dispatch()
        finally:  # nobody is told of what stays pending
            if self._store.has_pending:
                self._next = asyncio.get_running_loop().call_soon(self._dispatch)


class DueTask:
    """Runs a step when it is due. The step returns when it is due next, or None when it has nothing to wait for.

    Times are those of `clock`, milliseconds. `schedule_at` brings a ring forward, never back. A step that fails is
    logged
    and tried again. The wait is cut into pieces, so that a clock which is set is noticed.
    """

    LONGEST_WAIT_MS = 60_000
    WAIT_AFTER_FAILURE_MS = 10_000

    def __init__(self, name: str, step: Callable[[], int | None], clock: Callable[[], int]) -> None:
        self._name = name
        self._step = step
        self._clock = clock
        self._due_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def schedule_at(self, due_ms: int) -> None:
        """Run the step at `due_ms`, at once if that is past, unless it rings before anyway."""
        if self._is_stopped or (self._due_ms is not None and self._due_ms <= due_ms):
            return
        self._due_ms = due_ms
        self._set_timer(due_ms)

    def stop(self) -> None:
        """Ring no more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = min(max(due_ms - self._clock(), 0), self.LONGEST_WAIT_MS)
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._ring)

    def _ring(self) -> None:
        assert self._due_ms is not None
        if self._clock() < self._due_ms:
            self._set_timer(self._due_ms)
            return
        self._due_ms = None
        try:
            next_ms = self._step()
        except Exception:
            logger.exception("clockwork: %s failed", self._name)
            next_ms = self._clock() + self.WAIT_AFTER_FAILURE_MS
        if next_ms is not None:
            self.schedule_at(next_ms)


class Scheduler:
    """Runs steps at intervals until it is stopped. A step that fails is logged and tried again at its next turn."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(self, interval_ms: int, name: str, step: Callable[[], Awaitable[object] | None]) -> None:
        self._tasks.append(asyncio.create_task(self._run(interval_ms / 1000, name, step), name=name))

    async def stop(self) -> None:
        """Stop all steps; one that is under way is cancelled where it waits, unless that is for a thread."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run(self, interval_s: float, name: str, step: Callable[[], Awaitable[object] | None]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                outcome = step()
                if outcome is not None:
                    await outcome
            except Exception:
                logger.exception("clockwork: %s failed", name)
