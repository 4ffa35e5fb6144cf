"""`rucola reliable` as processes, with a database file and a running broker."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine, update
from sqlalchemy.orm import Session

from rucola.cli.main import main
from rucola.cli.reliable.command import Where, tenant_options
from rucola.client import Message
from rucola.reliable import Outbox, Tables
from rucola.reliable.migration import VERSION
from support.servers import RUCOLA, run_here, server
from support.waiting import wait_until


class Shop:
    """A database file with tables and messages."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:///{directory / 'shop.db'}"
        self.tables = Tables()
        self.ask("init")

    def ask(self, command: str, *arguments: str, code: int = 0) -> str:
        environment = {"RUCOLA_DATABASE": self.url}
        done = CliRunner().invoke(main, ["reliable", command, *arguments], env=environment)
        assert done.exit_code == code, done.output
        assert code == 0 or isinstance(done.exception, SystemExit), done.exception
        return done.stdout if code == 0 else done.stderr

    def add(self, count: int = 1, groups: tuple[str, ...] = (), topic: str = "Orders") -> list[str]:
        outbox = Outbox(groups)
        with Session(create_engine(self.url)) as session, session.begin():
            return [outbox.add(session, Message(topic, b"pizza %d" % number)) for number in range(count)]

    def change(self, **values: Any) -> None:
        with create_engine(self.url).begin() as connection:
            connection.execute(update(self.tables.stub).values(**values))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_list_show_and_stats_print_stubs(shop: Shop) -> None:
    first, second = shop.add(2, ("billing",))
    shop.change(status="STUCK", error="why it is stuck", broker="b", queue_id=1, queue_offset=7, due_at=None, sends=3)
    table = shop.ask("list")
    assert [line.split()[0] for line in table.splitlines()] == ["MESSAGE", first, second]
    assert all(len(line) <= 80 for line in table.splitlines())
    listed = json.loads(
        shop.ask("list", "--status", "stuck", "-g", "billing", "-t", "Orders", "--limit", "1", "--json")
    )
    assert [stub["messageId"] for stub in listed] == [first]
    assert json.loads(shop.ask("list", "--status", "NEW", "--json")) == []
    shown = shop.ask("show", first)
    for text in ("pizza 0", "STUCK", "billing", "why it is stuck", "queue 1, offset 7", "resend, confirm or void"):
        assert text in shown
    assert json.loads(shop.ask("show", first, "--json"))["message"]["stub"]["sends"] == 3
    assert "STUCK" in shop.ask("show", first, "-n", "127.0.0.1:1"), "brokers that are away do not hide the tables"
    assert "never added" in shop.ask("show", "unknown", code=1)
    assert json.loads(shop.ask("stats", "--json"))["counts"]["STUCK"] == 2
    assert "relay lag" in shop.ask("stats")


@pytest.mark.usefixtures("terminal")
def test_output_fits_80_columns_and_tells_what_is_left_out(shop: Shop) -> None:
    ids = shop.add(3, ("billing",), topic="OrdersOfTheNorthernAndTheSouthernRegion")
    shop.change(error="the broker refused it: " + "why " * 30)
    assert all(len(line) <= 80 for line in shop.ask("show", ids[0]).splitlines())
    lines = shop.ask("list").splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[0] for line in lines if line.startswith(ids[0][:8])] == ids
    done = CliRunner().invoke(main, ["reliable", "list", "-d", shop.url, "--limit", "2", "--json"])
    assert len(json.loads(done.stdout)) == 2
    assert "more than 2 messages match" in done.stderr


