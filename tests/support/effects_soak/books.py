"""The books of an effects soak: ledgers outside the system, its tables, and the judgement about both.

Processes append lines to files of their own, each with one write before they take the next step, so that a process
that is killed leaves no line about what it did not do:

    tried ORDER HASH                                about to be committed, or rolled back
    committed ORDER                                 the commit returned
    rolled-back ORDER
    delivered ORDER TIME QUEUE OFFSET RETRIES       stored at this time, in this place
    alert KIND COUNT
    voided MESSAGE                                  by an operator

An order is committed if its sender noted so. If it noted nothing, the table of orders decides.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rucola.reliable.schema import ALERTING, CONFIRMED, VOID
from support.effects_soak.scene import GROUPS, STOCK

SHOWN = 5


class Ledger:
    """The writer's side. Threads may share one."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def read_ledgers(directory: Path) -> dict[str, list[list[str]]]:
    """Return the lines of all ledgers by their first word, without those that a crash cut off."""
    found: defaultdict[str, list[list[str]]] = defaultdict(list)
    for path in sorted(directory.glob("*.ledger")):
        text = path.read_bytes()
        for line in text[: text.rfind(b"\n") + 1].decode().splitlines():
            what, *words = line.split(" ")
            found[what].append(words)
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

    ledgers: dict[str, list[list[str]]]
    orders: Mapping[str, tuple[str, str | None]]
    stubs: Mapping[str, StubState]
    effects: list[Effect]
    resent: set[str] = field(default_factory=set)
    """Orders whose messages an operator resent: they are out of order."""


class Judgement(NamedTuple):
    findings: list[str]
    counts: dict[str, int]
    """Orders, or orders times groups."""
    left_to_operators: dict[str, int]


def judge(books: Books, *, in_order: bool) -> Judgement:
    """Compare the ledgers with the tables. `in_order` tells whether the group `stock` consumed in order."""
    findings: list[str] = []

    def find(orders: Iterable[str], what: str) -> int:
        found = sorted(set(orders))
        if found:
            more = ", ..." if len(found) > SHOWN else ""
            findings.append(f"orders {what}: {len(found)} ({', '.join(found[:SHOWN])}{more})")
        return len(found)

    lines, orders, stubs, effects = books.ledgers, books.orders, books.stubs, books.effects
    tried = dict(lines["tried"])
    committed, rolled_back, voided = ({line[0] for line in lines[k]} for k in ("committed", "rolled-back", "voided"))
    present = orders.keys()
    # 1. What was committed: by the ledger, and in doubt by the table.
    find(committed - present, "that were committed and that the database has lost")
    find(rolled_back & present, "that were rolled back and are in the database")
    find((o for o in present if orders[o][0] != tried.get(o)), "with another hash than their sender's")
    find(present - stubs.keys(), "that are committed, without a stub")
    find(stubs.keys() - present, "that are not committed, with a stub")
    # 2. Effects: once per group, of the same bytes, and only of committed orders.
    find((e.order_id for e in effects if e.order_id not in present), "that are not committed, with an effect")
    find((e.order_id for e in effects if e.hash != tried.get(e.order_id)), "with an effect of other bytes")
    left = {order: stub for order, stub in stubs.items() if stub.status in (VOID, *ALERTING)}
    twice = lost = 0
    for group in GROUPS:
        done = Counter(effect.order_id for effect in effects if effect.group == group)
        twice += find((o for o, count in done.items() if count > 1), f"with more than one effect in group {group}")
        missing = present - done.keys() - left.keys()
        lost += find(missing, f"without an effect in group {group} and without an alert")
    # 3. States: nothing in between, and an alert for whatever is left to operators.
    unsettled = (o for o, stub in stubs.items() if o not in left and stub.status != CONFIRMED)
    find(unsettled, "that are neither settled nor left to operators")
    find((o for o, s in left.items() if s.status in ALERTING and s.is_due), "whose alert is not delivered")
    unasked = (o for o, s in left.items() if s.status == VOID and s.message_id not in voided)
    find(unasked, "that are void without an operator")
    counts = Counter(stub.status for stub in left.values())
    for kind in ALERTING:
        alerted = sum(int(count) for alert, count in lines["alert"] if alert == kind)
        if counts[kind] > alerted:
            findings.append(f"{counts[kind]} messages are {kind}, and alerts named only {alerted}")
    # 4. Order of each sharding key: in the broker's queues, and of the effects of a group that consumes in order.
    copies = sorted(
        (int(time), int(queue), int(offset), order)
        for order, time, queue, offset, retries in lines["delivered"]
        if retries == "0"  # else from the queue for retries
    )
    out_of_order = find(_out_of_order((c[3] for c in copies), books), "stored before an older one of their key")
    if in_order:
        of_stock = (effect.order_id for effect in effects if effect.group == STOCK)
        what = f"with their effect in {STOCK} before an older one of their key"
        out_of_order += find(_out_of_order(of_stock, books), what)
    return Judgement(
        findings,
        {
            "committed": len(present), "committed without an answer": len(present - committed),
            "rolled back": len(rolled_back), "delivered": len(lines["delivered"]), "effects": len(effects),
            "done twice": twice, "silently lost": lost, "out of order": out_of_order,
        },
        dict(counts),
    )  # fmt: skip


def _out_of_order(order_ids: Iterable[str], books: Books) -> list[str]:
    """Return orders that come, with their first copy or effect, before an older one of their sharding key."""
    by_key: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for order_id in dict.fromkeys(order_ids):
        key = books.orders.get(order_id, ("", None))[1]
        if key is not None and order_id not in books.resent:
            by_key[key].append((int(order_id.rpartition("/")[2]), order_id))
    pairs = (pair for numbered in by_key.values() for pair in pairwise(numbered))
    return [order_id for (number, order_id), (after, _) in pairs if after < number]
