"""Requests about the roles of the brokers of one name.

Rucola's own, which Apache's brokers do not support: GET_HA_STATUS (20001), PROMOTE_BROKER (20002), DEMOTE_BROKER
(20003), SWITCH_OVER (20004).
"""

from __future__ import annotations

from typing import Final

from rucola.protocol.body import Body
from rucola.protocol.command import Header

SWITCHOVER: Final = "[SWITCHOVER]"
"""How the remark of SERVICE_NOT_AVAILABLE begins while a master hands over: a producer may send again in a moment."""
ELECTED: Final = (
    "the master of this group is elected (etcdEndpoints), and another broker takes over by itself if it is lost; "
    "`rucola admin switchover` has it hand over to a slave of the in-sync set. If none of the set will come back, "
    "start an empty broker with each brokerId of the set; then the longest log of all running brokers is elected, and "
    "what only the lost ones had is lost"
)
"""Why a change of the role is refused in such a group, and what an operator does instead."""


class HaStatusRequestHeader(Header, kw_only=True):
    """GET_HA_STATUS. With `count_from`, the messages of the log from that physical offset on are counted."""

    count_from: int | None = None


class PromoteBrokerRequestHeader(Header, kw_only=True):
    """PROMOTE_BROKER: become master in this epoch, or a later one if it is not new.

    A slave that is connected to its master refuses unless `force`. `is_switchover` if its master asks, to hand over.
    """

    epoch: int = 0
    force: bool = False
    is_switchover: bool = False


class DemoteBrokerRequestHeader(Header, kw_only=True):
    """DEMOTE_BROKER: become slave of the registered master; what only this log has is set aside.

    `broker_id`, which no other broker of the name has, is for one that has none above 0.
    """

    broker_id: int = 0


class SwitchOverRequestHeader(Header, kw_only=True):
    """SWITCH_OVER: hand over to a slave, which the master knows by `target_id`, and follow it.

    `broker_id` as of DEMOTE_BROKER.
    """

    target_addr: str
    target_id: int
    broker_id: int = 0
    timeout_ms: int = 10_000


class RoleChangeResponseHeader(Header, kw_only=True):
    """The response to PROMOTE_BROKER and SWITCH_OVER: the new epoch.

    `pause_ms` is the time for which no broker accepted messages.
    """

    epoch: int
    pause_ms: int = 0


class SlaveStatus(Body, kw_only=True):
    """A slave as its master sees it."""

    broker_id: int | None = None
    """None for a slave without epochs, as Apache's."""
    address: str
    confirmed: int
    """It has every byte before this physical offset."""
    lag_bytes: int
    lag_seconds: float
    """Age of the oldest message that it does not have; 0 if it has all."""
    in_sync: bool | None = None
    """Whether SEND_OK of a SYNC_MASTER waits for it; None without an in-sync set, when one slave is enough."""


class ElectionStatus(Body, kw_only=True):
    """The election of a group's master, as one of its brokers knows it."""

    epoch: int
    in_sync: list[int]
    """The members of the in-sync set, the master included, by brokerId."""
    members: list[int]
    """The members that run."""
    is_etcd_away: bool
    right_seconds: float
    """For how long the master may still acknowledge if nothing answers; 0 on a slave."""


class HaStatus(Body, kw_only=True):
    """GET_HA_STATUS: the role of a broker, and what would be lost with it."""

    broker_name: str
    broker_id: int
    member_id: int
    """brokerId of its configuration."""
    role: str
    master_role: str
    """The role of a slave's last master, which it takes itself when it is promoted."""
    is_accepting: bool
    """Whether it accepts messages."""
    reason: str
    """Why it accepts none; empty if it does."""
    is_following: bool
    """Whether it is a slave that is connected to its master, with an equal log."""
    epoch: int
    """The last epoch of its log."""
    fenced_by: int
    """The epoch of the newer master that has fenced this one; 0 if none has."""
    begin: int
    end: int
    epochs: list[tuple[int, int]]
    """Number and begin of each epoch of the log."""
    ha_address: str
    role_since_ms: int
    """When it started in its role: later than the switch if the process was started again."""
    switched_ms: int = 0
    """When its last switch began, by which it became master of a new epoch, or slave; 0 if there was none."""
    switch_reason: str = ""
    """Why: election, promote, demote, switchover or start."""
    slaves: list[SlaveStatus] = []
    unreplicated_bytes: int = 0
    """What no slave has: lost if this master is lost now."""
    unreplicated_messages: int = 0
    is_elected: bool = False
    """Whether etcd elects the master of its group, so that no request changes its role."""
    election: ElectionStatus | None = None
    """None without an election, and before it begins."""
    master_epoch: int = 0
    """The epoch of the master that this slave has followed last; 0 on a master."""
    messages: int | None = None
    """The number of messages from `count_from` on."""
