"""Version 1.2: the ledger of each group that keeps its stubs in another database, and an index over unsettled keys."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import sqlalchemy as sa

from rucola.reliable.migrations.versions.v1_0 import ENGINE
from rucola.reliable.schema import Tables

if TYPE_CHECKING:
    from alembic.operations import Operations


def upgrade(op: Operations, tables: Tables) -> None:
    prefix, schema = tables.prefix, tables.schema
    ledger = op.create_table(
        f"{prefix}ledger",
        sa.Column("consumer_group", sa.String(255), primary_key=True),
        sa.Column("database_id", sa.String(32), primary_key=True),
        schema=schema,
        **ENGINE,
    )
    op.bulk_insert(ledger, [{"consumer_group": "", "database_id": secrets.token_hex(16)}])
    if op.get_context().dialect.name in ("mysql", "mariadb"):
        return  # the index has no condition there
    condition = sa.text("shard_key IS NOT NULL AND status <> 'CONFIRMED'")
    op.drop_index(f"{prefix}stub_order", f"{prefix}stub", schema=schema)
    op.create_index(
        f"{prefix}stub_order", f"{prefix}stub", ["shard_key", "status", "seq"],
        schema=schema, postgresql_where=condition, sqlite_where=condition,
    )  # fmt: skip
