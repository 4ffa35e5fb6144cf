"""Requests about the roles of the brokers of one name. Rucola's own: codes 20001 to 20004."""

from __future__ import annotations

from rucola.protocol.command import Header


class HaStatusRequestHeader(Header, kw_only=True):
    """With `count_from`, messages from that physical offset on are counted."""

    count_from: int | None = None


class PromoteBrokerRequestHeader(Header, kw_only=True):
    """Become master in this epoch, or a later one if it is not new.

    A connected slave refuses unless `force`, or `is_switchover`: its master hands over.
    """

    epoch: int = 0
    force: bool = False
    is_switchover: bool = False


class DemoteBrokerRequestHeader(Header, kw_only=True):
    """Become slave of the registered master; bytes that only this log has are set aside.

    `broker_id`, which no other broker of the name has, is for one that has none above 0.
    """

    broker_id: int = 0


class SwitchOverRequestHeader(Header, kw_only=True):
    """Hand over to the slave `target_id`, and follow it. `broker_id` as in DEMOTE_BROKER."""

    target_addr: str
    target_id: int
    broker_id: int = 0
    timeout_ms: int = 10_000


class RoleChangeResponseHeader(Header, kw_only=True):
    """The new epoch; `pause_ms` is the time without an accepting broker."""

    epoch: int
    pause_ms: int = 0
