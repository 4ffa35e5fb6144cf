"""GroupMembers: the members of a consumer group, as the brokers list them by their heartbeats."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from rucola.client.consumer.context import ConsumerContext
from rucola.client.hedging import hedged
from rucola.client.route import HEDGE_MS, TopicRoute
from rucola.domain.role import MASTER_ID
from rucola.errors import BrokerError, RemotingConnectError
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import GetConsumerListByGroupRequestHeader, GetConsumerListByGroupResponseBody

logger = logging.getLogger(__name__)


class GroupMembers:
    def __init__(self, context: ConsumerContext) -> None:
        self._group = context.group
        self._instance = context.instance

    async def client_ids(self, route: TopicRoute) -> list[str]:
        """Return the group's client ids from one broker; empty if it has no member yet. RemotingError."""

        def attempt(address: str) -> Callable[[], Coroutine[Any, Any, list[str]]]:
            return lambda: self._client_ids_at(address)

        try:
            _, client_ids = await hedged([attempt(address) for address in broker_addresses(route)], HEDGE_MS)
        except ExceptionGroup as failures:
            self._instance.refresh_route_soon(route.topic)
            raise failures.exceptions[0] from None
        return client_ids

    async def _client_ids_at(self, address: str) -> list[str]:
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group)
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        try:
            response = await self._instance.remoting.invoke_ok(address, request)
        except BrokerError as error:
            logger.info("group %s: %s", self._group, error)
            return []
        # A member that reconnected is listed twice until the broker notices that its old connection is dead.
        return list(dict.fromkeys(decode_body(GetConsumerListByGroupResponseBody, response.body).consumer_id_list))


def broker_addresses(route: TopicRoute) -> list[str]:
    """Return one address of each broker of the topic, the master's if possible, shuffled. RemotingConnectError."""
    brokers = [addresses for addresses in route.brokers.values() if addresses]
    if not brokers:
        raise RemotingConnectError(f"the route of topic {route.topic} contains no broker")
    random.shuffle(brokers)
    return [addresses.get(MASTER_ID) or next(iter(addresses.values())) for addresses in brokers]
