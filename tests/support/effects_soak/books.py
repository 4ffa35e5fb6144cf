"""The books of an effects soak: ledgers outside the system, its tables, and the judgement about both.

Processes append lines to files of their own, each with one write before they take the next step, so that a process
that is killed leaves no line about what it did not do:

    t ORDER HASH                                about to be committed, or rolled back
    c ORDER                                     the commit returned
    r ORDER                                     rolled back
    u ORDER                                     the commit, or a statement before it, reported an error
    d ORDER GROUP TIME QUEUE OFFSET RETRIES     delivered: stored at this time, in this place
    a ORDER GROUP                               acknowledged, with an effect
    x ORDER GROUP                               acknowledged without an effect: a dropped duplicate
    f ORDER GROUP                               failed, or held by another worker: delivered again later
    l KIND COUNT IDS                            an alert
    v MESSAGE                                   an operator voided the message

An order is committed if its sender noted so. If it noted nothing, or an error, the table of orders decides.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from rucola.reliable.schema import ALERTING, CONFIRMED, VOID
from support.effects_soak.scene import STOCK

TRIED, COMMITTED, ROLLED_BACK, UNCERTAIN = "t", "c", "r", "u"
DELIVERED, ACKNOWLEDGED, DROPPED, FAILED = "d", "a", "x", "f"
ALERT, VOIDED = "l", "v"
SHOWN = 5


class Ledger:
    """The writer's side. Threads may share one."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *words: str) -> None:
        os.write(self._file, (" ".join(words) + "\n").encode())


class StoredCopy(NamedTuple):
    """One copy of an order's message in its topic, ordered as the broker stored them."""

    stored_at: int
    queue_id: int
    queue_offset: int
    order_id: str


@dataclass
class Ledgers:
    """What all processes noted."""

    tried: dict[str, str] = field(default_factory=dict)
    """The hash of each order's message."""
    committed: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)
    copies: set[StoredCopy] = field(default_factory=set)
    deliveries: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Deliveries, and how they ended, by group."""
    alerted: Counter[str] = field(default_factory=Counter)
    """Alerted messages by kind."""
    alerts: int = 0
    voided: set[str] = field(default_factory=set)

    def take(self, line: str) -> None:
        """Take in one line; a line that a crash cut off ends before its line feed and is not passed."""
        what, name, *words = line.split(" ")
        match what:
            case "t":
                self.tried[name] = words[0]
            case "c":
                self.committed.add(name)
            case "r":
                self.rolled_back.add(name)
            case "d":
                self.deliveries[words[0]] += 1
                if words[4] == "0":  # else from the queue for retries
                    self.copies.add(StoredCopy(*map(int, words[1:4]), name))
            case "x":
                self.dropped[words[0]] += 1
            case "f":
                self.failed[words[0]] += 1
            case "l":
                self.alerts += 1
                self.alerted[name] += int(words[0])
            case "v":
                self.voided.add(name)


def read_ledgers(directory: Path) -> Ledgers:
    found = Ledgers()
    for path in sorted(directory.glob("*.ledger")):
        text = path.read_bytes()
        for line in text[: text.rfind(b"\n") + 1].decode().splitlines():
            found.take(line)
    return found


class StubState(NamedTuple):
    """The state of an order's message. `is_due` until the relays have nothing more to do, alerts included."""

    message_id: str
    status: str
    is_due: bool


class Effect(NamedTuple):
    """One effect, in the order of the table."""

    order_id: str
    group: str
    hash: str


@dataclass
class Books:
    """Ledgers and tables at one moment. `orders` maps the ids of the order table to (hash, sharding key)."""

    ledgers: Ledgers
    orders: Mapping[str, tuple[str, str | None]]
    stubs: Mapping[str, StubState]
    effects: list[Effect]
    resent: set[str] = field(default_factory=set)
    """Orders whose messages an operator resent: they are out of order."""


class Judgement(msgspec.Struct, rename="camel"):
    """The result of `judge`. Everything below `findings` counts orders, or orders times groups."""

    findings: list[str]
    committed: int
    uncertain: int
    """Of these, without a note that the commit returned."""
    rolled_back: int
    effects: int
    silently_lost: int
    done_twice: int
    left_to_operators: dict[str, int]
    out_of_order: int


