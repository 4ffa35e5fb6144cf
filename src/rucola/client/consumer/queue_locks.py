"""QueueLocks: the locks of an ordered consumer on its queues, held at their brokers.

A lock guarantees that one member of the group consumes its queue. It passes these states:

1. wanted       the member has requested it, and the broker has neither refused it nor confirmed its release.
2. held         the broker confirmed it. Trusted for `LOCK_LIFE_MS` after the request, as long as the connection stays
                open; all held locks are renewed every `LOCK_INTERVAL_MS`.
3. expired      no confirmation for `LOCK_LIFE_MS`, or the connection closed: the member stops deliveries. The broker
                keeps a lock for 60 s after the latest request, so this member stops before another member starts.
4. releasing    the release was sent and not confirmed; `unlock_all` repeats it.

When the connection to a broker's master is replaced, the master may be a new process without any locks, as Apache's
are. The first member to reconnect is alone in its group and is allocated all queues, while Apache's members deliver on
from theirs. So for `LOCK_LIFE_MS` only locks are requested that were confirmed to this member in the `LOCK_LIFE_MS`
before; then all other members have locked their queues again, or have stopped.

Corresponds to the locking in `RebalanceImpl` and `ProcessQueue` of Apache RocketMQ 4.9.8. Deliberate differences: there
a lock is trusted after its connection closed, and all allocated queues are requested at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from rucola.client.clock import monotonic_ms
from rucola.client.instance import ClientInstance
from rucola.domain.queue import LockedQueues, MessageQueue
from rucola.errors import BrokerError, MQError
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.lock import LockBatchResponseBody
from rucola.remoting.connection import Connection

logger = logging.getLogger(__name__)

LOCK_INTERVAL_MS = 20_000
LOCK_LIFE_MS = 30_000
"""How long a confirmation is trusted, from the time of its request."""


@dataclass(frozen=True, slots=True)
class _Master:
    """The connection to a broker's master; until `free_ms` (monotonic), only locks of `kept` may be requested there."""

    connection: Connection
    free_ms: int = 0
    kept: frozenset[MessageQueue] = frozenset()


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
        self._masters: dict[str, _Master] = {}
        """By broker name, as last observed."""

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

    def observe_masters(self, broker_names: Iterable[str]) -> None:
        """Notice replaced connections, also to brokers of which this member has requested no lock. Called regularly."""
        for broker_name in broker_names:
            address = self._instance.routes.address(broker_name)
            if address is not None and (connection := self._instance.remoting.open_connection(address)) is not None:
                self._observe(broker_name, connection)

    def free_in_ms(self) -> float:
        """Return the time until further locks may be requested; inf if all may be now."""
        now_ms = monotonic_ms()
        return min((m.free_ms - now_ms for m in self._masters.values() if m.free_ms > now_ms), default=math.inf)

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
        self._masters.clear()
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
            master = self._observe(broker_name, connection)
            allowed = [queue for queue in queues if queue in master.kept or requested_ms >= master.free_ms]
            granted = await self._granted(allowed) if allowed else []
        except MQError as error:
            self._instance.outages.failed(broker_name, purpose, error)
            return
        self._instance.outages.succeeded(broker_name, purpose)
        for queue in queues:
            if queue not in granted:
                self._wanted.discard(queue)
                if self._held.pop(queue, None) is not None and queue in allowed:
                    logger.warning("group %s: the lock of %s was lost to another member", self._group, queue)
            elif queue in self._wanted:  # it may have been released in the meantime
                self._held[queue] = (requested_ms, connection)

    def _observe(self, broker_name: str, connection: Connection) -> _Master:
        """Return what is known of a broker's master, to which this connection leads now."""
        master = self._masters.get(broker_name)
        if master is None:
            master = self._masters[broker_name] = _Master(connection)
        elif master.connection is not connection:
            now_ms = monotonic_ms()
            trusted_from_ms = now_ms - LOCK_LIFE_MS
            kept = frozenset(
                queue
                for queue, (requested_ms, _) in self._held.items()
                if queue.broker_name == broker_name and requested_ms > trusted_from_ms
            )
            master = self._masters[broker_name] = _Master(connection, now_ms + LOCK_LIFE_MS, kept)
            logger.info(
                "group %s: the connection to broker %s was replaced: for %d s, only locks of the %d queues that were "
                "locked until then are requested there",
                self._group, broker_name, LOCK_LIFE_MS // 1000, len(kept),
            )  # fmt: skip
        return master

    async def _granted(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        response = await self._request(RequestCode.LOCK_BATCH_MQ, queues)
        return decode_body(LockBatchResponseBody, response.body).lock_ok_mq_set

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
        body = LockedQueues(client_id=self._instance.client_id, consumer_group=self._group, mq_set=queues)
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
