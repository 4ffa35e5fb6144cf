"""Every error that Rucola raises, as one tree.

    MQError
    ├── InvalidMessage          a message, topic, group or id that breaks the format's rules
    │   └── InvalidExpression   a filter that cannot be read
    ├── RemoteProtocolError     bytes from a peer that are no RocketMQ frame or header
    ├── StoreError              a store directory cannot be used as asked
    │   ├── StoreCorrupt        bytes on disk that contradict the format
    │   └── StoreLocked         another broker has the directory
    ├── ConfigError             a configuration file or option that cannot be understood
    └── RemotingError           a request got no usable answer
        ├── RemotingConnectError
        ├── RemotingTimeout
        ├── BrokerError         the peer answered with an error code
        ├── TopicNotFound       no name server has a route for the topic
        └── SendFailed          a message was tried on several queues, and none took it

`except MQError` is total: nothing in this package raises anything else on purpose for input that comes from
outside. Outcomes that are expected (a full disk, an offset beyond the end) are values, not errors. The message
of an error names what is wrong, where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath


class MQError(Exception):
    """Root of every error of this package."""


class InvalidMessage(MQError):
    """A message, topic, group, property or id that the format cannot carry."""


class InvalidExpression(InvalidMessage):
    """A SQL92 filter that cannot be read, with the place (an index into it) where it goes wrong."""

    def __init__(self, expression: str, position: int, why: str) -> None:
        self.expression = expression
        self.position = position
        self.why = why
        shown = expression if len(expression) <= 200 else expression[:200] + "..."
        super().__init__(f"filter {shown!r}, position {position}: {why}")

    def __reduce__(self) -> tuple[type[InvalidExpression], tuple[str, int, str]]:
        return InvalidExpression, (self.expression, self.position, self.why)


class RemoteProtocolError(MQError):
    """Bytes from a peer that cannot be read as a RocketMQ frame, header or body."""


class StoreError(MQError):
    """A store directory that cannot be used as asked."""


class StoreCorrupt(StoreError):
    """Bytes in a store that contradict the format, with the place where they stand."""

    def __init__(self, path: str | PathLike[str], position: int, why: str) -> None:
        self.path = fspath(path)
        self.position = position
        self.why = why
        super().__init__(f"{self.path} at byte {position}: {why}")

    def __reduce__(self) -> tuple[type[StoreCorrupt], tuple[str, int, str]]:
        return StoreCorrupt, (self.path, self.position, self.why)


class StoreLocked(StoreError):
    """Another process serves the store directory; only one broker may write to it."""


class ConfigError(MQError):
    """A configuration file or option that cannot be understood."""


class RemotingError(MQError):
    """A request that got no usable answer."""


class RemotingConnectError(RemotingError):
    """No connection to the address could be made, or it broke before the answer came."""


class RemotingTimeout(RemotingError):
    """The answer did not come in time. The peer may still have carried out the request."""


class BrokerError(RemotingError):
    """The peer answered with an error code.

    `code` is the response code as sent (see `rucola.protocol.codes.ResponseCode`), `remark` the peer's words.
    """

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        self.code = code
        self.remark = remark
        self.address = address
        super().__init__(f"{address} answered code {code}: {remark or 'no remark'}")

    def __reduce__(self) -> tuple[type[BrokerError], tuple[int, str | None, str]]:
        return BrokerError, (self.code, self.remark, self.address)


class TopicNotFound(RemotingError):
    """No name server knows a route for the topic."""


class SendFailed(RemotingError):
    """A message could not be sent, though several tries were made or time ran out.

    `attempts` holds, in order, the queue of each try and what went wrong there. A broker may have stored the message
    where the error is a RemotingTimeout or a connection that broke.
    """

    def __init__(self, topic: str, attempts: Sequence[tuple[str, RemotingError]]) -> None:
        self.topic = topic
        self.attempts = tuple(attempts)
        tries = "; ".join(f"{queue}: {error}" for queue, error in attempts)
        count = len(self.attempts)
        super().__init__(f"no broker took a message for {topic}, tried {count} time{'s' * (count > 1)}: {tries}")

    def __reduce__(self) -> tuple[type[SendFailed], tuple[str, tuple[tuple[str, RemotingError], ...]]]:
        return SendFailed, (self.topic, self.attempts)
