"""Access to a server: caller, action, resource, and the refusal of a request.

Each request is described by three values:

    caller      the peer and its user                       Caller(address="10.0.0.7:51234")
    action      the use case, one of `Action`               Action.PUBLISH
    resource    the topic or consumer group in it           Resource(topic="Orders")

Interceptors, such as access control (`rucola.acl`), raise `Refused` to reject a request, as do services. To add a rule,
implement `Interceptor` and pass it to `Broker` or `Namesrv`, see docs/access-control.md. Nothing here depends on a wire
protocol: `rucola.remoting.refusals` maps reasons to response codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Protocol, TypeAlias

import msgspec

from rucola.errors import MQError


class User(Protocol):
    name: str


@dataclass(frozen=True, slots=True)
class Caller:
    """The peer that sends a request. Each authenticated user of a connection has one."""

    address: str
    user: User | None = None
    """None without access control."""
    certificate: str = ""
    """Subject of the certificate verified by TLS, such as "CN=webshop,O=Example"; empty without one."""
    host: str = field(init=False)
    """An IPv6 address has no brackets."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", self.address.rpartition(":")[0].strip("[]"))

    def as_user(self, user: User) -> Caller:
        return Caller(self.address, user, self.certificate)


class Resource(msgspec.Struct, frozen=True, gc=False):
    """Topic and group of a request, if any. A named tuple takes 0.07 µs longer than a msgspec struct."""

    topic: str = ""
    group: str = ""
    producer_group: str = ""


class Action(Enum):
    # Messages
    PUBLISH = auto()  # a message, a batch, half of a transaction, or a reply
    RETRY = auto()
    """Store a message again for a group that failed to consume it."""
    END_TRANSACTION = auto()
    FETCH = auto()
    READ = auto()  # by key or id
    RECEIVE = auto()
    """Receive messages by POP."""
    ACKNOWLEDGE = auto()
    """Acknowledge messages received by POP, or change their invisible time."""
    QUERY = auto()  # offsets, tables, settings or statistics

    # Clients and consumer groups
    AUTHENTICATE = auto()
    """Start a connection whose requests cannot be replayed."""
    HEARTBEAT = auto()
    UNREGISTER = auto()
    LOCK = auto()
    COMMIT = auto()
    RESET_OFFSET = auto()  # by an operator
    CALL_CLIENT = auto()
    """Forward a request to a connected client."""

    # Administration
    ALTER_TOPIC = auto()
    DELETE_TOPIC = auto()
    ALTER_GROUP = auto()
    DELETE_GROUP = auto()
    ALTER_CONFIG = auto()
    QUERY_ACCESS = auto()  # users, policies, or versions of accounts
    ALTER_ACCESS = auto()
    REPLICATE = auto()  # the whole log, as a slave
    CLEAN_UP = auto()  # expired files and queues
    RESUME_TRANSACTION = auto()
    """Open a transaction again that was discarded after too many checks."""
    ALTER_ROLE = auto()

    # Name servers
    REGISTER_BROKER = auto()
    ROUTE = auto()  # routes, clusters and lists of topics
    ALTER_ROUTE = auto()  # delete a topic's route, or change a broker's permission
    ALTER_KV = auto()


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
"""Recorded in the audit log. Registrations, every 30 s, are not among them."""


class Reason(Enum):
    INVALID = auto()  # an argument has no meaning here
    NOT_FOUND = auto()  # message, queue, client or statistic
    NO_VALUE = auto()
    """Nothing is stored under the key or offset."""
    FAILED = auto()
    FORBIDDEN = auto()
    """By the permission of the broker, topic or group."""
    DENIED = auto()
    """By access control."""
    ACCOUNT_NOT_CHANGED = auto()
    """An account of ACL 1.0."""
    ACCOUNT_NOT_DELETED = auto()
    WHITE_ADDRESSES_NOT_CHANGED = auto()
    BUSY = auto()  # flow control
    UNAVAILABLE = auto()  # this server stores no messages now
    NOT_MASTER = auto()
    """Only the master of a broker name ends transactions."""
    ILLEGAL_MESSAGE = auto()
    """A record cannot hold the message, or a limit of the broker forbids it."""
    TOPIC_NOT_FOUND = auto()
    GROUP_NOT_FOUND = auto()
    INVALID_SUBSCRIPTION = auto()
    SUBSCRIPTION_NOT_FOUND = auto()
    SUBSCRIPTION_OUTDATED = auto()
    """The last heartbeat had an older version of the subscription."""
    FILTER_NOT_FOUND = auto()
    ILLEGAL_OPERATION = auto()
    """The state of what it names does not allow it."""
    STALE_HANDLE = auto()
    """Another delivery of the message followed, or there is none."""
    POLLING_FULL = auto()
    CLIENT_OFFLINE = auto()
    CLIENT_TIMEOUT = auto()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kind of refusal: its reason and its text, a format string. `rucola.refusals` lists the servers' refusals."""

    reason: Reason
    text: str


class Refused(MQError):
    """Rejects a request.

    `reason` and `fields` are for programs, the text is for people, and `details` are ext fields of the response. With a
    plain reason, the text is taken as it is: `Refused(Reason.DENIED, "user alice needs a certificate")`.
    """

    def __init__(
        self, refusal: Refusal | Reason, text: str = "", *, details: Mapping[str, str] | None = None, **fields: object
    ) -> None:
        super().__init__()
        self.refusal = Refusal(refusal, "{text}") if isinstance(refusal, Reason) else refusal
        self.reason = self.refusal.reason
        self.fields = fields | {"text": text} if text else fields
        self.details = details

    def __str__(self) -> str:
        return self.refusal.text.format_map(self.fields)


Check: TypeAlias = Callable[[Caller, Resource], None]
"""Lets a request pass, or raises Refused. Called on the event loop for every request; must not block."""


class Interceptor(Protocol):
    def check_for(self, action: Action) -> Check | None:
        """Return the check for an action, None if the rule never applies. Called once per request code, at start."""
