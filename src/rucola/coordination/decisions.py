"""Decisions of an election, which the coordinator carries out one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from rucola.coordination.group_keys import LeaderRecord, MemberRecord


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing. `reason` is worth a log line unless it is empty."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Announce:
    """Write the own member record."""

    record: MemberRecord


@dataclass(frozen=True, slots=True)
class Stand:
    """Write `leader` and a new state.

    The conditions are that there is no leader, and that the state has this revision.
    """

    epoch: int
    in_sync: Mapping[int, int]
    """Members with the incarnations of their logs."""
    revision: int


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Write `leader` and the state again, if nothing has changed meanwhile.

    The conditions are that there is no leader, and that the state has this revision. It gets another one, since the
    logs will have grown when the next election compares them.
    """

    epoch: int
    in_sync: Mapping[int, int]
    """Members with the incarnations of their logs."""
    revision: int


@dataclass(frozen=True, slots=True)
class Release:
    """Revoke a lease with the key `leader`.

    It is that of an earlier process of this broker, or of a master that gives up.
    """

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
    """Members with the incarnations of their logs."""
    revision: int
    leader_revision: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Be a slave of this master."""

    epoch: int
    master: LeaderRecord


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Close the replication connection to the last master, before the log is compared."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the replication connections of a slave; its confirmations over them do not count."""

    member: int


Decision: TypeAlias = (
    Wait | Announce | Stand | Reclaim | Release | TakeOffice | ChangeInSync | Follow | Unfollow | Disconnect
)
