"""An interceptor that refuses every request, and requests that every server can decode."""

from __future__ import annotations

from collections.abc import Iterator

import rucola.protocol.broker_stats
import rucola.protocol.connections
import rucola.protocol.group
import rucola.protocol.heartbeat
import rucola.protocol.kv
import rucola.protocol.offset
import rucola.protocol.pull
import rucola.protocol.query
import rucola.protocol.retry
import rucola.protocol.route
import rucola.protocol.send
import rucola.protocol.topic
import rucola.protocol.transaction  # noqa: F401 (headers are found as subclasses of Header)
from rucola.access import Action, Caller, Check, Reason, Refused, Resource
from rucola.protocol.command import Header, RemotingCommand

BODY = b"""{"clientID":"1","clientId":"1","consumerGroup":"1","groupName":"1","group":"1",
"consumerDataSet":[{"groupName":"consumers"}],"mqSet":[{"topic":"T","brokerName":"b","queueId":0}]}"""
"""A body that is valid JSON for every request whose body is one."""


class RefuseAll:
    """Refuses every request, and records what it saw of it."""

    def __init__(self) -> None:
        self.seen: list[tuple[Caller, Action, Resource]] = []

    def check_for(self, action: Action) -> Check | None:
        def refuse(caller: Caller, resource: Resource) -> None:
            self.seen.append((caller, action, resource))
            raise Refused(Reason.FORBIDDEN, "refused by the test")

        return refuse


def requests_of_every_field(code: int) -> RemotingCommand:
    """Return a request whose header has every field that any request header has, each with the value 1."""
    request = RemotingCommand.request(code, body=BODY)
    request.ext = dict.fromkeys(field_names(), "1")
    return request


def field_names() -> Iterator[str]:
    """Yield the names on the wire of the fields of all headers."""
    for header in Header.__subclasses__():
        yield from header.__struct_encode_fields__
