"""Alembic's environment: migrates over the connection and under the names in the caller's config."""

from __future__ import annotations

from alembic import context

from rucola.reliable.schema import Tables


def migrate() -> None:
    """Run the migrations in one transaction, unless the caller has begun one."""
    tables: Tables = context.config.attributes["tables"]
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=tables.metadata,
        version_table=tables.version_table,
        version_table_schema=tables.schema,
    )
    with context.begin_transaction():
        context.run_migrations()


# Alembic executes this file and gives the module its config. A plain import must have no effect.
if hasattr(context, "config"):
    migrate()
