"""The Django app: its migrations on each database, Django's transactions, and its test cases."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.pool import NullPool

from rucola.reliable import Tables, migration
from rucola.reliable.migration import VERSION
from support.databases import DatabaseServer, create_database
from support.installation import REPOSITORY
from support.versions_of_tables import described, make_version_1_0, set_version

pytestmark = pytest.mark.slow

TABLES = Tables()

SETTINGS = """
import pymysql

pymysql.install_as_MySQLdb()
SECRET_KEY = "of a test"
INSTALLED_APPS = ["rucola.reliable.django", "shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {{"default": {database}, "other": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "other.db"}}}}
"""
MODELS = """
from django.db import models

class Order(models.Model):
    what = models.CharField(max_length=100)
"""
TESTS = """
from unittest import skipUnless
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from rucola.client import Message
from rucola.reliable import Outbox
from rucola.reliable.django.models import Stub
from shop.models import Order

outbox = Outbox(groups=["billing"])

def place_order(what):
    Order.objects.create(what=what)
    return outbox.add(connection, Message("Orders", what.encode()))

class InATransaction(TestCase):
    def test_a_message_is_seen(self):
        message_id = place_order("pizza")
        stub = Stub.objects.get()
        self.assertEqual((stub.message_id, bytes(stub.body), stub.status), (message_id, b"pizza", "NEW"))
        self.assertEqual((stub.awaiting, stub.confirmed_at), (",billing,", None))

    def test_a_message_is_gone(self):
        self.assertFalse(Stub.objects.exists())

class WithCommits(TransactionTestCase):
    def test_order_and_message_are_committed_together(self):
        with transaction.atomic():
            place_order("pizza")
        try:
            with transaction.atomic():
                place_order("pasta")
                raise KeyError
        except KeyError:
            pass
        with transaction.atomic():
            place_order("salad")
            transaction.set_rollback(True)
        self.assertEqual([order.what for order in Order.objects.all()], ["pizza"])
        self.assertEqual([bytes(stub.body) for stub in Stub.objects.all()], [b"pizza"])

    def test_each_test_begins_without_messages_and_with_what_relays_need(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM rucola_lane")
            self.assertEqual(cursor.fetchone(), (16,))
            cursor.execute("SELECT count(*) FROM rucola_ledger")
            self.assertEqual(cursor.fetchone(), (1,))
        with transaction.atomic():
            place_order("pizza")
        self.assertEqual(Stub.objects.count(), 1)
"""

MANAGE = "from django.core.management import execute_from_command_line as run; import sys; run(sys.argv)"
KILLED_BEFORE_THE_VERSION = """
import os
import django
django.setup()
from django.core.management import call_command
from django.db import connection

def execute(execute, sql, *rest):
    if sql.startswith("INSERT INTO rucola_version"):
        os._exit(9)
    return execute(sql, *rest)

with connection.execute_wrapper(execute):
    call_command("migrate", "rucola_reliable")
"""


@dataclass
class Project:
    """A Django project in a directory, on a database of its own."""

    directory: Path
    engine: Engine

    def manage(self, *arguments: str, code: str = MANAGE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=self.directory,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(self.directory)},
            capture_output=True,
            text=True,
        )

    def succeed(self, *arguments: str) -> str:
        done = self.manage(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def migrate(self) -> None:
        self.succeed("migrate", "rucola_reliable", "-v", "0")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if request.param != "sqlite":
        server: DatabaseServer = request.getfixturevalue(request.param)
        url = create_database(server)
    engine = create_engine(url, poolclass=NullPool)  # a test database is a copy of one without connections
    if request.param != "sqlite":
        kind = {"mariadb": "mysql"}.get(request.param, request.param)
        at = engine.url
        place = {"HOST": at.host, "PORT": str(at.port), "USER": at.username, "NAME": at.database}
        database = {"ENGINE": f"django.db.backends.{kind}", **place}  # type: ignore[dict-item]
    (tmp_path / "settings.py").write_text(SETTINGS.format(database=database))
    (tmp_path / "shop").mkdir()
    for name, content in {"__init__": "", "models": MODELS, "tests": TESTS}.items():
        (tmp_path / "shop" / f"{name}.py").write_text(content)
    yield Project(tmp_path, engine)
    engine.dispose()


def test_the_migrations_make_the_tables_of_init_and_take_them_back(project: Project) -> None:
    by_init = Tables("init_")
    project.migrate()
    project.migrate()
    with project.engine.begin() as connection:
        migration.check(connection, TABLES)
        migration.init(connection, by_init)
        assert described(connection, TABLES) == described(connection, by_init)
        migration.drop(connection, by_init)
    assert project.succeed("makemigrations", "--check", "--dry-run", "rucola_reliable").startswith("No changes")
    project.succeed("migrate", "rucola_reliable", "zero", "-v", "0")
    with project.engine.connect() as connection:
        assert set(inspect(connection).get_table_names()) == {"django_migrations"}
    project.migrate()
    with project.engine.connect() as connection:
        migration.check(connection, TABLES)


def test_tables_of_init_are_upgraded_with_their_rows(project: Project) -> None:
    by_init = Tables("init_")
    with project.engine.begin() as connection:
        migration.init(connection, TABLES)
        connection.execute(TABLES.relay.insert().values(owner="kept", seen_until=1))
        make_version_1_0(connection, TABLES)
    project.migrate()
    with project.engine.begin() as connection:
        migration.check(connection, TABLES)
        migration.init(connection, by_init)
        assert described(connection, TABLES) == described(connection, by_init)
        assert connection.scalar(TABLES.relay.select()) == "kept"


def test_tables_without_a_version_or_of_a_newer_major_one_are_refused(project: Project) -> None:
    with project.engine.begin() as connection:
        migration.init(connection, TABLES)
        set_version(connection, TABLES, "2.0")
    assert "SchemaError: version 2.0" in project.manage("migrate", "rucola_reliable").stderr
    with project.engine.begin() as connection:
        connection.execute(text(f"DELETE FROM {TABLES.version_table}"))
    assert "interrupted" in project.manage("migrate", "rucola_reliable").stderr


def test_a_migration_that_is_killed_is_completed_by_init(project: Project) -> None:
    assert project.manage(code=KILLED_BEFORE_THE_VERSION).returncode == 9
    with project.engine.begin() as connection:
        migration.init(connection, TABLES)
    project.migrate()
    with project.engine.connect() as connection:
        migration.check(connection, TABLES)
        assert len(connection.execute(TABLES.lane.select()).all()) == 16


def test_django_s_test_cases_see_messages_and_leave_none(project: Project) -> None:
    project.succeed("makemigrations", "shop", "-v", "0")
    project.succeed("test", "-v", "0", "shop")


@pytest.mark.parametrize("project", ["sqlite"], indirect=True)
def test_each_database_has_its_own_tables_and_the_statements_can_be_read(project: Project) -> None:
    statements = project.succeed("sqlmigrate", "rucola_reliable", "0001")
    assert statements.count("CREATE TABLE rucola_") == len(TABLES.metadata.tables) + 1
    project.succeed("migrate", "--database", "other", "rucola_reliable", "-v", "0")
    other = create_engine(f"sqlite:///{project.directory / 'other.db'}", poolclass=NullPool)
    with other.connect() as connection:
        migration.check(connection, TABLES)
    assert inspect(project.engine).get_table_names() == []


def test_each_version_of_the_tables_has_a_migration() -> None:
    """Else Django would not run the upgrade in a database that has the migrations before."""
    files = sorted((REPOSITORY / "src/rucola/reliable/django/migrations").glob("0*.py"))
    calls = [node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    versions = [node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)]
    since = list(migration.UPGRADES).index(versions[0])
    assert versions == list(migration.UPGRADES)[since:]
    assert versions[-1] == VERSION
