"""The pages of the lake's tables and of the outbox."""

from __future__ import annotations

import csv
import io
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest
from sqlalchemy.orm import Session

from rucola.client import Message
from rucola.console import lake as limits
from rucola.console.accounts import hash_password
from rucola.console.reliable_outbox import ReliableOutbox
from rucola.presentation import csv_text
from rucola.reliable import operations
from rucola.reliable.outbox import Outbox
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, sql
from rucola.spark.session import LazySession
from support.cluster import cluster
from support.console import Visitor, live_cluster, text_of, visitor
from support.databases import OutboxDatabase
from support.outbox import transact
from support.small_store import SmallStore

HASH = hash_password("p")
ACCOUNTS = f"ann={HASH} viewer\nbob={HASH} viewer Topic:Orders\nroot={HASH} admin\n"


def archived(path: Path) -> Archive:
    store = SmallStore(path / "store")
    for number in range(5):
        store.put("Orders", body=b"%d" % number, KEYS="=cmd()", TAGS="<script>alert(1)</script>")
    store.put("Secret", body=b"4111")
    store.put("%DLQ%billing", body=b"4111", RETRY_TOPIC="Secret")
    archive.run(LazySession("tests", use_spark=False), store.path, path / "lake")
    return Archive(path / "lake")


def sql_path(query: str, **more: str) -> str:
    return f"/tables?{urlencode({'sql': query} | more)}"


async def log_in(console: Visitor, name: str) -> None:
    await console.post("/login", {"name": name, "password": "p", "then": "/"})


async def test_the_lake_is_shown_and_queried_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = archived(tmp_path)
    async with (
        live_cluster(tmp_path / "cluster") as running,
        visitor(running.namesrv, lake=lake, query_lake=partial(sql.run, lake)) as console,
    ):
        text = await console.shows("/tables", "Time Not archived yet Age of the last commit 20")
        assert "Orders 5 1 " in text
        assert "append 7 7" in text
        found = await console.get(sql_path("SELECT keys[1] AS k, tags, queueOffset FROM messages WHERE topic='Orders'"))
        assert "<script>alert" not in found.text
        assert text_of(found).count("=cmd() <script>alert(1)</script>") == 5
        (entry,) = await console.console.audit.entries()
        assert entry.action.startswith("sql SELECT keys[1]")

        query = "SELECT keys[1] AS k, -queueOffset AS n, NULL AS x FROM messages WHERE topic='Orders' ORDER BY 2"
        exported = await console.get(sql_path(query, format="csv"))
        rows = list(csv.reader(io.StringIO(exported.text)))
        assert exported.headers["content-disposition"].startswith("attachment")
        assert rows[:2] == [["k", "n", "x"], ["'=cmd()", "-4", ""]], "a number stays one"
        as_json = (await console.get(sql_path(query, format="json"))).json()
        assert (as_json["rows"][0], as_json["cut"]) == ({"k": "=cmd()", "n": -4, "x": None}, False)

        monkeypatch.setattr("rucola.console.pages.tables.MAX_ROWS", 3)
        assert "Only the first 3 rows" in await console.text(sql_path("FROM messages"))
        monkeypatch.setattr(limits, "MAX_S", 0.2)
        endless = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
        for wrong in ("SELEC", "DROP VIEW messages", "SELECT * FROM read_text('/etc/hostname')", endless):
            shown = await console.get(sql_path(wrong))
            assert 'role="alert"' in shown.text, wrong
            assert (await console.get(sql_path(wrong, format="json"))).status_code == 400
        assert (await console.get(sql_path("SELECT 1", format="xls"))).status_code == 400
        monkeypatch.setattr(limits, "MAX_RUNNING", 0)
        assert (await console.get(sql_path("SELECT 1", format="json"))).status_code == 400


async def test_a_query_reads_what_the_account_may_see(tmp_path: Path) -> None:
    lake = archived(tmp_path)
    (tmp_path / "accounts").write_text(ACCOUNTS)
    (tmp_path / "bodies").write_text("Secret=admin\n")
    async with (
        cluster(tmp_path / "cluster") as running,
        visitor(
            running.namesrv, lake=lake, query_lake=partial(sql.run, lake), accounts=tmp_path / "accounts",
            body_roles=tmp_path / "bodies",
        ) as console,
    ):  # fmt: skip
        counts = sql_path("SELECT topic, count(*) AS n FROM messages GROUP BY ALL ORDER BY 1", format="json")
        for name, topics in (("ann", ["Orders"]), ("bob", ["Orders"]), ("root", ["%DLQ%billing", "Orders", "Secret"])):
            await log_in(console, name)
            assert [row["topic"] for row in (await console.get(counts)).json()["rows"]] == topics, name
            raw = await console.get(sql_path("SELECT count(*) AS n FROM rows WHERE body = '4111'::BLOB", format="json"))
            assert raw.json()["rows"] == [{"n": 2 if name == "root" else 0}], name
            assert ("Secret" in await console.text("/tables")) == (name != "bob")


async def test_a_console_without_lake_or_outbox_says_so(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, visitor(running.namesrv) as console:
        for path, option in (("/tables", "--lake"), ("/outbox", "--database")):
            refused = await console.get(path)
            assert (refused.status_code, option in text_of(refused)) == (400, True)
        assert "Outbox" not in await console.text("/")


async def test_the_outbox_shows_stubs_by_state_and_what_happens_next(tmp_path: Path, sqlite_db: OutboxDatabase) -> None:
    outbox = Outbox(["billing"], tables=sqlite_db.tables)
    with Session(sqlite_db.engine()) as session, session.begin():
        ids = [outbox.add(session, Message(topic, b"secret")) for topic in ("Orders", "Orders", "Other")]
    transact(sqlite_db, operations.void, ids[1:2])
    (tmp_path / "accounts").write_text(
        f"ann={hash_password('p')} viewer\nbob={hash_password('p')} viewer Topic:Orders\n"
    )
    async with (
        cluster(tmp_path / "cluster") as running,
        visitor(
            running.namesrv, outbox=ReliableOutbox(sqlite_db.url, sqlite_db.tables.prefix),
            accounts=tmp_path / "accounts",
        ) as console,
    ):  # fmt: skip
        await log_in(console, "ann")
        page = await console.get("/outbox")
        text = text_of(page)
        assert "NEW waits for the relay 2 oldest: " in text
        assert "VOID voided 1" in text
        assert f"{ids[0]} Orders NEW billing 0 the relay sends it now" in text
        assert f"{ids[1]} Orders VOID billing 0 nothing: an operator voided it" in text
        only = await console.text("/outbox?state=VOID")
        assert (ids[0] in only, ids[1] in only) == (False, True)
        await log_in(console, "bob")
        assert (await console.get("/outbox")).status_code == 403
        assert (await console.get("/outbox?topic=Other")).status_code == 403
        of_topic = await console.get("/outbox?topic=Orders")
        assert (ids[0] in of_topic.text, "Other" in of_topic.text, "class=\"figures\"" in of_topic.text) == (
            True, False, False,
        )  # fmt: skip
    missing = ReliableOutbox(f"sqlite:///{tmp_path / 'other.db'}", "t_")
    async with cluster(tmp_path / "2") as running, visitor(running.namesrv, outbox=missing) as console:
        refused = await console.get("/outbox")
        assert (refused.status_code, "rucola reliable init" in text_of(refused)) == (500, True)


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_a_cell_that_a_spreadsheet_would_run_is_text(begin: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_text([(f"{begin}1+1", -1, "a=b", None)]), newline=""))
    assert row == [f"'{begin}1+1", "-1", "a=b", ""]
