"""Adapter of Telemetry, Heartbeat and NotifyClientTermination, and the broker's calls to clients.

A client exists as long as its Telemetry stream is open; its settings are answered with the server's. A producer is in
the producer group of each of its topics, so that it is asked about their transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from rucola.access import Action, Caller, Refused, Resource
from rucola.broker.client_calls import PushedReply
from rucola.broker.client_registry import ClientChannel, Member
from rucola.broker.delivery.transactions import TransactionCheckRequest
from rucola.broker.grpc.codes import OK, IllegalCall, status_of
from rucola.broker.grpc.encoding import encoded_message
from rucola.broker.grpc.messages import expression_type
from rucola.broker.grpc.methods import Chain, GrpcMethod, GrpcRequest, checked, decode, name_of
from rucola.broker.grpc.receive import LONG_POLLING_MS
from rucola.broker.grpc.send import transaction_id
from rucola.broker.retry_policy import FIRST_DELAY_LEVEL
from rucola.broker.services.clients import ClientService
from rucola.broker.services.pop import MAX_MESSAGES, PopService
from rucola.broker.state import BrokerState
from rucola.domain.client import ConsumerData, HeartbeatData, ProducerData
from rucola.domain.group import SubscriptionGroupConfig
from rucola.domain.subscription import SUB_ALL, SubscriptionData
from rucola.domain.version import VERSION
from rucola.http2.grpc import Call, Failed, MessageReceiver
from rucola.http2.grpc import Status as GrpcStatus
from rucola.message.delay import parse_delay_levels
from rucola.message.record import decode as decode_record
from rucola.message.topics import check_group
from rucola.protocol.codes import LanguageCode
from rucola.protocol.grpc.definition_pb2 import Code, Language, Message, RetryPolicy, Settings
from rucola.protocol.grpc.service_pb2 import (
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)

logger = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
"""Attempts of a producer to send a message, 10 ms after the first and twice as long after each, one second at most."""
_LANGUAGES: Final = {Language.DOT_NET: LanguageCode.DOTNET, Language.GOLANG: LanguageCode.GO}


class GrpcClient:
    """A connected client: a Telemetry stream, from its first settings on."""

    def __init__(self, client_id: str, caller: Caller, call: Call, refresh: Callable[[], None]) -> None:
        self.client_id = client_id
        self.caller = caller
        self.group = ""
        """The group in which it receives."""
        self.subscriptions: list[SubscriptionData] = []
        self._call = call
        self._refresh = refresh

    @property
    def peer(self) -> str:
        return self.caller.address

    @property
    def is_open(self) -> bool:
        return self._call.is_open

    @property
    def is_congested(self) -> bool:
        return self._call.is_congested

    def close(self) -> None:
        """Called for a client without heartbeat: the stream is sign of life enough."""
        self._refresh()

    def send(self, command: TelemetryCommand) -> None:
        if self._call.is_open:
            self._call.send(command.SerializeToString())

    def end(self) -> None:
        """End the stream; the client opens a new one if it continues."""
        if self._call.is_open:
            self._call.finish()


class ClientAdapter:
    def __init__(self, service: ClientService, pop: PopService, state: BrokerState, chain: Chain) -> None:
        self._service = service
        self._pop = pop
        self._registry = state.clients
        self._clock = state.clock
        self._config, self._store_config = state.config, state.store.config
        self._admit = chain.admission("Telemetry", Action.HEARTBEAT)
        self._topic, self._group = state.topics.get, state.groups.get
        self._delays_ms = parse_delay_levels(state.store.config.message_delay_level)
        self._clients: dict[str, list[GrpcClient]] = {}
        """By client id."""

    def methods(self) -> Iterable[GrpcMethod[Any]]:
        def resource(request: HeartbeatRequest | NotifyClientTerminationRequest) -> list[Resource]:
            return [Resource(group=name_of(request.group)) if request.HasField("group") else Resource()]

        return (
            GrpcMethod(
                "Heartbeat", Action.HEARTBEAT, HeartbeatRequest, resource,
                lambda status: HeartbeatResponse(status=status), self.heartbeat,
            ),
            GrpcMethod(
                "NotifyClientTermination", Action.UNREGISTER, NotifyClientTerminationRequest, resource,
                lambda status: NotifyClientTerminationResponse(status=status), self.terminate,
            ),
        )  # fmt: skip

    def telemetry(self, call: Call) -> MessageReceiver:
        return _Telemetry(self, call)

    def heartbeat(self, request: GrpcRequest[HeartbeatRequest]) -> HeartbeatResponse:
        self._clients_of(request)
        return HeartbeatResponse(status=OK)

    async def terminate(self, request: GrpcRequest[NotifyClientTerminationRequest]) -> NotifyClientTerminationResponse:
        for client in self._clients_of(request):
            self.leave(client)
            client.end()
            await self._pop.terminate(client.group, client.client_id)
        return NotifyClientTerminationResponse(status=OK)

    def _clients_of(self, request: GrpcRequest[Any]) -> list[GrpcClient]:
        user = request.caller.user
        found = [one for one in self._clients.get(request.client_id, ()) if one.caller.user is user]
        if not found:
            raise IllegalCall(Code.UNRECOGNIZED_CLIENT_TYPE, f"client {request.client_id} has sent no settings")
        return found

    # -- Telemetry ----------------------------------------------------------------------------------------------------

    def settings(self, call: Call, client: GrpcClient | None, settings: Settings) -> GrpcClient:
        """Take a client's settings, and answer them. Raises Refused, IllegalCall and Failed."""
        kind = settings.WhichOneof("pub_sub")
        if kind is None:
            raise Failed(GrpcStatus.INVALID_ARGUMENT, "the settings are neither a producer's nor a consumer's")
        count, limit = len(settings.publishing.topics), self._config.max_groups_per_client
        count = max(count, len(settings.subscription.subscriptions))
        if count > limit:
            raise IllegalCall(Code.BAD_REQUEST, f"{count} topics; {limit} are allowed (maxGroupsPerClient)")
        topics = [name_of(topic) for topic in settings.publishing.topics]
        resources = [Resource(producer_group=topic) for topic in topics]
        if kind == "subscription":
            group = checked(check_group, name_of(settings.subscription.group), Code.ILLEGAL_CONSUMER_GROUP)
            entries = settings.subscription.subscriptions
            resources = [Resource(name_of(entry.topic), group) for entry in entries] or [Resource(group=group)]
        caller, client_id = self._admit(call, resources or [Resource()])
        heartbeat = HeartbeatData(
            client_id=client_id, producer_data_set=[ProducerData(group_name=topic) for topic in topics]
        )
        language = _LANGUAGES.get(settings.user_agent.language)
        name = language.name if language else Language.Name(settings.user_agent.language)
        language_name = name if name in LanguageCode.__members__ else LanguageCode.OTHER.name

        def announce() -> None:
            self._service.heartbeat(joining, caller, heartbeat, language_name, VERSION, on_accepted=lambda: None)

        if client is not None:
            self.leave(client)
        joining = GrpcClient(client_id, caller, call, announce)
        announce()
        if kind == "subscription":
            joining.group = group
            member = Member(client_id, caller, language_name, VERSION, self._clock())
            consumer = _consumer_of(group, settings)
            joining.subscriptions = consumer.subscriptions
            self._registry.join_receivers(joining, consumer, member)
        self._clients.setdefault(client_id, []).append(joining)
        joining.send(TelemetryCommand(status=OK, settings=self._merged(settings)))
        return joining

    def _merged(self, settings: Settings) -> Settings:
        merged = Settings()
        merged.CopyFrom(settings)
        policy = merged.backoff_policy
        policy.Clear()
        if merged.HasField("subscription"):
            self._merge_subscription(merged)
        else:
            policy.max_attempts = MAX_ATTEMPTS
            self._set_exponential(policy, 10, 1000)
        if merged.HasField("publishing"):
            merged.publishing.validate_message_type = True
            merged.publishing.max_body_size = self._store_config.max_message_size
        merged.metric.Clear()
        merged.metric.on = False
        return merged

    def _set_exponential(self, policy: RetryPolicy, first_ms: int, max_ms: int) -> None:
        policy.exponential_backoff.initial.FromMilliseconds(first_ms)
        policy.exponential_backoff.max.FromMilliseconds(max_ms)
        policy.exponential_backoff.multiplier = 2

    def _merge_subscription(self, merged: Settings) -> None:
        subscription = merged.subscription
        topics = [self._topic(name_of(entry.topic)) for entry in subscription.subscriptions]
        subscription.fifo = any(topic is not None and topic.order for topic in topics)
        subscription.receive_batch_size = MAX_MESSAGES
        subscription.long_polling_timeout.FromMilliseconds(LONG_POLLING_MS)
        group = self._group(name_of(subscription.group))
        retries = SubscriptionGroupConfig(group_name="").retry_max_times if group is None else group.retry_max_times
        policy, delays_ms = merged.backoff_policy, self._delays_ms[FIRST_DELAY_LEVEL - 1 :]
        policy.max_attempts = retries + 1
        if merged.user_agent.language == Language.NODE_JS and delays_ms:
            # The client 1.0.8 ignores the other kind: it fails without pause, and in order only once.
            self._set_exponential(policy, delays_ms[0], delays_ms[-1])
        else:
            for delay_ms in delays_ms:
                policy.customized_backoff.next.add().FromMilliseconds(delay_ms)

    def leave(self, client: GrpcClient) -> None:
        self._registry.closed(client)
        self._registry.leave_receivers(client, client.group)
        others = self._clients.get(client.client_id, [])
        if client not in others:
            return
        others.remove(client)
        if not others:
            del self._clients[client.client_id]

    def end_all(self) -> None:
        """End all streams, so that the server can stop."""
        for client in [client for clients in self._clients.values() for client in clients]:
            client.end()


