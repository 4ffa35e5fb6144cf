"""Replication part: a master's HA service, or a slave's HA client and table synchronization."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Protocol

from rucola.broker.assembly.access import Access
from rucola.broker.assembly.connections import Connections
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.metadata import Metadata
from rucola.broker.assembly.storage import Storage
from rucola.broker.background.scheduler import Scheduler
from rucola.broker.delivery.kinds import DeliveryKinds
from rucola.broker.durability import Durability
from rucola.broker.replication import table_sync
from rucola.broker.replication.ha_client import Follower, HAClient
from rucola.broker.replication.ha_service import HAService
from rucola.broker.replication.table_sync import SlaveSynchronize
from rucola.broker.replication.visible_end import VisibleEnd
from rucola.broker.role import SlaveProgress
from rucola.errors import StoreError
from rucola.store.dispatch import TopicArrivals

logger = logging.getLogger(__name__)

LOG_LAG_INTERVAL_MS = 60_000


class Replication(Protocol):
    @property
    def durability(self) -> Durability: ...

    def replication_lag(self) -> dict[str, int]:
        """Return the replication lag of each connected slave in bytes, by "ip:port"."""
        ...

    def confirmed(self) -> dict[int, int]:
        """Return the confirmed offset of each slave that supports epochs, by its brokerId."""
        ...

    @property
    def last_confirmed(self) -> int:
        """The most that a slave of this master had, connected or not any more; -1 if none has reported."""
        ...

    @property
    def is_following(self) -> bool:
        """Whether this slave is connected to its master, with an equal log."""
        ...

    @property
    def followed_epoch(self) -> int:
        """The epoch of the master that this slave has followed last; 0 on a master."""
        ...

    @property
    def may_grow(self) -> bool:
        """Whether this slave has a master that may send to it, connected or not."""
        ...

    async def wait_confirmed(self, member_id: int, physical_offset: int) -> None:
        """Wait until a slave that supports epochs has everything below a physical offset."""
        ...

    def slaves(self) -> list[SlaveProgress]: ...

    def set_in_sync(self, members: frozenset[int], visible_end: int | None = None) -> None:
        """Wait for all of these slaves from now on. They have everything below `visible_end`, if it is given."""
        ...

    def disconnect_slave(self, member: int) -> None:
        """Close the connections of a slave, and forget what it confirmed."""
        ...

    async def follow_again(self, master_address: str) -> None:
        """Connect to the master again, at its address for clients; empty for the name servers' one. Slave only."""
        ...

    async def stop_following(self) -> None:
        """Close the connection to the master, until `follow_again`; slave only."""
        ...

    def may_delete_oldest(self) -> bool:
        """Return whether the master has deleted the oldest log file, too, and this slave has what it put again."""
        ...

    def start(self, scheduler: Scheduler, running: AsyncExitStack) -> None:
        """Start before the broker registers, which announces the port of the HA service."""
        ...

    async def follow(self, scheduler: Scheduler, running: AsyncExitStack) -> None:
        """Start after the broker has registered, which returns the addresses of a slave's master."""
        ...


def build_replication(
    environment: BrokerEnvironment,
    access: Access,
    storage: Storage,
    metadata: Metadata,
    connections: Connections,
    deliveries: DeliveryKinds,
) -> Replication:
    if environment.is_slave:
        return _SlaveSide(environment, access, storage, metadata, connections, deliveries)
    return _MasterSide(environment, access, storage, connections)


class _MasterSide:
    is_following = False
    followed_epoch = 0
    may_grow = False

    def __init__(
        self, environment: BrokerEnvironment, access: Access, storage: Storage, connections: Connections
    ) -> None:
        visible = VisibleEnd(storage.store, connections.hold)
        self._ha_service = HAService(
            environment.config,
            storage.store,
            storage.mastership,
            environment.tls,
            access.admit_slave,
            visible.advance,
            environment.on_joined,
        )
        storage.subscribe(visible.on_arrival)
        self.durability = Durability(storage.store, storage.group_commit, self._ha_service, environment.lease)
        # Not an arrival listener: records that get no ConsumeQueue unit are replicated as well.
        storage.reput.on_dispatch = self._ha_service.on_put

    def replication_lag(self) -> dict[str, int]:
        return self._ha_service.replication_lag()

    @property
    def last_confirmed(self) -> int:
        return self._ha_service.last_confirmed

    def confirmed(self) -> dict[int, int]:
        return self._ha_service.confirmed()

    async def wait_confirmed(self, member_id: int, physical_offset: int) -> None:
        await self._ha_service.wait_confirmed(member_id, physical_offset)

    async def follow_again(self, master_address: str) -> None:
        """A master follows no other broker."""

    async def stop_following(self) -> None:
        """A master follows no other broker."""

    def may_delete_oldest(self) -> bool:
        return True

    def slaves(self) -> list[SlaveProgress]:
        return self._ha_service.slaves()

    def set_in_sync(self, members: frozenset[int], visible_end: int | None = None) -> None:
        self._ha_service.set_in_sync(members, visible_end)

    def disconnect_slave(self, member: int) -> None:
        self._ha_service.disconnect_slave(member)

    def start(self, scheduler: Scheduler, running: AsyncExitStack) -> None:
        scheduler.every(LOG_LAG_INTERVAL_MS, "log replication lag", self._ha_service.log_replication_lag)
        self._ha_service.start()
        running.push_async_callback(self._ha_service.stop)

    async def follow(self, scheduler: Scheduler, running: AsyncExitStack) -> None:
        """A master follows no other broker."""


