"""Slave: follows a master's log, and says how far it has come.

It connects to haMasterAddress or, without that, to the address that the name servers have of the master, says where
its log ends and takes what the master sends (see `rucola.store.replica`). First it asks for a little that it has: only
when that is the same on the master, its end is told. What it has is told at once with ASYNC_FLUSH, and once it is on
disk with SYNC_FLUSH, so that a SYNC_MASTER vouches for as much as the slave does.

A connection that breaks, or on which nothing comes for haHousekeepingInterval, is made anew, for as long as it takes.
Where master and slave contradict each other nothing is taken until an operator has decided; the log says so once.

Answers to `HAService.HAClient` of Apache RocketMQ 4.9.8. Deliberate differences: Apache's slave begins where its log
ends, so it never notices that the master's has become another one; and it reports what is in its memory alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from rucola.broker.background.group_commit import GroupCommit
from rucola.broker.background.registration import Registration
from rucola.broker.background.scheduler import MESSAGES_PER_ITERATION, NEW_QUEUES_PER_ITERATION, in_thread
from rucola.broker.config import BrokerConfig
from rucola.errors import MQError, RemotingConnectError, StoreError
from rucola.protocol.replication import TransferDecoder, encode_report
from rucola.remoting.stream import Stream, open_stream, side_by_side
from rucola.store.config import FlushDiskType
from rucola.store.message_store import MessageStore
from rucola.store.replica import Replica

logger = logging.getLogger(__name__)

READ_SIZE = 64 * 1024
"""So much is copied and looked through in one turn of the loop."""
WAIT_S = 1.0
"""Before the next try."""
LONG_WAIT_S = 5.0
"""Likewise, where there was a connection, and the log could not be followed."""

WHAT_TO_DO = (
    "Nothing more is taken. `rucola store check` on both directories, with the brokers stopped, says whether one is "
    "damaged. To begin anew with the master's log, stop the slave, remove its store directory, and start it again"
)


class HAClient:
    """The copying of one store. Belongs to one event loop."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, flush: GroupCommit, registration: Registration
    ) -> None:
        assert store.replica is not None
        self._config = config
        self._store = store
        self._replica = store.replica
        self._flush = flush
        self._registration = registration
        self._is_flushed = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._said = ""
        self._is_followed = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the master."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            address = self._config.ha_master_address or self._registration.master_ha_address
            wait_s = WAIT_S
            if address:
                wait_s = await self._follow(address)
            else:
                self._say("no name server knows a master of %s yet", self._config.broker_name)
            await asyncio.sleep(wait_s)
            if not self._config.ha_master_address:
                self._registration.schedule()
                await self._registration.wait_registered()

    def _say(self, words: str, *arguments: object) -> None:
        """Log what keeps this slave from following, once."""
        text = words % arguments
        if text != self._said:
            logger.warning("%s", text)
            self._said = text

    async def _follow(self, address: str) -> float:
        """Copy what a master sends, until something is wrong; say what, and return how long to wait, in seconds."""
        self._is_followed = False
        try:
            stream = await open_stream(address)
        except MQError as error:
            self._say("the master: %s", error)
            return WAIT_S
        try:
            flush = self._flush if self._is_flushed else None
            try:
                await _ReplicationSession(
                    self._config, self._store, self._replica, flush, stream, self._on_compared
                ).run()
            finally:
                stream.close()
                await in_thread(self._replica.truncate)  # half a record, which the master may lose, or what is none
        except StoreError as error:
            self._say("the master at %s: %s. %s", address, error, WHAT_TO_DO)
            return LONG_WAIT_S
        except MQError as error:
            self._say("the master at %s: %s", address, error)
        except OSError as error:
            self._say("the log of the master at %s cannot be copied: %s", address, error)
            return LONG_WAIT_S
        except Exception:
            logger.exception("following the master at %s failed", address)
            return LONG_WAIT_S
        return WAIT_S if self._is_followed else LONG_WAIT_S

    def _on_compared(self) -> None:
        logger.info("this log is the master's, and follows it from %d on", self._store.max_physical_offset)
        self._said = ""
        self._is_followed = True


class _ReplicationSession:
    """One connection to a master.

    `flush` is for slaves that report what is on disk; `on_compared` is called when the log is known to be the master's.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        replica: Replica,
        flush: GroupCommit | None,
        stream: Stream,
        on_compared: Callable[[], None],
    ) -> None:
        self._config = config
        self._store = store
        self._replica = replica
        self._flush = flush
        self._stream = stream
        self._begin = self._replica.begin
        self._compared_from = store.max_physical_offset
        self._is_compared = False
        self._on_compared = on_compared
        self._news = asyncio.Event()

    async def run(self) -> None:
        await self._stream.write(encode_report(self._begin))
        await side_by_side(self._receive(), self._report())

    async def _receive(self) -> None:
        decoder = TransferDecoder()
        store = self._store
        while True:
            try:
                async with asyncio.timeout(self._config.ha_housekeeping_interval / 1000):
                    data = await self._stream.read(READ_SIZE)
            except TimeoutError:
                raise RemotingConnectError(
                    f"nothing came for {self._config.ha_housekeeping_interval} ms (haHousekeepingInterval)"
                ) from None
            if not data:
                raise RemotingConnectError("it closed the connection; its log says why if it did so on purpose")
            if store.failure is not None:
                raise OSError(store.failure)
            for physical_offset, piece in decoder.receive_data(data):
                self._replica.append(physical_offset, piece)
                if not self._is_compared and physical_offset + len(piece) >= self._compared_from:
                    self._is_compared = True
                    self._on_compared()
            self._news.set()
            while store.has_pending:
                store.reput(MESSAGES_PER_ITERATION, NEW_QUEUES_PER_ITERATION)
                await asyncio.sleep(0)

    async def _report(self) -> None:
        reported = self._begin
        while True:
            self._news.clear()
            if self._is_compared and await self._is_safe(end := self._store.max_physical_offset) and end != reported:
                reported = end
            else:
                try:
                    async with asyncio.timeout(self._config.ha_send_heartbeat_interval / 1000):
                        await self._news.wait()
                    continue
                except TimeoutError:
                    pass
            await self._stream.write(encode_report(reported))

    async def _is_safe(self, end: int) -> bool:
        """Wait until this slave can vouch for its log up to there; False where that takes too long."""
        return self._flush is None or await self._flush.wait_flushed(end, self._store.config.sync_flush_timeout)
