"""`rucola reliable show`: where a message is now, in tables, brokers, dead letters and archive, and what is next."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import delete

from rucola.cli.main import main
from rucola.client import MessageExt
from rucola.reliable.idempotent import idempotent
from rucola.reliable.joined_view import Brokers, StoredCopy, join
from rucola.reliable.operations import MessageView, ReceiptView, StubView
from rucola.spark.jobs import archive
from rucola.spark.session import LazySession
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase
from support.outbox import add, consumer_of, relay, statuses, until

STUB = StubView("M", "T", "SENT", ("g",), None, 1, "b", 0, 7, 1000, 60_000, 1, None, None, None)
HELD, RECEIVED = ReceiptView("g", 0, 7, 5000, 20_000), ReceiptView("g", 0, 7, 5000, None)


RETRIED, DEAD = ["T", "%RETRY%g"], ["T", "%RETRY%g", "%DLQ%g"]


def copy(topic: str, reconsume_times: int = 0, origin: str = "log", at_ms: int = 1) -> StoredCopy:
    return StoredCopy(origin, topic, "127.0.0.1:1", 0, 7, f"{topic}{at_ms}", at_ms, reconsume_times)


def message(stub: StubView | None = STUB, *receipts: ReceiptView, done: bool = False) -> MessageView:
    return MessageView(stub, list(receipts), {"g": 5} if done else {}, b"x", None, "M", "{}")


@pytest.mark.parametrize(
    ("view", "backlog", "topics", "place", "then"),
    [
        (message(), {"g": 12}, ["T"], "in the queue, 12 messages before it", "the group consumes it"),
        (message(), {"g": -3}, ["T"], "the group's offset has passed it", "finds it lost"),
        (message(), {}, ["T"], "not received", "nothing"),
        (message(STUB, RECEIVED), {"g": -1}, ["T"], "received, not done", "delivers it again"),
        (message(STUB, HELD), {"g": -1}, RETRIED, "in process", "its lease ends"),
        (message(STUB, RECEIVED), {}, RETRIED, "returned to the broker 3 times", "delivers again"),
        (
            message(STUB, RECEIVED),
            {},
            ["T", "%RETRY%g", "%DLQ%g"],
            "dead letter, offset 7 of %DLQ%g",
            "redriveDlq -g g",
        ),
        (message(STUB, done=True), {}, ["T"], "done", "confirms it"),
        (message(None, done=True), {}, [], "done", "nothing"),
    ],
)
def test_place_of_a_message_in_a_group(
    view: MessageView, backlog: dict[str, int], topics: list[str], place: str, then: str
) -> None:
    joined = join(view, Brokers([copy(topic, 3 * (topic != "T")) for topic in topics], backlog, {}))
    (group,) = joined.groups
    assert place in group.place
    assert then in group.next
    assert f"g: {group.place}" in joined.where


def test_dead_letter_of_a_message_that_was_sent_again_is_over() -> None:
    resent = Brokers([copy("T"), copy("%DLQ%g", 16), copy("T", at_ms=2)], {"g": 0}, {})
    (group,) = join(message(), resent).groups
    assert group.place == "in the queue, 0 messages before it"
    to_group = [copy("T"), copy("%RETRY%g", 16), copy("%DLQ%g", 16, at_ms=2), copy("%RETRY%g", at_ms=3)]
    (group,) = join(message(STUB, RECEIVED), Brokers(to_group, {}, {})).groups
    assert "dead letter" not in group.place
    (group,) = join(message(STUB, RECEIVED), Brokers([*to_group, copy("%DLQ%g", at_ms=4)], {}, {})).groups
    assert "dead letter" in group.place


def test_copies_of_broker_and_archive_are_told_apart() -> None:
    in_log, archived = copy("T"), copy("T", origin="archive")
    assert [each.origin for each in join(message(), Brokers([in_log], {}, {}), [archived]).copies] == ["log"]
    only_archived = join(message(), Brokers([], {}, {}), [archived])
    assert "in the archive; the brokers keep it no longer" in only_archived.where
    unknown = join(message(), Brokers([], {}, {"brokers": "away"}), [archived])
    assert "no longer" not in unknown.where
    assert "in no broker's log" in join(message(), Brokers([], {}, {})).where
    assert "was stored by a broker" in join(message(), None).where


def show(db: OutboxDatabase, message_id: str, *arguments: str, code: int = 0) -> Result:
    options = ["-d", db.url, "--prefix", db.tables.prefix, *arguments]
    done = CliRunner().invoke(main, ["reliable", "show", message_id, *options])
    assert done.exit_code == code, done.output
    return done


@pytest.mark.slow
async def test_show_follows_a_message_to_the_dead_letters_and_into_the_archive(
    sqlite_db: OutboxDatabase, rocketmq: RocketMQ, tmp_path: Path
) -> None:
    group, topic, brokers = "billing", "Orders", ("-n", rocketmq.namesrv)
    rocketmq.create_topic(topic, 1)
    before, wanted = add(sqlite_db, topic, [b"1", b"2"], groups=[group])

    @idempotent(sqlite_db.engine(), group, tables=sqlite_db.tables)
    def listener(message: MessageExt, session: Any) -> None:
        if message.body == b"2":
            raise ZeroDivisionError

    shown = await asyncio.to_thread(show, sqlite_db, wanted, *brokers)
    assert "now        in the outbox only" in shown.stdout
    assert "next       the relay sends it now" in shown.stdout

    async with relay(sqlite_db, rocketmq):
        await until(lambda: statuses(sqlite_db) == {"SENT": 2})
    shown = await asyncio.to_thread(show, sqlite_db, wanted, *brokers)
    assert "now        stored by a broker; billing: " in shown.stdout

    consumer = consumer_of(rocketmq.namesrv, group, topic, listener, max_reconsume_times=0)
    async with consumer:
        await asyncio.to_thread(rocketmq.wait_for_dead_letters, group)
        await until(lambda: statuses(sqlite_db) == {"CONFIRMED": 1, "SENT": 1})
    shown = await asyncio.to_thread(show, sqlite_db, wanted, *brokers)
    assert f"stored     %DLQ%{group}, queue 0, offset 0" in shown.stdout
    assert "redriveDlq -g billing" in " ".join(shown.stdout.split())
    viewed = json.loads((await asyncio.to_thread(show, sqlite_db, wanted, *brokers, "--json")).stdout)
    assert [copy["topic"] for copy in viewed["copies"]] == [topic, f"%DLQ%{group}"]
    assert viewed["groups"][0]["place"] == f"dead letter, offset 0 of %DLQ%{group}"
    assert viewed["message"]["stub"]["messageId"] == wanted
    assert viewed["failures"] == {}

    lake = tmp_path / "lake"
    await asyncio.to_thread(archive.run, LazySession("tests", use_spark=False), rocketmq.store, lake)
    with sqlite_db.engine().begin() as connection:
        connection.execute(delete(sqlite_db.tables.stub))
    # Without a stub, the archive still knows the message; brokers are asked if the topic is named.
    shown = await asyncio.to_thread(show, sqlite_db, wanted, "--archive", str(lake), *brokers)
    assert f"archived   {topic}, queue 0, offset 1" in shown.stdout
    assert "without a stub, name the topic with -t" in shown.stdout
    shown = await asyncio.to_thread(show, sqlite_db, before, *brokers, "-t", topic)
    assert f"stored     {topic}, queue 0, offset 0" in shown.stdout
    assert "done       by group billing" in shown.stdout
    away = await asyncio.to_thread(show, sqlite_db, wanted, "-t", topic, "-n", "127.0.0.1:1", "--archive", str(lake))
    assert "brokers    incomplete: no name server answers" in away.stdout
    assert "archived" in away.stdout
    missing = await asyncio.to_thread(show, sqlite_db, "unknown", "--archive", str(lake), code=1)
    assert "there is no message 'unknown'" in missing.stderr
