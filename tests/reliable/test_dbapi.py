"""DB-API connections: messages and effects join the application's transaction, or are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import IntegrityError

from rucola.client import Message, MessageExt
from rucola.reliable.dbapi import DriverConnection
from rucola.reliable.errors import LeaseLost, ReliableError
from rucola.reliable.idempotent import DeliveryCounts, idempotent
from rucola.reliable.outbox import Outbox
from support.databases import OutboxDatabase
from support.outbox import add, count, delivery, statuses, stubs

GROUP = "billing"


def connect(db: OutboxDatabase) -> Any:
    """A connection of the driver, as a program without SQLAlchemy opens it."""
    arguments, options = db.engine().dialect.create_connect_args(db.engine().url)
    return db.engine().dialect.loaded_dbapi.connect(*arguments, **options)


def set_autocommit(db: OutboxDatabase, connection: Any) -> None:
    match db.name:
        case "sqlite":
            connection.isolation_level = None
        case "postgresql":
            connection.autocommit = True
        case _:
            connection.autocommit(True)


class PlainBusiness:
    """A table of effects, written in plain SQL."""

    def __init__(self, db: OutboxDatabase) -> None:
        self.db = db
        self.table = f"{db.tables.prefix}effect"
        self.commits = True
        with db.engine().begin() as connection:
            connection.execute(text(f"CREATE TABLE {self.table} (body VARCHAR(50))"))

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with closing(connect(self.db)) as connection:
            yield connection
            if self.commits:
                connection.commit()

    def write(self, message: MessageExt, connection: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"INSERT INTO {self.table} VALUES ('{message.body.decode()}')")
        cursor.close()

    def effects(self) -> list[str]:
        with self.db.engine().connect() as connection:
            return list(connection.scalars(text(f"SELECT body FROM {self.table}")))


def test_autocommit_connection_is_refused_until_a_transaction_has_begun(db: OutboxDatabase) -> None:
    outbox = Outbox(tables=db.tables)
    with closing(connect(db)) as connection:
        set_autocommit(db, connection)
        with pytest.raises(ReliableError):
            outbox.add(connection, Message("T", b"alone"))
        connection.cursor().execute("BEGIN")
        outbox.add(connection, Message("T", b"rolled back"))
        connection.rollback()
        connection.cursor().execute("BEGIN")
        outbox.add(connection, Message("T", b"kept"))
        connection.commit()
    assert [stub.body for stub in stubs(db)] == [b"kept"]


def test_statement_reports_rows_row_count_and_integrity_errors(db: OutboxDatabase) -> None:
    tables = db.tables
    with closing(connect(db)) as raw:
        connection = DriverConnection(raw)
        row = insert(tables.done).values(message_id="%(m)s", consumer_group="it's 100 %", done_at=7)
        assert connection.execute(row).rowcount == 1
        assert connection.scalar(tables.done.select()) == "%(m)s"
        assert connection.execute(tables.done.select()).one() == ("%(m)s", "it's 100 %", 7)
        assert connection.scalar(tables.stub.select()) is None
        with pytest.raises(IntegrityError):
            connection.execute(row)


def test_effect_done_and_confirmation_are_one_transaction_of_the_application(db: OutboxDatabase) -> None:
    business = PlainBusiness(db)
    (message_id,) = add(db, "T", [b"x"], groups=[GROUP])
    errors = [ZeroDivisionError()]

    @idempotent(db.engine(), GROUP, tables=db.tables, transaction=business.transaction)
    def listener(message: MessageExt, connection: Any) -> None:
        business.write(message, connection)
        if errors:
            raise errors.pop()

    with pytest.raises(ZeroDivisionError):
        listener(delivery(message_id))
    business.commits = False
    with pytest.raises(ReliableError):  # the transaction ended without an error, and without a commit
        listener(delivery(message_id, times=1))
    assert business.effects() == []
    business.commits = True
    for times in range(2, 5):
        listener(delivery(message_id, times=times))
    assert business.effects() == ["x"]
    assert (count(db, db.tables.done), count(db, db.tables.receipt)) == (1, 0)
    assert statuses(db) == {"CONFIRMED": 1}
    assert listener.counts == DeliveryCounts(done=1, duplicates=2, failed=2)


@pytest.mark.parametrize(
    ("table", "values", "error"), [("receipt", {"owner": "another"}, LeaseLost), ("stub", {"status": "VOID"}, None)]
)
def test_worker_that_lost_its_lease_or_message_rolls_back(
    postgresql_db: OutboxDatabase, table: str, values: dict[str, str], error: type[Exception] | None
) -> None:
    db, business = postgresql_db, PlainBusiness(postgresql_db)
    (message_id,) = add(db, "T", [b"x"], groups=[GROUP])

    @idempotent(db.engine(), GROUP, tables=db.tables, transaction=business.transaction)
    def listener(message: MessageExt, connection: Any) -> None:
        business.write(message, connection)
        with db.engine().begin() as other:
            other.execute(update(getattr(db.tables, table)).values(values))

    with pytest.raises(error) if error else nullcontext():
        listener(delivery(message_id))
    assert business.effects() == []


def test_coroutine_function_has_no_transaction_of_its_own(sqlite_db: OutboxDatabase) -> None:
    async def handler(message: MessageExt, session: Any) -> None: ...

    with pytest.raises(ReliableError):
        idempotent(sqlite_db.async_engine(), GROUP, transaction=PlainBusiness(sqlite_db).transaction)(handler)


DJANGO = """
import sys
from contextlib import contextmanager
import django
from django.conf import settings
database = {"sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[2]}}.get(sys.argv[1])
if database is None:
    try:
        import MySQLdb
    except ImportError:
        import pymysql
        pymysql.install_as_MySQLdb()
    user, host, port, name = sys.argv[2].split(",")
    database = {"ENGINE": f"django.db.backends.{sys.argv[1]}", "HOST": host, "PORT": port, "USER": user, "NAME": name}
settings.configure(DATABASES={"default": database}, USE_TZ=True)
django.setup()

from django.db import connection, transaction
from sqlalchemy import create_engine
from rucola.client import Message, MessageExt
from rucola.message import properties
from rucola.reliable import Outbox, ReliableError, Tables, idempotent

url, prefix = sys.argv[3:]
outbox = Outbox(["billing"], tables=Tables(prefix))
commits = []
outbox.on_commit(lambda: commits.append(connection.in_atomic_block))
try:
    outbox.add(connection, Message("T", b"alone"))
except ReliableError as error:
    assert "transaction.atomic()" in str(error)
    print("refused")

with transaction.atomic():
    kept = outbox.add(connection, Message("T", b"kept: 100 %s \\x00", properties={"name": "J\\u00f6rg's"}))
    try:
        with transaction.atomic():
            outbox.add(connection, Message("T", b"savepoint"))
            raise KeyError
    except KeyError:
        pass
    assert commits == []
try:
    with transaction.atomic():
        outbox.add(connection, Message("T", b"rolled back"))
        raise KeyError
except KeyError:
    pass
print("woken", commits)

doomed = [True]

def handler(message, connection):
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {prefix}done VALUES ('effect', 'of the business', 1)")
    transaction.set_rollback(doomed.pop())  # ends the block with a rollback, and without an error

@contextmanager
def atomic():
    with transaction.atomic(durable=True):
        yield connection

listener = idempotent(create_engine(url), "billing", tables=Tables(prefix), transaction=atomic)(handler)
message = MessageExt("T", 0, 7, 0, 0, b"x", {properties.UNIQ_KEY: kept}, 0, 0, 0, 1, 0, "", 0, "127.0.0.1:1", 0, 0, b"")
try:
    listener(message)
except ReliableError as error:
    print(str(error).partition("ended ")[2])
doomed.append(False)
listener(message)
listener(message)
print(listener.counts.done, listener.counts.failed, listener.counts.duplicates)
"""


@pytest.mark.slow
def test_django_connection_joins_its_atomic_block(db: OutboxDatabase) -> None:
    url = db.engine().url
    where = str(url.database) if db.name == "sqlite" else f"{url.username},{url.host},{url.port},{url.database}"
    program = [sys.executable, "-c", DJANGO, db.name, where, db.url, db.tables.prefix]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["refused", "woken [False]", "without a commit", "1 1 1"]
    (stub,) = stubs(db)
    assert (stub.body, stub.status) == (b"kept: 100 %s \x00", "CONFIRMED")
    assert json.loads(stub.properties) == {"name": "J\u00f6rg's"}
    with db.engine().connect() as connection:
        done_ids = set(connection.scalars(select(db.tables.done.c.message_id)))
    assert done_ids == {"effect", stub.message_id}
