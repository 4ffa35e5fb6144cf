"""Durability: the guarantee of the response to a send, by flushDiskType and brokerRole.

    flushDiskType   brokerRole      SEND_OK means the message is          otherwise
    ASYNC_FLUSH     ASYNC_MASTER    in the log (nothing to wait for)
    SYNC_FLUSH      ASYNC_MASTER    on disk                               FLUSH_DISK_TIMEOUT
    ASYNC_FLUSH     SYNC_MASTER     on a slave                            FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE
    SYNC_FLUSH      SYNC_MASTER     on disk and on a slave                the code of the slave, else of the disk

Flush and replication are awaited concurrently. A message without the guarantee remains in the log.

Corresponds to `CommitLog.submitFlushRequest` and `submitReplicaRequest` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, TypeAlias

from rucola.broker.background.group_commit import GroupCommit
from rucola.coordination.write_lease import WriteLease
from rucola.store.config import BrokerRole, PutMessageStatus
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

Missing: TypeAlias = tuple[PutMessageStatus, str]
"""Status of a message that is stored but not safe, and a text for people."""


class ReplicationWaiter(Protocol):
    async def wait_replicated(self, physical_offset: int) -> PutMessageStatus:
        """Wait until a slave has everything below `physical_offset`; return PUT_OK or the status of the failure."""
        ...


class Durability:
    """Waits until messages of one store are durable; if `must_wait` is False, there is no guarantee to wait for."""

    def __init__(
        self,
        store: MessageStore,
        group_commit: GroupCommit,
        replication: ReplicationWaiter | None,
        lease: WriteLease | None = None,
    ) -> None:
        self._lease = lease
        self._store = store
        self._group_commit = group_commit
        self._replication = replication if store.config.broker_role is BrokerRole.SYNC_MASTER else None
        self._is_flushed = store.config.is_sync_flush
        self._waiting: set[asyncio.Future[Missing | None]] = set()
        """Strong references: asyncio keeps none."""
        self.must_wait = self._is_flushed or self._replication is not None

    def when_durable(self, physical_offset: int, done: Callable[[Missing | None], None]) -> None:
        """Call `done` with None once everything below `physical_offset` is safe, else with what is missing."""
        timeout_ms = self._store.config.sync_flush_timeout
        if self._lease is not None:
            done = _while_held(self._lease, done)
        if self._replication is None:
            # The usual SYNC_FLUSH: a callback for each message instead of a task, which is a third of its CPU.
            self._group_commit.when_flushed(
                physical_offset, timeout_ms, lambda is_flushed: done(self._flush_outcome(is_flushed))
            )
            return
        waiting = asyncio.ensure_future(self._wait_replicated(self._replication, physical_offset, timeout_ms))
        self._waiting.add(waiting)

        def end(waited: asyncio.Future[Missing | None]) -> None:
            self._waiting.discard(waiting)
            if waited.cancelled():
                return
            error = waited.exception()
            if error is not None:  # a bug; the producer learns all the same that there is no guarantee
                logger.error("a message could not be awaited on a slave", exc_info=error)
            done(waited.result() if error is None else (PutMessageStatus.FLUSH_SLAVE_TIMEOUT, repr(error)))

        waiting.add_done_callback(end)

    async def _wait_replicated(
        self, replication: ReplicationWaiter, physical_offset: int, timeout_ms: int
    ) -> Missing | None:
        if not self._is_flushed:
            return self._replication_outcome(await replication.wait_replicated(physical_offset))
        status, is_flushed = await asyncio.gather(
            replication.wait_replicated(physical_offset), self._group_commit.wait_flushed(physical_offset, timeout_ms)
        )
        # The outcome of the replication takes precedence, as in Apache's broker.
        return self._replication_outcome(status) or self._flush_outcome(is_flushed)

    def _flush_outcome(self, is_flushed: bool) -> Missing | None:
        if is_flushed:
            return None
        timeout_ms = self._store.config.sync_flush_timeout
        remark = self._store.write_state.reason or f"not on disk within {timeout_ms} ms (syncFlushTimeout)"
        return PutMessageStatus.FLUSH_DISK_TIMEOUT, remark

    def _replication_outcome(self, status: PutMessageStatus) -> Missing | None:
        if status is PutMessageStatus.PUT_OK:
            return None
        if status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT:
            return PutMessageStatus.FLUSH_SLAVE_TIMEOUT, "stored, but not replicated in time (slaveTimeout)"
        return (
            PutMessageStatus.SLAVE_NOT_AVAILABLE,
            "stored, but no slave is connected, or all lag too far (brokerRole=SYNC_MASTER, haSlaveFallbehindMax)",
        )


def _while_held(lease: WriteLease, done: Callable[[Missing | None], None]) -> Callable[[Missing | None], None]:
    def done_if_held(missing: Missing | None) -> None:
        # Asked after the wait, because the right may have ended during it.
        if missing is None and not lease.is_held():
            missing = PutMessageStatus.FLUSH_SLAVE_TIMEOUT, "stored, but another broker may be master by now"
        done(missing)

    return done_if_held
