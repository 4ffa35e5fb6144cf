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

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from rucola.broker.background.group_commit import GroupCommit
from rucola.coordination.write_lease import WriteLease
from rucola.store.config import BrokerRole, PutMessageStatus
from rucola.store.message_store import MessageStore

Missing: TypeAlias = tuple[PutMessageStatus, str]
"""Status of a message that is stored but not safe, and a text for people."""


WhenDurable: TypeAlias = Callable[[int, Callable[[Missing | None], None]], None]
"""Calls a function with None once everything below a physical offset is safe, else with what is missing."""


class Durability:
    """Waits until messages of one store are durable; if `must_wait` is False, there is no guarantee to wait for."""

    def __init__(
        self,
        store: MessageStore,
        group_commit: GroupCommit,
        when_replicated: WhenDurable | None,
        lease: WriteLease | None = None,
    ) -> None:
        self._lease = lease
        self._store = store
        self._group_commit = group_commit
        self._when_replicated = when_replicated if store.config.broker_role is BrokerRole.SYNC_MASTER else None
        self._is_flushed = store.config.is_sync_flush
        self.must_wait = self._is_flushed or self._when_replicated is not None

    def when_durable(self, physical_offset: int, done: Callable[[Missing | None], None]) -> None:
        """Call `done` with None once everything below `physical_offset` is safe, else with what is missing."""
        if self._lease is not None:
            done = _while_held(self._lease, done)
        if self._when_replicated is None:
            self._when_flushed(physical_offset, done)
        elif not self._is_flushed:
            self._when_replicated(physical_offset, done)
        else:
            outcomes: dict[str, Missing | None] = {}

            def end(part: str, missing: Missing | None) -> None:
                outcomes[part] = missing
                if len(outcomes) == 2:
                    # The outcome of the replication takes precedence, as in Apache's broker.
                    done(outcomes["replication"] or outcomes["flush"])

            self._when_replicated(physical_offset, partial(end, "replication"))
            self._when_flushed(physical_offset, partial(end, "flush"))

    @property
    def may_acknowledge(self) -> bool:
        """Whether messages that are stored now count: the store has not failed, and the right to write is held."""
        is_held = self._lease is None or self._lease.is_held()
        return is_held and self._store.write_state.failure is None

    def _when_flushed(self, physical_offset: int, done: Callable[[Missing | None], None]) -> None:
        timeout_ms = self._store.config.sync_flush_timeout
        self._group_commit.when_flushed(
            physical_offset, timeout_ms, lambda is_flushed: done(self._flush_outcome(is_flushed))
        )

    def _flush_outcome(self, is_flushed: bool) -> Missing | None:
        if is_flushed:
            return None
        timeout_ms = self._store.config.sync_flush_timeout
        remark = self._store.write_state.reason or f"not on disk within {timeout_ms} ms (syncFlushTimeout)"
        return PutMessageStatus.FLUSH_DISK_TIMEOUT, remark


def _while_held(lease: WriteLease, done: Callable[[Missing | None], None]) -> Callable[[Missing | None], None]:
    def done_if_held(missing: Missing | None) -> None:
        # Asked after the wait, because the right may have ended during it.
        if missing is None and not lease.is_held():
            missing = PutMessageStatus.FLUSH_SLAVE_TIMEOUT, "stored, but another broker may be master by now"
        done(missing)

    return done_if_held
