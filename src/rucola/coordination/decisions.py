"""Decisions of an election, carried out one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from rucola.coordination.group_keys import LeaderRecord, MemberRecord


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing; log `reason` unless it is empty."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Announce:
    record: MemberRecord


@dataclass(frozen=True, slots=True)
class Stand:
    """Write `leader` and a new state, if there is no leader and the state has this revision."""

    epoch: int
    in_sync: Mapping[int, int]
    revision: int


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Write `leader` and the state again, as `Stand`. The new revision invalidates older announcements."""

    epoch: int
    in_sync: Mapping[int, int]
    revision: int


@dataclass(frozen=True, slots=True)
class Release:
    """Revoke a lease that holds the key `leader`: an earlier process's, or this one's after its resignation."""

    lease: int


@dataclass(frozen=True, slots=True)
class TakeOffice:
    """Become master; `Election.took_office` follows."""

    epoch: int
    in_sync: frozenset[int]


@dataclass(frozen=True, slots=True)
class ChangeInSync:
    """Write another in-sync set, if the state and the leader key have these revisions."""

    epoch: int
    in_sync: Mapping[int, int]
    revision: int
    leader_revision: int


@dataclass(frozen=True, slots=True)
class Resign:
    """Mark the master in the state as resigned, on the conditions of ChangeInSync, and revoke its lease."""

    epoch: int
    in_sync: Mapping[int, int]
    """Members with the incarnations of their logs."""
    revision: int
    leader_revision: int
    lease: int


@dataclass(frozen=True, slots=True)
class Follow:
    epoch: int
    master: LeaderRecord


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Close the replication connection to the last master, before logs are compared."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the replication connections of a slave and ignore their confirmations."""

    member: int


Decision: TypeAlias = (
    Wait | Announce | Stand | Reclaim | Release | TakeOffice | ChangeInSync | Resign | Follow | Unfollow | Disconnect
)
