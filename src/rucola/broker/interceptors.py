"""The broker's interceptors: the checks before every service.

    AccessControl   the user of the request may carry out the action on the resource (`rucola.acl`), if it is enabled
    SlaveRefusal    a slave rejects every request that would make its log or tables differ from its master's
    LeaseRefusal    an elected master rejects messages that it may not acknowledge
    FlowControl     requests that would wait for too long are rejected (`rucola.broker.flow_control`)
    Permission      the permission of the broker, of the topic and of the group allows the action

`LateChecks` are for resources known only while a request is carried out (the topic of a message read by its id, of a
half message or of a message sent back), and for held pulls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rucola import refusals
from rucola.access import Action, Caller, Check, Interceptor, Reason, Refused, Resource
from rucola.acl.access_control import AccessControl
from rucola.broker.config import BrokerConfig
from rucola.broker.flow_control import FlowControl
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.topics import TopicConfigTable
from rucola.coordination.write_lease import WriteLease
from rucola.domain.topic import PERM_READ, PERM_WRITE
from rucola.message.topics import NOT_ALLOWED_SEND_TOPICS
from rucola.store.write_state import WriteState


@dataclass(frozen=True, slots=True)
class LateChecks:
    """Checks that services and adapters run themselves."""

    fetch: Check
    """Before each retry of a held request for messages: access control and permission."""
    publish: Check
    """Before a half message is committed or rolled back: access control."""
    create: Check
    """Before a message is stored in a topic that it creates: permission."""
    read: Check | None
    """Before a message found by key or offset is returned, sent to a client or sent back: access control."""
    receive: Callable[[Caller, str | None], bool]
    """Before a client is sent a reply, see `may_receive`."""


def late_checks(access: AccessControl | None, permission: Permission) -> LateChecks:
    if access is None:
        return LateChecks(permission.check_fetch, _pass, permission.check_publish, None, may_receive(None))
    may_fetch, may_publish, may_read = map(access.check_for, (Action.FETCH, Action.END_TRANSACTION, Action.READ))

    def check_fetch(caller: Caller, resource: Resource) -> None:
        may_fetch(access.renew(caller), resource)
        permission.check_fetch(caller, resource)

    return LateChecks(check_fetch, may_publish, permission.check_publish, may_read, may_receive(access))


def may_receive(access: AccessControl | None) -> Callable[[Caller, str | None], bool]:
    """Return a check whether a client's user may still be sent a half message of a topic, or a reply (None)."""
    if access is None:
        return lambda caller, topic: True
    may_publish = access.check_for(Action.PUBLISH)

    def check(caller: Caller, topic: str | None) -> bool:
        try:
            caller = access.renew(caller)
            if topic is not None:
                may_publish(caller, Resource(topic))
        except Refused:
            return False
        return True

    return check


def _pass(caller: Caller, resource: Resource) -> None:
    """Refuse nothing."""


def broker_interceptors(
    added: Iterable[Interceptor],
    access: AccessControl | None,
    role_refusal: SlaveRefusal | LeaseRefusal | None,
    flow_control: FlowControl,
    permission: Permission,
) -> list[Interceptor]:
    """Return the whole chain of a broker: `added` interceptors first, then the checks in the order above."""
    chain: list[Interceptor | None] = [*added, access, role_refusal, flow_control, permission]
    return [interceptor for interceptor in chain if interceptor is not None]


_REFUSED_BY_SLAVE = {
    Action.PUBLISH: refusals.SLAVE_TAKES_NO_MESSAGES,
    Action.RETRY: refusals.SLAVE_TAKES_NO_MESSAGES,
    Action.RECEIVE: refusals.SLAVE_KNOWS_NO_POP,
    Action.ACKNOWLEDGE: refusals.SLAVE_KNOWS_NO_POP,
    Action.END_TRANSACTION: refusals.SLAVE_ENDS_NO_TRANSACTIONS,
    Action.ALTER_TOPIC: refusals.SLAVE_CHANGES_NOTHING,
    Action.DELETE_TOPIC: refusals.SLAVE_CHANGES_NOTHING,
    Action.ALTER_GROUP: refusals.SLAVE_CHANGES_NOTHING,
    Action.DELETE_GROUP: refusals.SLAVE_CHANGES_NOTHING,
}


_NEEDS_LEASE = {Action.PUBLISH, Action.RETRY, Action.END_TRANSACTION, Action.RECEIVE, Action.ACKNOWLEDGE}


