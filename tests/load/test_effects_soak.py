"""A short run of benchmarks/soak_reliable.py, and its judge: books with one wrong entry are found wanting."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.reliable.schema import CONFIRMED, DEAD, MANUAL, SENT, STUCK, VOID
from support.effects_soak.books import Books, Effect, Judgement, Ledger, StubState, judge, read_ledgers
from support.effects_soak.faults import schedule
from support.effects_soak.scene import BILLING, GROUPS, STOCK, Options

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak_reliable.py"
ORDERS = [f"sender/{number}" for number in range(1, 7)]
KEYED = "key"


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"])
def test_each_order_has_its_effect_once_while_everything_fails(database: str, tmp_path: Path) -> None:
    command = [sys.executable, SOAK, "--quick", "--json", "--minutes", "0.3", "--fault-interval", "1.5"]
    command += ["--seed", "3", "--database", database, "--directory", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["findings"] == []
    assert any(fault.startswith("kill") for fault in report["faults"])
    repaired = report["repaired"]
    assert repaired["committed"] > 0
    assert (repaired["silently lost"], repaired["done twice"]) == (0, 0)


def sound_books(directory: Path) -> Books:
    """Six committed orders with one sharding key, one rolled back; all is well."""
    ledger = Ledger(directory / "sender.ledger")
    for number, order in enumerate([*ORDERS, "sender/7"]):
        ledger.note("tried", order, f"hash-{number}")
        ledger.note("rolled-back" if order == "sender/7" else "committed", order)
        if order != "sender/7":
            ledger.note("delivered", order, 1000 + number, 0, number, 0)
    return Books(
        read_ledgers(directory),
        {order: (f"hash-{number}", KEYED) for number, order in enumerate(ORDERS)},
        {order: StubState(f"id-{number}", CONFIRMED, False) for number, order in enumerate(ORDERS)},
        [Effect(order, group, f"hash-{number}") for number, order in enumerate(ORDERS) for group in GROUPS],
    )


def judged(books: Books) -> Judgement:
    return judge(books, in_order=True)


def test_the_judge_accepts_sound_books(tmp_path: Path) -> None:
    judgement = judged(sound_books(tmp_path))
    assert judgement.findings == []
    assert [judgement.counts[name] for name in ("committed", "rolled back", "effects")] == [6, 1, 12]


def without_effect(books: Books) -> None:
    books.effects.remove(Effect(ORDERS[2], BILLING, "hash-2"))


def with_effect_twice(books: Books) -> None:
    books.effects.append(books.effects[-1])


def with_effect_of_other_bytes(books: Books) -> None:
    books.effects[3] = books.effects[3]._replace(hash="other")


def with_effect_of_rolled_back_order(books: Books) -> None:
    books.effects.append(Effect("sender/7", BILLING, "hash-6"))


def with_lost_commit(books: Books) -> None:
    books.orders = {order: books.orders[order] for order in ORDERS[1:]}


def without_stub(books: Books) -> None:
    books.stubs = {order: books.stubs[order] for order in ORDERS[1:]}


def with_rolled_back_order(books: Books) -> None:
    books.orders = {**books.orders, "sender/7": ("hash-6", None)}


def with_open_stub(books: Books) -> None:
    books.stubs = {**books.stubs, ORDERS[0]: StubState("id-0", SENT, True)}


def with_alert_not_delivered(books: Books) -> None:
    books.ledgers["alert"] = [[STUCK, "1"]]
    books.stubs = {**books.stubs, ORDERS[0]: StubState("id-0", STUCK, True)}


def with_state_without_alert(books: Books) -> None:
    books.ledgers["alert"] = [[DEAD, "1"]]
    books.stubs = {**books.stubs, ORDERS[0]: StubState("id-0", MANUAL, False)}


def with_void_by_itself(books: Books) -> None:
    books.stubs = {**books.stubs, ORDERS[0]: StubState("id-0", VOID, False)}


def with_stored_copies_out_of_order(books: Books) -> None:
    books.ledgers["delivered"] = [[order, str(1009 - n), "0", str(9 - n), "0"] for n, order in enumerate(ORDERS)]


def with_effects_out_of_order(books: Books) -> None:
    books.effects.append(books.effects.pop(books.effects.index(Effect(ORDERS[2], STOCK, "hash-2"))))


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (without_effect, "orders without an effect in group billing and without an alert: 1 (sender/3)"),
        (with_effect_twice, "orders with more than one effect in group stock: 1 (sender/6)"),
        (with_effect_of_other_bytes, "orders with an effect of other bytes: 1 (sender/2)"),
        (with_effect_of_rolled_back_order, "orders that are not committed, with an effect: 1 (sender/7)"),
        (with_lost_commit, "orders that were committed and that the database has lost: 1 (sender/1)"),
        (without_stub, "orders that are committed, without a stub: 1 (sender/1)"),
        (with_rolled_back_order, "orders that were rolled back and are in the database: 1 (sender/7)"),
        (with_open_stub, "orders that are neither settled nor left to operators: 1 (sender/1)"),
        (with_alert_not_delivered, "orders whose alert is not delivered: 1 (sender/1)"),
        (with_state_without_alert, "1 messages are MANUAL, and alerts named only 0"),
        (with_void_by_itself, "orders that are void without an operator: 1 (sender/1)"),
        (with_stored_copies_out_of_order, "orders stored before an older one of their key: 5 (sender/2, "),
        (with_effects_out_of_order, "orders with their effect in stock before an older one of their key: 1 (sender/6)"),
    ],
)
def test_the_judge_finds_one_wrong_entry(spoil: Callable[[Books], None], finding: str, tmp_path: Path) -> None:
    books = sound_books(tmp_path)
    spoil(books)
    assert any(found.startswith(finding) for found in judged(books).findings), judged(books).findings


def test_what_is_left_to_operators_is_not_silently_lost(tmp_path: Path) -> None:
    books = sound_books(tmp_path)
    without_effect(books)
    books.stubs = {**books.stubs, ORDERS[2]: StubState("id-2", STUCK, False)}
    books.ledgers["alert"] = [[STUCK, "1"]]
    judgement = judged(books)
    assert judgement.findings == []
    assert judgement.left_to_operators == {STUCK: 1}


def test_a_line_that_a_crash_cut_off_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "sender.ledger").write_text("tried sender/1 hash\ntried sender/2 ha")
    assert read_ledgers(tmp_path) == {"tried": [["sender/1", "hash"]]}


def test_a_seed_draws_the_same_faults_and_each_kind_comes() -> None:
    options = Options()
    events = list(schedule(7, 600, 3, options))
    assert events == list(schedule(7, 600, 3, options))
    assert events != list(schedule(8, 600, 3, options))
    found = {event.name for event in events}
    assert {"kill", "pause", "restart", "wipe", "flush", "connections", "cut", "half_open", "refuse", "void"} <= found
