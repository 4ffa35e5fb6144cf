"""BrokerServices: all services of a broker, built from its state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from rucola.broker.client_calls import ConsumerCalls, ProducerCalls
from rucola.broker.durability import Durability
from rucola.broker.interceptors import LateChecks
from rucola.broker.services.access import AccessService
from rucola.broker.services.assignment import AssignmentService
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
from rucola.broker.services.pending import PendingService
from rucola.broker.services.pop import PopService
from rucola.broker.services.publish import PublishService
from rucola.broker.services.query import QueryService
from rucola.broker.services.recall import RecallService
from rucola.broker.services.reply import ReplyService
from rucola.broker.services.retry import RetryService
from rucola.broker.services.roles import RoleService
from rucola.broker.services.runtime_info import RuntimeInfoService
from rucola.broker.services.topics import TopicService
from rucola.broker.services.transactions import TransactionService
from rucola.broker.state import BrokerState
from rucola.domain.route import TopicRouteData


class BrokerServices:
    """`topics_registered` waits until the name servers have all topics, `route` asks them for one's route."""

    def __init__(
        self,
        state: BrokerState,
        durability: Durability,
        consumer_calls: ConsumerCalls,
        producer_calls: ProducerCalls,
        late: LateChecks,
        access: AccessService,
        roles: RoleService,
        topics_registered: Callable[[], Awaitable[None]],
        route: Callable[[str], Awaitable[TopicRouteData | None]],
        config_file: Path | None,
        certificate_expires_ms: Callable[[], int],
    ) -> None:
        self.publish = PublishService(state, durability, late.create, topics_registered)
        self.recall = RecallService(state, self.publish)
        self.reply = ReplyService(state, self.publish, producer_calls, late.receive)
        self.retry = RetryService(state, durability, late.read)
        self.transactions = TransactionService(state.transactions, state.clock, late.publish)
        self.fetch = FetchService(state)
        self.pop = PopService(state, self.fetch, durability)
        self.query = QueryService(state.config, state.tiered, late.read)
        self.offsets = OffsetService(state)
        self.clients = ClientService(state)
        self.locks = LockService(state)
        self.assignment = AssignmentService(state, route)
        self.topics = TopicService(state, topics_registered)
        self.groups = GroupService(state, consumer_calls)
        self.consume_stats = ConsumeStatsService(state)
        self.inspection = InspectionService(state, consumer_calls, late.read)
        self.configuration = ConfigurationService(state, config_file, topics_registered)
        self.runtime_info = RuntimeInfoService(state)
        self.pending = PendingService(state)
        self.diagnosis = DiagnosisService(state.store, state.topics, state.clock, certificate_expires_ms)
        self.cleanup = CleanupService(state)
        self.access = access
        self.roles = roles
