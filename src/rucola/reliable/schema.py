"""Tables of business reliability, and the database's clock.

    stub      one row per outgoing message, written in the sender's own transaction
    receipt   one row per consumer group and message that was delivered and is not done; holds the consumer's claim
    done      one row per consumer group and message whose effect is committed, in the consumer's business database
    lane      leases: one relay at a time sends the messages of a lane, which keeps the order of each sharding key
    relay     the relays that are alive, so that they share the lanes

Times are milliseconds since 1970 by the database's clock (`now_ms`); clocks of application machines are never used.

`due_at` of a stub is the time at which a relay must handle it next: send it, check it or raise an alert. NULL means
never, so one index over `due_at` serves every periodic query and contains no settled rows. A claim changes only
`owner`, `lease_until` and `sends`, which no index contains: PostgreSQL then updates the row within its page (HOT).

`awaiting` lists the groups that have not confirmed yet as `,billing,stock,`. One UPDATE removes a group and settles the
stub when the list becomes `,`; the row lock serialises concurrent confirmations.

The primary key is `seq` instead of `message_id`: sequential keys keep B-trees dense. `seq` is not a cursor: it differs
from commit order, so relays select by state and never by "the last seq sent".
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from rucola.reliable.errors import ReliableError

LANES: Final = 16
"""Lanes into which sharding keys are hashed; at most this many relays share the work."""

DEFAULT_PREFIX: Final = "rucola_"
MAX_ID_LENGTH: Final = 64
MAX_KEY_LENGTH: Final = 255

NEW: Final = "NEW"
SENT: Final = "SENT"
CONFIRMED: Final = "CONFIRMED"
VOID: Final = "VOID"
MANUAL: Final = "MANUAL"
STUCK: Final = "STUCK"
DEAD: Final = "DEAD"

STATUSES: Final = (NEW, SENT, CONFIRMED, VOID, MANUAL, STUCK, DEAD)
ALERTING: Final = (MANUAL, STUCK, DEAD)

_is_prefix = re.compile(r"[a-z_][a-z0-9_]{0,30}", re.ASCII).fullmatch

# SQLite assigns numbers to INTEGER PRIMARY KEY alone.
_SEQ = BigInteger().with_variant(Integer, "sqlite")
_BYTES = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_TEXT = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


class now_ms(FunctionElement[int]):  # noqa: N801 (a SQL function)
    """The database's clock at the start of the statement, milliseconds since 1970."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms)
def _now_ms(element: now_ms, compiler: Any, **options: Any) -> str:
    raise ReliableError(f"{compiler.dialect.name} is not supported: use SQLite, PostgreSQL, MariaDB or MySQL 8")


