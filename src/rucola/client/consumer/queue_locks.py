"""QueueLocks: the locks that a member of a group holds on its queues, so that it alone consumes them, in order.

A lock is kept by the broker of the queue, which takes it back from a member that has not asked for 60 s. The member
asks every `LOCK_INTERVAL_MS` for all that it holds, and trusts a lock for `LOCK_LIFE_MS` after it asked and the broker
said yes, so that it has stopped before anybody else can begin, whatever happens to connections.

Answers to the locking in `RebalanceImpl` and `ProcessQueue` of Apache RocketMQ 4.9.8.
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

logger = logging.getLogger(__name__)

LOCK_INTERVAL_MS = 20_000
LOCK_LIFE_MS = 30_000


class QueueLocks:
    """The locks of one group on one instance."""

    def __init__(self, group: str, instance: ClientInstance) -> None:
        self._group = group
        self._instance = instance
        self._wanted: set[MessageQueue] = set()
        """The queues asked for and not refused or released; those that are held among them."""
        self._releasing: set[MessageQueue] = set()
        """The queues whose release is not answered."""
        self._held: dict[MessageQueue, int] = {}

    def age_ms(self, queue: MessageQueue) -> int | None:
        """How long ago the broker was asked when it last said yes; None where the lock is not held, or not for sure."""
        asked_ms = self._held.get(queue)
        age_ms = LOCK_LIFE_MS if asked_ms is None else monotonic_ms() - asked_ms
        return age_ms if age_ms < LOCK_LIFE_MS else None

    def holds(self, queue: MessageQueue) -> bool:
        """Whether this member may consume the queue now."""
        return self.age_ms(queue) is not None

    async def lock(self, queues: Iterable[MessageQueue]) -> None:
        """Ask for the locks of these queues, or to keep them. `holds` tells afterwards which were given.

        A broker that does not answer leaves the locks as they are, until their time is up.
        """
        wanted = list(queues)
        self._wanted.update(wanted)
        await asyncio.gather(*(self._lock(of_broker) for of_broker in by_broker(wanted)))

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of these queues, also those whose request was sent and whose answer was not awaited.

        If a broker is away, its locks expire.
        """
        released = [queue for queue in queues if queue in self._wanted or queue in self._releasing]
        self._wanted.difference_update(released)
        self._releasing.update(released)
        for queue in released:
            self._held.pop(queue, None)
        await asyncio.gather(*(self._unlock(of_broker) for of_broker in by_broker(released)))
        self._releasing.difference_update(released)

    async def unlock_all(self) -> None:
        """Release all locks, those included whose release an earlier, cancelled call has not completed."""
        await self.unlock(self._wanted | self._releasing)

    async def keep(self) -> None:
        """Renew what is held, for ever."""
        while True:
            await asyncio.sleep(LOCK_INTERVAL_MS / 1000)
            await self.lock(list(self._held))

    async def _lock(self, queues: list[MessageQueue]) -> None:
        asked_ms = monotonic_ms()
        try:
            answer = await self._ask(RequestCode.LOCK_BATCH_MQ, queues)
            granted = decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set
        except MQError as error:
            logger.warning("group %s: no locks from broker %s now: %s", self._group, queues[0].broker_name, error)
            return
        for queue in queues:
            if queue not in granted:
                self._wanted.discard(queue)
                if self._held.pop(queue, None) is not None:
                    logger.warning("group %s: the lock of %s went to another member", self._group, queue)
            elif queue in self._wanted:  # it may have been given back meanwhile
                self._held[queue] = asked_ms

    async def _unlock(self, queues: list[MessageQueue]) -> None:
        try:
            await self._ask(RequestCode.UNLOCK_BATCH_MQ, queues)
        except MQError as error:
            logger.info("group %s: the locks of %s were not given back: %s", self._group, queues[0].broker_name, error)

    async def _ask(self, code: RequestCode, queues: list[MessageQueue]) -> RemotingCommand:
        """Put a request about queues of one broker to its master."""
        body = LockBatchRequestBody(client_id=self._instance.client_id, consumer_group=self._group, mq_set=queues)
        request = RemotingCommand.request(code, body=encode_body(body))
        answer = await self._instance.invoke_master(queues[0], request)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, queues[0].broker_name)
        return answer


def by_broker(queues: Iterable[MessageQueue]) -> Iterable[list[MessageQueue]]:
    """Group queues by the brokers that have them."""
    groups: defaultdict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        groups[queue.broker_name].append(queue)
    return groups.values()
