"""Transaction check service: sends the check requests of open transactions to their producers.

Corresponds to `TransactionalMessageCheckService` and `AbstractTransactionalMessageCheckListener` of Apache RocketMQ
4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rucola.access import Caller
from rucola.broker.background.group_commit import GroupCommit
from rucola.broker.background.scheduler import in_thread
from rucola.broker.client_calls import ClientCalls
from rucola.broker.client_registry import ClientChannel, ClientRegistry
from rucola.broker.delivery.transactions import TransactionalMessageService
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.outages import Outages
from rucola.slices import in_slices
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_CHECKS_PER_ITERATION = 50


class TransactionCheckService:
    def __init__(
        self,
        transactions: TransactionalMessageService,
        store: MessageStore,
        offsets: ConsumerOffsetTable,
        clients: ClientRegistry,
        calls: ClientCalls,
        group_commit: GroupCommit,
        clock: Callable[[], int],
        may_receive: Callable[[Caller, str | None], bool],
    ) -> None:
        self._transactions = transactions
        self._store = store
        self._offsets = offsets
        self._clients = clients
        self._calls = calls
        self._group_commit = group_commit
        self._clock = clock
        self._may_receive = may_receive
        self._outages = Outages(logger)

    async def run(self) -> None:
        """Send a check request for each transaction that timed out, if a producer of its group is connected."""
        checks = self._transactions.check(self._clock(), self._find_producer)
        for number, (producer, check) in enumerate(checks, 1):
            self._calls.check_transaction(producer, check.header, check.record)
            if number % _CHECKS_PER_ITERATION == 0:
                await asyncio.sleep(0)
        await self.commit_offsets()

    def _find_producer(self, group: str, topic: str) -> ClientChannel | None:
        # Any member of the group's user may answer; the request is one-way, the answer is an END_TRANSACTION.
        producer = self._clients.next_producer(group, lambda caller: self._may_receive(caller, topic))
        if producer is None:
            why = "no producer of it is connected"
            if group in self._clients.producers:
                why = f"no producer of it that may send to topic {topic} reads what it is sent"
            self._outages.failed(f"transaction check of group {group}", why)
        else:
            self._outages.succeeded(f"transaction check of group {group}")
        return producer

    async def commit_offsets(self) -> bool:
        """Flush the log, then commit the offsets of the half and op queues; return False if the flush failed."""
        # The offsets are taken before the flush: an op message put during the flush is not covered by it.
        committed, log_end = self._transactions.offsets(), self._store.max_physical_offset
        timeout_ms = self._store.config.sync_flush_timeout
        is_flushed = await self._group_commit.wait_flushed(log_end, timeout_ms)
        if not is_flushed or self._store.write_state.failure is not None:
            return False
        self._transactions.commit_offsets(committed, log_end)
        await in_thread(await in_slices(self._offsets.snapshot_steps()))
        return True
