"""Health checks (grpc.health.v1) and reflection (grpc.reflection.v1 and v1alpha), for probes and tools.

They name what every server of this version has, and need no account. There is no Watch, whose streams would keep the
server from stopping; its clients treat UNIMPLEMENTED as healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rucola.broker.grpc.admin import ADMIN
from rucola.broker.grpc.methods import SERVICE, decode
from rucola.http2.grpc import Call, Failed, Method, Status, unary
from rucola.protocol.grpc.health_pb2 import HealthCheckRequest, HealthCheckResponse
from rucola.protocol.grpc.pool import POOL
from rucola.protocol.grpc.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

_HEALTH: Final = "grpc.health.v1.Health"
_REFLECTION: Final = "grpc.reflection.v1.ServerReflection"
_ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"
"""The older name, which has the same messages."""
_SERVICES: Final = (SERVICE, ADMIN, _HEALTH, _REFLECTION)
_NOT_FOUND: Final = int(Status.NOT_FOUND)


def discovery_methods(is_serving: Callable[[], bool] = lambda: True) -> Mapping[str, Method]:
    return {
        f"/{_HEALTH}/Check": unary(lambda call, data: _check(call, data, is_serving())),
        f"/{_REFLECTION}/ServerReflectionInfo": _Reflection,
        f"/{_ALPHA}/ServerReflectionInfo": _Reflection,
    }


def _check(call: Call, data: bytes, is_serving: bool) -> None:
    request = decode(HealthCheckRequest, data)
    if request.service not in ("", *_SERVICES):
        raise Failed(Status.NOT_FOUND, f"there is no service {request.service[:256]}")
    status = HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING
    call.reply(HealthCheckResponse(status=status).SerializeToString())


class _Reflection:
    """The receiver of one stream of questions."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def message(self, message: bytes) -> None:
        request = decode(ServerReflectionRequest, message)
        response = ServerReflectionResponse(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        try:
            if kind == "list_services":
                for name in _SERVICES:
                    response.list_services_response.service.add(name=name)
            elif kind == "file_by_filename":
                _add_files(response, request.file_by_filename)
            elif kind == "file_containing_symbol":
                _add_files(response, _file_of(request.file_containing_symbol))
            else:
                raise KeyError(kind)
        except KeyError:
            response.error_response.error_code = _NOT_FOUND
            response.error_response.error_message = "there is no such symbol, file or extension"
        self._call.send(response.SerializeToString())

    def ended(self) -> None:
        self._call.finish()

    def cancelled(self) -> None:
        pass


def _file_of(symbol: str) -> str:
    return str(POOL.FindFileContainingSymbol(symbol).name)


def _add_files(response: ServerReflectionResponse, name: str) -> None:
    """Add a file and all that it imports."""
    waiting, done = [POOL.FindFileByName(name)], set[str]()
    while waiting:
        file = waiting.pop()
        if file.name not in done:
            done.add(file.name)
            response.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
            waiting += file.dependencies
