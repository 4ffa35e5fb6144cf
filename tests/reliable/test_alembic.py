"""An application whose own Alembic creates the tables, as docs/reliable.md says, and keeps them."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, inspect

from rucola.reliable import Tables, migration
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase
from support.documents import Document

ALEMBIC, TEST = Document.read("docs/reliable.md").sections()["Running it"].texts("python")[:2]
ENV = """
from alembic import context
from sqlalchemy import create_engine
from rucola.reliable import Tables, migration

with create_engine(context.config.get_main_option("url")).connect() as connection:
    context.configure(connection=connection, include_name=migration.leaves_out(Tables()))
    with context.begin_transaction():
        context.run_migrations()
"""


def tables_of(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        return set(inspect(connection).get_table_names())


def test_a_migration_of_the_application_creates_and_drops_the_tables(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENV)
    revision = f'from alembic import op\n\nrevision = "1"\ndown_revision = None\n\n{ALEMBIC}'
    (tmp_path / "versions" / "1_outbox.py").write_text(revision)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("url", str(engine.url))
    command.upgrade(config, "head")
    with engine.connect() as connection:
        migration.check(connection, Tables())
    command.downgrade(config, "base")
    assert tables_of(engine) == {"alembic_version"}
    engine.dispose()


def test_autogenerate_leaves_the_tables_alone_and_sees_those_of_the_application(db: OutboxDatabase) -> None:
    tables, prefix = db.tables, db.tables.prefix
    models = MetaData()
    Table(f"{prefix}orders", models, Column("id", Integer, primary_key=True))

    def proposed(**options: object) -> set[tuple[str, str]]:
        with db.engine().connect() as connection:
            context = MigrationContext.configure(connection, opts=options)
            found = [each for each in compare_metadata(context, models) if each[0] in ("add_table", "remove_table")]
        # The server has tables of other tests as well.
        return {(kind, table.name) for kind, table in found if table.name.startswith(prefix)}

    assert ("remove_table", tables.stub.name) in proposed(), "without it"
    assert proposed(include_name=migration.leaves_out(tables)) == {("add_table", f"{prefix}orders")}


def test_the_test_of_the_page_passes(outbox_engine: Engine, rocketmq: RocketMQ) -> None:
    names: dict[str, object] = {}
    exec(TEST, names)
    names["test_the_message_of_an_order_is_sent"](outbox_engine, rocketmq)  # type: ignore[operator]
