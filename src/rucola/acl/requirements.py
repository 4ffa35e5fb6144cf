"""Requirements: the rights that a request needs, by its action and its resource.

A request is allowed if all of its requirements are met; any one right of a requirement suffices. The topics of a
group's retries and dead letters (`%RETRY%group`, `%DLQ%group`) count as the group, everywhere. For topics with messages
of other topics, only a permission that names them counts (`is_internal`).

| action | topic | group | neither |
|---|---|---|---|
| PUBLISH | PUB | | |
| FETCH, RECEIVE, ACKNOWLEDGE, RETRY, HEARTBEAT, UNREGISTER, LOCK | SUB | SUB | none |
| COMMIT | SUB or UPDATE | SUB or UPDATE | |
| READ | SUB or GET | | none, until the message is read |
| QUERY | PUB, SUB or GET | SUB or GET | GET on the cluster |
| END_TRANSACTION | PUB, when the half message is read | | none |
| ROUTE | none | | GET on the cluster |
| AUTHENTICATE | | | none |
| ALTER_TOPIC, ALTER_GROUP | CREATE or UPDATE | CREATE or UPDATE | |
| DELETE_TOPIC, DELETE_GROUP | DELETE | DELETE | |
| RESET_OFFSET, CALL_CLIENT | UPDATE | UPDATE | |
| all others | | | UPDATE on the cluster |

"None": any authenticated user. A request that names nothing where something is expected needs UPDATE on the cluster, so
that no malformed request passes with fewer rights.

Corresponds to the switch over request codes in `PlainAccessValidator` of Apache RocketMQ 4.9.8, which has entries for
nine codes and admits every other request of an authenticated user, and to `DefaultAuthorizationContextBuilder` of 5.3.
"""

from __future__ import annotations

from enum import Enum, Flag, auto
from typing import Final, NamedTuple

from rucola.access import Action, Resource
from rucola.message.topics import (
    DLQ_PREFIX,
    POP_LOG_TOPIC,
    REPLY_TOPIC_POSTFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)


class ResourceType(Enum):
    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Right(Flag):
    """The actions of ACL 2.0. In ACL 1.0 all but PUB and SUB belong to admin accounts."""

    PUB = auto()
    SUB = auto()
    CREATE = auto()
    UPDATE = auto()
    DELETE = auto()
    GET = auto()
    LIST = auto()


class Requirement(NamedTuple):
    type: ResourceType
    name: str
    """Name of the topic or group; empty for the cluster."""
    rights: Right

    @property
    def is_internal(self) -> bool:
        """Whether only a permission that names the topic counts, since it holds messages of all topics."""
        if self.type is not ResourceType.TOPIC:
            return False
        if self.name == TRACE_TOPIC or self.name.endswith(f"_{REPLY_TOPIC_POSTFIX}"):
            return not self.rights & Right.PUB
        return self.name in _OF_ALL_TOPICS

    def __str__(self) -> str:
        if self.type is ResourceType.CLUSTER:
            return "the cluster"
        return f"{self.type.value.lower()} {self.name}"


_OF_ALL_TOPICS: Final = {
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    POP_LOG_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
}
_READ: Final = Right.SUB | Right.GET
_COMMIT: Final = Right.SUB | Right.UPDATE
_ALTER: Final = Right.CREATE | Right.UPDATE

_OF_TOPIC: Final = {
    Action.PUBLISH: Right.PUB,
    Action.FETCH: Right.SUB,
    Action.RECEIVE: Right.SUB,
    Action.ACKNOWLEDGE: Right.SUB,
    Action.HEARTBEAT: Right.SUB,
    Action.UNREGISTER: Right.SUB,
    Action.LOCK: Right.SUB,
    Action.COMMIT: _COMMIT,
    Action.READ: _READ,
    Action.QUERY: Right.PUB | _READ,
    Action.END_TRANSACTION: Right.PUB,
    Action.ALTER_TOPIC: _ALTER,
    Action.DELETE_TOPIC: Right.DELETE,
    Action.RESET_OFFSET: Right.UPDATE,
    Action.CALL_CLIENT: Right.UPDATE,
}
_OF_GROUP: Final = {
    Action.FETCH: Right.SUB,
    Action.RECEIVE: Right.SUB,
    Action.ACKNOWLEDGE: Right.SUB,
    Action.RETRY: Right.SUB,
    Action.HEARTBEAT: Right.SUB,
    Action.UNREGISTER: Right.SUB,
    Action.LOCK: Right.SUB,
    Action.COMMIT: _COMMIT,
    Action.QUERY: _READ,
    Action.ALTER_GROUP: _ALTER,
    Action.DELETE_GROUP: Right.DELETE,
    Action.RESET_OFFSET: Right.UPDATE,
    Action.CALL_CLIENT: Right.UPDATE,
}
_WITHOUT_RESOURCE: Final = {
    Action.AUTHENTICATE,
    Action.HEARTBEAT,
    Action.UNREGISTER,
    Action.END_TRANSACTION,
    Action.READ,
}
"""Actions whose requests may name nothing. The broker checks the last two's topic once it has read the message."""
_OF_CLUSTER: Final = {Action.QUERY: Right.GET, Action.ROUTE: Right.GET, Action.QUERY_ACCESS: Right.GET}


def requirements(action: Action, resource: Resource) -> list[Requirement]:
    """Return what a request needs, all of which must be met; empty if authentication suffices."""
    if action is Action.ROUTE and resource.topic:
        return []
    found: list[Requirement] = []
    of_group = _OF_GROUP.get(action)
    group = _group_of(resource.topic)
    if group is not None and (action in _OF_TOPIC or of_group):
        rights = of_group or (Right.SUB if action is Action.PUBLISH else _OF_TOPIC[action])
        found.append(Requirement(ResourceType.GROUP, group, rights))
    elif resource.topic and action in _OF_TOPIC:
        found.append(Requirement(ResourceType.TOPIC, resource.topic, _OF_TOPIC[action]))
    if resource.group and of_group:
        requirement = Requirement(ResourceType.GROUP, resource.group, of_group)
        if requirement not in found:
            found.append(requirement)
    if not found and action not in _WITHOUT_RESOURCE:
        found.append(Requirement(ResourceType.CLUSTER, "", _OF_CLUSTER.get(action, Right.UPDATE)))
    return found


def _group_of(topic: str) -> str | None:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None