def _consumer_of(group: str, settings: Settings) -> ConsumerData:
    subscriptions = [
        SubscriptionData(
            topic=name_of(entry.topic),
            sub_string=entry.expression.expression or SUB_ALL,
            expression_type=expression_type(entry.expression),
        )
        for entry in settings.subscription.subscriptions
    ]
    return ConsumerData(group_name=group, subscription_data_set=subscriptions)


class _Telemetry:
    """The receiver of one Telemetry stream."""

    def __init__(self, adapter: ClientAdapter, call: Call) -> None:
        self._adapter = adapter
        self._call = call
        self._client: GrpcClient | None = None

    def message(self, message: bytes) -> None:
        command = decode(TelemetryCommand, message)
        if not command.HasField("settings"):
            return  # the answers to commands that this server does not send
        try:
            self._client = self._adapter.settings(self._call, self._client, command.settings)
        except (Refused, IllegalCall) as error:
            self._call.send(TelemetryCommand(status=status_of(error)).SerializeToString())

    def ended(self) -> None:
        self.cancelled()
        self._call.finish()

    def cancelled(self) -> None:
        if self._client is not None:
            self._adapter.leave(self._client)


class GrpcProducerCalls:
    """The broker's calls to producers of gRPC."""

    def check_transaction(self, channel: ClientChannel, check: TransactionCheckRequest) -> None:
        assert isinstance(channel, GrpcClient)
        half = decode_record(check.record)
        command = RecoverOrphanedTransactionCommand(
            message=Message.FromString(encoded_message(half, half.topic)),
            transaction_id=transaction_id(check.half_queue_offset, check.physical_offset),
        )
        channel.send(TelemetryCommand(status=OK, recover_orphaned_transaction_command=command))

    async def push_reply(self, channel: ClientChannel, reply: PushedReply) -> str | None:
        return "clients of gRPC have no requests with replies"
