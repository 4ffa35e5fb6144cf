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
from dataclasses import dataclass

from rucola import refusals
from rucola.access import Action, Caller, Check, Refused, Resource
from rucola.broker.background.scheduler import in_thread
from rucola.broker.config import BrokerConfig

logger = logging.getLogger(__name__)

TICK_MS = 20


@dataclass(slots=True)
class _Gate:
    name: str
    actions: tuple[Action, ...]
    limit: str
    """The field of the configuration, in milliseconds of an iteration."""
    key: str
    busy: tuple[str, int, int, str] | None = None
    """Kind, time, limit and key of the refusal; None if requests are served."""

    def check(self, caller: Caller, resource: Resource) -> None:
        if self.busy is not None:
            raise self._refusal()

    def set(self, busy: tuple[str, int, int, str] | None) -> None:
        was_busy, self.busy = self.busy is not None, busy
        if busy is not None and not was_busy:
            logger.warning("%s are refused: %s", self.name, self._refusal())

    def _refusal(self) -> Refused:
        assert self.busy is not None
        kind, waited_ms, limit_ms, key = self.busy
        return Refused(refusals.BUSY, kind=kind, waited_ms=waited_ms, limit_ms=limit_ms, key=key)


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
        sends = Action.PUBLISH, Action.RETRY
        self._gates = (
            _Gate("messages", sends, "wait_time_mills_in_send_queue", "waitTimeMillsInSendQueue"),
            _Gate("pulls", (Action.FETCH, Action.RECEIVE), "wait_time_mills_in_pull_queue", "waitTimeMillsInPullQueue"),
            _Gate(
                "ends of transactions", (Action.END_TRANSACTION,), "wait_time_mills_in_transaction_queue",
                "waitTimeMillsInTransactionQueue",
            ),
            _Gate(
                "heartbeats", (Action.HEARTBEAT,), "wait_time_mills_in_heartbeat_queue", "waitTimeMillsInHeartbeatQueue"
            ),
        )  # fmt: skip

    def check_for(self, action: Action) -> Check | None:
        return next((gate.check for gate in self._gates if action in gate.actions), None)

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
        config, now_ms, since_ms = self._config, self._clock(), self._touching_since_ms
        # The tick is due every TICK_MS. Its lateness is the length of the loop iteration before it: a tick 250 ms after
        # the last one follows an iteration of 230 ms, and sends are rejected until the next tick.
        iteration_ms = max(0, now_ms - self._last_tick_ms - TICK_MS, self._round_ms())
        self._last_tick_ms = now_ms
        touched_ms = 0 if since_ms is None else now_ms - since_ms
        disk_limit_ms = config.os_page_cache_busy_time_out_mills
        for gate in self._gates:
            limit_ms = getattr(config, gate.limit)
            if touched_ms >= disk_limit_ms and Action.PUBLISH in gate.actions:
                gate.set(("PCBUSY", touched_ms, disk_limit_ms, "osPageCacheBusyTimeOutMills"))
            elif config.broker_fast_failure_enable and iteration_ms >= limit_ms:
                gate.set(("TIMEOUT", iteration_ms, limit_ms, gate.key))
            else:
                gate.set(None)
