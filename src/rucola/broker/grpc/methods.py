"""GrpcMethod: a method with its action, its resource and its handler.

A call passes the same chain as a request of remoting (`rucola.remoting.endpoints`): authentication, the checks of all
interceptors of its action, then the handler. A refusal becomes a response with its code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from rucola.access import Action, Caller, Check, Interceptor, Reason, Refused, Resource
from rucola.acl.call_credentials import AUTHORIZATION, DATE_TIME, call_content
from rucola.broker.grpc.codes import IllegalCall, status_of
from rucola.errors import InvalidMessage
from rucola.http2.grpc import Call, Failed, Method, unary
from rucola.http2.grpc import Status as GrpcStatus
from rucola.protocol.grpc import definition_pb2
from rucola.protocol.grpc.definition_pb2 import Code, Status
from rucola.remoting.access_gate import AccessGate
from rucola.remoting.endpoints import checks_of

logger = logging.getLogger(__name__)

CLIENT_ID: Final = "x-mq-client-id"
SERVICE: Final = "apache.rocketmq.v2.MessagingService"


class Encoded(Protocol):
    """A message of protobuf."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802

    @classmethod
    def FromString(cls, s: bytes) -> Self: ...  # noqa: N802


T = TypeVar("T", bound=Encoded)
Response: TypeAlias = Encoded | Awaitable[Encoded]


@dataclass(frozen=True, slots=True)
class GrpcRequest(Generic[T]):
    """A call's request that all checks have passed."""

    call: Call
    caller: Caller
    client_id: str
    content: T


@dataclass(frozen=True, slots=True)
class GrpcMethod(Generic[T]):
    """A method with one request and one response. `failed` makes a response from a status."""

    name: str
    action: Action
    request: type[T]
    resource: Callable[[T], Iterable[Resource]]
    failed: Callable[[Status], Encoded]
    handler: Callable[[GrpcRequest[T]], Response | None]
    """Returns None if it replies itself."""
    needs_client_id: bool = True

    def compile(self, chain: Chain) -> Method:
        admit = chain.admission(self.name, self.action, self.needs_client_id)
        request_type, resource, failed, handler = self.request, self.resource, self.failed, self.handler

        def handle(call: Call, data: bytes) -> None:
            try:
                content = decode(request_type, data)
                caller, client_id = admit(call, resource(content))
                response = handler(GrpcRequest(call, caller, client_id, content))
            except (Refused, IllegalCall) as error:
                response = failed(status_of(error))
            if isinstance(response, Awaitable):
                chain.spawn(respond(call, response))
            elif response is not None:
                call.reply(response.SerializeToString())

        async def respond(call: Call, response: Awaitable[Encoded]) -> None:
            try:
                encoded = (await response).SerializeToString()
            except (Refused, IllegalCall) as error:
                encoded = failed(status_of(error)).SerializeToString()
            except Exception:
                logger.exception("%s: %s failed", call.caller.address, call.path)
                call.fail(GrpcStatus.INTERNAL, "the server failed; its log says why")
                return
            call.reply(encoded)

        return unary(handle)


class Chain:
    """The interceptors and the gate of one broker, for all of its methods."""

    def __init__(self, interceptors: Iterable[Interceptor], gate: AccessGate | None) -> None:
        self._interceptors = list(interceptors)
        self._gate = gate
        self._tasks: set[asyncio.Task[None]] = set()

    def admission(
        self, name: str, action: Action, needs_client_id: bool = True
    ) -> Callable[[Call, Iterable[Resource]], tuple[Caller, str]]:
        """Return what admits calls of a method: it returns caller and client id. Raises Refused and IllegalCall."""
        checks, gate = checks_of(self._interceptors, action), self._gate

        def admit(call: Call, resources: Iterable[Resource]) -> tuple[Caller, str]:
            caller, named = call.caller, list(resources)
            if gate is not None:
                try:
                    caller = gate.admit_call(
                        caller, lambda: call_content(_text(call, AUTHORIZATION), _text(call, DATE_TIME))
                    )
                except Refused as refusal:
                    gate.record_denied(caller, name, action, named, refusal)
                    raise IllegalCall(Code.UNAUTHORIZED, str(refusal)) from None
            try:
                _run(checks, caller, named)
            except Refused as refusal:
                if gate is not None and refusal.reason is Reason.DENIED:
                    gate.record_denied(caller, name, action, named, refusal)
                raise
            client_id = _text(call, CLIENT_ID)
            if needs_client_id and not client_id:
                raise IllegalCall(Code.CLIENT_ID_REQUIRED, f"the call has no {CLIENT_ID}")
            return caller, client_id

        return admit

    def spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def decode(request: type[T], data: bytes) -> T:
    try:
        return request.FromString(data)
    except DecodeError as error:
        raise Failed(GrpcStatus.INVALID_ARGUMENT, f"the request cannot be decoded: {error}") from None


def name_of(resource: definition_pb2.Resource) -> str:
    """Return the name of a topic or group as 4.x clients write it, with its namespace."""
    return f"{resource.resource_namespace}%{resource.name}" if resource.resource_namespace else resource.name


def checked(check: Callable[[str], None], name: str, code: Code) -> str:
    """Return a name of a topic or group. Raises IllegalCall."""
    try:
        check(name)
    except InvalidMessage as error:
        raise IllegalCall(code, str(error)) from None
    return name


def _run(checks: list[Check], caller: Caller, resources: list[Resource]) -> None:
    for resource in resources:
        for check in checks:
            check(caller, resource)


def _text(call: Call, name: str) -> str:
    value = call.metadata.get(name, "")
    return value if isinstance(value, str) else ""
