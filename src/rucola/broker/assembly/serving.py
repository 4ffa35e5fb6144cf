"""Serving part: services, interceptors and endpoints of all request codes, and flow control."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from rucola.access import Action
from rucola.broker.assembly.access import Access
from rucola.broker.assembly.connections import Connections
from rucola.broker.assembly.delivery import DeliveryServices
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.metadata import Metadata
from rucola.broker.assembly.storage import Storage
from rucola.broker.background.registration import Registration
from rucola.broker.background.scheduler import Scheduler
from rucola.broker.flow_control import TICK_MS, FlowControl
from rucola.broker.interceptors import LeaseRefusal, Permission, SlaveRefusal, broker_interceptors, late_checks
from rucola.broker.remoting.endpoints import broker_endpoints
from rucola.broker.remoting.first_request import Fetching, serve_first
from rucola.broker.remoting.peer_calls import RemotingPeerCalls
from rucola.broker.remoting.pop import PopAdapter
from rucola.broker.remoting.promise import PromiseAdapter, no_promise
from rucola.broker.remoting.pull import PullAdapter
from rucola.broker.remoting.send import SendAdapter
from rucola.broker.replication.side import Replication
from rucola.broker.services.broker_services import BrokerServices
from rucola.broker.services.requests import FetchRequest, PopRequest
from rucola.broker.services.roles import RoleService
from rucola.broker.state import BrokerState
from rucola.protocol.codes import RequestCode
from rucola.remoting.batching_event_loop import write_batching_of
from rucola.remoting.challenges import CHALLENGE_ENDPOINT
from rucola.remoting.connection import ReadHooks
from rucola.remoting.endpoints import checks_of, processor_table
from rucola.slices import in_slices

TOUCH_PAGES_INTERVAL_MS = 100
TOUCH_PAUSE_S = 0.001
"""Pause after each 256 KiB, so that prefaulting does not occupy the cores: p99.9 of sends is 3.4 ms instead of 4.8."""
EXPIRE_LOCKS_INTERVAL_MS = 10_000
RELEASE_LOST_INTERVAL_MS = 10_000


class Serving:
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
        self._flow_control = FlowControl(config, _monotonic_ms, _round_ms)
        self._touched_behind = -1
        self.state = BrokerState(
            config=config,
            limits=metadata.limits,
            store=storage.store,
            tiered=storage.tiered,
            mastership=storage.mastership,
            puts=delivery.puts,
            topics=metadata.topics,
            groups=metadata.groups,
            offsets=metadata.offsets,
            filters=metadata.filters,
            persistence=metadata.persistence,
            clients=connections.clients,
            locks=metadata.locks,
            modes=metadata.modes,
            delayed=delivery.kinds.delayed,
            timers=delivery.kinds.timers,
            transactions=delivery.kinds.transactions,
            pop=delivery.kinds.pop,
            stats=connections.stats,
            clock=environment.clock,
        )
        permission = Permission(config, metadata.topics, metadata.groups)
        late = late_checks(access.interceptor, permission)
        self.services = BrokerServices(
            self.state,
            replication.durability,
            connections.remoting_calls,
            connections.producer_calls,
            late,
            access.service,
            _role_service(environment, metadata, storage, replication),
            registration.wait_registered,
            registration.route,
            environment.config_file,
            lambda: environment.tls.expires_ms if environment.tls is not None else 0,
        )
        sends = SendAdapter(self.services.publish, self.state)
        pulls = PullAdapter(self.services.fetch, connections.hold, late.fetch)
        pops = PopAdapter(self.services.pop, connections.pops, late.fetch, config.broker_name)
        self.state.pop.on_visible = connections.pops.visible
        endpoints = broker_endpoints(self.services, self.state, connections.remoting_calls, sends, pulls, pops)
        promise = environment.coordination.promise if environment.coordination is not None else no_promise
        endpoints += *PromiseAdapter(promise).endpoints(), CHALLENGE_ENDPOINT
        role_refusal = _role_refusal(environment, registration, storage)
        chain = broker_interceptors(
            environment.interceptors, access.interceptor, role_refusal, self._flow_control, permission
        )
        connections.processors |= processor_table(endpoints, chain, config.max_json_body_size, access.gate)
        processors = processor_table(sends.run_endpoints(), chain, gate=access.gate)
        runs = dict.fromkeys(processors, partial(sends.serve, processors))
        fetching: dict[int, Fetching] = {
            RequestCode.PULL_MESSAGE: Fetching(FetchRequest, checks_of(chain, Action.FETCH), pulls.fetch),
            RequestCode.POP_MESSAGE: Fetching(
                PopRequest, checks_of(chain, Action.RECEIVE), pops.receive, self.services.pop.together
            ),
        }
        reads = (
            partial(sends.read, access.gate, checks_of(chain, Action.PUBLISH)),
            partial(serve_first, fetching, access.gate),
        )
        self.read_hooks = ReadHooks(reads, runs)
        if connections.grpc is not None:
            from rucola.broker.grpc.clients import GrpcProducerCalls  # imported here: protobuf takes 30 ms
            from rucola.broker.grpc.service import GrpcService

            grpc = GrpcService(
                self.services, self.state, chain, access.gate, connections.pops, late.fetch, connections.remoting_calls
            )
            connections.grpc.methods = grpc.methods
            connections.grpc_calls, connections.end_grpc_streams = GrpcProducerCalls(), grpc.end_streams
        storage.subscribe(connections.on_arrival)

    def schedule(self, scheduler: Scheduler) -> None:
        clock = self._environment.clock
        scheduler.every(TICK_MS, "flow control", self._flow_control.tick)
        scheduler.every(TOUCH_PAGES_INTERVAL_MS, "touch pages", self._touch_pages)
        scheduler.every(
            EXPIRE_LOCKS_INTERVAL_MS, "expire locks", lambda: in_slices(self.state.locks.expire_steps(clock()))
        )
        if not self._environment.is_slave:
            scheduler.every(
                RELEASE_LOST_INTERVAL_MS,
                "release messages of lost clients",
                lambda: in_slices(self.services.pop.release_lost_steps()),
            )

    async def _touch_pages(self) -> None:
        """Prefault the pages after the end of the log if it has moved: otherwise it costs a quarter of an idle CPU."""
        end = self._store.max_physical_offset
        if end != self._touched_behind:
            self._touched_behind = end
            await self._flow_control.touch(partial(self._store.warm, partial(time.sleep, TOUCH_PAUSE_S)))


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
        environment.coordination,
    )


def _role_refusal(
    environment: BrokerEnvironment, registration: Registration, storage: Storage
) -> SlaveRefusal | LeaseRefusal | None:
    """Return the interceptor that refuses what the broker's role cannot serve.

    The broker is a slave, or of an elected master without its lease.
    """
    if environment.is_slave:
        return SlaveRefusal(lambda: registration.master_address)
    return None if environment.lease is None else LeaseRefusal(environment.lease, storage.store.write_state)


def _round_ms() -> int:
    return int(write_batching_of(asyncio.get_running_loop()).round_s() * 1000)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
