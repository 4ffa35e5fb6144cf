"""The role of a running broker: kept on disk, and changed while the process runs.

A change of the role is an orderly stop and a start over the same store and on the same ports, which takes some tenths
of a second and disconnects clients. A slave whose log differs from its master's is stopped likewise to truncate it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol

from rucola.broker.assembly.startup import RoleStart, RunningParts
from rucola.broker.background.scheduler import in_thread
from rucola.broker.config import BrokerConfig
from rucola.broker.delivery.kinds import reset_progress
from rucola.broker.role import NO_SWITCH, LogPosition, RoleRecord, RoleSwitch, SwitchReason, is_master
from rucola.domain.role import MASTER_ID
from rucola.errors import StoreError
from rucola.store.config import BrokerRole, StoreConfig
from rucola.store.config_files import ConfigFile, config_path
from rucola.store.diverged_tail import cut_tail

logger = logging.getLogger(__name__)

MAX_IDS = 1024
"""Ids of slaves that are kept; whoever has more makes them up."""


class RestartableBroker(Protocol):
    """A broker that a change of its role stops and starts."""

    @property
    def parts(self) -> RunningParts | None:
        """None while the broker is stopped."""
        ...

    async def stop_parts(self) -> None: ...

    async def start_parts(self, start: RoleStart) -> None: ...


class BrokerRoleControl:
    """The `RoleControl` of a broker. Sets brokerRole and brokerId in the broker's configurations."""

    def __init__(
        self, broker: RestartableBroker, config: BrokerConfig, store_config: StoreConfig, clock: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._config = config
        self._store_config = store_config
        self._clock = clock
        self._file = ConfigFile(config_path(Path(store_config.store_path_root_dir), "role"))
        self._record: RoleRecord | None = None
        self.member_id = config.broker_id
        """Id as slave, of the configuration or of config/role.json, or 0. A master registers with 0 all the same."""
        self.role_since_ms = 0
        """When the broker started in its role; set by the broker."""
        self.switches: Counter[SwitchReason] = Counter()
        """Since the start of the process."""
        self.changing = asyncio.Lock()
        """Held during a change of the role, and by the broker while it stops."""
        self._master_address = ""
        """The master to follow; empty for the one that the name servers have."""
        self._is_cutting = False
        self._changes: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        """Why a change of the role has left the broker stopped."""
        self._failed = asyncio.Event()

    # The record.

    def load(self, elected: BrokerRole | None = None) -> None:
        """Load the role of the file, or of the configuration. Raises StoreCorrupt.

        With an election the broker always starts as a slave; `elected` is its role as master.
        """
        record = RoleRecord.load(self._file, self._store_config.broker_role)
        previous = record.previous
        if elected is not None:
            record = dataclasses.replace(record.changed(BrokerRole.SLAVE), master=elected)
        if is_master(record.current) is not is_master(previous):
            record = self._switched(record, SwitchReason.START)
        self.member_id = self.member_id or record.broker_id
        if not (self.member_id or is_master(record.current)):
            raise StoreError(
                f"{self._file.path} makes this broker a slave, which needs a brokerId above 0, unique among its name: "
                "set it in broker.conf"
            )
        if record.current is not self._store_config.broker_role:
            logger.info("role %s instead of the configured one, see config/role.json", record.current.value)
        self._take(record)

    @property
    def is_loaded(self) -> bool:
        return self._record is not None

    @property
    def record(self) -> RoleRecord:
        """The role, once it is loaded."""
        assert self._record is not None
        return self._record

    async def keep(self) -> None:
        """Write the role in which the broker serves."""
        async with self.changing:
            await self._write(self.record.changed(self.record.current))

    def _switched(self, record: RoleRecord, reason: SwitchReason) -> RoleRecord:
        self.switches[reason] += 1
        return dataclasses.replace(record, last_switch=RoleSwitch(self._clock(), reason))

    def _take(self, record: RoleRecord) -> None:
        self._record = record
        self._store_config.broker_role = record.current
        self._config.broker_id = MASTER_ID if is_master(record.current) else self.member_id

    async def _write(self, record: RoleRecord) -> None:
        self._record = record
        await in_thread(self._file.prepare_write(record.fields))

    # The role, and the progress of slaves.

    @property
    def master_role(self) -> str:
        return "" if self._record is None else self._record.master.value

    @property
    def last_switch(self) -> RoleSwitch:
        return NO_SWITCH if self._record is None else self._record.last_switch

    def position(self) -> LogPosition:
        """Return the end of the log. Raises StoreError while the broker is stopped or changes its role."""
        return self._parts.storage.mastership.position

    def has_failed(self) -> bool:
        """Return whether the store is read-only until it is opened again. StoreError as `position`."""
        return self._parts.storage.store.write_state.failure is not None

    def may_grow(self) -> bool:
        """Return whether a master may still send to this log. StoreError as `position`."""
        return self._parts.replication.may_grow

    def in_sync(self) -> Mapping[int, int]:
        return self._parts.replication.confirmed()

    def set_in_sync(self, members: frozenset[int]) -> None:
        self._parts.replication.set_in_sync(members - {self.member_id})

    def disconnect_slave(self, member: int) -> None:
        """Close the replication connections of a slave, and discard its confirmations over them."""
        self._parts.replication.disconnect_slave(member)

    @property
    def _parts(self) -> RunningParts:
        if (parts := self._broker.parts) is None:
            raise StoreError("the broker is stopped, or changes its role")
        return parts

    # Changes.

    def in_background(self, change: Coroutine[Any, Any, None]) -> None:
        def end(task: asyncio.Task[None]) -> None:
            self._changes.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("the role cannot be changed: %s", error)
                self._note_failure(error)

        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(end)

    async def wait_failed(self) -> None:
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    def _note_failure(self, error: BaseException) -> None:
        if self._broker.parts is None:
            self._failure = error
            self._failed.set()

    async def become_master(
        self, epoch: int, in_sync: frozenset[int] | None, *, reason: SwitchReason = SwitchReason.ELECTION
    ) -> None:
        async with self.changing:
            last, storage = self.position().epoch, self._parts.storage
            if storage.mastership.epoch == epoch:
                return
            if epoch <= last:
                raise StoreError(f"epoch {epoch} is not new: this log has messages of epoch {last}")
            others = None if in_sync is None else in_sync - {self.member_id}
            start = RoleStart(epoch, others, storage.store.visible_end)
            await self._restart(self.record.master, start, reason)

    async def become_slave(
        self,
        epoch: int,
        broker_id: int,
        ha_address: str,
        address: str = "",
        *,
        reason: SwitchReason = SwitchReason.ELECTION,
    ) -> None:
        async with self.changing:
            is_same = ha_address == self._config.ha_master_address
            self._config.ha_master_address, self._master_address = ha_address, address
            if self._parts.storage.store.config.is_slave:
                await self._write(dataclasses.replace(self.record, rejoins=True))
                if not is_same or not self._parts.replication.is_following:
                    await self._parts.replication.follow_again(address)
                return
            if not self.member_id:
                self.member_id = broker_id
                self._record = dataclasses.replace(self.record, broker_id=broker_id)
            await self._parts.registration.wait_master(epoch)
            await self._restart(BrokerRole.SLAVE, RoleStart(master_address=address), reason, rejoins=True)

    async def stop_following(self) -> None:
        """Close the connection to the master until `become_slave`; the log stays as it is."""
        async with self.changing:
            await self._parts.replication.stop_following()

    async def _restart(
        self, role: BrokerRole, start: RoleStart, reason: SwitchReason, *, rejoins: bool = False
    ) -> None:
        began_s = time.monotonic()
        try:
            await self._broker.stop_parts()
            record = dataclasses.replace(self._switched(self.record.changed(role), reason), rejoins=rejoins)
            await self._write(record)
            self._take(record)
            await self._broker.start_parts(start)
        except Exception as error:
            self._note_failure(error)
            raise
        logger.info("role %s after %.0f ms", role.value, (time.monotonic() - began_s) * 1000)

    # A slave and the log of its master.

    async def on_followed(self, role: BrokerRole) -> None:
        """Keep the role of the master, which this slave gets if it is promoted."""
        followed = dataclasses.replace(self.record, master=role, rejoins=False)
        if followed != self.record:
            await self._write(followed)

    # A master and the ids of its slaves.

    @property
    def slave_ids(self) -> frozenset[int]:
        return frozenset() if self._record is None else self._record.slave_ids

    async def on_joined(self, broker_id: int) -> None:
        """Keep the id of a slave of this master. With an election, ids are not given to brokers."""
        if self._config.coordination.is_enabled or broker_id in self.slave_ids or len(self.slave_ids) >= MAX_IDS:
            return
        async with self.changing:
            try:
                await self._write(dataclasses.replace(self.record, slave_ids=self.slave_ids | {broker_id}))
            except OSError as error:
                logger.warning("%s does not have slave %d: %s", self._file.path, broker_id, error)

    def may_cut(self) -> bool:
        return self._record is not None and self._record.rejoins

    def on_diverged(self, physical_offset: int) -> None:
        """Truncate the log of this slave in the background, since the truncation stops the caller."""
        if not self._is_cutting:
            self._is_cutting = True
            self.in_background(self._cut_log(physical_offset))

    async def _cut_log(self, physical_offset: int) -> None:
        async with self.changing:
            self._is_cutting = False
            if self._broker.parts is None or not self._parts.replication.may_grow:
                return  # it follows no master any more; the next one is compared with the whole log
            await self._broker.stop_parts()
            await in_thread(lambda: _cut_closed_log(self._store_config, self._file.path.parent, physical_offset))
            await self._broker.start_parts(RoleStart(master_address=self._master_address))


def _cut_closed_log(config: StoreConfig, config_directory: Path, physical_offset: int) -> None:
    try:
        # First: a crash in between leaves progress that is behind, never one that counts what was cut off.
        reset_progress(config_directory)
        tail = cut_tail(config, physical_offset)
    except (OSError, StoreError) as error:
        logger.error("the log cannot be cut at %d, and does not follow its master: %s", physical_offset, error)
    except Exception:
        logger.exception("the log cannot be cut at %d", physical_offset)
    else:
        logger.warning(
            "%d messages, %d bytes of the log from %d to %d, were never replicated, and are cut off; they are "
            "kept in %s. `rucola store grep` reads them",
            tail.messages, tail.size, tail.begin, tail.end, ", ".join(map(str, tail.directories)),
        )  # fmt: skip
