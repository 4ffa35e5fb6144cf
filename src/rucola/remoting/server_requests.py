"""ServerRequests: a client's processors of requests from servers, and bounds on their work.

A client cannot stop reading (see `rucola.remoting.connection`). Above MAX_PENDING unanswered requests of one
connection, it answers SYSTEM_BUSY; above MAX_UNSENT unsent bytes, it drops requests that expect a response.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rucola import refusals
from rucola.access import Refused
from rucola.protocol.command import FLAG_ONEWAY, RemotingCommand
from rucola.remoting.connection import Connection, Processor, Reply

MAX_PENDING: Final = 64
MAX_UNSENT: Final = 4 * 1024 * 1024


class ServerRequests:
    def __init__(self, processors: Mapping[int, Processor]) -> None:
        self._processors = processors

    def processor_of(self, code: int, default: Processor) -> Processor:
        """Return the processor of a code, or the default, within the bounds."""
        process = self._processors.get(code, default)

        def bounded(connection: Connection, command: RemotingCommand) -> Reply:
            if connection.unsent_bytes > MAX_UNSENT and not command.flag & FLAG_ONEWAY:
                return None
            if connection.pending_replies >= MAX_PENDING:
                raise Refused(refusals.TOO_MANY_CALLS, limit=MAX_PENDING)
            return process(connection, command)

        return bounded
