"""The role of a broker: its control, and its record on disk.

`config/role.json` keeps a changed role over restarts of the process:

    {"configured":"SLAVE","current":"SYNC_MASTER","master":"SYNC_MASTER","rejoins":false,
     "brokerId":0,"slaveIds":[1,2],"switchedMs":1385035200000,"reason":"promote"}

`configured` is brokerRole in broker.conf when the role was changed; if that key is changed later, the file has no
effect. `master` is a slave's role after promotion: its last master's, so that producers keep their guarantee. `rejoins`
is true for a slave that was master, or got the order to follow a certain one, until its log is known to equal its
master's: what only its log has was never replicated to it, and may be cut off. Otherwise the master has lost messages,
and an operator has to decide. `brokerId` is the id as slave of a broker that has none above 0 in broker.conf. It keeps
it as master: the id of the broker that replaced it is needed again when that one becomes slave. `slaveIds` are the ids
of its slaves as a master, so that the id of one that is down is not given away. `switchedMs` and
`reason` are of the last switch; 0 and empty without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, Self

from rucola.errors import StoreCorrupt
from rucola.store.config import BrokerRole
from rucola.store.config_files import ConfigFile


class LogPosition(NamedTuple):
    """The end of a log; a later epoch counts more than a longer log."""

    epoch: int
    """The last epoch of the log, or 0."""
    end: int
    """A physical offset."""


class SlaveProgress(NamedTuple):
    """A connected slave in the replication of its master."""

    address: str
    broker_id: int | None
    """None for a slave without epochs, as Apache's."""
    confirmed: int
    """It has every byte before this physical offset."""
    in_sync: bool | None
    """None without an in-sync set."""


class SwitchReason(StrEnum):
    """Why a broker has become master of a new epoch, or slave."""

    ELECTION = "election"
    PROMOTE = "promote"
    DEMOTE = "demote"
    SWITCHOVER = "switchover"
    START = "start"
    """The process was started in another role: by brokerRole of broker.conf, or as slave to be elected again."""


class RoleSwitch(NamedTuple):
    at_ms: int = 0
    """When it started; 0 if there was none."""
    reason: str = ""
    """A `SwitchReason`; text, since a newer version may have written it."""


NO_SWITCH: Final = RoleSwitch()


class RoleControl(Protocol):
    """Used by a coordinator or an operator to change the role of one broker, in its event loop."""

    def position(self) -> LogPosition: ...

    def in_sync(self) -> Mapping[int, int]:
        """Return the confirmed physical offset of each slave that supports epochs, by its brokerId; none on a slave."""
        ...

    async def become_master(
        self, epoch: int, in_sync: frozenset[int] | None, *, reason: SwitchReason = SwitchReason.ELECTION
    ) -> None:
        """Become master in a new epoch, or raise StoreError. No effect on the master of that epoch.

        The epoch is greater than all that this broker has seen, and on disk before any message is stored. `in_sync` is
        set as by `set_in_sync`, before any message is accepted; with None, one slave is enough, as in 4.9.8.
        """
        ...

    async def become_slave(
        self,
        epoch: int,
        broker_id: int,
        ha_address: str,
        address: str = "",
        *,
        reason: SwitchReason = SwitchReason.ELECTION,
    ) -> None:
        """Follow the master of an epoch, without a restart if this broker is a slave.

        The log comes from its HA address, the tables from its address for clients; an empty one is looked up in the
        name servers. What only this log has is cut off and kept aside. A broker whose configuration has no brokerId
        above 0 uses `broker_id`, unless it has one from before.
        """
        ...

    def set_in_sync(self, members: frozenset[int]) -> None:
        """Acknowledge, as master, only what all of these slaves have, and let consumers of a SYNC_MASTER see only that.

        `members` are their brokerIds; this broker's is ignored.
        """
        ...


@dataclass(frozen=True, slots=True)
class RoleRecord:
    """The content of `config/role.json`."""

    configured: BrokerRole
    current: BrokerRole
    master: BrokerRole
    rejoins: bool
    previous: BrokerRole
    """The role in which the broker last served this directory, if known, else `current`."""
    last_switch: RoleSwitch = NO_SWITCH
    broker_id: int = 0
    """The id as slave of a broker that has none in its configuration; 0 if it was never one."""
    slave_ids: frozenset[int] = frozenset()
    """Ids of the slaves that this broker has had as master, which are given to no other broker."""

    @property
    def is_promotion(self) -> bool:
        """Whether the configuration makes a slave's directory a master's."""
        return is_master(self.current) and not is_master(self.previous)

    @classmethod
    def load(cls, file: ConfigFile, configured: BrokerRole) -> Self:
        """Return the record in a file, or an unchanged role. Raises StoreCorrupt."""
        value = file.read()
        if value is None:
            master = configured if is_master(configured) else BrokerRole.ASYNC_MASTER
            return cls(configured, configured, master, False, configured)
        try:
            before, current, master = (BrokerRole(value[key]) for key in ("configured", "current", "master"))
            rejoins = bool(value["rejoins"])
            last_switch = RoleSwitch(int(value.get("switchedMs", 0)), str(value.get("reason", "")))
            kept = last_switch, int(value.get("brokerId", 0)), frozenset(map(int, value.get("slaveIds", ())))
        except (KeyError, TypeError, ValueError) as error:
            raise StoreCorrupt(file.path, 0, f"{error!r}; without it brokerRole of broker.conf applies") from None
        if before is configured:
            return cls(configured, current, master, rejoins, current, *kept)
        if is_master(configured):
            return cls(configured, configured, configured, False, current, *kept)
        return cls(configured, configured, master, rejoins or is_master(current), current, *kept)

    def changed(self, current: BrokerRole) -> Self:
        return replace(self, current=current, previous=current)

    def fields(self) -> dict[str, str | bool | int | list[int]]:
        return {
            "configured": self.configured.value,
            "current": self.current.value,
            "master": self.master.value,
            "rejoins": self.rejoins,
            "brokerId": self.broker_id,
            "slaveIds": sorted(self.slave_ids),
            "switchedMs": self.last_switch.at_ms,
            "reason": self.last_switch.reason,
        }


def is_master(role: BrokerRole) -> bool:
    return role is not BrokerRole.SLAVE
