"""BrokerServices: all services of a broker, built from its state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from rucola.broker.client_calls import ClientCalls
from rucola.broker.durability import Durability
from rucola.broker.interceptors import LateChecks
from rucola.broker.services.access import AccessService
from rucola.broker.services.cleanup import CleanupService
from rucola.broker.services.client_inspection import InspectionService
from rucola.broker.services.clients import ClientService
from rucola.broker.services.configuration import ConfigurationService
from rucola.broker.services.consume_stats import ConsumeStatsService
from rucola.broker.services.diagnosis import DiagnosisService
from rucola.broker.services.fetch import FetchService
from rucola.broker.services.groups import GroupService
from rucola.broker.services.locks import LockService
from rucola.broker.services.offsets import OffsetService
from rucola.broker.services.publish import PublishService
from rucola.broker.services.query import QueryService
from rucola.broker.services.reply import ReplyService
from rucola.broker.services.retry import RetryService
from rucola.broker.services.roles import RoleService
from rucola.broker.services.runtime_info import RuntimeInfoService
from rucola.broker.services.topics import TopicService
from rucola.broker.services.transactions import TransactionService
from rucola.broker.state import BrokerState


@dataclass(frozen=True, slots=True)
class BrokerServices:
    publish: PublishService
    reply: ReplyService
    retry: RetryService
    transactions: TransactionService
    fetch: FetchService
    query: QueryService
    offsets: OffsetService
    clients: ClientService
    locks: LockService
    topics: TopicService
    groups: GroupService
    consume_stats: ConsumeStatsService
    inspection: InspectionService
    configuration: ConfigurationService
    runtime_info: RuntimeInfoService
    diagnosis: DiagnosisService
    cleanup: CleanupService
    access: AccessService
    roles: RoleService


def build_services(
    state: BrokerState,
    durability: Durability,
    calls: ClientCalls,
    late: LateChecks,
    access: AccessService,
    roles: RoleService,
    topics_registered: Callable[[], Awaitable[None]],
    config_file: Path | None = None,
) -> BrokerServices:
    """Build all services. `topics_registered` waits until the name servers have all topics."""
    publish = PublishService(state, durability, late.create, topics_registered)
    return BrokerServices(
        publish=publish,
        reply=ReplyService(state, publish, calls, late.receive),
        retry=RetryService(state, late.read),
        transactions=TransactionService(state.transactions, state.clock, late.publish),
        fetch=FetchService(state),
        query=QueryService(state.config, state.store, late.read),
        offsets=OffsetService(state),
        clients=ClientService(state),
        locks=LockService(state),
        topics=TopicService(state, topics_registered),
        groups=GroupService(state, calls),
        consume_stats=ConsumeStatsService(state),
        inspection=InspectionService(state, calls, late.read),
        configuration=ConfigurationService(state, config_file, topics_registered),
        runtime_info=RuntimeInfoService(state, state.delayed),
        diagnosis=DiagnosisService(state.store, state.topics),
        cleanup=CleanupService(state),
        access=access,
        roles=roles,
    )
