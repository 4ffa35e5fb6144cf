"""Tables of the order service. `python -m order_service.tables` creates or upgrades them, next to the outbox's."""

from __future__ import annotations

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from order_service.settings import Settings
from rucola.reliable import Tables, migration


class Base(DeclarativeBase):
    """The metadata of both tables."""


class Order(Base):
    """An accepted order. The key is the client's: the unique index makes a repeated POST fail, and find this row."""

    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(String(64), unique=True)
    item: Mapped[str] = mapped_column(String(100))
    cents: Mapped[int]
    message_id: Mapped[str] = mapped_column(String(64))
    """The id of the message that the outbox sends for this order."""


class Invoice(Base):
    """The bill of an order. `order_id` is deliberately not unique: `@idempotent` alone prevents a second invoice."""

    __tablename__ = "invoices"

    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(ForeignKey(Order.id), index=True)
    cents: Mapped[int]


def create_tables(settings: Settings) -> None:
    """Create the tables that are missing, and upgrade those of the outbox."""
    engine = settings.engine()
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":  # readers and the writer do not block each other; kept in the file
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        migration.migrate(connection, Tables())
        Base.metadata.create_all(connection)
    print("the tables are ready in", engine.url.render_as_string())
    engine.dispose()


if __name__ == "__main__":
    create_tables(Settings.from_environment())
