"""CoordinationConfig: the settings of the coordination by etcd, a part of broker.conf."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from rucola.coordination.election import Bounds
from rucola.coordination.etcd import EtcdAccess, parse_endpoints
from rucola.settings import INT_MAX, Count, Interval, Range, Secret


class MasterRole(Enum):
    SYNC_MASTER = 0
    """It acknowledges what all members of the in-sync set have."""
    ASYNC_MASTER = 1
    """It acknowledges what it has itself; the last messages are lost with it."""


@dataclass(slots=True, frozen=True)
class CoordinationConfig:
    """Election of the master of a broker group by etcd; see docs/high-availability.md."""

    etcd_endpoints: str = ""
    """Addresses of etcd 3, `http://host:port` joined by `,`. With them, the brokers of this name elect their master.

    Every one of them has brokerRole=SLAVE and its own brokerId above 0. Needs the extra `rucola-mq[etcd]`.
    """
    etcd_user: str = ""
    """User of etcd, if its authentication is enabled."""
    etcd_password: Secret | None = None
    """Password of the user: `file:PATH` or `env:NAME`, or the password itself."""
    etcd_ca_file: str = ""
    """Certificate authorities of etcd, PEM, for https; by default the system's."""
    etcd_cert_file: str = ""
    """Certificate of this broker, PEM, if etcd asks clients for one."""
    etcd_key_file: str = ""
    """Private key of that certificate, PEM."""
    etcd_ttl: Annotated[Interval, Range(2000, INT_MAX)] = 4000
    """Time after which etcd ends the mastership of a broker that does not renew it. The same for a whole group.

    A lower value shortens a failover; a higher one lets a master that is stopped for a while remain master.
    """
    etcd_loop_wait: Interval = 1000
    """Time between two renewals. etcdLoopWait + 2 * etcdRetryTimeout must not exceed 95 % of etcdTtl."""
    etcd_retry_timeout: Interval = 1250
    """Time that etcd has for an answer, and the other brokers for a promise."""
    etcd_in_sync_timeout: Interval = 3000
    """Time for which a slave may lag or be away before it leaves the in-sync set, and sends wait for it no longer."""
    etcd_priority: Annotated[Count, Range(0, INT_MAX)] = 100
    """Which of several slaves with equal logs becomes master: that with the highest. 0 is never elected.

    The log of a broker with 0 counts all the same: see docs/high-availability.md.
    """
    etcd_master_role: MasterRole = MasterRole.SYNC_MASTER
    """What this broker is as master: SYNC_MASTER, or ASYNC_MASTER."""
    etcd_founder: bool = False
    """Whether this broker, with the log that it has, may be the first master of a group that etcd does not know.

    Set it on one broker, once: to coordinate a group that has messages already, after etcd has lost its data, or to
    begin again without messages if all disks are lost. A new group without messages needs no founder.
    """

    @property
    def is_enabled(self) -> bool:
        return bool(self.etcd_endpoints.strip())

    @property
    def bounds(self) -> Bounds:
        """The times of the election. ConfigError if they contradict each other."""
        bounds = Bounds(
            self.etcd_ttl / 1000, self.etcd_loop_wait / 1000, self.etcd_retry_timeout / 1000,
            self.etcd_in_sync_timeout / 1000,
        )  # fmt: skip
        bounds.check()
        return bounds

    @property
    def access(self) -> EtcdAccess:
        """Where etcd is, and how to be admitted. ConfigError."""
        password = "" if self.etcd_password is None else self.etcd_password.reveal()
        return EtcdAccess(
            parse_endpoints(self.etcd_endpoints), self.etcd_user, password,
            self.etcd_ca_file, self.etcd_cert_file, self.etcd_key_file,
        )  # fmt: skip