def test_resend_confirm_and_void_ask_and_support_dry_run(shop: Shop) -> None:
    first, second, third = shop.add(3, ("billing", "stock"))
    shop.change(status="MANUAL", due_at=None, sends=16)
    assert "would send 3 messages again" in shop.ask("resend", "--status", "MANUAL", "--dry-run")
    shop.ask("resend", first, code=1)  # the prompt is not answered
    assert json.loads(shop.ask("stats", "--json"))["counts"]["MANUAL"] == 3
    assert shop.ask("resend", first, "--yes") == "1 of 1 changed\n"
    assert shop.ask("confirm", second, "--for-group", "stock", "--yes") == "1 of 1 changed\n"
    assert json.loads(shop.ask("show", second, "--json"))["message"]["stub"]["awaiting"] == ["billing"]
    assert shop.ask("confirm", second, "--yes") == "1 of 1 changed\n"
    assert shop.ask("void", second, third, "--yes") == "1 of 2 changed\n"  # the other one is confirmed
    counts = json.loads(shop.ask("stats", "--json"))["counts"]
    assert {status: count for status, count in counts.items() if count} == {"NEW": 1, "CONFIRMED": 1, "VOID": 1}
    assert "there is no message unknown" in shop.ask("void", "unknown", "--yes", code=1)
    assert "name messages" in shop.ask("void", "--yes", code=2)
    assert "not by both" in shop.ask("void", first, "--status", "MANUAL", "--yes", code=2)
    assert f"nothing was changed: {second} is CONFIRMED" in shop.ask("resend", second, "--yes", code=1)
    refused = shop.ask("confirm", first, "--for-group", "shipping", "--yes", code=1)
    assert f"{first} is NEW and awaits billing, stock" in refused


def test_purge_removes_only_old_settled_stubs(shop: Shop) -> None:
    old, recent, unsettled = shop.add(3)
    stub = shop.tables.stub
    with create_engine(shop.url).begin() as connection:
        connection.execute(update(stub).values(created_at=1))
        connection.execute(
            update(stub).where(stub.c.message_id != unsettled).values(status="CONFIRMED", confirmed_at=1, due_at=None)
        )
        connection.execute(update(stub).where(stub.c.message_id == recent).values(confirmed_at=1 << 60))
    assert "not below 77 hours" in shop.ask("purge", "--older-than", "76", "--yes", code=2)
    assert "would remove 1 rows of rucola_stub" in shop.ask("purge", "--dry-run")
    assert shop.ask("purge", "--yes") == "removed 1 rows\n"
    assert shop.ask("purge", "--yes", "--json") == '{\n  "removed": 0\n}\n'
    left = json.loads(shop.ask("list", "--status", "NEW", "--status", "CONFIRMED", "--json"))
    assert [stub["messageId"] for stub in left] == [recent, unsettled]
    assert old not in str(left)


@pytest.mark.slow
def test_relay_runs_as_a_service(shop: Shop, tmp_path: Path, shared_rocketmq: Any) -> None:
    topic = shared_rocketmq.unique("T")
    shared_rocketmq.create_topic(topic)
    (message_id,) = shop.add(topic=topic)
    arguments = ("-n", shared_rocketmq.namesrv, "--database", shop.url, "--metricsPort", "0")
    with server("reliable", "relay", *arguments, log=tmp_path / "log") as running:
        assert running.first_line.startswith("rucola ready relay="), running.log.read_text()
        url = f"http://{running.first_line.split('metrics=')[1].strip()}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            assert b"rucola_reliable_relay_lag_seconds" in response.read()
        shared_rocketmq.wait_for_messages(topic)
        assert running.stop(signal.SIGTERM) == 0
    shown = shop.ask("show", message_id, "-n", shared_rocketmq.namesrv)
    assert "CONFIRMED" in shown
    assert f"stored     {topic}, queue" in shown
    assert "now        stored by a broker" in shown
    assert "Traceback" not in running.log.read_text()


