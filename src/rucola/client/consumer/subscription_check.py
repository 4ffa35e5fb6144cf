"""A warning where members of one group subscribe differently.

A group's queues are shared out as if all members wanted the same. Where they do not, a member gets queues of a topic
that it does not consume, or passes over messages that another one wants, and counts them as done: messages are lost
to the group, in silence. Brokers keep one subscription a topic for the whole group, the one that came last, so a
member that looks at each rebalance what a broker has notices when that is not its own.

Apache RocketMQ 4.9.8 has no such warning; the request is GET_CONSUMER_CONNECTION_LIST.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from rucola.client.instance import ClientInstance
from rucola.errors import MQError
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import ConsumerConnection, GetConsumerConnectionListRequestHeader
from rucola.protocol.heartbeat import SubscriptionData

logger = logging.getLogger(__name__)


class SubscriptionCheck:
    """Compares a member's subscriptions with those that brokers have of its group."""

    def __init__(self, group: str, instance: ClientInstance, subscriptions: Mapping[str, SubscriptionData]) -> None:
        self._group = group
        self._instance = instance
        self._subscriptions = subscriptions
        self._told: list[str] = []

    async def look(self, address: str) -> None:
        """Ask this broker, and warn of what differs unless the last look told the same. Its errors change nothing."""
        header = GetConsumerConnectionListRequestHeader(consumer_group=self._group)
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        try:
            answer = await self._instance.remoting.invoke_ok(address, request)
            group = decode_body(ConsumerConnection, answer.body)
        except MQError as error:
            logger.debug("group %s: the other members' subscriptions are not known: %s", self._group, error)
            return
        others = {client.client_id for client in group.connection_set} - {self._instance.client_id}
        differences = list(_differences(self._subscriptions, group.subscription_table)) if others else []
        if differences and differences != self._told:
            logger.warning(
                "members of group %s subscribe differently, so messages will be passed over: %s. All members must "
                "subscribe alike: give %s a group of its own, or the same subscriptions as %s",
                self._group, "; ".join(differences), self._instance.client_id, ", ".join(sorted(others)),
            )  # fmt: skip
        self._told = differences


def _differences(own: Mapping[str, SubscriptionData], group: Mapping[str, SubscriptionData]) -> Iterator[str]:
    for topic in sorted(own.keys() | group.keys()):
        mine, theirs = own.get(topic), group.get(topic)
        if mine is None or theirs is None:
            yield f"topic {topic} only {'here' if theirs is None else 'elsewhere'}"
        elif (mine.expression_type, mine.sub_string) != (theirs.expression_type, theirs.sub_string):
            yield f"topic {topic} here by {mine.sub_string!r} and elsewhere by {theirs.sub_string!r}"
