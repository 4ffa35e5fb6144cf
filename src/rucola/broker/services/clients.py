"""Clients: their heartbeats, unregistration, and the members of a group.

The first heartbeat of a consumer group creates the group and its retry topic.

Corresponds to `ClientManageProcessor` and a part of `ConsumerManageProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola import refusals
from rucola.access import Caller, Reason, Refused
from rucola.broker.client_registry import ClientChannel
from rucola.broker.message_filter import check_supported, matches
from rucola.broker.state import BrokerState
from rucola.domain.client import HeartbeatData
from rucola.domain.subscription import SubscriptionData, subscription
from rucola.domain.topic import TOPIC_FLAG_UNIT_SUB
from rucola.errors import InvalidMessage


class ClientService:
    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def heartbeat(
        self,
        channel: ClientChannel,
        caller: Caller,
        heartbeat: HeartbeatData,
        language: str,
        version: int,
        on_accepted: Callable[[], None],
    ) -> None:
        """Add or refresh a client in its groups; `on_accepted` is called before members are notified.

        Raises Refused, before any change, for too many groups or topics. A group that exceeds the broker's limit is not
        created; its pulls are refused by that limit.
        """
        self._state.limits.check_heartbeat(heartbeat, self._state.clients.other_groups(channel, heartbeat))
        now_ms = self._state.clock()
        # Tables first: members are notified at the end, and may ask at once for what the tables have.
        for consumer in heartbeat.consumer_data_set:
            try:
                group = self._state.groups.find(consumer.group_name, now_ms)
            except Refused:
                group = None  # logged and counted; the client's other groups are accepted
            if group is not None:
                sys_flag = TOPIC_FLAG_UNIT_SUB if consumer.unit_mode else 0
                self._state.topics.ensure_retry_topic(group, now_ms, sys_flag)
            self._state.filters.register(consumer.group_name, consumer.subscriptions, now_ms)
        on_accepted()
        self._state.clients.heartbeat(channel, caller, heartbeat, language, version, now_ms)

    def unregister(self, channel: ClientChannel, producer_group: str | None, consumer_group: str | None) -> None:
        if consumer_group:
            self._state.groups.find(consumer_group, self._state.clock())
        self._state.clients.unregister(channel, producer_group, consumer_group)

    def consumer_ids(self, group: str) -> list[str]:
        """Return the client ids of a consumer group's members. Raises Refused if it has none."""
        members = self._state.clients.consumers.get(group)
        if members is None:
            raise Refused(refusals.NO_CONSUMER, group=group)
        return members.client_ids

    def check_subscription(self, wanted: SubscriptionData | None) -> None:
        """Raise Refused unless this broker can evaluate a subscription; None has no expression."""
        if wanted is None:
            return
        self._state.limits.check_subscription(wanted)
        check_supported(wanted, self._state.config)
        try:
            if wanted.is_tag_type:
                subscription(wanted.topic, wanted.sub_string)
            else:
                matches(wanted.expression_type, wanted.sub_string)
        except InvalidMessage as error:
            raise Refused(Reason.INVALID_SUBSCRIPTION, str(error)) from None
