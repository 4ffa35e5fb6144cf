"""Clockwork: all the work of a broker that no request asks for, each step bounded and never on the way of a message.

    at once       dispatch what was put: ConsumeQueues, index, held pulls (see `Reput`)
    every 100 ms  answer the held pulls whose time is up; touch the pages that the next messages will take
    every 500 ms  flush the log (flushIntervalCommitLog)
    every second  flush what was dispatched, and write the checkpoint that vouches for it
    every 5 s     write the consumer offsets (flushConsumerOffsetInterval)
    every 10 s    close the connections of clients that have fallen silent
    every 30 s    register with the name servers (registerNameServerPeriod)

Answers to the scheduled services of `BrokerController` and `DefaultMessageStore` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rucola.broker.pull_hold import PullRequestHold
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

DISPATCH_DELAY_S = 0.001


class Reput:
    """Dispatches soon after a put: at the end of this turn of the loop where a pull waits, else within a millisecond.

    The wait makes batches, which cost a third per message; nobody can notice it, since every read of the store
    dispatches first what is pending.
    """

    def __init__(self, store: MessageStore, hold: PullRequestHold) -> None:
        self._store = store
        self._hold = hold
        self._is_due = False

    def on_put(self) -> None:
        if self._is_due:
            return
        self._is_due = True
        loop = asyncio.get_running_loop()
        if self._hold:
            loop.call_soon(self._dispatch)
        else:
            loop.call_later(DISPATCH_DELAY_S, self._dispatch)

    def _dispatch(self) -> None:
        self._is_due = False
        self._store.reput()


class Clockwork:
    """Runs steps at intervals until it is stopped. A step that fails is logged and tried again at its next turn."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(self, interval_ms: int, name: str, step: Callable[[], Awaitable[None] | None]) -> None:
        self._tasks.append(asyncio.create_task(self._run(interval_ms / 1000, name, step), name=name))

    async def stop(self) -> None:
        """Stop all steps; one that is under way is cancelled where it waits."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run(self, interval_s: float, name: str, step: Callable[[], Awaitable[None] | None]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                outcome = step()
                if outcome is not None:
                    await outcome
            except Exception:
                logger.exception("clockwork: %s failed", name)