class _SlaveSide:
    """Copies the log and the tables of the master."""

    last_confirmed = -1

    def __init__(
        self,
        environment: BrokerEnvironment,
        access: Access,
        storage: Storage,
        metadata: Metadata,
        connections: Connections,
        deliveries: DeliveryKinds,
    ) -> None:
        self._environment = environment
        self._credentials = metadata.credentials if access.control is not None else None
        self._storage = storage
        self._registration = metadata.registration
        self._client: HAClient | None = None
        self._kept = 0
        """End of the last log file whose deletion waits for the master."""
        self._visible = VisibleEnd(storage.store, connections.hold)
        if environment.coordination is not None or environment.may_cut():
            self._visible.advance(0)
        self.durability = Durability(storage.store, storage.group_commit, None)
        self._synchronize = SlaveSynchronize(
            metadata.registration,
            metadata.client,
            storage.mastership,
            metadata.topics,
            metadata.groups,
            metadata.offsets,
            metadata.locks,
            deliveries,
            environment.clock,
        )
        storage.subscribe(self._on_arrival)
        storage.subscribe(self._visible.on_arrival)

    def replication_lag(self) -> dict[str, int]:
        return {}

    @property
    def is_following(self) -> bool:
        return self._client is not None and self._client.is_following

    @property
    def followed_epoch(self) -> int:
        return 0 if self._client is None else self._client.followed_epoch

    @property
    def may_grow(self) -> bool:
        return self._client is not None and self._client.is_running

    def confirmed(self) -> dict[int, int]:
        return {}

    async def wait_confirmed(self, member_id: int, physical_offset: int) -> None:
        raise StoreError("this broker is a slave, and has none")

    async def follow_again(self, master_address: str) -> None:
        if master_address:
            self._registration.follow(master_address)
        # A slave that has just started may follow it already: an interruption would make sends wait for it.
        if self._client is not None and not self._client.follows(self._environment.config.ha_master_address):
            await self._client.stop()
            self._client.start()

    async def stop_following(self) -> None:
        if self._client is not None:
            await self._client.stop()

    def may_delete_oldest(self) -> bool:
        store, log_begin = self._storage.store, self._synchronize.log_begin
        if (file_end := store.oldest_file_end) <= log_begin:
            return True
        if self._kept != file_end:
            self._kept = file_end
            logger.info(
                "the log from %d to %d is kept until the master, whose log begins at %d, has deleted it",
                store.min_physical_offset, file_end, log_begin,
            )  # fmt: skip
        return False

    def slaves(self) -> list[SlaveProgress]:
        return []

    def set_in_sync(self, members: frozenset[int], visible_end: int | None = None) -> None:
        raise StoreError("this broker is a slave: nothing waits for its slaves")

    def disconnect_slave(self, member: int) -> None:
        """A slave has no slaves."""

    def start(self, scheduler: Scheduler, running: AsyncExitStack) -> None:
        """A slave has nothing to announce."""

    async def follow(self, scheduler: Scheduler, running: AsyncExitStack) -> None:
        running.push_async_callback(self._synchronize.stop)
        # The first run precedes the log, so that arriving messages find their topics.
        await self._synchronize.synchronize()
        scheduler.every(table_sync.SYNC_INTERVAL_MS, "synchronize tables", self._synchronize.synchronize)
        environment, storage = self._environment, self._storage
        client = HAClient(
            environment.config,
            storage.store,
            storage.group_commit,
            self._registration,
            Follower(
                environment.config.broker_id,
                self._registration.address,
                storage.mastership.epochs,
                environment.on_diverged,
                environment.may_cut,
                environment.on_followed,
                self._visible.advance,
            ),
            environment.client_tls,
            self._credentials,
        )
        client.start()
        self._client = client
        running.push_async_callback(client.stop)

    def _on_arrival(self, topics: Mapping[str, TopicArrivals]) -> None:
        for topic in topics:
            self._synchronize.on_arrival(topic)
