"""Exceptions of Rucola, as one tree.

    MQError
    ├── InvalidMessage          a message, topic, group or id that breaks the format's rules
    │   ├── InvalidExpression   a filter with a syntax or type error
    │   └── InvalidBody         a body that is not the value that a consumer expects
    ├── RemoteProtocolError     bytes from a peer that are not a RocketMQ frame or header
    ├── StoreError              a store directory that cannot be used as requested
    │   ├── StoreCorrupt        bytes on disk that contradict the format
    │   ├── StoreLocked         the directory is served by another broker
    │   └── DirectoryNotShared  a worker of Spark does not see the driver's directory
    ├── ConfigError             an invalid configuration file or option
    └── RemotingError           a request without a usable response
        ├── RemotingConnectError
        ├── RemotingTimeout
        ├── BrokerError         a response with an error code
        ├── TopicNotFound       no name server has a route for the topic
        └── SendFailed          every attempt to send a message failed

`except MQError` covers all errors of input from outside. Expected outcomes (a full disk, an offset beyond the end of a
queue) are return values. Texts contain what is wrong, where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath


class MQError(Exception):
    """Base class of all exceptions of this package.

    `subject` names what is wrong, for programs: a setting, argument or field, a path, an address or a topic. It may be
    empty. The text is for people and may change.
    """

    def __init__(self, text: str = "", subject: object = "") -> None:
        super().__init__(text)
        self.subject = str(subject)


class InvalidMessage(MQError):
    """A message, topic, group, property or id that the format cannot represent."""


class InvalidBody(InvalidMessage):
    """The body of a received message that is not of the consumer's `value`."""


class InvalidExpression(InvalidMessage):
    """A SQL92 filter with an error; `position` is its index in the expression."""

    def __init__(self, expression: str, position: int, why: str) -> None:
        self.expression = expression
        self.position = position
        self.why = why
        shown = expression if len(expression) <= 200 else expression[:200] + "..."
        super().__init__(f"filter {shown!r}, position {position}: {why}", expression)

    def __reduce__(self) -> tuple[type[InvalidExpression], tuple[str, int, str]]:
        return InvalidExpression, (self.expression, self.position, self.why)


class RemoteProtocolError(MQError):
    """Bytes from a peer that cannot be decoded as a RocketMQ frame, header or body."""


class StoreError(MQError):
    """A store directory that cannot be used as requested."""


class StoreCorrupt(StoreError):
    """Bytes in a store file that contradict the format, with their position."""

    def __init__(self, path: str | PathLike[str], position: int, why: str) -> None:
        self.path = fspath(path)
        self.position = position
        self.why = why
        super().__init__(f"{self.path} at byte {position}: {why}", self.path)

    def __reduce__(self) -> tuple[type[StoreCorrupt], tuple[str, int, str]]:
        return StoreCorrupt, (self.path, self.position, self.why)


class StoreLocked(StoreError):
    """The store directory is locked by another process; only one broker may write to it."""


class DirectoryNotShared(StoreError):
    """A directory that the driver of a Spark job does not share with a worker."""


class ConfigError(MQError):
    """An invalid configuration file or option."""


class RemotingError(MQError):
    """A request without a usable response."""


class RemotingConnectError(RemotingError):
    """A connection that could not be opened, or that was lost before the response arrived."""


class RemotingTimeout(RemotingError):
    """A request without a response within its timeout. The peer may still have executed it."""


class BrokerError(RemotingError):
    """A response with an error code: `code` as received, `remark` is the peer's text."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        self.code = code
        self.remark = remark
        self.address = address
        super().__init__(f"{address} responded with code {code}: {remark or 'no remark'}", address)

    def __reduce__(self) -> tuple[type[BrokerError], tuple[int, str | None, str]]:
        return BrokerError, (self.code, self.remark, self.address)


def is_unreachable(error: BaseException) -> bool:
    """Return whether a server was not reached, or did not respond."""
    return isinstance(error, RemotingConnectError | RemotingTimeout)


class TopicNotFound(RemotingError):
    """No name server has a route for the topic."""


class SendFailed(RemotingError):
    """A message that could not be sent within its retries or its timeout.

    `attempts` lists the queue and the error of each. A broker may have stored the message nevertheless.
    """

    def __init__(self, topic: str, attempts: Sequence[tuple[str, RemotingError]]) -> None:
        self.topic = topic
        self.attempts = tuple(attempts)
        tries = "; ".join(f"{queue}: {error}" for queue, error in attempts)
        count = len(self.attempts)
        super().__init__(f"no broker took a message for {topic}, tried {count} time{'s' * (count > 1)}: {tries}", topic)

    def __reduce__(self) -> tuple[type[SendFailed], tuple[str, tuple[tuple[str, RemotingError], ...]]]:
        return SendFailed, (self.topic, self.attempts)


def missing_extra(error: ModuleNotFoundError, extra: str) -> str:
    """Return the sentence for an optional dependency that is not installed."""
    text = str(error)
    return text if "`pip install" in text else f"{text}: `pip install 'rucola-mq[{extra}]'` adds it"
