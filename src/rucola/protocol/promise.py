"""ASK_PROMISE (20005): a master asks another member not to be elected for a while.

Both are of one group. Rucola's own, between brokers whose master is elected by etcd (`rucola.coordination`).
"""

from __future__ import annotations

from rucola.protocol.command import Header


class AskPromiseRequestHeader(Header, kw_only=True):
    """The request of a master: its epoch, and how to follow it."""

    epoch: int
    member: int
    address: str
    ha_address: str


class AskPromiseResponseHeader(Header, kw_only=True):
    """The answer of a member, with the highest epoch that it knows."""

    promised: bool
    epoch: int
