"""Keys of a broker group in etcd, and the records in them, as JSON.

    /rucola/CLUSTER/BROKER/leader      the master; bound to its lease, so that the key ends with it
    /rucola/CLUSTER/BROKER/state       epoch, master and in-sync set; written by each new leader, changed by its holder
    /rucola/CLUSTER/BROKER/member/ID   a broker that is running; bound to its lease

A `View` is all of them at one revision of etcd.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from rucola.coordination.etcd import Compare, KeyRange, KeyValue, Put
from rucola.errors import MQError

NOT_STANDING: Final = -1


class LeaderRecord(msgspec.Struct, frozen=True, rename="camel"):
    member: int
    address: str
    """For clients and for promises, "host:port"."""
    ha_address: str


class StateRecord(msgspec.Struct, frozen=True, rename="camel"):
    epoch: int
    master: int
    in_sync: dict[int, int]
    """Members that have every acknowledged message, the master included, with the incarnation of their logs.

    One of them becomes the next master.
    """
    resigned: bool = False
    """Whether the master has resigned, which voids promises to it."""


class MemberRecord(msgspec.Struct, frozen=True, rename="camel"):
    member: int
    address: str
    ha_address: str
    priority: int
    incarnation: int
    """Changes if the log may lack confirmed messages: after a power cut, or on an empty disk."""
    standing: int = NOT_STANDING
    """The revision of the state that the candidate read; its log has not grown since."""
    epoch: int = 0
    """The last epoch of a candidate's log, or the last one known if etcd has lost the state; else 0."""
    end: int = 0
    leaving: bool = False
    """Whether it stops, so that the master removes it from the in-sync set."""


@dataclass(frozen=True, slots=True)
class Leader:
    record: LeaderRecord
    lease: int
    revision: int


@dataclass(frozen=True, slots=True)
class ElectedState:
    """The key `state`, with the revision of its last change."""

    epoch: int
    master: int
    in_sync: Mapping[int, int]
    revision: int
    resigned: bool = False

    def is_entitled(self, record: MemberRecord) -> bool:
        """Whether a member has every acknowledged message according to etcd."""
        return self.in_sync.get(record.member) == record.incarnation


@dataclass(frozen=True, slots=True)
class View:
    """All keys of a group at one revision; `leader` and `state` are None if missing."""

    leader: Leader | None = None
    state: ElectedState | None = None
    members: dict[int, MemberRecord] = field(default_factory=dict)


class Transaction(NamedTuple):
    compares: tuple[Compare, ...]
    puts: tuple[Put, ...]


@dataclass(frozen=True, slots=True)
class GroupKeys:
    cluster: str
    broker: str

    @property
    def prefix(self) -> str:
        return f"/rucola/{self.cluster}/{self.broker}/"

    @property
    def leader(self) -> str:
        return f"{self.prefix}leader"

    @property
    def state(self) -> str:
        return f"{self.prefix}state"

    def member(self, member: int) -> str:
        return f"{self.prefix}member/{member}"

    def announcing(self, record: MemberRecord, lease: int) -> Transaction:
        return Transaction((), (Put(self.member(record.member), encode(record), lease),))

    def leading(self, leader: LeaderRecord, lease: int, revision: int, state: StateRecord) -> Transaction:
        """Become leader and write the state, if there is no leader and the state has this revision."""
        return Transaction(
            (Compare(self.leader, 0), Compare(self.state, revision)),
            (Put(self.leader, encode(leader), lease), Put(self.state, encode(state))),
        )

    def changing(self, state: StateRecord, revision: int, leader_revision: int) -> Transaction:
        """Write another state as leader, if that key and the state have these revisions."""
        return Transaction(
            (Compare(self.leader, leader_revision), Compare(self.state, revision)), (Put(self.state, encode(state)),)
        )

    def view(self, found: KeyRange) -> View:
        """Decode the keys of the group. MQError if another program has written one."""
        leader: Leader | None = None
        state: ElectedState | None = None
        members: dict[int, MemberRecord] = {}
        for item in found.items:
            try:
                if item.key == self.leader:
                    leader = _leader(item)
                elif item.key == self.state:
                    state = _state(item)
                elif item.key.startswith(f"{self.prefix}member/"):
                    record = msgspec.json.decode(item.value, type=MemberRecord)
                    members[record.member] = record
            except msgspec.MsgspecError as error:
                raise MQError(f"the key {item.key} of etcd is not one of Rucola's: {error}") from None
        return View(leader, state, members)


def encode(record: LeaderRecord | StateRecord | MemberRecord) -> bytes:
    return msgspec.json.encode(record)


def _leader(item: KeyValue) -> Leader:
    return Leader(msgspec.json.decode(item.value, type=LeaderRecord), item.lease, item.mod_revision)


def _state(item: KeyValue) -> ElectedState:
    record = msgspec.json.decode(item.value, type=StateRecord)
    return ElectedState(record.epoch, record.master, record.in_sync, item.mod_revision, record.resigned)
