"""`Coordinator` of a broker, built from the configuration and the role that it may change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

from rucola.acl.credentials import credentials_of_file, default_credentials
from rucola.broker.config import BrokerConfig
from rucola.coordination.coordinator import BrokerRoles, CoordinationFigures, Coordinator, PromiseResponse
from rucola.coordination.etcd import EtcdClient
from rucola.coordination.group_keys import GroupKeys, LeaderRecord, MemberRecord
from rucola.coordination.incarnation import LogIncarnation, boot_id
from rucola.coordination.write_lease import WriteLease
from rucola.errors import StoreError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.promise import AskPromiseRequestHeader, AskPromiseResponseHeader
from rucola.remoting.batching_event_loop import BatchingEventLoop
from rucola.remoting.client import RemotingClient
from rucola.remoting.tls import ClientTls
from rucola.store.checkpoint import Checkpoint
from rucola.store.config import StoreConfig
from rucola.store.config_files import COORDINATION, config_path
from rucola.store.epoch_file import EpochFile

logger = logging.getLogger(__name__)


class GroupRole(Protocol):
    """The coordination that the parts of a broker use."""

    @property
    def lease(self) -> WriteLease: ...

    def promise(self, epoch: int, master: LeaderRecord) -> PromiseResponse: ...

    def figures(self) -> CoordinationFigures | None: ...

    async def prefer(self) -> None: ...

    async def hand_over(self, timeout_s: float) -> bool: ...


class BrokerCoordination:
    """The coordinator of one broker, which outlives the parts that depend on its role."""

    def __init__(self, config: BrokerConfig, store_config: StoreConfig, tls: ClientTls | None) -> None:
        self.lease = WriteLease()
        self._config = config
        self._store_config = store_config
        self._tls = tls
        self._member = config.broker_id
        self._directory = Path(store_config.store_path_root_dir)
        self._incarnation = LogIncarnation(config_path(self._directory, COORDINATION))
        self._least_end = 0
        """The physical offset that the log must reach when it is opened first."""
        self._coordinator: Coordinator | None = None
        self._running = AsyncExitStack()

    async def prepare(self) -> None:
        """Read the incarnation of the log, before the store is opened. Raises StoreCorrupt or OSError."""
        is_flushed = self._store_config.is_sync_flush

        def read() -> None:
            was_closed = not (self._directory / "abort").exists()
            self._incarnation.begin_run(was_closed=was_closed, is_flushed=is_flushed, boot=boot_id())
            # Without an orderly stop, the checkpoint shows a second later that the log had a message.
            had_messages = Checkpoint(self._directory / "checkpoint").physic_timestamp > 0
            self._least_end = max(self._incarnation.least_end, int(had_messages))

        await asyncio.to_thread(read)

    async def compare(self, end: int, epochs: EpochFile) -> None:
        """Change the incarnation if the log, opened after `prepare`, has lost its end. Raises OSError."""
        if end < self._least_end:
            logger.warning(
                "the log has lost messages: it ends at %d, and reached %d at least. This broker is not elected before "
                "it has followed a master", end, self._least_end,
            )  # fmt: skip
            await asyncio.to_thread(self._renew, is_empty=not end, epochs=epochs)
        self._least_end = 0  # while the broker runs, a change of its role may cut off what was never replicated

    def _renew(self, *, is_empty: bool, epochs: EpochFile) -> None:
        if is_empty:
            # An epoch would make it a log that may be elected. First, so that a crash between the two repeats both.
            epochs.replace(())
        self._incarnation.renew()

    async def keep_end(self, end: int) -> None:
        """Keep the end of the closed log."""
        try:
            await asyncio.to_thread(self._incarnation.end_run, end)
        except OSError as error:
            logger.warning("the next start cannot tell whether the log is complete: %s", error)

    async def start(self, broker: BrokerRoles) -> None:
        """Start, once the broker serves and its ports are known. Raises ConfigError without the extra."""
        config, settings = self._config, self._config.coordination
        record = MemberRecord(
            self._member,
            f"{config.broker_ip1}:{config.listen_port}",
            f"{config.broker_ip2}:{config.ha_listen_port}",
            settings.etcd_priority,
            self._incarnation.number,
        )
        etcd = EtcdClient(settings.access, settings.etcd_retry_timeout / 1000)
        await self._running.enter_async_context(etcd)
        credentials = (
            credentials_of_file(config.credentials_file)
            if config.credentials_file is not None
            else default_credentials()
        )
        client = RemotingClient(tls=self._tls, credentials=credentials)
        self._running.push_async_callback(client.close)
        loop = asyncio.get_running_loop()
        if isinstance(loop, BatchingEventLoop):
            self._running.callback(loop.batching.set_gate, None)
            loop.batching.set_gate(self.lease.may_send)
        self._coordinator = Coordinator(
            GroupKeys(config.broker_cluster_name, config.broker_name),
            record,
            settings.bounds,
            etcd,
            broker,
            self._asking(client, record),
            self.lease,
            may_found=settings.etcd_founder,
        )
        self._coordinator.start()
        logger.info("the master of %s is elected by etcd at %s", config.broker_name, settings.etcd_endpoints)

    async def stop(self) -> None:
        """Resign, if this broker is master, and leave the group."""
        if self._coordinator is not None:
            await self._coordinator.stop()
        await self._running.aclose()

    def promise(self, epoch: int, master: LeaderRecord) -> PromiseResponse:
        """Respond to a master; before the start nothing is promised."""
        return PromiseResponse(False, 0) if self._coordinator is None else self._coordinator.promise(epoch, master)

    async def prefer(self) -> None:
        """Announce that this slave is to be the next master. Raises MQError if etcd does not accept that."""
        if self._coordinator is None:
            raise StoreError("this broker is about to start")
        await self._coordinator.prefer()

    async def hand_over(self, timeout_s: float) -> bool:
        """Give the mastership up; return False if this broker keeps it."""
        return self._coordinator is not None and await self._coordinator.hand_over(timeout_s)

    def figures(self) -> CoordinationFigures | None:
        """None before the start."""
        return None if self._coordinator is None else self._coordinator.figures()

    def _asking(
        self, client: RemotingClient, record: MemberRecord
    ) -> Callable[[str, int], asyncio.Future[PromiseResponse]]:
        timeout_ms = self._config.coordination.etcd_retry_timeout

        async def ask(address: str, epoch: int) -> PromiseResponse:
            header = AskPromiseRequestHeader(
                epoch=epoch, member=record.member, address=record.address, ha_address=record.ha_address
            )
            request = RemotingCommand.request(RequestCode.ASK_PROMISE, header)
            response = await client.invoke_ok(address, request, timeout_ms)
            answer = response.decode_header(AskPromiseResponseHeader)
            return PromiseResponse(answer.promised, answer.epoch)

        return lambda address, epoch: asyncio.ensure_future(ask(address, epoch))