@compiles(now_ms, "sqlite")
def _now_ms_sqlite(element: now_ms, compiler: Any, **options: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@compiles(now_ms, "postgresql")
def _now_ms_postgresql(element: now_ms, compiler: Any, **options: Any) -> str:
    # clock_timestamp() is volatile: the planner could not use an index for `due_at <= now`.
    return "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)"


@compiles(now_ms, "mysql", "mariadb")
def _now_ms_mariadb(element: now_ms, compiler: Any, **options: Any) -> str:
    return "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"


class Tables:
    """The tables with a name prefix. ReliableError unless it is a lower-case identifier of at most 31 characters."""

    def __init__(self, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> None:
        if not _is_prefix(prefix):
            raise ReliableError(
                f"prefix {prefix!r}: use lower-case letters, digits and _, 31 characters at most", subject="prefix"
            )
        self.prefix = prefix
        self.schema = schema
        self.metadata = MetaData(schema=schema)
        self.stub = Table(f"{prefix}stub", self.metadata, *_stub_columns(), *_stub_indexes(prefix), **_MARIADB)
        self.receipt = Table(
            f"{prefix}receipt",
            self.metadata,
            Column("message_id", String(MAX_ID_LENGTH), primary_key=True, doc="the message's unique key"),
            Column("consumer_group", String(MAX_KEY_LENGTH), primary_key=True, doc="the group that received it"),
            Column("broker", String(MAX_KEY_LENGTH), doc="the broker of its first delivery; NULL for a retry"),
            Column("queue_id", Integer, doc="its queue"),
            Column("queue_offset", BigInteger, doc="its offset"),
            Column("received_at", BigInteger, nullable=False, doc="when it was received first"),
            Column("owner", String(MAX_ID_LENGTH), doc="the worker that has claimed it"),
            Column("lease_until", BigInteger, nullable=False, server_default="0", doc="until when"),
            Index(f"{prefix}receipt_received", "received_at"),
            **_MARIADB,
        )
        self.done = Table(
            f"{prefix}done",
            self.metadata,
            Column("message_id", String(MAX_ID_LENGTH), primary_key=True, doc="the message's unique key"),
            Column(
                "consumer_group", String(MAX_KEY_LENGTH), primary_key=True, doc="the group whose effect is committed"
            ),
            Column("done_at", BigInteger, nullable=False, doc="when it was committed"),
            Index(f"{prefix}done_at", "done_at"),
            **_MARIADB,
        )
        self.lane = Table(
            f"{prefix}lane",
            self.metadata,
            Column("lane", SmallInteger, primary_key=True, autoincrement=False, doc="the number of the lane"),
            Column("owner", String(MAX_ID_LENGTH), doc="the relay that sends its messages"),
            Column("lease_until", BigInteger, nullable=False, server_default="0", doc="until when"),
            **_MARIADB,
        )
        self.ledger = Table(
            f"{prefix}ledger",
            self.metadata,
            Column(
                "consumer_group",
                String(MAX_KEY_LENGTH),
                primary_key=True,
                doc="a group whose stubs are in another database; empty for this database",
            ),
            Column("database_id", String(32), primary_key=True, doc="the id of that database, or this one"),
            **_MARIADB,
        )
        self.relay = Table(
            f"{prefix}relay",
            self.metadata,
            Column("owner", String(MAX_ID_LENGTH), primary_key=True, doc="the name of the relay"),
            Column("seen_until", BigInteger, nullable=False, doc="until when it counts as alive"),
            **_MARIADB,
        )

    @property
    def version_table(self) -> str:
        """The table in which Alembic keeps the schema's version."""
        return f"{self.prefix}version"

    @property
    def channel(self) -> str:
        """The channel on which PostgreSQL announces new stubs."""
        return self.stub.fullname


# Ids, groups and keys are compared byte by byte, as brokers do.
_MARIADB: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}


def _stub_columns() -> list[Column[Any]]:
    return [
        Column("seq", _SEQ, primary_key=True, autoincrement=True, doc="the order of adding; commits differ"),
        Column("message_id", String(MAX_ID_LENGTH), nullable=False, doc="the UNIQ_KEY, and one of the KEYS"),
        Column("topic", String(127), nullable=False, doc="the topic"),
        Column("tags", _TEXT, doc="the tag"),
        Column("keys", _TEXT, doc="the keys, separated by spaces"),
        Column("properties", _TEXT, nullable=False, doc="the other properties, a JSON object"),
        Column("flag", Integer, nullable=False, server_default="0", doc="the flag of the message"),
        Column("body", _BYTES, nullable=False, doc="the body"),
        Column("shard_key", String(MAX_KEY_LENGTH), doc="messages with the same key keep their order"),
        Column("lane", SmallInteger, nullable=False, doc="the hash of the sharding key, or of the id"),
        Column("delay_ms", BigInteger, nullable=False, server_default="0", doc="from created_at to the first send"),
        Column("status", String(9), nullable=False, doc="NEW, SENT, CONFIRMED, VOID, MANUAL, STUCK or DEAD"),
        Column("awaiting", _TEXT, nullable=False, doc="the groups that have not confirmed, as `,billing,stock,`"),
        Column("sends", Integer, nullable=False, server_default="0", doc="how often it was sent"),
        Column("broker", String(MAX_KEY_LENGTH), doc="the broker of the last send that was answered"),
        Column("queue_id", Integer, doc="its queue"),
        Column("queue_offset", BigInteger, doc="its offset; NULL if unknown"),
        Column("dead_letters", Integer, nullable=False, server_default="0", doc="those that DEAD has reported"),
        Column("owner", String(MAX_ID_LENGTH), doc="the relay that has claimed it"),
        Column("lease_until", BigInteger, nullable=False, server_default="0", doc="until when"),
        Column("due_at", BigInteger, default=now_ms(), doc="when a relay handles it next; NULL: never"),
        Column("created_at", BigInteger, nullable=False, default=now_ms(), doc="when it was added"),
        Column("confirmed_at", BigInteger, doc="when it became CONFIRMED or VOID"),
        Column("error", _TEXT, doc="why the last send failed"),
        Column("reopened_at", BigInteger, doc="the last resend or redrive by an operator; ages count from it"),
    ]


def _stub_indexes(prefix: str) -> list[Index]:
    """Return the indexes: partial on PostgreSQL and SQLite, so without settled rows; full on MariaDB."""

    def index(name: str, condition: str, *columns: str, **options: Any) -> Index:
        where = text(condition)
        return Index(f"{prefix}stub_{name}", *columns, postgresql_where=where, sqlite_where=where, **options)

    return [
        Index(f"{prefix}stub_message", "message_id", unique=True),
        index("due", "due_at IS NOT NULL", "due_at", "seq"),
        index("order", "shard_key IS NOT NULL AND status <> 'CONFIRMED'", "shard_key", "status", "seq"),
        index("status", "status <> 'CONFIRMED'", "status", "created_at"),
        index("confirmed", "confirmed_at IS NOT NULL", "confirmed_at"),
    ]
