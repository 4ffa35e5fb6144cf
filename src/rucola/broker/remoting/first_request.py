"""The pulls or the receives by POP at the start of a read, served from its bytes without decoding commands.

It is half of what such a request costs beyond the messages. Unusual and refused ones are served by their processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

from rucola import speed
from rucola.access import Check, Refused, Resource
from rucola.broker.services.requests import FetchRequest, PopRequest
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE
from rucola.remoting.access_gate import AccessGate
from rucola.remoting.connection import WRITE_LIMIT, Connection, Reply
from rucola.remoting.endpoints import Request
from rucola.remoting.refusals import error_response

MAX_RUN: Final = 8
"""Requests that are served together, before other connections have their turn."""


class Fetching(NamedTuple):
    """How to serve one request code: its request of the service, the checks of its action, and its handler."""

    request: Callable[..., FetchRequest | PopRequest]
    checks: Sequence[Check]
    handler: Callable[[Request[Any]], Reply]
    together: Callable[[], AbstractContextManager[object]] = nullcontext
    """Encloses the calls of the handler; what it raises at its end is the answer to all requests."""


def serve_first(
    fetching: Mapping[int, Fetching], gate: AccessGate | None, connection: Connection, data: memoryview
) -> tuple[bytes, int]:
    """Serve requests of one code at the start of a read, see `ReadHooks`."""
    if speed.read_fetch is None or (found := speed.read_fetch(data, MAX_FRAME_SIZE, MAX_HEADER_SIZE)) is None:
        return b"", 0
    code = found[0]
    make, checks, handler, together = fetching[code]
    commands, contents, ends, credentials = list[RemotingCommand](), list[Any](), list[int](), list[Any]()
    end = 0
    while found is not None and found[0] == code:
        _, opaque, fields, size, credential = found
        end += size
        commands.append(RemotingCommand(code, {}, opaque=opaque))
        contents.append(make(*fields))
        ends.append(end)
        credentials.append(credential)
        if end == len(data) or len(ends) == MAX_RUN:
            break
        found = speed.read_fetch(data[end:], MAX_FRAME_SIZE, MAX_HEADER_SIZE)
    caller, admitted = connection.caller, len(ends)
    if gate is not None:
        caller, admitted = gate.admit(connection, data, credentials, ends)
    for place, content in enumerate(contents[:admitted]):
        resource = Resource(content.topic, content.group)
        try:
            for check in checks:
                check(caller, resource)
        except Refused:  # its processor meets it again, and answers it
            admitted = place
            break
    if not admitted:
        return b"", 0
    commands = commands[:admitted]
    frames, size = list[bytes | None](), 0
    try:
        with together():
            for command, content in zip(commands, contents, strict=False):
                reply: Reply
                try:
                    reply = handler(Request(connection, caller, command, content))
                except Exception as error:
                    reply = error_response(connection.peer, command, error)
                frames.append(frame := connection.encode_reply(command, reply))
                size += len(frame or b"")
                if size > WRITE_LIMIT or connection.is_congested:
                    break
            del commands[len(frames) :]
    except Refused as refusal:
        waiting = {place for place, frame in enumerate(frames) if frame is None}
        frames = [
            connection.encode_reply(command, error_response(connection.peer, command, refusal))
            for place, command in enumerate(commands)
            if place not in waiting
        ]
    return b"".join(filter(None, frames)), ends[len(commands) - 1]
