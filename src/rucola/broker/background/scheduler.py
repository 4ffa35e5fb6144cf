"""Scheduler: periodic and due tasks of a broker, none on the path of a request.

    task                                                               interval                     registered by
    dispatch of new records (`ReputService`)                           5 ms after a put             assembly/storage
    delivery of delayed and timer messages, buffered puts (`DueTask`)  when due                     assembly/delivery
    flow control                                                       20 ms                        assembly/serving
    prefault the pages that the next messages need                     100 ms                       assembly/serving
    flush the log                                                      flushIntervalCommitLog       assembly/storage
    checkpoint: flush queues and index, write the checkpoint           1 s                          assembly/storage
    persist consumer offsets                                           flushConsumerOffsetInterval  assembly/metadata
    persist consumer filters                                           10 s                         assembly/metadata
    persist delivery offsets                                           10 s                         assembly/delivery
    expire clients, sample statistics                                  10 s                         assembly/connections
    expire queue locks                                                 10 s                         assembly/serving
    release messages of POP that lost clients hold                     10 s                         assembly/serving
    close idle connections                                             10 s                         assembly/connections
    retention                                                          cleanResourceInterval        assembly/storage
    register with the name servers                                     registerNameServerPeriod     assembly/metadata
    revive messages of POP (`DueTask`)                                 when due                     assembly/delivery
    forget POP of groups that do not use it any more                   10 s                         assembly/delivery
    check transactions                                                 transactionCheckInterval     assembly/delivery
    log the replication lag                                            60 s                         ha_service
    synchronize the tables of the master (slave)                       500 ms                       assembly/replication

Corresponds to the scheduled services of `BrokerController` and `DefaultMessageStore` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rucola.broker.pop_hold import PopHold
from rucola.broker.pull_request_hold import PullRequestHold
from rucola.errors import MQError
from rucola.outages import Outages, log_rate_limited
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

DISPATCH_DELAY_S = 0.005
RETRY_DISPATCH_S = 0.25
"""Time between two attempts of a dispatch that gets no descriptor or no disk space."""
MESSAGES_PER_ITERATION = 256
NEW_QUEUES_PER_ITERATION = 4
"""Bounds of one dispatch: creating the file of a queue can take a millisecond."""


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a thread; a cancelled caller waits for it, so that no thread writes after the stop."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


class ReputService:
    """Dispatcher of new records: in the same loop iteration if a pull is held, else within DISPATCH_DELAY_S.

    The delay collects batches, which cost a fifth of the CPU time per message. It is not observable, because a read
    of a queue with pending records dispatches first. Large batches are split over several loop iterations.
    """

    def __init__(
        self,
        store: MessageStore,
        hold: PullRequestHold,
        pops: PopHold,
        on_dispatch: Callable[[], None] | None = None,
    ) -> None:
        self.on_dispatch = on_dispatch
        """Called after each dispatch; a master wakes its HA connections here."""
        self._store = store
        self._held = hold.held
        self._held_pops = pops.held
        self._next: asyncio.Handle | None = None
        self._later: asyncio.Handle | None = None

    def on_pending(self) -> None:
        """Schedule a dispatch. The store calls this at its first pending record."""
        # A held pull waits for exactly this message: do not delay it. Otherwise collect a batch.
        if self._held or self._held_pops:
            if self._next is None:
                self._next = asyncio.get_running_loop().call_soon(self._dispatch)
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(DISPATCH_DELAY_S, self._dispatch)

    def stop(self) -> None:
        """Cancel scheduled dispatches; closing the store dispatches pending records in its thread."""
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
        except OSError as error:  # the store takes no more messages, and has logged why
            logger.debug("dispatch failed: %s", error)
        finally:  # the store calls on_pending only for the first record, so a remainder must reschedule itself
            if self._store.stall is not None:
                self._later = asyncio.get_running_loop().call_later(RETRY_DISPATCH_S, self._dispatch)
            elif self._store.has_pending:
                self._next = asyncio.get_running_loop().call_soon(self._dispatch)


class DueTask:
    """Task that runs a step at its due time: the step returns the next, in ms of `clock`, or None.

    A step that raises is logged and retried. Waits are at most MAX_WAIT_MS long, to notice a change of the wall clock.
    """

    MAX_WAIT_MS = 60_000
    RETRY_DELAY_MS = 10_000

    def __init__(self, name: str, step: Callable[[], int | None], clock: Callable[[], int]) -> None:
        self._name = name
        self._step = step
        self._clock = clock
        self._due_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._outages = Outages(logger)

    def schedule_at(self, due_ms: int) -> None:
        """Run the step at `due_ms`, unless it is scheduled for an earlier time."""
        if self._is_stopped or (self._due_ms is not None and self._due_ms <= due_ms):
            return
        self._due_ms = due_ms
        self._set_timer(due_ms)

    def stop(self) -> None:
        """Cancel the scheduled run and ignore later calls of `schedule_at`."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # asyncio timers follow the monotonic clock, due times the wall clock.
        wait_ms = min(max(due_ms - self._clock(), 0), self.MAX_WAIT_MS)
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._run)

    def _run(self) -> None:
        assert self._due_ms is not None
        if self._clock() < self._due_ms:  # the wait was longer than MAX_WAIT_MS, or the clock was set back
            self._set_timer(self._due_ms)
            return
        self._due_ms = None
        try:
            next_ms = self._step()
        except Exception as error:
            _note_failure(self._outages, self._name, error)
            next_ms = self._clock() + self.RETRY_DELAY_MS
        else:
            self._outages.succeeded(f"task {self._name}")
        if next_ms is not None:
            self.schedule_at(next_ms)


class Scheduler:
    """Scheduler of steps at fixed intervals. A step that raises is logged, and runs again after its interval."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._outages = Outages(logger)

    def every(self, interval_ms: int, name: str, step: Callable[[], Awaitable[object] | None]) -> None:
        """Run `step`, and await its result if it is awaitable, `interval_ms` after the end of the previous run."""
        self._tasks.append(asyncio.create_task(self._run(interval_ms / 1000, name, step), name=name))

    async def stop(self) -> None:
        """Cancel all steps and wait for them, including threads of `in_thread`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run(self, interval_s: float, name: str, step: Callable[[], Awaitable[object] | None]) -> None:
        while True:
            # Sleeping first spreads the work: nothing periodic competes with the start.
            await asyncio.sleep(interval_s)
            try:
                outcome = step()
                if outcome is not None:
                    await outcome
            except Exception as error:
                _note_failure(self._outages, name, error)
            else:
                self._outages.succeeded(f"task {name}")


def _note_failure(outages: Outages, name: str, error: Exception) -> None:
    """Log a failure: of the machine, as a full disk, without a traceback."""
    if isinstance(error, (MQError, OSError)):
        outages.failed(f"task {name}", error)
    else:
        log_rate_limited(logger, logging.ERROR, f"task {name}", "task %s failed", name, error=error)
