"""Roles of the brokers of one name: the state of replication and election."""

from __future__ import annotations

from typing import Final

import msgspec

MASTER_ID = 0
SWITCHOVER: Final = "[SWITCHOVER]"
"""Prefix of the remark of SERVICE_NOT_AVAILABLE during a switchover: a producer may send again soon."""
ELECTED: Final = (
    "the master of this group is elected (etcdEndpoints), and another broker takes over by itself if it is lost; "
    "`rucola admin switchover` has it hand over to a slave of the in-sync set. If none of the set will come back, "
    "start an empty broker with each brokerId of the set; then the longest log of all running brokers is elected, and "
    "what only the lost ones had is lost"
)
"""Remark of a refused role change, with advice to the operator."""


class SlaveStatus(msgspec.Struct, rename="camel", kw_only=True):
    """A slave as its master sees it."""

    broker_id: int | None = None
    """None for a slave without epochs."""
    address: str
    confirmed: int
    """The slave has all bytes before this physical offset."""
    lag_bytes: int
    lag_seconds: float | None
    """Age of the oldest whole message that it does not have; 0 if it has all, None if it lacks a part of one."""
    in_sync: bool | None = None
    """Whether SEND_OK of a SYNC_MASTER waits for it; None without an in-sync set (one slave suffices)."""


class ElectionStatus(msgspec.Struct, rename="camel", kw_only=True):
    """The election, as seen by one broker."""

    epoch: int
    in_sync: list[int]
    """brokerIds, the master's included."""
    members: list[int]
    """The members that run."""
    missing: list[int] = []
    """Members of the in-sync set that are not connected to the master; on a slave, those that do not run."""
    is_etcd_away: bool
    right_seconds: float
    """For how long the master may still acknowledge without any response; 0 on a slave."""


class HaStatus(msgspec.Struct, rename="camel", kw_only=True):
    """The role of a broker, and the loss if it fails now."""

    broker_name: str
    broker_id: int
    member_id: int
    """brokerId of its configuration."""
    slave_ids: list[int] = []
    """brokerIds of the slaves that it has had as master, connected or not."""
    role: str
    master_role: str
    """The role that a slave takes when it is promoted: its last master's."""
    is_accepting: bool
    reason: str
    is_following: bool
    """Whether it is a slave that is connected to the newest master that it knows, with an equal log.

    One that has heard nothing for haHousekeepingInterval is not connected.
    """
    epoch: int
    """The last epoch of its log."""
    fenced_by: int
    """The epoch of the newer master that has fenced this one; 0 if none has."""
    begin: int
    end: int
    epochs: list[tuple[int, int]]
    """Number and start offset of each epoch of the log."""
    ha_address: str
    role_since_ms: int
    """Start in its role, later than the switch after a restart."""
    switched_ms: int = 0
    """Start of its last switch to master or slave; 0 for none."""
    switch_reason: str = ""
    """election, promote, demote, switchover or start"""
    slaves: list[SlaveStatus] = []
    unreplicated_bytes: int | None = None
    """What no slave has: lost if this master is lost now; None if that is not known."""
    unreplicated_messages: int | None = None
    unreplicated_reason: str = ""
    """Why that is not known, or is what was confirmed last; empty while a slave is connected."""
    is_elected: bool = False
    """Whether etcd elects the master, so that no request changes the role."""
    election: ElectionStatus | None = None
    """None without an election, and before it starts."""
    master_epoch: int = 0
    """The epoch of the slave's last master; 0 on a master."""
    messages: int | None = None
