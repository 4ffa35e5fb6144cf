"""Models of the tables that hold messages, made from their columns.

Tests and programs read them; `outbox.add`, `idempotent` and `rucola reliable` alone change them. The admin site refuses
those with composite keys. Django empties the tables of models after each TransactionTestCase, so the tables whose rows
must stay (`lane`, `ledger`) have none.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import models
from sqlalchemy import BigInteger, Column, Integer, LargeBinary, SmallInteger, String, Table, Text

from rucola.reliable.django.apps import ReliableConfig
from rucola.reliable.schema import Tables

TABLES: Final = Tables()

_FIELDS: Final = {
    BigInteger: models.BigIntegerField,
    Integer: models.IntegerField,
    LargeBinary: models.BinaryField,
    SmallInteger: models.SmallIntegerField,
    String: models.CharField,
    Text: models.TextField,
}


def _model(name: str, table: Table) -> Any:
    fields = {column.name: _field(column) for column in table.columns}
    keys = [column.name for column in table.primary_key]
    if len(keys) == 1:
        fields[keys[0]] = models.BigAutoField(primary_key=True)
    else:
        fields["pk"] = models.CompositePrimaryKey(*keys)
    options = {
        "app_label": ReliableConfig.label,
        "db_table": table.name,
        "default_permissions": ("view",),
        "verbose_name": name.lower(),
    }
    return type(name, (models.Model,), {"__module__": __name__, "Meta": type("Meta", (), options), **fields})


def _field(column: Column[Any]) -> Any:
    length = getattr(column.type, "length", None)
    options = {} if length is None else {"max_length": length}
    return _FIELDS[type(column.type)](null=column.nullable, help_text=column.doc, **options)


Stub: Final = _model("Stub", TABLES.stub)
Receipt: Final = _model("Receipt", TABLES.receipt)
Done: Final = _model("Done", TABLES.done)
