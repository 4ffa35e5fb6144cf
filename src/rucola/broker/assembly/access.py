"""Access part: accounts or users, the audit log, and the gate for all requests."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from rucola.access import Caller, Refused
from rucola.acl.access_control import AccessControl, Accounts, PlainAccounts, PolicyAccounts
from rucola.acl.audit_log import AuditLog
from rucola.acl.plain_acl_files import REFRESH_INTERVAL_MS, PlainAclFiles, acl_home
from rucola.acl.user_store import UserStore
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.background.scheduler import Scheduler
from rucola.broker.replication.ha_authentication import admit
from rucola.broker.services.access import AccessService
from rucola.remoting.access_gate import AccessGate
from rucola.remoting.byte_stream import Stream


class AccessFigures(NamedTuple):
    broken_files: int
    """Account files that keep their last good content."""
    denied: int
    dropped: int
    """Lines that the audit log lost since the start."""


class Access:
    """Access control as configured; `interceptor` and `gate` are None if unused. Raises ConfigError."""

    def __init__(self, environment: BrokerEnvironment) -> None:
        config = environment.config
        self._slave_timeout_ms = config.ha_housekeeping_interval
        self.files: PlainAclFiles | None = None
        store: UserStore | None = None
        accounts: Accounts | None = None
        if config.acl_enable:
            self.files = PlainAclFiles(acl_home(config.rocketmq_home), environment.clock)
            accounts = PlainAccounts(self.files)
        elif config.authentication_enabled:
            path = environment.config_directory / "auth.json"
            first_user = config.init_authentication_user
            store = UserStore(path, config.broker_cluster_name, first_user.reveal() if first_user else "")
            accounts = PolicyAccounts(store)
        self.control = AccessControl(accounts) if accounts is not None else None
        self.interceptor = self.control if config.has_access_control else None
        self.audit = self._audit_log(environment)
        self.gate = AccessGate(self.control, self.audit) if self.control is not None or self.audit is not None else None
        self.service = AccessService(self.files, store)

    def figures(self) -> AccessFigures:
        """Figures for the metrics; all are 0 without access control."""
        return AccessFigures(
            len(self.files.broken) if self.files is not None else 0,
            self.gate.denied if self.gate is not None else 0,
            self.audit.dropped if self.audit is not None else 0,
        )

    def open(self, running: AsyncExitStack) -> None:
        """Open the audit log, which is closed last. Raises ConfigError."""
        if self.audit is not None:
            self.audit.open()
            running.push_async_callback(asyncio.to_thread, self.audit.close)

    def schedule(self, scheduler: Scheduler) -> None:
        files = self.files
        if files is not None:

            async def refresh() -> None:
                await asyncio.to_thread(files.refresh)

            scheduler.every(REFRESH_INTERVAL_MS, "refresh accounts", refresh)

    async def admit_slave(self, stream: Stream) -> bytes:
        try:
            return await admit(stream, self.control, self._slave_timeout_ms)
        except Refused as refusal:
            if self.gate is not None:
                self.gate.record_peer(Caller(stream.peer, None, stream.certificate), refusal)
            raise

    def _audit_log(self, environment: BrokerEnvironment) -> AuditLog | None:
        config = environment.config
        path = config.audit_log_path
        if path is None and self.control is not None:
            path = Path(environment.store_config.store_path_root_dir) / "audit" / "audit.jsonl"
        if path is None:
            return None
        return AuditLog(path, config.audit_log_max_size, config.audit_log_max_files, environment.clock)
