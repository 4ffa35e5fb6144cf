"""Flow control: rejection of requests that would wait for too long, so that clients can try another broker.

Requests wait if the disk is slower than the senders, so that prefaulting pages of the log blocks (in a thread, before a
put would), or if more arrive than one thread can serve: then they wait in the sockets for one iteration of the event
loop, or for several if these serve all ready sockets.

    prefaulting takes      osPageCacheBusyTimeOutMills (1000)       no message is stored       [PCBUSY_CLEAN_QUEUE]
    an iteration takes     waitTimeMillsInSendQueue (200)           no message is stored       [TIMEOUT_CLEAN_QUEUE]
                           waitTimeMillsInPullQueue (5000)          no pull is answered
                           waitTimeMillsInTransactionQueue (3000)   no transaction is ended
                           waitTimeMillsInHeartbeatQueue (31000)    no heartbeat is processed

The response is SYSTEM_BUSY. Iterations count only with brokerFastFailureEnable.

Corresponds to `BrokerFastFailure` and `DefaultMessageStore.isOSPageCacheBusy` of Apache RocketMQ 4.9.8. Deliberate
difference: brokerFastFailureEnable is false by default. Requests wait in the sockets, and TCP slows down clients that
send too much; SYSTEM_BUSY is final for Apache's clients, a few hundred of which make an iteration longer than 200 ms
now and then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from rucola import refusals
from rucola.access import Action, Caller, Check, Refused, Resource
from rucola.broker.background.scheduler import in_thread
from rucola.broker.config import BrokerConfig

logger = logging.getLogger(__name__)

TICK_MS = 20


class _Gate:
    __slots__ = ("name", "refusal")

    def __init__(self, name: str) -> None:
        self.name = name
        self.refusal: Callable[[], Refused] | None = None

    def check(self, caller: Caller, resource: Resource) -> None:
        if self.refusal is not None:
            raise self.refusal()

    def decide(self, refusal: Callable[[], Refused] | None) -> None:
        if refusal is not None and self.refusal is None:
            logger.warning("%s are refused: %s", self.name, refusal())
        self.refusal = refusal


class FlowControl:
    """The interceptor that rejects requests while the broker is overloaded.

    `clock` counts milliseconds monotonically, in any thread. `round_ms` is the time until all ready sockets are served.
    """

    def __init__(self, config: BrokerConfig, clock: Callable[[], int], round_ms: Callable[[], int] = lambda: 0) -> None:
        self._config = config
        self._clock = clock
        self._round_ms = round_ms
        self._last_tick_ms = clock()
        self._touching_since_ms: int | None = None
        """Written by the thread."""
        self._sends = _Gate("messages")
        self._pulls = _Gate("pulls")
        self._transaction_ends = _Gate("ends of transactions")
        self._heartbeats = _Gate("heartbeats")
        self._gates = {
            Action.PUBLISH: self._sends,
            Action.RETRY: self._sends,
            Action.FETCH: self._pulls,
            Action.END_TRANSACTION: self._transaction_ends,
            Action.HEARTBEAT: self._heartbeats,
        }

    def check_for(self, action: Action) -> Check | None:
        gate = self._gates.get(action)
        return gate.check if gate is not None else None

    async def touch(self, pages: Callable[[], None]) -> None:
        """Prefault pages in a thread, which measures the time: a blocked event loop must not count as a slow disk."""

        def timed() -> None:
            self._touching_since_ms = self._clock()
            try:
                pages()
            finally:
                self._touching_since_ms = None

        await in_thread(timed)

    def tick(self) -> None:
        """Decide which requests are rejected from now on. To be called every `TICK_MS`."""
        # 1. The tick is due every TICK_MS. Its lateness is the length of the loop iteration before it.
        now_ms = self._clock()
        #    A tick 250 ms after the last one follows an iteration of 230 ms: sends are rejected until the next tick.
        iteration_ms = max(0, now_ms - self._last_tick_ms - TICK_MS, self._round_ms())
        self._last_tick_ms = now_ms
        config = self._config

        def too_long(limit_ms: int, key: str) -> Callable[[], Refused] | None:
            if not config.broker_fast_failure_enable or iteration_ms < limit_ms:
                return None
            return partial(Refused, refusals.BUSY, kind="TIMEOUT", waited_ms=iteration_ms, limit_ms=limit_ms, key=key)

        # 2. Each gate has its own limit; a busy disk closes only the sends' gate.
        sends = self._disk_is_busy(now_ms) or too_long(config.wait_time_mills_in_send_queue, "waitTimeMillsInSendQueue")
        self._sends.decide(sends)
        self._pulls.decide(too_long(config.wait_time_mills_in_pull_queue, "waitTimeMillsInPullQueue"))
        self._transaction_ends.decide(
            too_long(config.wait_time_mills_in_transaction_queue, "waitTimeMillsInTransactionQueue")
        )
        self._heartbeats.decide(too_long(config.wait_time_mills_in_heartbeat_queue, "waitTimeMillsInHeartbeatQueue"))

    def _disk_is_busy(self, now_ms: int) -> Callable[[], Refused] | None:
        since_ms = self._touching_since_ms
        touched_ms = 0 if since_ms is None else now_ms - since_ms
        limit_ms = self._config.os_page_cache_busy_time_out_mills
        if touched_ms < limit_ms:
            return None
        key = "osPageCacheBusyTimeOutMills"
        return partial(Refused, refusals.BUSY, kind="PCBUSY", waited_ms=touched_ms, limit_ms=limit_ms, key=key)