class SlaveRefusal:
    """Rejection of changes on a slave. Consumer offsets are accepted until the master's replace them, as in Apache.

    Corresponds to the checks for BrokerRole.SLAVE in `DefaultMessageStore`, `EndTransactionProcessor` and
    `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate difference: CONSUMER_SEND_MSG_BACK is rejected with the
    code of the other messages, where Apache answers SYSTEM_ERROR.
    """

    def __init__(self, master_address: Callable[[], str]) -> None:
        self._master_address = master_address

    def check_for(self, action: Action) -> Check | None:
        refusal = _REFUSED_BY_SLAVE.get(action)
        if refusal is None:
            return None  # reads, heartbeats and consumer offsets: a slave serves them

        def refuse(caller: Caller, resource: Resource) -> None:
            raise Refused(refusal, master=self._master_address() or "not known yet")

        return refuse


class LeaseRefusal:
    """Rejects messages on a master whose right to acknowledge them has ended (`rucola.coordination`).

    The reason is the store's, if it refuses messages as well: producers send again soon to a master that hands over.
    """

    def __init__(self, lease: WriteLease, write_state: WriteState) -> None:
        self._is_held = lease.is_held
        self._write_state = write_state

    def check_for(self, action: Action) -> Check | None:
        if action not in _NEEDS_LEASE:
            return None
        is_held, write_state = self._is_held, self._write_state

        def refuse(caller: Caller, resource: Resource) -> None:
            if not is_held():
                why = write_state.reason
                raise Refused(Reason.UNAVAILABLE, why) if why else Refused(refusals.LEASE_ENDED)

        return refuse


class Permission:
    """Checks the permissions of broker, topic and group. A missing topic or group passes: the service decides."""

    def __init__(self, config: BrokerConfig, topics: TopicConfigTable, groups: SubscriptionGroupTable) -> None:
        self._config = config
        self._topic = topics.get
        self._groups = groups
        self._region: Mapping[str, str] = config.region_fields
        self._checks: dict[Action, Check] = {
            Action.PUBLISH: self.check_publish,
            Action.RETRY: self.check_retry,
            Action.FETCH: self.check_fetch,
            Action.RECEIVE: self.check_fetch,
        }

    def check_for(self, action: Action) -> Check | None:
        return self._checks.get(action)

    def check_publish(self, caller: Caller, resource: Resource) -> None:
        """Raise Refused if the topic accepts no messages from producers."""
        name = resource.topic
        topic = self._topic(name)
        # One condition lets all valid requests pass; the reason of a refusal is determined afterwards.
        perm = self._config.broker_permission if topic is None else self._config.broker_permission & topic.perm
        if perm & PERM_WRITE and name not in NOT_ALLOWED_SEND_TOPICS:
            return
        if not self._config.broker_permission & PERM_WRITE:
            raise self._forbidden("broker", self._config.broker_ip1, "sending", self._region)
        if name in NOT_ALLOWED_SEND_TOPICS:
            raise Refused(refusals.SEND_TOPIC_FORBIDDEN, topic=name, details=self._region)
        raise self._forbidden("topic", name, "sending", self._region)

    def check_retry(self, caller: Caller, resource: Resource) -> None:
        if not self._config.broker_permission & PERM_WRITE:
            raise self._forbidden("broker", self._config.broker_ip1, "sending")
        # The retry topic is created by the first retry, readable and writeable; an operator may have changed it since.
        topic = self._topic(resource.topic)
        if topic is not None and not topic.perm & PERM_WRITE:
            raise self._forbidden("topic", resource.topic, "sending")

    def check_fetch(self, caller: Caller, resource: Resource) -> None:
        """Raise Refused if the group may not read the topic."""
        if not self._config.broker_permission & PERM_READ:
            raise self._forbidden("broker", self._config.broker_ip1, "pulling")
        group = self._groups.get(resource.group)
        if group is not None and not group.consume_enable:
            raise Refused(refusals.GROUP_FORBIDDEN, group=resource.group)
        topic = self._topic(resource.topic)
        if topic is not None and not topic.perm & PERM_READ:
            raise self._forbidden("topic", resource.topic, "pulling")

    def _forbidden(self, kind: str, name: str, doing: str, details: Mapping[str, str] | None = None) -> Refused:
        return Refused(refusals.FORBIDDEN, kind=kind, name=name, doing=doing, details=details)
