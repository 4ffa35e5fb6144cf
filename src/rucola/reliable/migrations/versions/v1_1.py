"""Version 1.1: the time an operator reopened a stub, from which its ages count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from rucola.reliable.schema import Tables

if TYPE_CHECKING:
    from alembic.operations import Operations


def upgrade(op: Operations, tables: Tables) -> None:
    # Nullable and without a default: no database rewrites the rows, and programs of version 1.0 insert without it.
    op.add_column(f"{tables.prefix}stub", sa.Column("reopened_at", sa.BigInteger), schema=tables.schema)
