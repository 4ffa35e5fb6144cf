"""Version 1.1: the time an operator reopened a stub, from which its ages count."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from rucola.reliable.schema import Tables

revision = "1.1"
down_revision = "1.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables: Tables = context.config.attributes["tables"]
    # Nullable and without a default: no database rewrites the rows, and programs of version 1.0 insert without it.
    op.add_column(f"{tables.prefix}stub", sa.Column("reopened_at", sa.BigInteger), schema=tables.schema)
