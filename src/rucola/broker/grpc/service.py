"""All methods of a broker's gRPC port."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any, Final

from rucola.access import Action, Check, Interceptor, Resource
from rucola.broker.grpc.admin import ADMIN, AdminAdapter
from rucola.broker.grpc.admin import NOT_IMPLEMENTED as NOT_IMPLEMENTED_BY_ADMIN
from rucola.broker.grpc.admin_consumers import ConsumerAdminAdapter
from rucola.broker.grpc.clients import ClientAdapter
from rucola.broker.grpc.codes import IllegalCall
from rucola.broker.grpc.discovery import discovery_methods
from rucola.broker.grpc.methods import SERVICE, Chain, GrpcMethod, GrpcRequest, Response
from rucola.broker.grpc.receive import ReceiveAdapter
from rucola.broker.grpc.routes import RouteAdapter
from rucola.broker.grpc.send import SendAdapter
from rucola.broker.pop_hold import PopHold
from rucola.broker.remoting.outgoing_calls import RemotingClientCalls
from rucola.broker.services.broker_services import BrokerServices
from rucola.broker.state import BrokerState
from rucola.protocol.grpc import admin_pb2, service_pb2
from rucola.protocol.grpc.definition_pb2 import Code
from rucola.remoting.access_gate import AccessGate

NOT_IMPLEMENTED: Final = (
    "PullMessage",
    "UpdateOffset",
    "GetOffset",
    "QueryOffset",
    "SyncLiteSubscription",
)


class GrpcService:
    """The methods by path."""

    def __init__(
        self,
        services: BrokerServices,
        state: BrokerState,
        interceptors: Iterable[Interceptor],
        gate: AccessGate | None,
        pops: PopHold,
        check_fetch: Check,
        calls: RemotingClientCalls,
    ) -> None:
        chain = Chain(interceptors, gate)
        clients = ClientAdapter(services.clients, services.pop, state, chain)
        routes = RouteAdapter(services.topics, state.config)
        receive = ReceiveAdapter(services.pop, services.retry, routes, state, pops, check_fetch)
        sends = SendAdapter(services.publish, services.recall, services.transactions, state)
        methods: list[GrpcMethod[Any]] = [
            *routes.methods(),
            *receive.methods(),
            *sends.methods(),
            *clients.methods(),
            *(_not_implemented(service_pb2, name, needs_client_id=True) for name in NOT_IMPLEMENTED),
        ]
        admin: list[GrpcMethod[Any]] = [
            *AdminAdapter(services, sends).methods(),
            *ConsumerAdminAdapter(services, state.clients, calls).methods(),
            *(_not_implemented(admin_pb2, name, needs_client_id=False) for name in NOT_IMPLEMENTED_BY_ADMIN),
        ]
        self.methods = {f"/{SERVICE}/{method.name}": method.compile(chain) for method in methods}
        self.methods |= {f"/{ADMIN}/{method.name}": method.compile(chain) for method in admin}
        self.methods[f"/{SERVICE}/Telemetry"] = clients.telemetry
        self.methods |= discovery_methods()
        self.end_streams = clients.end_all
        """Ends the streams that would keep the server from stopping."""


def _not_implemented(module: ModuleType, name: str, *, needs_client_id: bool) -> GrpcMethod[Any]:
    def handler(request: GrpcRequest[Any]) -> Response:
        raise IllegalCall(Code.NOT_IMPLEMENTED, f"this server does not implement {name}")

    request, response = getattr(module, f"{name}Request"), getattr(module, f"{name}Response")
    return GrpcMethod(
        name,
        Action.AUTHENTICATE,
        request,
        lambda _: [Resource()],
        lambda status: response(status=status),
        handler,
        needs_client_id,
    )