@pytest.mark.slow
def test_one_relay_serves_several_tenants(shop: Shop, tmp_path: Path, shared_rocketmq: Any) -> None:
    topic = shared_rocketmq.unique("T")
    shared_rocketmq.create_topic(topic)
    (tmp_path / "of blanks").mkdir()
    other = Shop(tmp_path / "of blanks")
    for each in (shop, other):
        each.add(topic=topic)
    (tmp_path / "later.db").touch()
    later = f"sqlite:///{tmp_path / 'later.db'}"
    urls = [shop.url, other.url, later]
    options = [word for url in urls for word in ("-d", url)]
    with server(
        "reliable", "relay", "-n", shared_rocketmq.namesrv, "--metricsPort", "0", *options, log=tmp_path / "log"
    ) as running:
        ready, where = running.first_line.split(" metrics=")
        assert ready == "rucola ready tenants=3", running.log.read_text()
        wait_until(lambda: len(shared_rocketmq.messages(topic)) == 2)
        with urllib.request.urlopen(f"http://{where.strip()}/metrics", timeout=10) as response:
            scraped = response.read().decode().splitlines()
        assert running.stop(signal.SIGTERM) == 0
    up = {line for line in scraped if line.startswith("rucola_reliable_up")}
    names = [url.removeprefix("sqlite:///") for url in urls]
    assert up == {
        f'rucola_reliable_up{{tenant="{name}"}} {value}'
        for name, value in zip(names, ("1.0", "1.0", "0.0"), strict=True)
    }
    assert f"the relay of {names[2]} failed" in running.log.read_text()
    done = CliRunner().invoke(main, ["reliable", "stats", "--json"], env={"RUCOLA_DATABASE": "\n".join(urls)})
    assert {name: counted["counts"]["CONFIRMED"] for name, counted in json.loads(done.stdout).items()} == {
        names[0]: 1,
        names[1]: 1,
    }
    assert done.exit_code == 1
    assert f"1 of 3 tenants failed: {names[2]}: " in done.stderr
    shown = shop.ask("stats", *options[:4])
    assert [line for line in shown.splitlines() if line.endswith(":")] == [f"{name}:" for name in names[:2]]
    assert "is given twice" in shop.ask("relay", "-d", shop.url, "-d", shop.url, code=2)


@pytest.mark.parametrize(
    ("urls", "names"),
    [
        (("sqlite:///none/north.db", "", " "), ["none/north.db"]),
        (("sqlite:///none/north.db", "sqlite:///none/south.db"), ["none/north.db", "none/south.db"]),
        (
            ("postgresql+psycopg://a:secret@127.0.0.1:1", "sqlite:///none/x"),
            ["postgresql+psycopg://a:***@127.0.0.1:1", "none/x"],
        ),
        (
            ("postgresql+psycopg://127.0.0.1:1/x?password=secret", "postgresql+psycopg://127.0.0.1:2/x"),
            ["postgresql+psycopg://127.0.0.1:1/x", "postgresql+psycopg://127.0.0.1:2/x"],
        ),
        (
            ("postgresql+psycopg:///x?password=secret&port=1", "postgresql+psycopg:///x?password=secret&port=2"),
            ["postgresql+psycopg:///x 1", "postgresql+psycopg:///x 2"],
        ),
    ],
)
def test_tenants_have_different_names_without_passwords(urls: tuple[str, ...], names: list[str]) -> None:
    @click.command()
    @tenant_options
    def show(places: dict[str, Where]) -> None:
        click.echo("\n".join(places))

    done = CliRunner().invoke(show, env={"RUCOLA_DATABASE": "\n".join(urls)})
    assert done.stdout.splitlines() == names, done.output


def test_errors_are_one_line(shop: Shop, tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    (tmp_path / "empty.db").touch()
    for database, words, code in (
        ("nonsense", "write sqlite:///FILE", 2),
        ("oracle://x", "sqlite:///FILE", 2),
        ("oracle://nobody:secret@127.0.0.1/x", "oracle://nobody:***@127.0.0.1/x", 2),
        ("postgresql+psycopg://nobody:secret@127.0.0.1:1/x", "postgresql+psycopg://nobody:***@127.0.0.1:1/x: ", 1),
        ("postgresql+psycopg://127.0.0.1:1/x?password=secret", "postgresql+psycopg://127.0.0.1:1/x: ", 1),
        ("postgresql+psycopg://nobody:secret", "database postgresql+psycopg://***: ", 2),  # no host
        ("nobody:secret@127.0.0.1/x", "database ***: ", 2),
        (f"sqlite:///{tmp_path / 'empty.db'}", "rucola reliable init", 1),
        ("postgresql+psycopg://nobody:secret@127.0.0.1:port/x", "a port that is a number", 2),
        (f"sqlite:///{missing}", "there is no such file", 1),
    ):
        done = run_here("reliable", "list", "--database", database)
        assert (done.returncode, done.stdout) == (code, ""), database
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        assert "secret" not in done.stderr
    assert "there is no such file" in shop.ask("relay", "-n", "127.0.0.1:1", "-d", f"sqlite:///{missing}", code=1)
    assert not missing.exists()
    assert "lower-case letters" in shop.ask("list", "--prefix", "Bad-", code=2)
    assert "migrate" in shop.ask("init", code=1)
    assert VERSION in shop.ask("migrate")
    assert run_here("reliable", "list").returncode == 2
    refused = shop.ask("relay", "-n", "127.0.0.1:1", "--smtp", "localhost", code=2)
    assert "--mail-to" in refused


@pytest.mark.parametrize(
    "line",
    [
        "list --older-than {}",
        "purge --older-than {} --yes",
        "relay --lease {}",
        "relay --confirm-timeout {}",
        "list --limit 99999999999999999999",
        "relay --max-sends 99999999999999999999",
    ],
)
@pytest.mark.parametrize("number", ["nan", "inf", "1e30", "-1", "soon"])
def test_numbers_that_no_clock_knows_are_refused(shop: Shop, line: str, number: str) -> None:
    command, *arguments = line.format(number).split()
    assert "Invalid value" in shop.ask(command, *arguments, code=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mail-to", "ops@example.org"), "--smtp HOST:PORT"),
        (("--smtp", "localhost:25"), "--mail-to"),
        (("--webhook", "example.org/alerts"), "write https://HOST/PATH"),
        (("--webhook", "file:///etc/passwd"), "write https://HOST/PATH"),
        (("--prefix", "Bad-"), "lower-case letters"),
        (("--database", "nonsense"), "write sqlite:///FILE"),
    ],
)
def test_relay_refuses_alerts_that_would_not_arrive_and_wrong_names(
    shop: Shop, options: tuple[str, ...], words: str
) -> None:
    assert words in shop.ask("relay", "-n", "127.0.0.1:1", *options, code=2)


