"""Serving part: services, interceptors and endpoints of all request codes, and flow control."""

from __future__ import annotations

import time

from rucola.broker.assembly.access import Access
from rucola.broker.assembly.connections import Connections
from rucola.broker.assembly.delivery import DeliveryServices
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.metadata import Metadata
from rucola.broker.assembly.replication import Replication
from rucola.broker.assembly.storage import Storage
from rucola.broker.background.registration import Registration
from rucola.broker.background.scheduler import Scheduler
from rucola.broker.flow_control import TICK_MS, FlowControl
from rucola.broker.interceptors import LeaseRefusal, Permission, SlaveRefusal, broker_interceptors, late_checks
from rucola.broker.queue_locks import QueueLockTable
from rucola.broker.remoting.endpoints import broker_endpoints
from rucola.broker.remoting.peer_calls import RemotingPeerCalls
from rucola.broker.remoting.promise import PromiseAdapter, no_promise
from rucola.broker.services.broker_services import build_services
from rucola.broker.services.roles import RoleService
from rucola.broker.state import BrokerState
from rucola.remoting.endpoints import processor_table

TOUCH_PAGES_INTERVAL_MS = 100
EXPIRE_LOCKS_INTERVAL_MS = 10_000


class Serving:
    """The services, and the table of processors through which requests reach them.

    `state` and `services` are also the sources of the metrics.
    """

    def __init__(
        self,
        environment: BrokerEnvironment,
        access: Access,
        metadata: Metadata,
        connections: Connections,
        storage: Storage,
        delivery: DeliveryServices,
        replication: Replication,
    ) -> None:
        config, registration = environment.config, metadata.registration
        self._environment = environment
        self._store = storage.store
        self._flow_control = FlowControl(config, _monotonic_ms)
        self.state = BrokerState(
            config=config,
            limits=metadata.limits,
            store=storage.store,
            puts=delivery.puts,
            topics=metadata.topics,
            groups=metadata.groups,
            offsets=metadata.offsets,
            filters=metadata.filters,
            persistence=metadata.persistence,
            clients=connections.clients,
            locks=QueueLockTable(),
            delayed=delivery.delayed,
            transactions=delivery.transactions,
            stats=connections.stats,
            clock=environment.clock,
        )
        permission = Permission(config, metadata.topics, metadata.groups)
        late = late_checks(access.interceptor, permission)
        self.services = build_services(
            self.state,
            replication.durability,
            connections.calls,
            late,
            access.service,
            _role_service(environment, metadata, storage, replication),
            registration.wait_registered,
            environment.config_file,
        )
        endpoints = broker_endpoints(self.services, self.state, connections.calls, connections.hold, late.fetch)
        promise = environment.coordination.promise if environment.coordination is not None else no_promise
        endpoints += PromiseAdapter(promise).endpoints()
        role_refusal = _role_refusal(environment, registration)
        chain = broker_interceptors(
            environment.interceptors, access.interceptor, role_refusal, self._flow_control, permission
        )
        connections.processors |= processor_table(endpoints, chain, config.max_json_body_size, access.gate)
        storage.subscribe(connections.on_arrival)

    def schedule(self, scheduler: Scheduler) -> None:
        """Schedule flow control, the page toucher that it watches, and the expiry of locks."""
        clock, store, flow_control = self._environment.clock, self._store, self._flow_control
        scheduler.every(TICK_MS, "flow control", flow_control.tick)
        scheduler.every(TOUCH_PAGES_INTERVAL_MS, "touch pages", lambda: flow_control.touch(store.warm))
        scheduler.every(EXPIRE_LOCKS_INTERVAL_MS, "expire locks", lambda: self.state.locks.expire(clock()))


def _role_service(
    environment: BrokerEnvironment, metadata: Metadata, storage: Storage, replication: Replication
) -> RoleService:
    return RoleService(
        environment.config,
        storage.store,
        storage.mastership,
        replication,
        metadata.registration,
        RemotingPeerCalls(metadata.client),
        environment.roles,
        environment.clock,
    )


def _role_refusal(environment: BrokerEnvironment, registration: Registration) -> SlaveRefusal | LeaseRefusal | None:
    """Return what refuses the requests that a slave, or an elected master without its lease, cannot serve."""
    if environment.is_slave:
        return SlaveRefusal(lambda: registration.master_address)
    return None if environment.lease is None else LeaseRefusal(environment.lease)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
