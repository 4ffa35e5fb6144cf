"""Start of a broker: builds, opens and starts the parts in dependency order.

Every part registers its shutdown on one AsyncExitStack, which unwinds at the stop and when a part fails to start:

    start                                          stop (read upwards)
    0. answer probes                               stop answering
    1. open the store (recovery)                   flush and close the store
    2. load the tables                             write the tables, close the client
    3. bind the port, which records contain        close the port
       claim the mastership (master only)          -
    4. open access control                         close the audit log
    5. build replication; load delivery            write delivery offsets, put what is buffered
       build the services and their endpoints      -
    6. start the scheduler and the periodic tasks  cancel the periodic tasks
    7. serve metrics, listen for slaves            stop serving slaves
    8. listen for clients                          answer held pulls, close the connections
    9. register with the name servers              unregister
    10. follow the master (slave only)             stop following

Periodic tasks end (6) before the last writes of 4, 2 and 1, so that no file has two writers. The store is opened before
a port for clients is bound, because a port in use usually belongs to the broker that has the store open.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

from rucola.broker.assembly.access import Access
from rucola.broker.assembly.connections import Connections
from rucola.broker.assembly.delivery import DeliveryServices
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.metadata import Metadata
from rucola.broker.assembly.observability import Observability
from rucola.broker.assembly.replication import build_replication
from rucola.broker.assembly.serving import Serving
from rucola.broker.assembly.storage import Storage, raise_descriptor_limit
from rucola.broker.background.registration import Registration
from rucola.broker.background.scheduler import Scheduler
from rucola.broker.mastership import Mastership
from rucola.broker.replication.side import Replication
from rucola.broker.services.broker_services import BrokerServices

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedParts:
    metadata: Metadata
    connections: Connections
    storage: Storage
    observability: Observability


@dataclass(frozen=True, slots=True)
class RoleStart:
    epoch: int = 0
    """The epoch to begin as master; 0 claims one with the name servers."""
    in_sync: frozenset[int] | None = None
    """Slaves that must confirm a message before it is acknowledged; None if one is enough, as in 4.9.8."""
    visible_end: int | None = None
    """The visible end before the start; all of `in_sync` have everything below it."""
    is_promotion: bool = False
    """Whether the configuration makes a slave's directory a master's."""
    master_address: str = ""
    """The master's address for clients; empty for the one that the name servers have. Slave only."""


@dataclass(frozen=True, slots=True)
class RunningParts:
    services: BrokerServices
    storage: Storage
    replication: Replication
    registration: Registration


async def open_broker(environment: BrokerEnvironment, running: AsyncExitStack) -> OpenedParts:
    """Open the store and load the tables (steps 1 and 2). Raises StoreError; the caller then unwinds `running`."""
    raise_descriptor_limit()
    metadata = Metadata(environment)
    connections = Connections(environment, metadata)
    storage = Storage(environment, connections.hold, connections.pops)
    observability = Observability(environment, lambda: storage.store.recovered)
    await observability.open(running)
    await storage.open(running)
    store = storage.store
    metadata.open(running, None if environment.is_slave else store.max_offset, store.max_physical_offset)
    return OpenedParts(metadata, connections, storage, observability)


async def start_broker(
    environment: BrokerEnvironment, opened: OpenedParts, running: AsyncExitStack, start: RoleStart
) -> RunningParts:
    """Start all other parts (steps 3 to 10). Raises StoreError, ConfigError or RemotingError, as `open_broker`."""
    metadata, connections, storage = opened.metadata, opened.connections, opened.storage
    # 3. to 5. Take the port, and load the state that requests need.
    connections.bind(running)
    storage.store.set_host(environment.store_config.store_host)
    if start.master_address:
        metadata.registration.follow(start.master_address)
    if not environment.is_slave:
        metadata.registration.mastership = storage.mastership
        if start.epoch:
            storage.mastership.begin(start.epoch)
        else:
            await _claim_mastership(storage.mastership, metadata.registration, is_promotion=start.is_promotion)
    access = Access(environment)
    access.open(running)
    delivery = DeliveryServices(environment, access, storage, metadata, connections)
    replication = build_replication(environment, access, storage, metadata, connections, delivery.kinds)
    if start.in_sync is not None:
        replication.set_in_sync(start.in_sync, start.visible_end)
    delivery.open(running, replication)
    serving = Serving(environment, access, metadata, connections, storage, delivery, replication)

    # 6. From here on, periodic tasks run. The disks are measured first: a full one must refuse the first put.
    scheduler = Scheduler()
    running.push_async_callback(scheduler.stop)
    await storage.start(scheduler, delivery.prepare_delete, serving.services.cleanup.delete_unused_queues)
    metadata.schedule(scheduler)
    delivery.start(scheduler)
    connections.schedule(scheduler)
    serving.schedule(scheduler)
    access.schedule(scheduler)

    # 7. to 10. Open the broker to the network. The port of the HA service is announced by the registration.
    opened.observability.serve(access, serving, connections, running)
    replication.start(scheduler, running)
    await connections.listen(running, serving.read_hooks)
    await metadata.register(running)
    await replication.follow(scheduler, running)
    await serving.services.diagnosis.log()
    opened.observability.ready()
    return RunningParts(serving.services, storage, replication, metadata.registration)


async def _claim_mastership(mastership: Mastership, registration: Registration, *, is_promotion: bool) -> None:
    """Begin the epoch after the last one of the log, or fence this broker.

    It is fenced if a name server has a master of that epoch or a newer one, unless an operator has made this former
    slave master (`is_promotion`): then it begins an epoch after the other master's, which is fenced at its next
    registration. Name servers that do not respond do not count.
    """
    own = mastership.epochs.last.number
    newest, address = await registration.newest_master(own + 1)
    if newest <= own:
        mastership.begin(own + 1)
    elif is_promotion or address == registration.address:
        if is_promotion:
            logger.warning("promoted: %s was master in epoch %d, and must not serve as master again", address, newest)
        mastership.begin(newest + 1)
    else:
        mastership.fence(newest, address)
