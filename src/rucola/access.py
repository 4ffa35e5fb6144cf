"""Access to a server: caller, action, resource, and the refusal of a request.

Every request that the broker or the name server answers is described by three values before its service runs:

    caller      the peer that sent it, and its user            Caller(address="10.0.0.7:51234")
    action      the use case, one of `Action`                 Action.PUBLISH
    resource    the topic or consumer group that it names      Resource(topic="Orders")

Interceptors see these three and raise `Refused` to reject the request. Services raise `Refused` as well, for reasons
that only they can find. Nothing here depends on a wire protocol: `rucola.remoting.refusals` translates reasons to
response codes, and adapters for another protocol would bring a table of their own.

Access control (`rucola.acl`) is such an interceptor. To add another rule, implement `Interceptor` and pass it to
`Broker` or `Namesrv`:

    class RequestLog:
        def check_for(self, action: Action) -> Check | None:
            if action is Action.QUERY:
                return None                    # queries are not logged, and cost nothing
            return lambda caller, resource: logger.info("%s %s %s", caller.address, action.name, resource)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Protocol, TypeAlias

import msgspec

from rucola.errors import MQError


class User(Protocol):
    """An authenticated user."""

    name: str


@dataclass(frozen=True, slots=True)
class Caller:
    """The peer that sends a request.

    A connection uses one for all of its requests, and another one when a request of another user is authenticated.
    """

    address: str
    """"ip:port" of the peer."""
    user: User | None = None
    """The user of the request; None without access control."""
    certificate: str = ""
    """Subject of the client's certificate, verified by TLS, such as "CN=webshop,O=Example"; empty without one."""
    host: str = field(init=False)
    """The ip of the peer, an IPv6 address without brackets."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", self.address.rpartition(":")[0].strip("[]"))

    def as_user(self, user: User) -> Caller:
        """Return this caller with another user."""
        return Caller(self.address, user, self.certificate)


class Resource(msgspec.Struct, frozen=True, gc=False):
    """The topic and the group that a request names.

    All are empty if it concerns the server as a whole. A msgspec struct, because one is created per request: a named
    tuple takes 0.07 µs longer.
    """

    topic: str = ""
    group: str = ""
    """A consumer group."""
    producer_group: str = ""


class Action(Enum):
    """The use case of a request.

    Requests that an interceptor would never tell apart share an action.
    """

    # Messages
    PUBLISH = auto()
    """Store a message, a batch, half of a transaction, or a reply."""
    RETRY = auto()
    """Store a message again for a group that failed to consume it."""
    END_TRANSACTION = auto()
    FETCH = auto()
    """Pull messages of a queue."""
    READ = auto()
    """Read messages by key or id."""
    QUERY = auto()
    """Read offsets, tables, settings or statistics."""

    # Clients and consumer groups
    AUTHENTICATE = auto()
    """Begin a connection whose requests nobody can send again."""
    HEARTBEAT = auto()
    UNREGISTER = auto()
    """Take a client out of its groups."""
    LOCK = auto()
    """Lock or unlock queues for ordered consumption."""
    COMMIT = auto()
    """Store a consumer offset."""
    RESET_OFFSET = auto()
    """Change the consumer offsets of a group on behalf of an operator."""
    CALL_CLIENT = auto()
    """Have the broker send a request to a connected client."""

    # Administration
    ALTER_TOPIC = auto()
    """Create or change a topic."""
    DELETE_TOPIC = auto()
    ALTER_GROUP = auto()
    """Create or change a consumer group."""
    DELETE_GROUP = auto()
    ALTER_CONFIG = auto()
    QUERY_ACCESS = auto()
    """Read users, policies, or the versions of accounts."""
    ALTER_ACCESS = auto()
    """Change accounts, users, policies or white addresses."""
    REPLICATE = auto()
    """Copy the whole log, as a slave."""
    CLEAN_UP = auto()
    """Delete expired files and queues now."""
    RESUME_TRANSACTION = auto()
    """Open a transaction again that was discarded after too many checks."""
    ALTER_ROLE = auto()
    """Make a broker master or slave."""

    # Name servers
    REGISTER_BROKER = auto()
    """Register or unregister a broker with its topics."""
    ROUTE = auto()
    """Read routes, clusters and lists of topics."""
    ALTER_ROUTE = auto()
    """Delete a topic's route, or change the permission of a broker's queues."""
    ALTER_KV = auto()
    """Change the key-value table."""


ADMINISTRATIVE: Final = frozenset(
    {
        Action.RESET_OFFSET,
        Action.CALL_CLIENT,
        Action.ALTER_TOPIC,
        Action.DELETE_TOPIC,
        Action.ALTER_GROUP,
        Action.DELETE_GROUP,
        Action.ALTER_CONFIG,
        Action.QUERY_ACCESS,
        Action.ALTER_ACCESS,
        Action.CLEAN_UP,
        Action.RESUME_TRANSACTION,
        Action.ALTER_ROLE,
        Action.ALTER_ROUTE,
        Action.ALTER_KV,
    }
)
"""The actions of operators, which the audit log records. Registrations of brokers, every 30 s, are not among them."""


class Reason(Enum):
    """Why a request is refused, in terms of messages, topics and groups."""

    INVALID = auto()
    """An argument has no meaning here."""
    NOT_FOUND = auto()
    """A message, queue, client or statistic that the request names does not exist."""
    NO_VALUE = auto()
    """Nothing is stored under the key or offset that the request names."""
    FAILED = auto()
    """The request was valid and could not be carried out."""
    FORBIDDEN = auto()
    """The permission of the broker, topic or group does not allow it."""
    DENIED = auto()
    """Access control: the caller is unknown, or may not carry out this action on this resource."""
    ACCOUNT_NOT_CHANGED = auto()
    """An account of ACL 1.0 could not be created or changed."""
    ACCOUNT_NOT_DELETED = auto()
    WHITE_ADDRESSES_NOT_CHANGED = auto()
    BUSY = auto()
    """Flow control: the request would wait for too long."""
    UNAVAILABLE = auto()
    """This server stores no messages now."""
    NOT_MASTER = auto()
    """Only the master of a broker name ends transactions."""
    ILLEGAL_MESSAGE = auto()
    """A record cannot hold the message, or a limit of the broker forbids it."""
    TOPIC_NOT_FOUND = auto()
    GROUP_NOT_FOUND = auto()
    INVALID_SUBSCRIPTION = auto()
    """The expression of a subscription cannot be parsed."""
    SUBSCRIPTION_NOT_FOUND = auto()
    SUBSCRIPTION_OUTDATED = auto()
    """The client has a newer version of its subscription than its last heartbeat carried."""
    FILTER_NOT_FOUND = auto()
    """The compiled filter of a subscription is not known."""
    CLIENT_OFFLINE = auto()
    CLIENT_TIMEOUT = auto()
    """A client did not answer the broker in time."""


class Refused(MQError):
    """A request that a service or an interceptor rejects.

    `reason` is for programs, the text for people. `details` are facts about the server that go with the refusal; the
    remoting adapters send them as ext fields.
    """

    def __init__(self, reason: Reason, text: str, details: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.details = details


Check: TypeAlias = Callable[[Caller, Resource], None]
"""Lets a request pass, or raises Refused.

Called on the event loop before every request of one action; must not block.
"""


class Interceptor(Protocol):
    """A rule that applies to requests before their services."""

    def check_for(self, action: Action) -> Check | None:
        """Return the check for requests of this action; None if the rule never applies.

        Called once per request code, when the server starts. A rule that changes while the server runs returns a
        check and decides in it.
        """
