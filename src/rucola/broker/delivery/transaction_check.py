"""TransactionCheck: puts the questions of `Transactions` to producers, and notes its progress safely.

Answers to `TransactionalMessageCheckService` and `AbstractTransactionalMessageCheckListener` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rucola.broker.background.group_commit import Flush
from rucola.broker.background.scheduler import in_thread
from rucola.broker.client_registry import ClientRegistry
from rucola.broker.delivery.transactions import Transactions
from rucola.broker.services.client_calls import ClientCalls
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_AT_ONCE = 50
"""Questions in one turn of the loop, so that other work comes in between."""


class TransactionCheck:
    """One round of questions at each `run`."""

    def __init__(
        self,
        transactions: Transactions,
        store: MessageStore,
        offsets: ConsumerOffsetTable,
        clients: ClientRegistry,
        calls: ClientCalls,
        flush: Flush,
        clock: Callable[[], int],
    ) -> None:
        self._transactions = transactions
        self._store = store
        self._offsets = offsets
        self._clients = clients
        self._calls = calls
        self._flush = flush
        self._clock = clock

    async def run(self) -> None:
        """Ask about the transactions that are open for too long. A group without a producer now is asked next time."""
        for number, question in enumerate(self._transactions.check(self._clock()), 1):
            producer = self._clients.next_producer(question.group)
            if producer is None:
                logger.warning("no producer of group %r is connected to be asked about its transaction", question.group)
            else:
                self._calls.check_transaction(producer, question.header, question.record)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        await self.note_progress()

    async def note_progress(self) -> None:
        """Write how far the transactions are done with, once what that rests on is on disk."""
        progress = self._transactions.progress()
        timeout_ms = self._store.config.sync_flush_timeout
        flushed = await self._flush.until(self._store.max_physical_offset, timeout_ms)
        if flushed and self._store.failure is None:
            self._transactions.commit(progress)
            await in_thread(self._offsets.persisting())
