"""ServerRequests: a client's processors of requests from servers, and bounds on their work.

A server checks transactions, asks for running information, has messages consumed, and so on, at any time and rate. A
client cannot stop reading (see `rucola.remoting.connection`), so without bounds a server that floods it, or that does
not read its answers, would fill its memory. Beyond MAX_PENDING requests of one connection that wait for their answers,
further ones are refused with SYSTEM_BUSY. While more than MAX_UNSENT bytes are unsent, requests that expect an answer
are dropped: a server that does not read would not get it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rucola.access import Reason, Refused
from rucola.protocol.command import FLAG_ONEWAY, RemotingCommand
from rucola.remoting.connection import Connection, Processor, Reply

MAX_PENDING: Final = 64
MAX_UNSENT: Final = 4 * 1024 * 1024


class ServerRequests:
    """The table of a client's processors, as connections look them up."""

    def __init__(self, processors: Mapping[int, Processor]) -> None:
        self._processors = processors

    def get(self, code: int, default: Processor) -> Processor:
        """Return the processor of a code, or the default, within the bounds."""
        process = self._processors.get(code, default)

        def bounded(connection: Connection, command: RemotingCommand) -> Reply:
            if connection.unsent_bytes > MAX_UNSENT and not command.flag & FLAG_ONEWAY:
                return None
            if connection.pending_replies >= MAX_PENDING:
                raise Refused(Reason.BUSY, f"this client is working on {MAX_PENDING} requests of this server already")
            return process(connection, command)

        return bounded
