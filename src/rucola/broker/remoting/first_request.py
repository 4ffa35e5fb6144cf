"""The pull or the receive by POP at the start of a read, served from its bytes without decoding a command.

It is half of what such a request costs beyond the messages. Unusual and refused ones are served by their processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rucola import speed
from rucola.access import Check, Refused, Resource
from rucola.broker.services.requests import FetchRequest, PopRequest
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE
from rucola.remoting.access_gate import AccessGate
from rucola.remoting.connection import Connection, Reply
from rucola.remoting.endpoints import Request
from rucola.remoting.refusals import error_response


class Fetching(NamedTuple):
    """How to serve one request code: its request of the service, the checks of its action, and its handler."""

    request: Callable[..., FetchRequest | PopRequest]
    checks: Sequence[Check]
    handler: Callable[[Request[Any]], Reply]


def serve_first(
    fetching: Mapping[int, Fetching], gate: AccessGate | None, connection: Connection, data: memoryview
) -> tuple[bytes, int]:
    """Serve the request at the start of a read, see `ReadHooks`."""
    if speed.read_fetch is None or (found := speed.read_fetch(data, MAX_FRAME_SIZE, MAX_HEADER_SIZE)) is None:
        return b"", 0
    code, opaque, fields, end, credentials = found
    make, checks, handler = fetching[code]
    content, caller, admitted = make(*fields), connection.caller, 1
    if gate is not None:
        caller, admitted = gate.admit(connection, data, [credentials], [end])
    resource = Resource(content.topic, content.group)
    try:
        for check in checks if admitted else ():
            check(caller, resource)
    except Refused:
        admitted = 0
    if not admitted:  # its processor meets it again, and answers it
        return b"", 0
    command = RemotingCommand(code, {}, opaque=opaque)
    reply: Reply
    try:
        reply = handler(Request(connection, caller, command, content))
    except Exception as error:
        reply = error_response(connection.peer, command, error)
    return connection.encode_reply(command, reply) or b"", end
