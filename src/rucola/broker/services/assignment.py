"""Assignment of queues by the broker, and whether a group receives their messages by PULL or by POP.

By POP, every member of a group receives from all queues of all brokers, which is one assignment with queue id -1 for
each broker. With popShareQueueNum n > 0, a member has its own queues and the queues of the n members after it.

Corresponds to `QueryAssignmentProcessor` of Apache RocketMQ 5. Deliberate difference: if no name server answers, the
assignment is unknown, and the client keeps what it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from rucola import refusals
from rucola.access import Refused
from rucola.broker.state import BrokerState
from rucola.domain.allocation import Strategy, average, average_by_circle, consistent_hash
from rucola.domain.group import PULL, REQUEST_MODES, MessageRequestMode, MessageRequestModes
from rucola.domain.queue import MessageQueue
from rucola.domain.route import TopicRouteData
from rucola.domain.topic import PERM_READ
from rucola.message.topics import RETRY_PREFIX, is_lmq

BROADCASTING: Final = "BROADCASTING"
ALL_QUEUES: Final = -1
_STRATEGIES: Final[dict[str, Strategy]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash(),
}


class AssignmentService:
    """`route` asks the name servers for the route of a topic; None if there is none."""

    def __init__(self, state: BrokerState, route: Callable[[str], Awaitable[TopicRouteData | None]]) -> None:
        self._state = state
        self.route = route

    async def set_mode(self, mode: MessageRequestMode) -> None:
        """Set how a group receives a topic's messages; on disk afterwards. Raises Refused."""
        state = self._state
        if mode.topic.startswith(RETRY_PREFIX):
            raise Refused(refusals.RETRY_TOPIC_HAS_NO_MODE, topic=mode.topic)
        if state.topics.get(mode.topic) is None:
            raise Refused(refusals.FETCH_TOPIC_NOT_FOUND, topic=mode.topic)
        if mode.mode not in REQUEST_MODES:
            raise Refused(refusals.NO_REQUEST_MODE, mode=mode.mode)
        if state.groups.find(mode.consumer_group, state.clock()) is None:
            raise Refused(refusals.FETCH_GROUP_NOT_FOUND, group=mode.consumer_group)
        limit = state.config.max_consumer_offsets
        if len(state.modes) >= limit:
            raise state.limits.refused("maxConsumerOffsets", limit, f"the mode of {mode.consumer_group} is one more")
        state.modes.set(mode)
        await state.persistence.wait_persisted()

    def all_modes(self) -> MessageRequestModes:
        return self._state.modes.all()

    async def assignment(
        self, topic: str, group: str, client_id: str, strategy: str, message_model: str
    ) -> tuple[list[MessageQueue] | None, str]:
        """Return the queues of a member, None if unknown, and the mode."""
        mode = self._state.modes.get(topic, group)
        if (queues := await self._queues(topic)) is None:
            return None, mode.mode
        if message_model == BROADCASTING:
            return queues, PULL
        members = self._state.clients.consumers.get(group)
        allocate = _STRATEGIES.get(strategy)
        if members is None or allocate is None:
            return None, mode.mode
        client_ids = sorted(members.client_ids)
        if mode.mode == PULL:
            return allocate(client_id, queues, client_ids), PULL
        return _shared(allocate, client_id, queues, client_ids, mode.pop_share_queue_num), mode.mode

    async def _queues(self, topic: str) -> list[MessageQueue] | None:
        if is_lmq(topic):
            return [MessageQueue(topic, self._state.config.broker_name, 0)]
        if (route := await self.route(topic)) is None:
            return None
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )


def _shared(
    allocate: Strategy, client_id: str, queues: list[MessageQueue], client_ids: list[str], share: int
) -> list[MessageQueue]:
    if share <= 0 or share >= len(client_ids) - 1:
        return [
            MessageQueue(topic, broker, ALL_QUEUES)
            for topic, broker in dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        ]
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    if len(client_ids) > len(queues):  # each member has a queue
        return [queues[index % len(queues)]]
    own = [client_ids[(index + number) % len(client_ids)] for number in range(share + 1)]
    return list(dict.fromkeys(queue for member in own for queue in allocate(member, queues, client_ids)))
