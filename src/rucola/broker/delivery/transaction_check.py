"""Transaction check service: sends the check requests of open transactions to their producers.

Corresponds to `TransactionalMessageCheckService` and `AbstractTransactionalMessageCheckListener` of Apache RocketMQ
4.9.8.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator

from rucola.access import Caller
from rucola.broker.client_calls import ProducerCalls
from rucola.broker.client_registry import ClientChannel, ClientRegistry
from rucola.broker.delivery.transactions import TransactionalMessageService
from rucola.outages import Outages
from rucola.slices import in_slices

logger = logging.getLogger(__name__)


class TransactionCheckService:
    def __init__(
        self,
        transactions: TransactionalMessageService,
        clients: ClientRegistry,
        calls: ProducerCalls,
        clock: Callable[[], int],
        may_receive: Callable[[Caller, str | None], bool],
        persist: Callable[[], Awaitable[object]],
    ) -> None:
        self._transactions = transactions
        self._clients = clients
        self._calls = calls
        self._clock = clock
        self._may_receive = may_receive
        self._persist = persist
        self._outages = Outages(logger)

    async def run(self) -> None:
        """Send a check request for each transaction that timed out, if a producer of its group is connected."""
        await in_slices(self._send())
        await self._persist()

    def _send(self) -> Generator[None, None, None]:
        for found in self._transactions.check(self._clock(), self._find_producer):
            if found is not None:
                self._calls.check_transaction(*found)
            yield

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
