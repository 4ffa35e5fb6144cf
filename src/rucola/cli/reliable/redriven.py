"""Part of `rucola admin redriveDlq` that needs the outbox's database: it reopens DEAD stubs."""

from __future__ import annotations

from rucola.admin.redrive import AfterRedrive, RedriveResult
from rucola.cli.reliable.command import Where
from rucola.reliable.database import named_errors
from rucola.reliable.reopening import reopening
from rucola.reliable.schema import DEFAULT_PREFIX


def stub_reopening(database: str, prefix: str | None, schema: str | None, group: str) -> AfterRedrive:
    """Check the tables; return a function that reopens the stubs of a group's dead letters."""
    where = Where(database, prefix or DEFAULT_PREFIX, schema)
    where.run_checked(lambda connection, tables: None)
    tables, opened = where.open()
    reopen = reopening(opened, tables, group)

    async def named(result: RedriveResult) -> bool:
        with named_errors(opened):
            return await reopen(result)

    return named
