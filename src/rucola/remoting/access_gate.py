"""AccessGate: authentication of requests, and the audit log of their outcomes.

A gate encloses each processor. It determines the user first and passes the caller as an argument. Denied requests, and
the outcome of administrative ones, are recorded. The connection caches the latest caller; nothing else may read it,
since later requests can have another user while a handler waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from rucola.access import ADMINISTRATIVE, Action, Caller, Reason, Refused, Resource
from rucola.acl.access_control import AccessControl
from rucola.acl.audit_log import AuditLog
from rucola.acl.signed_content import SignedContent
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Answer, Connection, Processor, Reply
from rucola.speed import Credentials

CallerProcessor: TypeAlias = Callable[[Connection, Caller, RemotingCommand], Reply]


class AccessGate:
    """Authenticates and records requests; either may be disabled."""

    def __init__(self, access: AccessControl | None, audit: AuditLog | None) -> None:
        self._access = access
        self._audit = audit
        self.denied = 0

    def enclose(
        self,
        code: int,
        action: Action,
        resources_of: Callable[[RemotingCommand], list[Resource]],
        process: CallerProcessor,
    ) -> Processor:
        """Return a processor with authentication and audit around `process`."""
        if self._audit is not None and action in ADMINISTRATIVE:
            process = self._recorded(code, action, resources_of, process, self._audit)
        access = self._access
        if access is None:
            return lambda connection, command: process(connection, connection.caller, command)
        authenticate = access.authenticate

        def enclosed(connection: Connection, command: RemotingCommand) -> Reply:
            caller = connection.caller  # without a user, if the request is not authentic
            try:
                caller = connection.latest_caller = authenticate(
                    connection.latest_caller, command, connection.challenge
                )
                return process(connection, caller, command)
            except Refused as refusal:
                if refusal.reason is Reason.DENIED:
                    self.record_denied(caller, code, action, resources_of(command), refusal)
                raise

        return enclosed

    def admit(
        self, connection: Connection, data: memoryview, credentials: Sequence[Credentials | None], ends: Sequence[int]
    ) -> tuple[Caller, int]:
        """Return the caller of the first requests of a read, and their number; the next one has to come alone.

        `credentials` come from `speed.read_sends`, `ends` the end position of each request in `data`.
        """
        if self._access is None:
            return connection.caller, len(ends)
        latest, challenge = connection.latest_caller, connection.challenge
        caller, count = self._access.authenticate_first(latest, data, credentials, ends, challenge)
        connection.latest_caller = caller
        return caller, count

    def admit_call(self, caller: Caller, content: Callable[[], SignedContent]) -> Caller:
        """Return the caller of a call of gRPC with its user. Raises Refused; the denial is for `record_denied`."""
        return caller if self._access is None else self._access.authenticate_content(caller, content())

    def record_peer(self, caller: Caller, refusal: Refused) -> None:
        """Record a denied slave; its connection has no request code."""
        self.record_denied(caller, 0, Action.REPLICATE, [], refusal)

    def record_denied(
        self, caller: Caller, request: int | str, action: Action, resources: list[Resource], refusal: Refused
    ) -> None:
        """Record a denied request, named by its code or as a method of gRPC."""
        self.denied += 1
        if self._audit is not None:
            self._audit.denied(caller, request, action, resources, str(refusal))

    def _recorded(
        self,
        code: int,
        action: Action,
        resources_of: Callable[[RemotingCommand], list[Resource]],
        process: CallerProcessor,
        audit: AuditLog,
    ) -> CallerProcessor:
        def record(caller: Caller, command: RemotingCommand, error: BaseException) -> None:
            if not (isinstance(error, Refused) and error.reason is Reason.DENIED):  # which already has a line
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
                    self.record_denied(caller, code, action, resources_of(command), error)
                record(caller, command, error)
                raise
            done(caller, command, result)
            return result

        def recorded(connection: Connection, caller: Caller, command: RemotingCommand) -> Reply:
            try:
                reply = process(connection, caller, command)
            except Exception as error:
                record(caller, command, error)
                raise
            if reply is None or isinstance(reply, (bytes, RemotingCommand)):
                done(caller, command, reply)
                return reply
            return later(caller, command, reply)

        return recorded
