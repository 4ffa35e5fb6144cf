"""AccessGate: authentication of requests, and the audit log of their outcomes.

A gate encloses the processor of each request code. With access control it sets the caller of the connection to the user
of the request before anything else is done with it. Requests that access control denies, and the outcome of
administrative ones, are recorded in the audit log.

The caller belongs to the connection, since nearly all of its requests are of one user; it is replaced when a request
of another user arrives. A handler that waits may therefore see the user of a later request on the same connection,
so it reads the caller before the wait, and records and checks with that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rucola.access import ADMINISTRATIVE, Action, Caller, Reason, Refused, Resource
from rucola.acl.access_control import AccessControl
from rucola.acl.audit_log import AuditLog
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Answer, Connection, Processor, Reply


class AccessGate:
    """Authenticates and records the requests of one server; either part may be missing."""

    def __init__(self, access: AccessControl | None, audit: AuditLog | None) -> None:
        self._access = access
        self._audit = audit
        self.denied = 0
        """Requests that access control denied since the start."""

    def enclose(
        self,
        code: int,
        action: Action,
        resources_of: Callable[[RemotingCommand], list[Resource]],
        process: Processor,
    ) -> Processor:
        """Return the processor that does all of this around `process`."""
        if self._audit is not None and action in ADMINISTRATIVE:
            process = self._recorded(code, action, resources_of, process, self._audit)
        access = self._access
        if access is None:
            return process
        authenticate = access.authenticate

        def enclosed(connection: Connection, command: RemotingCommand) -> Reply:
            try:
                connection.caller = authenticate(connection.caller, command)
                return process(connection, command)
            except Refused as refusal:
                if refusal.reason is Reason.DENIED:
                    self._record_denied(connection.caller, code, action, resources_of(command), refusal)
                raise

        return enclosed

    def record_peer(self, caller: Caller, refusal: Refused) -> None:
        """Record a slave that was denied; its connection has no request code."""
        self._record_denied(caller, 0, Action.REPLICATE, [], refusal)

    def _record_denied(
        self, caller: Caller, code: int, action: Action, resources: list[Resource], refusal: Refused
    ) -> None:
        self.denied += 1
        if self._audit is not None:
            self._audit.denied(caller, code, action, resources, str(refusal))

    def _recorded(
        self,
        code: int,
        action: Action,
        resources_of: Callable[[RemotingCommand], list[Resource]],
        process: Processor,
        audit: AuditLog,
    ) -> Processor:
        """Return the processor that records the outcome of administrative requests."""

        def record(caller: Caller, command: RemotingCommand, error: BaseException) -> None:
            if not (isinstance(error, Refused) and error.reason is Reason.DENIED):  # that has a line already
                audit.record(caller, code, action, resources_of(command), "failed", str(error))

        def done(caller: Caller, command: RemotingCommand, answer: Answer) -> None:
            is_failed = isinstance(answer, RemotingCommand) and answer.code != ResponseCode.SUCCESS
            reason = (answer.remark or "") if is_failed and isinstance(answer, RemotingCommand) else ""
            outcome = "failed" if is_failed else "done"
            audit.record(caller, code, action, resources_of(command), outcome, reason)

        async def later(caller: Caller, command: RemotingCommand, answer: Awaitable[Answer]) -> Answer:
            try:
                result = await answer
            except Exception as error:
                if isinstance(error, Refused) and error.reason is Reason.DENIED:
                    self._record_denied(caller, code, action, resources_of(command), error)
                record(caller, command, error)
                raise
            done(caller, command, result)
            return result

        def recorded(connection: Connection, command: RemotingCommand) -> Reply:
            caller = connection.caller
            try:
                reply = process(connection, command)
            except Exception as error:
                record(caller, command, error)
                raise
            if reply is None or isinstance(reply, (bytes, RemotingCommand)):
                done(caller, command, reply)
                return reply
            return later(caller, command, reply)

        return recorded
