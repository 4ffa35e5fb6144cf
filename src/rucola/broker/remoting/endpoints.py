"""All endpoints of a broker's remoting protocol."""

from __future__ import annotations

from typing import Any

from rucola.broker.remoting.access import AccessAdapter
from rucola.broker.remoting.assignment import AssignmentAdapter
from rucola.broker.remoting.cleanup import CleanupAdapter
from rucola.broker.remoting.connections import ConnectionAdapter
from rucola.broker.remoting.consume_stats import ConsumeStatsAdapter
from rucola.broker.remoting.group import GroupAdapter
from rucola.broker.remoting.heartbeat import HeartbeatAdapter
from rucola.broker.remoting.lock import LockAdapter
from rucola.broker.remoting.offset import OffsetAdapter
from rucola.broker.remoting.outgoing_calls import RemotingClientCalls
from rucola.broker.remoting.pop import PopAdapter
from rucola.broker.remoting.pull import PullAdapter
from rucola.broker.remoting.query import QueryAdapter
from rucola.broker.remoting.recall import RecallAdapter
from rucola.broker.remoting.reply import ReplyAdapter
from rucola.broker.remoting.retry import RetryAdapter
from rucola.broker.remoting.roles import RoleAdapter
from rucola.broker.remoting.runtime import RuntimeAdapter
from rucola.broker.remoting.send import SendAdapter
from rucola.broker.remoting.topic import TopicAdapter
from rucola.broker.remoting.transaction import TransactionAdapter
from rucola.broker.services.broker_services import BrokerServices
from rucola.broker.state import BrokerState
from rucola.remoting.endpoints import Endpoint


def broker_endpoints(
    services: BrokerServices,
    state: BrokerState,
    calls: RemotingClientCalls,
    sends: SendAdapter,
    pulls: PullAdapter,
    pops: PopAdapter,
) -> list[Endpoint[Any]]:
    """Return all endpoints, including the given adapters'."""
    adapters = (
        sends,
        RecallAdapter(services.recall, services.publish),
        ReplyAdapter(services.reply, state.config),
        RetryAdapter(services.retry, state.persistence),
        TransactionAdapter(services.transactions),
        pulls,
        pops,
        QueryAdapter(services.query),
        OffsetAdapter(services.offsets, state),
        HeartbeatAdapter(services.clients),
        LockAdapter(services.locks, state.persistence),
        AssignmentAdapter(services.assignment),
        TopicAdapter(services.topics),
        GroupAdapter(services.groups),
        ConsumeStatsAdapter(services.consume_stats),
        ConnectionAdapter(services.inspection, calls, state.config),
        RuntimeAdapter(services.configuration, services.runtime_info, services.diagnosis, services.pending),
        CleanupAdapter(services.cleanup),
        AccessAdapter(services.access, state.config),
        RoleAdapter(services.roles),
    )
    return [endpoint for adapter in adapters for endpoint in adapter.endpoints()]
