"""QueueLocks: the locks of an ordered consumer on its queues, held at their brokers.

A lock guarantees that one member of the group consumes its queue. It passes these states:

1. wanted       the member has requested it, and the broker has neither refused it nor confirmed its release.
2. held         the broker confirmed it. Trusted for `LOCK_LIFE_MS` after the request, as long as the connection stays
                open; all held locks are renewed every `LOCK_INTERVAL_MS`.
3. expired      no confirmation for `LOCK_LIFE_MS`, or the connection closed: the member stops deliveries. The broker
                keeps a lock for 60 s after the latest request, so this member stops before another one starts. A
                broker that restarted may have lost its locks, as Apache's does.
4. releasing    the release was sent and not confirmed; `unlock_all` repeats it.

Corresponds to the locking in `RebalanceImpl` and `ProcessQueue` of Apache RocketMQ 4.9.8. Deliberate difference: there
a lock is trusted after its connection closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable

from rucola.client.clock import monotonic_ms
from rucola.client.instance import ClientInstance
from rucola.errors import BrokerError, MQError
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.lock import LockBatchRequestBody, LockBatchResponseBody
from rucola.protocol.queue import MessageQueue
from rucola.remoting.connection import Connection

logger = logging.getLogger(__name__)

LOCK_INTERVAL_MS = 20_000
LOCK_LIFE_MS = 30_000
"""How long a confirmation is trusted, from the time of its request."""


class QueueLocks:
    """The locks of one consumer. Belongs to one event loop."""

    def __init__(self, group: str, instance: ClientInstance) -> None:
        self._group = group
        self._instance = instance
        self._wanted: set[MessageQueue] = set()
        """The queues whose lock was requested and neither refused nor released, including held ones."""
        self._releasing: set[MessageQueue] = set()
        self._held: dict[MessageQueue, tuple[int, Connection]] = {}
        """The monotonic time of the request that confirmed each lock, and its connection."""

    def age_ms(self, queue: MessageQueue) -> int | None:
        """Return the latest confirmation's age; None if the lock is not held or has expired."""
        requested_ms, connection = self._held.get(queue, (0, None))
        if connection is None or not connection.is_open:
            return None
        age_ms = monotonic_ms() - requested_ms
        return age_ms if age_ms < LOCK_LIFE_MS else None

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether this member may consume the queue now."""
        return self.age_ms(queue) is not None

    async def lock(self, queues: Iterable[MessageQueue]) -> None:
        """Request or renew the locks of these queues. Without a response they stay as they are until they expire."""
        wanted = list(queues)
        self._wanted.update(wanted)
        await asyncio.gather(*(self._lock(group) for group in by_broker(wanted)))

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of these queues, even if requests are in flight; at an unreachable broker they expire."""
        released = [queue for queue in queues if queue in self._wanted or queue in self._releasing]
        self._wanted.difference_update(released)
        self._releasing.update(released)
        for queue in released:
            self._held.pop(queue, None)
        await asyncio.gather(*(self._unlock(group) for group in by_broker(released)))
        self._releasing.difference_update(released)

    async def unlock_all(self) -> None:
        """Release all locks, including those whose release an earlier, cancelled call did not finish."""
        await self.unlock(self._wanted | self._releasing)

    async def renew_periodically(self) -> None:
        """Renew the held locks; runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOCK_INTERVAL_MS / 1000)
            await self.lock(list(self._held))

    async def _lock(self, queues: list[MessageQueue]) -> None:
        # The time before the request: the broker's clock starts later, so this member's lock expires first.
        requested_ms = monotonic_ms()
        broker_name = queues[0].broker_name
        purpose = f"group {self._group}: request of locks at broker {broker_name}"
        try:
            # The connection before the request as well: if it closes in the meantime, the lock counts as lost.
            connection = await self._instance.master_connection(queues[0])
            response = await self._request(RequestCode.LOCK_BATCH_MQ, queues)
            granted = decode_body(LockBatchResponseBody, response.body).lock_ok_mq_set
        except MQError as error:
            self._instance.outages.failed(broker_name, purpose, error)
            return
        self._instance.outages.succeeded(broker_name, purpose)
        for queue in queues:
            if queue not in granted:
                self._wanted.discard(queue)
                if self._held.pop(queue, None) is not None:
                    logger.warning("group %s: the lock of %s was lost to another member", self._group, queue)
            elif queue in self._wanted:  # it may have been released in the meantime
                self._held[queue] = (requested_ms, connection)

    async def _unlock(self, queues: list[MessageQueue]) -> None:
        try:
            await self._request(RequestCode.UNLOCK_BATCH_MQ, queues)
        except MQError as error:
            logger.info(
                "group %s: broker %s did not confirm the release of locks: %s",
                self._group,
                queues[0].broker_name,
                error,
            )

    async def _request(self, code: RequestCode, queues: list[MessageQueue]) -> RemotingCommand:
        """Send a request about queues of one broker to its master; return the response. MQError."""
        body = LockBatchRequestBody(client_id=self._instance.client_id, consumer_group=self._group, mq_set=queues)
        request = RemotingCommand.request(code, body=encode_body(body))
        response = await self._instance.invoke_master(queues[0], request)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, queues[0].broker_name)
        return response


def by_broker(queues: Iterable[MessageQueue]) -> Iterable[list[MessageQueue]]:
    groups: defaultdict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        groups[queue.broker_name].append(queue)
    return groups.values()
