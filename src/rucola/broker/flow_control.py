"""Congestion: requests are refused while they would wait too long, so that their senders can go elsewhere.

Two things make requests wait. The disk may be slower than what is written, so that touching a page of the log blocks:
the thread that touches the pages of the next messages notices that first. And there may be more requests than one
thread can serve; they wait in the sockets, for as long as a turn of the event loop takes.

    touching pages takes osPageCacheBusyTimeOutMills (1000)       no message is taken        [PCBUSY_CLEAN_QUEUE]
    a turn takes     waitTimeMillsInSendQueue (200)               no message is taken        [TIMEOUT_CLEAN_QUEUE]
                     waitTimeMillsInPullQueue (5000)              no pull is answered
                     waitTimeMillsInTransactionQueue (3000)       no transaction is ended
                     waitTimeMillsInHeartbeatQueue (31000)        no heartbeat is taken

The answer is SYSTEM_BUSY. Turns are looked at with brokerFastFailureEnable alone. Every 20 ms it is decided anew, by
putting other processors into the table of the server, so a request that is served pays nothing for this.

Answers to `BrokerFastFailure` and `DefaultMessageStore.isOSPageCacheBusy` of Apache RocketMQ 4.9.8. Deliberate
difference: brokerFastFailureEnable is false by default. What waits lies in the sockets, not in this process, and TCP
slows down who sends too much; so clients are served late rather than not at all. SYSTEM_BUSY is final for Apache's
clients, and a few hundred that keep much under way make a turn longer than 200 ms now and then without any need.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping

from rucola.broker.background.scheduler import in_thread
from rucola.broker.config import BrokerConfig
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection, Processor

logger = logging.getLogger(__name__)

TICK_MS = 20

_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)


class FlowControl:
    """Refuses requests of a server by its table of processors.

    `clock` counts milliseconds, is never set, and may be asked from any thread.
    """

    def __init__(
        self, config: BrokerConfig, processors: MutableMapping[int, Processor], clock: Callable[[], int]
    ) -> None:
        self._config = config
        self._processors = processors
        self._clock = clock
        self._last_tick_ms = clock()
        self._touching_since_ms: int | None = None
        self._set_aside: dict[int, Processor] = {}

    async def touch(self, pages: Callable[[], None]) -> None:
        """Touch pages, in a thread, and know how long that takes.

        The thread takes the time: when the loop has been kept up by something else, that is no fault of the disk.
        """

        def timed() -> None:
            self._touching_since_ms = self._clock()
            try:
                pages()
            finally:
                self._touching_since_ms = None

        await in_thread(timed)

    def tick(self) -> None:
        """Decide what is refused from now on. To be called every `TICK_MS`."""
        now_ms = self._clock()
        turn_ms = max(0, now_ms - self._last_tick_ms - TICK_MS)
        self._last_tick_ms = now_ms
        config = self._config
        why = None
        since_ms = self._touching_since_ms
        touched_ms = 0 if since_ms is None else now_ms - since_ms
        if touched_ms >= config.os_page_cache_busy_time_out_mills:
            why = _remark("PCBUSY", touched_ms, config.os_page_cache_busy_time_out_mills, "osPageCacheBusyTimeOutMills")
        for codes, limit_ms, key in (
            (_SENDS, config.wait_time_mills_in_send_queue, "waitTimeMillsInSendQueue"),
            ((RequestCode.PULL_MESSAGE,), config.wait_time_mills_in_pull_queue, "waitTimeMillsInPullQueue"),
            (
                (RequestCode.END_TRANSACTION,),
                config.wait_time_mills_in_transaction_queue,
                "waitTimeMillsInTransactionQueue",
            ),
            ((RequestCode.HEART_BEAT,), config.wait_time_mills_in_heartbeat_queue, "waitTimeMillsInHeartbeatQueue"),
        ):
            if why is None and config.broker_fast_failure_enable and turn_ms >= limit_ms:
                why = _remark("TIMEOUT", turn_ms, limit_ms, key)
            self._refuse(codes, why)
            why = None

    def _refuse(self, codes: tuple[RequestCode, ...], why: str | None) -> None:
        """Refuse requests of these codes, or serve them again."""
        for code in codes:
            if why is not None:
                if code not in self._set_aside:
                    self._set_aside[code] = self._processors[code]
                    logger.warning("%s is refused: %s", code.name, why)
                self._processors[code] = _refusing(why)
            elif code in self._set_aside:
                self._processors[code] = self._set_aside.pop(code)


def _remark(what: str, waited_ms: int, limit_ms: int, key: str) -> str:
    return (
        f"[{what}_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {waited_ms}ms, "
        f"limit {limit_ms} ms ({key} on the broker)"
    )


def _refusing(why: str) -> Processor:
    def refuse(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.response(ResponseCode.SYSTEM_BUSY, remark=why)

    return refuse
