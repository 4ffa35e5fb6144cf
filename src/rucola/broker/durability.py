"""Durability: what an answer to a sender waits for, by flushDiskType and brokerRole.

    flushDiskType   brokerRole      SEND_OK, once the message is
    ASYNC_FLUSH     ASYNC_MASTER    in the log; nothing is waited for
    SYNC_FLUSH      ASYNC_MASTER    on disk                               else FLUSH_DISK_TIMEOUT
    ASYNC_FLUSH     SYNC_MASTER     with a slave                          else FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE
    SYNC_FLUSH      SYNC_MASTER     on disk and with a slave              else what the slave lacks, or the disk

Both are waited for at the same time. A message that was not made safe is in the log all the same.

Answers to `CommitLog.submitFlushRequest` and `submitReplicaRequest` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from rucola.broker.background.group_commit import GroupCommit
from rucola.store.config import BrokerRole, FlushDiskType, PutMessageStatus
from rucola.store.message_store import MessageStore


class ReplicationWaiter(Protocol):
    """The part of a SYNC_MASTER that senders wait for; `HAService` implements it."""

    async def wait_replicated(self, physical_offset: int) -> PutMessageStatus:
        """Wait until a slave has everything below `physical_offset`.

        Returns PUT_OK, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE.
        """
        ...


class Durability:
    """What the messages of one store wait for. `must_wait` says whether they do at all."""

    def __init__(self, store: MessageStore, group_commit: GroupCommit, replication: ReplicationWaiter | None) -> None:
        self._store = store
        self._group_commit = group_commit
        self._replication = replication if store.config.broker_role is BrokerRole.SYNC_MASTER else None
        self._is_flushed = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.must_wait = self._is_flushed or self._replication is not None

    async def wait_durable(self, physical_offset: int) -> tuple[PutMessageStatus, str] | None:
        """Wait until everything below `physical_offset` is safe; None then, else the status and the text of what is
        missing."""
        timeout_ms = self._store.config.sync_flush_timeout
        if self._replication is None:
            return self._flushed(
                await self._group_commit.wait_flushed(physical_offset, self._store.config.sync_flush_timeout)
            )
        if not self._is_flushed:
            return self._replicated(await self._replication.wait_replicated(physical_offset))
        status, is_flushed = await asyncio.gather(
            self._replication.wait_replicated(physical_offset),
            self._group_commit.wait_flushed(physical_offset, timeout_ms),
        )
        return self._replicated(status) or self._flushed(is_flushed)

    def _flushed(self, is_flushed: bool) -> tuple[PutMessageStatus, str] | None:
        if is_flushed:
            return None
        timeout_ms = self._store.config.sync_flush_timeout
        why = self._store.write_state.reason or f"not on disk within {timeout_ms} ms (syncFlushTimeout)"
        return PutMessageStatus.FLUSH_DISK_TIMEOUT, why

    def _replicated(self, status: PutMessageStatus) -> tuple[PutMessageStatus, str] | None:
        if status is PutMessageStatus.PUT_OK:
            return None
        if status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT:
            return PutMessageStatus.FLUSH_SLAVE_TIMEOUT, "stored, but no slave had it in time (slaveTimeout)"
        return (
            PutMessageStatus.SLAVE_NOT_AVAILABLE,
            "stored, but no slave is connected that is near enough (brokerRole=SYNC_MASTER, haSlaveFallbehindMax)",
        )