def judge(books: Books, groups: Iterable[str], *, in_order: bool) -> Judgement:
    """Compare the ledgers with the tables. `in_order` tells whether the group `stock` consumed in order."""
    findings: list[str] = []

    def find(orders: Iterable[str], what: str) -> int:
        found = sorted(set(orders))
        if found:
            more = ", ..." if len(found) > SHOWN else ""
            findings.append(f"orders {what}: {len(found)} ({', '.join(found[:SHOWN])}{more})")
        return len(found)

    ledgers, stubs = books.ledgers, books.stubs
    # 1. What was committed: by the ledger, and in doubt by the table.
    present = books.orders.keys()
    find(ledgers.committed - present, "that were committed and that the database has lost")
    find(ledgers.rolled_back & present, "that were rolled back and are in the database")
    find(present - ledgers.tried.keys(), "in the database that no sender tried")
    find(
        (order for order in present if books.orders[order][0] != ledgers.tried.get(order)),
        "with another hash than their sender's",
    )
    find(present - stubs.keys(), "that are committed, without a stub")
    find(stubs.keys() - present, "that are not committed, with a stub")
    # 2. Effects: once per group, of the same bytes, and only of committed orders.
    by_group = {
        group: Counter(effect.order_id for effect in books.effects if effect.group == group) for group in groups
    }
    find((e.order_id for e in books.effects if e.order_id not in present), "that are not committed, with an effect")
    find(
        (e.order_id for e in books.effects if e.hash != ledgers.tried.get(e.order_id)), "with an effect of other bytes"
    )
    done_twice = sum(
        find((order for order, count in counts.items() if count > 1), f"with more than one effect in group {group}")
        for group, counts in by_group.items()
    )
    silently_lost = sum(
        find(
            (order for order in present if not counts[order] and not _is_left(stubs.get(order))),
            f"without an effect in group {group} and without an alert",
        )
        for group, counts in by_group.items()
    )
    # 3. States: nothing in between, and an alert for whatever is left to operators.
    find(
        (o for o, stub in stubs.items() if stub.status not in (CONFIRMED, VOID, *ALERTING)),
        "that are neither settled nor left to operators",
    )
    find((o for o, s in stubs.items() if s.status in ALERTING and s.is_due), "whose alert is not delivered")
    find(
        (o for o, s in stubs.items() if s.status == VOID and s.message_id not in ledgers.voided),
        "that are void without an operator",
    )
    left = Counter(stub.status for stub in stubs.values() if stub.status in (VOID, *ALERTING))
    for kind in ALERTING:
        if left[kind] > ledgers.alerted[kind]:
            findings.append(f"{left[kind]} messages are {kind}, and alerts named only {ledgers.alerted[kind]}")
    # 4. Order of each sharding key: in the broker's queues, and of the effects of a group that consumes in order.
    stored = [copy.order_id for copy in sorted(ledgers.copies)]
    out_of_order = find(_out_of_order(stored, books), "stored before an older one of their key")
    if in_order:
        done = [effect.order_id for effect in books.effects if effect.group == STOCK]
        out_of_order += find(
            _out_of_order(done, books), f"with their effect in {STOCK} before an older one of their key"
        )
    return Judgement(
        findings=findings,
        committed=len(present),
        uncertain=len(present - ledgers.committed),
        rolled_back=len(ledgers.rolled_back),
        effects=len(books.effects),
        silently_lost=silently_lost,
        done_twice=done_twice,
        left_to_operators=dict(left),
        out_of_order=out_of_order,
    )


def _is_left(stub: StubState | None) -> bool:
    return stub is not None and stub.status in (VOID, *ALERTING)


def _out_of_order(order_ids: Iterable[str], books: Books) -> list[str]:
    """Return orders that come, with their first copy or effect, before an older one of their sharding key."""
    seen: set[str] = set()
    by_key: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for order_id in order_ids:
        key = books.orders.get(order_id, ("", None))[1]
        if key is not None and order_id not in seen and order_id not in books.resent:
            seen.add(order_id)
            by_key[key].append((int(order_id.rpartition("/")[2]), order_id))
    return [
        order_id
        for numbered in by_key.values()
        for (number, order_id), (after, _) in pairwise(numbered)
        if after < number
    ]
