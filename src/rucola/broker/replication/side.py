"""Replication as the other parts of a broker see it; `ha_service` on a master, `slave` on a slave."""

from __future__ import annotations

from contextlib import AsyncExitStack

from rucola.broker.background.scheduler import Scheduler
from rucola.broker.durability import Durability
from rucola.broker.role import SlaveProgress
from rucola.errors import StoreError


class Replication:
    """One side of replication. What only the other side has is none here."""

    durability: Durability
    last_confirmed = -1
    """The most that a slave of this master had, connected or not any more; -1 if none has reported."""

    # What a master has.

    def confirmed(self) -> dict[int, int]:
        """Return the confirmed offset of each slave that supports epochs, by its brokerId."""
        return {}

    async def wait_confirmed(self, member_id: int, physical_offset: int) -> None:
        """Wait until a slave that supports epochs has everything below a physical offset."""
        raise StoreError("this broker is a slave, and has none")

    def slaves(self) -> list[SlaveProgress]:
        return []

    def set_in_sync(self, members: frozenset[int], visible_end: int | None = None) -> None:
        """Acknowledge only what all of these slaves have, by their brokerId, and wait for no other.

        A new master starts with the `visible_end` that it had as slave: all of them have everything below it.
        """
        raise StoreError("this broker is a slave: nothing waits for its slaves")

    def disconnect_slave(self, member: int) -> None:
        """Close the connections of a slave that supports epochs, and forget its confirmations by them."""

    def start(self, scheduler: Scheduler, running: AsyncExitStack) -> None:
        """Start before the broker registers, which announces the port of the HA service. Raises RemotingError."""

    # What a slave has.

    @property
    def is_following(self) -> bool:
        """Whether this slave is connected to its master, with an equal log."""
        return False

    @property
    def followed_epoch(self) -> int:
        """The epoch of the master that this slave has followed last; 0 on a master."""
        return 0

    @property
    def may_grow(self) -> bool:
        """Whether this slave has a master that may send to it, connected or not."""
        return False

    async def follow(self, scheduler: Scheduler, running: AsyncExitStack) -> None:
        """Start after the broker has registered, which returns the addresses of a slave's master."""

    async def follow_again(self, master_address: str) -> None:
        """Connect to the master again, at its address for clients; empty for the name servers' one."""

    async def stop_following(self) -> None:
        """Close the connection to the master, until `follow_again`."""

    def may_delete_oldest(self) -> bool:
        """Return whether the master has deleted the oldest log file, too, and this slave has what it put again."""
        return True
