"""SubscriptionCheck: a warning if members of one group have different subscriptions.

A group's queues are divided among its members as if all had the same subscriptions; if they differ, messages are
skipped and count as completed: the group loses them silently. Brokers keep the latest subscription to each topic, with
which a member compares its own at each rebalance.

Apache RocketMQ 4.9.8 has no such warning; the request is GET_CONSUMER_CONNECTION_LIST.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from rucola.client.instance import ClientInstance
from rucola.domain.client import ConsumerConnection
from rucola.domain.subscription import SubscriptionData
from rucola.errors import MQError
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import GetConsumerConnectionListRequestHeader

logger = logging.getLogger(__name__)


class SubscriptionCheck:
    """Compares a member's subscriptions with those that brokers have for its group."""

    def __init__(self, group: str, instance: ClientInstance, subscriptions: Mapping[str, SubscriptionData]) -> None:
        self._group = group
        self._instance = instance
        self._subscriptions = subscriptions
        self._last_differences: list[str] = []

    async def run(self, address: str) -> None:
        """Query the broker at `address`, and log new differences and errors."""
        header = GetConsumerConnectionListRequestHeader(consumer_group=self._group)
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        try:
            response = await self._instance.remoting.invoke_ok(address, request)
            group = decode_body(ConsumerConnection, response.body)
        except MQError as error:
            logger.debug("group %s: cannot read the subscriptions of the other members: %s", self._group, error)
            return
        # Alone, a member may just have changed its subscriptions, which a heartbeat replaces at the broker.
        others = {client.client_id for client in group.connection_set} - {self._instance.client_id}
        differences = list(_differences(self._subscriptions, group.subscription_table)) if others else []
        if differences and differences != self._last_differences:
            logger.warning(
                "members of group %s subscribe differently, so that messages are skipped: %s. All members must have "
                "the same subscriptions: give %s a group of its own, or the same subscriptions as %s",
                self._group, "; ".join(differences), self._instance.client_id, ", ".join(sorted(others)),
            )  # fmt: skip
        self._last_differences = differences


def _differences(own: Mapping[str, SubscriptionData], group: Mapping[str, SubscriptionData]) -> Iterator[str]:
    """Describe each topic whose subscription differs between this member and the group."""
    for topic in sorted(own.keys() | group.keys()):
        mine, theirs = own.get(topic), group.get(topic)
        if mine is None or theirs is None:
            yield f"topic {topic} only {'here' if theirs is None else 'elsewhere'}"
        elif (mine.expression_type, mine.sub_string) != (theirs.expression_type, theirs.sub_string):
            yield f"topic {topic} here with {mine.sub_string!r} and elsewhere with {theirs.sub_string!r}"
