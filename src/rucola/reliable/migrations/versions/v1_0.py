"""Version 1.0: the first tables, a row for each lane, and on PostgreSQL a trigger that announces new stubs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from rucola.reliable.schema import Tables

if TYPE_CHECKING:
    from alembic.operations import Operations

SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")
BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
ENGINE: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade(op: Operations, tables: Tables) -> None:
    prefix, schema = tables.prefix, tables.schema
    _create_stub(op, prefix, schema)
    op.create_table(
        f"{prefix}receipt",
        sa.Column("message_id", sa.String(64), primary_key=True),
        sa.Column("consumer_group", sa.String(255), primary_key=True),
        sa.Column("broker", sa.String(255)),
        sa.Column("queue_id", sa.Integer),
        sa.Column("queue_offset", sa.BigInteger),
        sa.Column("received_at", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(64)),
        sa.Column("lease_until", sa.BigInteger, nullable=False, server_default="0"),
        schema=schema,
        **ENGINE,
    )
    op.create_index(f"{prefix}receipt_received", f"{prefix}receipt", ["received_at"], schema=schema)
    op.create_table(
        f"{prefix}done",
        sa.Column("message_id", sa.String(64), primary_key=True),
        sa.Column("consumer_group", sa.String(255), primary_key=True),
        sa.Column("done_at", sa.BigInteger, nullable=False),
        schema=schema,
        **ENGINE,
    )
    op.create_index(f"{prefix}done_at", f"{prefix}done", ["done_at"], schema=schema)
    lane = op.create_table(
        f"{prefix}lane",
        sa.Column("lane", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("owner", sa.String(64)),
        sa.Column("lease_until", sa.BigInteger, nullable=False, server_default="0"),
        schema=schema,
        **ENGINE,
    )
    op.bulk_insert(lane, [{"lane": number} for number in range(16)])
    op.create_table(
        f"{prefix}relay",
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("seen_until", sa.BigInteger, nullable=False),
        schema=schema,
        **ENGINE,
    )
    if op.get_context().dialect.name == "postgresql":
        _announce_new_stubs(op, tables)


def _create_stub(op: Operations, prefix: str, schema: str | None) -> None:
    op.create_table(
        f"{prefix}stub",
        sa.Column("seq", SEQ, primary_key=True, autoincrement=True),
        sa.Column("message_id", sa.String(64), nullable=False),
        sa.Column("topic", sa.String(127), nullable=False),
        sa.Column("tags", TEXT),
        sa.Column("keys", TEXT),
        sa.Column("properties", TEXT, nullable=False),
        sa.Column("flag", sa.Integer, nullable=False, server_default="0"),
        sa.Column("body", BYTES, nullable=False),
        sa.Column("shard_key", sa.String(255)),
        sa.Column("lane", sa.SmallInteger, nullable=False),
        sa.Column("delay_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("status", sa.String(9), nullable=False),
        sa.Column("awaiting", TEXT, nullable=False),
        sa.Column("sends", sa.Integer, nullable=False, server_default="0"),
        sa.Column("broker", sa.String(255)),
        sa.Column("queue_id", sa.Integer),
        sa.Column("queue_offset", sa.BigInteger),
        sa.Column("dead_letters", sa.Integer, nullable=False, server_default="0"),
        sa.Column("owner", sa.String(64)),
        sa.Column("lease_until", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("due_at", sa.BigInteger),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("confirmed_at", sa.BigInteger),
        sa.Column("error", TEXT),
        schema=schema,
        **ENGINE,
    )

    def index(name: str, columns: list[str], where: str | None = None, *, unique: bool = False) -> None:
        condition = None if where is None else sa.text(where)
        op.create_index(
            f"{prefix}stub_{name}", f"{prefix}stub", columns,
            schema=schema, unique=unique, postgresql_where=condition, sqlite_where=condition,
        )  # fmt: skip

    index("message", ["message_id"], unique=True)
    index("due", ["due_at", "seq"], "due_at IS NOT NULL")
    index("order", ["shard_key", "status", "seq"], "shard_key IS NOT NULL AND status IN ('NEW', 'MANUAL')")
    index("status", ["status", "created_at"], "status <> 'CONFIRMED'")
    index("confirmed", ["confirmed_at"], "confirmed_at IS NOT NULL")


def _announce_new_stubs(op: Operations, tables: Tables) -> None:
    """One NOTIFY per transaction that adds stubs, from any program. Pages have room for updates."""
    quote = op.get_context().dialect.identifier_preparer
    stub = quote.format_table(tables.stub)
    function = f"{quote.quote(tables.schema)}." if tables.schema else ""
    function += quote.quote(f"{tables.prefix}announce")
    op.execute(f"ALTER TABLE {stub} SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)")
    op.execute(
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_notify('{tables.channel}', ''); RETURN NULL; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {quote.quote(f'{tables.prefix}announce')} AFTER INSERT ON {stub} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
    )
