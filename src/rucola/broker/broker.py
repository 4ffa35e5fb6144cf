"""The broker: one store, served to clients and, as master or slave, replicated.

`Broker` holds the configuration and the exit stack of the running parts; `assembly.startup` builds, starts and stops
them. A broker that fails to start releases everything that it took.

What depends on the role is decided when the parts are built. A change of the role is therefore an orderly stop and a
start over the same store, which takes some tenths of a second.

Corresponds to `BrokerController` of Apache RocketMQ 4.9.8. Deliberate difference: the parts receive what they need and
do not know this class.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from rucola.access import Interceptor
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.listeners import held_ports
from rucola.broker.assembly.startup import OpenedParts, RoleStart, RunningParts, open_broker, start_broker
from rucola.broker.background.retention import DiskUsageProbe, disk_usage
from rucola.broker.background.scheduler import in_thread
from rucola.broker.config import BrokerConfig
from rucola.broker.coordination import BrokerCoordination
from rucola.broker.role import LogPosition, RoleRecord, is_master
from rucola.errors import StoreError
from rucola.protocol.route import MASTER_ID
from rucola.remoting.tls import ClientTls, ServerTls
from rucola.store.config import BrokerRole, StoreConfig
from rucola.store.config_files import ConfigFile, config_path
from rucola.store.diverged_tail import cut_tail

logger = logging.getLogger(__name__)


def wall_clock_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Broker:
    """One broker over one store directory. Use `start` and `stop`, or `async with`.

    If `listen_port` is 0 the system chooses a port, which `config.listen_port` and `address` contain after the start.
    Settings that operators change at runtime are written into `config_file`. Each of `interceptors` sees every request
    before the broker's own checks (see `rucola.access`). `probe_disk` and `clock` are for tests. ConfigError if the
    certificates that `config.tls` names cannot be used.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        probe_disk: DiskUsageProbe = disk_usage,
        config_file: Path | None = None,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        self.config = config
        self.store_config = store_config
        client_tls = ClientTls.of(config.tls)
        self._coordination: BrokerCoordination | None = None
        if config.coordination.is_enabled:
            self._coordination = BrokerCoordination(config, store_config, client_tls)
        self._environment = BrokerEnvironment(
            config,
            store_config,
            clock,
            probe_disk,
            self,
            self._on_diverged,
            self._may_cut,
            self._on_followed,
            config_file,
            tuple(interceptors),
            ServerTls.of(config.tls),
            self._coordination,
            client_tls,
        )
        self.member_id = config.broker_id
        """brokerId of the configuration; as master the broker registers with 0 all the same."""
        self._running = AsyncExitStack()
        self._parts: RunningParts | None = None
        self._opened: OpenedParts | None = None
        """What `open` has opened, until `start`."""
        self._role_file = ConfigFile(config_path(Path(store_config.store_path_root_dir), "role"))
        self._role: RoleRecord | None = None
        """The role, from the first `open` on."""
        self._master_address = ""
        """Address of the master that this slave has to follow; empty for the one that the name servers have."""
        self._changing = asyncio.Lock()
        """Held during a change of the role."""
        self.role_since_ms = 0
        """When the broker started in its role."""
        self._failure: BaseException | None = None
        """Why a change of the role has left the broker stopped."""
        self._failed = asyncio.Event()
        self._changes: set[asyncio.Task[None]] = set()
        """Changes of the role in the background."""
        self._is_cutting = False

    @property
    def address(self) -> str:
        """The address that clients connect to, "ip:port"."""
        return f"{self.config.broker_ip1}:{self.config.listen_port}"

    async def open(self) -> None:
        """Open the store without binding a port. Raises StoreError. `start` follows, or `stop`."""
        if self._role is None:
            self._role = RoleRecord.load(self._role_file, self.store_config.broker_role)
            if self._coordination is not None:
                # Whatever it was before, it starts as a slave: the election decides.
                await self._coordination.prepare()
                elected = BrokerRole[self.config.coordination.etcd_master_role.name]
                self._role = dataclasses.replace(self._role.changed(BrokerRole.SLAVE), master=elected)
            if self._role.current is not self.store_config.broker_role:
                logger.info("role %s instead of the configured one, see config/role.json", self._role.current.value)
            self._take_role(self._role, self.member_id)
        async with AsyncExitStack() as opening:
            self._opened = await open_broker(self._environment, opening)
            self._running = opening.pop_all()

    async def start(self) -> None:
        """Open the store, unless `open` did, and begin to serve. Raises StoreError, ConfigError or RemotingError."""
        try:
            if self._opened is None:
                await self.open()
            assert self._role is not None
            await self._start(RoleStart(is_promotion=self._role.is_promotion))
            await in_thread(self._keep_role(self._role.changed(self._role.current)))
            if self._coordination is not None:
                await self._coordination.start(self)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, start: RoleStart) -> None:
        assert self._opened is not None
        opened, self._opened = self._opened, None
        async with self._running.pop_all() as starting:
            self._parts = await start_broker(self._environment, opened, starting, start)
            self.role_since_ms = self._environment.clock()
            self._running = starting.pop_all()

    async def reload(self) -> None:
        """Load the certificates, and read `config_file` again (see `services.configuration`).

        ConfigError, and then what failed is unchanged.
        """
        if self._environment.tls is not None:
            self._environment.tls.reload()
        if self._parts is not None:
            await self._parts.services.configuration.reload()

    async def stop(self) -> None:
        """Stop serving and close the store. Idempotent. Everything that was acknowledged is on disk afterwards."""
        if self._coordination is not None:
            await self._coordination.stop()
        async with self._changing:
            await self._stop()

    async def _stop(self) -> None:
        self._opened = None
        self._parts = None
        await self._running.aclose()

    async def wait_failed(self) -> None:
        """Wait until a change of the role fails and leaves the broker stopped, and raise the reason."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    # -- the role, see `RoleControl` ----------------------------------------------------------------------------------

    def position(self) -> LogPosition:
        """Return how far the log goes. StoreError while the broker is stopped or changes its role."""
        storage = self._running_parts.storage
        return LogPosition(storage.mastership.epochs.last.number, storage.store.max_physical_offset)

    def has_failed(self) -> bool:
        """Return whether the store takes no messages until it is opened again. StoreError as `position`."""
        return self._running_parts.storage.store.write_state.failure is not None

    def in_sync(self) -> Mapping[int, int]:
        """Return the confirmed physical offset of each slave that knows epochs, by its brokerId; none on a slave."""
        return self._running_parts.replication.confirmed()

    def set_in_sync(self, members: frozenset[int]) -> None:
        """Acknowledge only what all of these slaves have, by their brokerId; see `RoleControl`."""
        self._running_parts.replication.set_in_sync(members - {self.member_id})

    def disconnect_slave(self, member: int) -> None:
        """Close the replication connections of a slave; its confirmations over them count no more."""
        self._running_parts.replication.disconnect_slave(member)

    @property
    def master_role(self) -> str:
        """The role that this broker has as master."""
        return "" if self._role is None else self._role.master.value

    def in_background(self, change: Coroutine[Any, Any, None]) -> None:
        """Run a change of the role; a failure is logged."""

        def end(task: asyncio.Task[None]) -> None:
            self._changes.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("the role cannot be changed: %s", error)
                self._note_failure(error)

        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(end)

    def _note_failure(self, error: BaseException) -> None:
        """End `wait_failed` if a change of the role has left the broker stopped."""
        if self._parts is None:
            self._failure = error
            self._failed.set()

    async def become_master(self, epoch: int, in_sync: frozenset[int] | None) -> None:
        """Become master in a new epoch; see `RoleControl`. Clients are disconnected meanwhile."""
        async with self._changing:
            last, role = self.position().epoch, self._role
            assert role is not None
            if self._running_parts.storage.mastership.epoch == epoch:
                return
            if epoch <= last:
                raise StoreError(f"epoch {epoch} is not new: this log has messages of epoch {last}")
            others = None if in_sync is None else in_sync - {self.member_id}
            await self._change_role(role.master, MASTER_ID, RoleStart(epoch, others))

    async def become_slave(self, epoch: int, master_id: int, ha_address: str, address: str = "") -> None:
        """Follow another master; see `RoleControl`. Clients are disconnected meanwhile."""
        async with self._changing:
            is_same = ha_address == self.config.ha_master_address
            self.config.ha_master_address, self._master_address = ha_address, address
            if self._running_parts.storage.store.config.is_slave:
                assert self._role is not None
                await in_thread(self._keep_role(dataclasses.replace(self._role, rejoins=True)))
                if not is_same or not self._running_parts.replication.is_following:
                    await self._running_parts.replication.follow_again(address)
                return
            start = RoleStart(master_address=address)
            await self._change_role(BrokerRole.SLAVE, self.member_id or master_id, start, rejoins=True)

    async def _change_role(self, role: BrokerRole, broker_id: int, start: RoleStart, *, rejoins: bool = False) -> None:
        """Stop all parts and start them in another role, over the same store and on the same ports."""
        began_s = time.monotonic()
        try:
            await self._stop()
            with held_ports(self.config):
                assert self._role is not None
                changed = dataclasses.replace(self._role.changed(role), rejoins=rejoins)
                await in_thread(self._keep_role(changed))
                self._take_role(changed, broker_id)
                await self.open()
                await self._start(start)
        except Exception as error:
            self._note_failure(error)
            raise
        logger.info("role %s after %.0f ms", role.value, (time.monotonic() - began_s) * 1000)

    def _on_diverged(self, physical_offset: int) -> None:
        """Cut the log of this slave, in a task of its own: the caller is stopped for that."""
        if not self._is_cutting:
            self._is_cutting = True
            self.in_background(self._cut_log(physical_offset))

    async def _cut_log(self, physical_offset: int) -> None:
        async with self._changing:
            self._is_cutting = False
            if self._parts is None or is_master(self.store_config.broker_role):
                return
            await self._stop()
            with held_ports(self.config):
                await in_thread(self._cut_closed_log, physical_offset)
                await self.open()
                await self._start(RoleStart(master_address=self._master_address))

    def _cut_closed_log(self, physical_offset: int) -> None:
        try:
            tail = cut_tail(self.store_config, physical_offset)
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

    def _may_cut(self) -> bool:
        return self._role is not None and self._role.rejoins

    async def _on_followed(self, role: BrokerRole) -> None:
        """Keep the role of the master, which this slave takes if it is promoted."""
        assert self._role is not None
        followed = dataclasses.replace(self._role, master=role, rejoins=False)
        if followed != self._role:
            await in_thread(self._keep_role(followed))

    def _take_role(self, role: RoleRecord, broker_id: int) -> None:
        self.store_config.broker_role = role.current
        self.config.broker_id = MASTER_ID if is_master(role.current) else broker_id

    def _keep_role(self, role: RoleRecord) -> Callable[[], None]:
        """Return a function that writes the role, for a thread; the last call of this method wins."""
        self._role = role
        return self._role_file.prepare_write(role.fields)

    @property
    def _running_parts(self) -> RunningParts:
        if self._parts is None:
            raise StoreError("the broker is stopped, or changes its role")
        return self._parts

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
