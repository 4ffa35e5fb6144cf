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
"""`MemberRecord.standing` of a broker that is no candidate."""


class LeaderRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The master, as it announces itself."""

    member: int
    address: str
    """Address for clients and for promises, "host:port"."""
    ha_address: str
    """Address for slaves, "host:port"."""


class StateRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The state from which an election begins."""

    epoch: int
    master: int
    in_sync: dict[int, int]
    """Members that have every acknowledged message, the master included, with the incarnation of their logs.

    One of them becomes the next master.
    """


class MemberRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A running broker."""

    member: int
    address: str
    ha_address: str
    priority: int
    incarnation: int
    """Another number whenever the log may lack what it confirmed: after a power cut, or on an empty disk."""
    standing: int = NOT_STANDING
    """As a candidate: the revision of the state that it wants to follow on. Its log has not grown since."""
    epoch: int = 0
    """As a candidate: the last epoch of its log. Otherwise, 0, unless etcd has lost the state: the last one known."""
    end: int = 0
    """As a candidate: the end of its log."""
    leaving: bool = False
    """Whether it stops, so that the master takes it out of the in-sync set."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The key `leader`."""

    record: LeaderRecord
    lease: int
    revision: int


@dataclass(frozen=True, slots=True)
class ElectedState:
    """The key `state`. `revision` is that of its last change."""

    epoch: int
    master: int
    in_sync: Mapping[int, int]
    """Members with the incarnations of their logs."""
    revision: int

    def is_entitled(self, record: MemberRecord) -> bool:
        """Tell whether a member has every acknowledged message, as far as etcd knows."""
        return self.in_sync.get(record.member) == record.incarnation


@dataclass(frozen=True, slots=True)
class View:
    """All keys of a group at one moment; `leader` and `state` are None if missing."""

    leader: Leader | None = None
    state: ElectedState | None = None
    members: dict[int, MemberRecord] = field(default_factory=dict)


class Transaction(NamedTuple):
    """Changes of keys, on conditions."""

    compares: tuple[Compare, ...]
    puts: tuple[Put, ...]


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """Names of the keys of one group."""

    cluster: str
    broker: str

    @property
    def prefix(self) -> str:
        """What all names begin with."""
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
        """Write the own record, bound to the own lease."""
        return Transaction((), (Put(self.member(record.member), encode(record), lease),))

    def leading(self, leader: LeaderRecord, lease: int, revision: int, state: StateRecord) -> Transaction:
        """Become leader and write the state, if there is none and this is its revision.

        The revision shows that no other leader was elected meanwhile. That of the new state, also if its content is the
        same, shows how far the announcements of candidates date back.
        """
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
    """Return the value of a key."""
    return msgspec.json.encode(record)


def _leader(item: KeyValue) -> Leader:
    return Leader(msgspec.json.decode(item.value, type=LeaderRecord), item.lease, item.mod_revision)


def _state(item: KeyValue) -> ElectedState:
    record = msgspec.json.decode(item.value, type=StateRecord)
    return ElectedState(record.epoch, record.master, record.in_sync, item.mod_revision)
