"""Replication part: a master's HA service, or a slave's HA client and table synchronization."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack

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
from rucola.broker.replication.side import Replication
from rucola.broker.replication.table_sync import SlaveSynchronize
from rucola.broker.replication.visible_end import VisibleEnd
from rucola.store.dispatch import TopicArrivals

logger = logging.getLogger(__name__)


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
    flushes = storage.group_commit if storage.store.config.is_sync_flush else None
    visible = VisibleEnd(storage.store, connections.hold, connections.pops, flushes)
    service = HAService(
        environment.config,
        storage.store,
        storage.mastership,
        environment.tls,
        access.admit_slave,
        visible.advance,
        environment.on_joined,
    )
    service.durability = Durability(storage.store, storage.group_commit, service.when_replicated, environment.lease)
    storage.subscribe(visible.on_arrival)
    # Not an arrival listener: records that get no ConsumeQueue unit are replicated as well.
    storage.reput.on_dispatch = service.on_put
    return service


class _SlaveSide(Replication):
    """Copies the log and the tables of the master."""

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
        self._visible = VisibleEnd(storage.store, connections.hold, connections.pops)
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
            metadata.modes,
            deliveries,
            environment.clock,
        )
        storage.subscribe(self._on_arrival)
        storage.subscribe(self._visible.on_arrival)

    @property
    def is_following(self) -> bool:
        return self._client is not None and self._client.is_following

    @property
    def followed_epoch(self) -> int:
        return 0 if self._client is None else self._client.followed_epoch

    @property
    def may_grow(self) -> bool:
        return self._client is not None and self._client.is_running

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