@pytest.mark.slow
def test_relay_names_a_database_that_it_waits_for(tmp_path: Path) -> None:
    url = "postgresql+psycopg://nobody:secret@127.0.0.1:1/x"
    log = tmp_path / "log"
    with log.open("wb") as output:
        arguments = [*RUCOLA, "reliable", "relay", "-n", "127.0.0.1:1", "--database", url]
        waiting = subprocess.Popen(arguments, stdout=output, stderr=output)
        try:
            wait_until(lambda: b"the database failed" in log.read_bytes())
            assert waiting.poll() is None
        finally:
            waiting.terminate()
            waiting.wait(30)
    assert "port 1 failed" in log.read_text()
    assert "secret" not in log.read_text()


def test_migrate_creates_nothing(shop: Shop, tmp_path: Path) -> None:
    """A mistyped URL or prefix must not look like a migration."""
    missing = tmp_path / "missing.db"
    assert "there is no such file" in shop.ask("migrate", "--database", f"sqlite:///{missing}", code=1)
    assert not missing.exists()
    assert "there are no reliability tables" in shop.ask("migrate", "--prefix", "other_", code=1)
    assert "there are no reliability tables" in shop.ask("list", "--prefix", "other_", code=1)


def test_show_says_what_it_could_not_search(shop: Shop) -> None:
    said = shop.ask("show", "unknown", "-n", "127.0.0.1:1", "-t", "Orders", code=1)
    assert "there is no message 'unknown' in the tables" in said
    assert "not searched: brokers: no name server answers" in said


def test_export_that_fails_leaves_nothing_behind(shop: Shop, tmp_path: Path) -> None:
    out, missing = tmp_path / "out", tmp_path / "missing.db"
    assert "there is no such file" in shop.ask("export", str(out), "--database", f"sqlite:///{missing}", code=1)
    assert "there are no reliability tables" in shop.ask("export", str(out), "--prefix", "other_", code=1)
    assert "which is missing" in shop.ask("export", str(out), "--brokerName", "broker-a", code=2)
    assert "no name server answers" in shop.ask("export", str(out), "-n", "127.0.0.1:1", code=1)
    assert not out.exists()
    assert not missing.exists()


def test_the_statements_for_an_administrator_are_a_script(tmp_path: Path) -> None:
    """Nothing connects: the URL has no host, and the script makes the tables where it is run."""
    for url in ("postgresql+psycopg://", "mysql+pymysql://", "sqlite://"):
        printed = CliRunner().invoke(main, ["reliable", "init", "--sql", "-d", url, "--prefix", "shop_"])
        assert printed.exit_code == 0, printed.output
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(printed.output)
    done = CliRunner().invoke(main, ["reliable", "stats", "--json", "-d", f"sqlite:///{path}", "--prefix", "shop_"])
    assert done.exit_code == 0, done.output
