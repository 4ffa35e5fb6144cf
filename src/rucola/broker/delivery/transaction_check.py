"""TransactionCheckService: puts the questions of `TransactionalMessageService` to producers, and notes its progress
safely.

Answers to `TransactionalMessageCheckService` and `AbstractTransactionalMessageCheckListener` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rucola.broker.background.group_commit import GroupCommit
from rucola.broker.background.scheduler import in_thread
from rucola.broker.client_registry import Clients
from rucola.broker.delivery.transactions import TransactionalMessageService
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_AT_ONCE = 50
"""Questions in one turn of the loop, so that other work comes in between."""


class TransactionCheckService:
    """One round of questions at each `run`."""

    def __init__(
        self,
        transactions: TransactionalMessageService,
        store: MessageStore,
        offsets: ConsumerOffsetTable,
        clients: Clients,
        flush: GroupCommit,
        clock: Callable[[], int],
    ) -> None:
        self._transactions = transactions
        self._store = store
        self._offsets = offsets
        self._clients = clients
        self._flush = flush
        self._clock = clock

    async def run(self) -> None:
        """Ask about the transactions that are open for too long. A group without a producer now is asked next time."""
        for number, question in enumerate(self._transactions.check(self._clock()), 1):
            producer = self._clients.a_producer_of(question.group)
            if producer is None:
                logger.warning("no producer of group %r is connected to be asked about its transaction", question.group)
            else:
                request = RemotingCommand.oneway(RequestCode.CHECK_TRANSACTION_STATE, question.header, question.record)
                producer.send(request)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        await self.commit_offsets()

    async def commit_offsets(self) -> None:
        """Write how far the transactions are done with, once what that rests on is on disk."""
        progress = self._transactions.offsets()
        timeout_ms = self._store.config.sync_flush_timeout
        flushed = await self._flush.wait_flushed(self._store.max_physical_offset, timeout_ms)
        if flushed and self._store.failure is None:
            self._transactions.commit_offsets(progress)
            await in_thread(self._offsets.snapshot_writer())
