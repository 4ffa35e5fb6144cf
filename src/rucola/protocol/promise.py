"""ASK_PROMISE (20005), Rucola's own: a master requests another member not to be elected for a while."""

from __future__ import annotations

from rucola.protocol.command import Header


class AskPromiseRequestHeader(Header, kw_only=True):
    """The master's epoch, and how to follow it."""

    epoch: int
    member: int
    address: str
    ha_address: str


class AskPromiseResponseHeader(Header, kw_only=True):
    """The result, with the member's highest epoch."""

    promised: bool
    epoch: int
