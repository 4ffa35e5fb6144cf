"""Tables: the messages of the lake by topic, its snapshots, and SQL within limits; the address has the query."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rucola.admin.commands import InvalidArguments
from rucola.console.api import response
from rucola.console.charts import archive_charts, charts_of
from rucola.console.lake import MAX_EXPORTED_ROWS, MAX_ROWS, MAX_S
from rucola.console.visit import Paging, Visit, page
from rucola.errors import ConfigError, MQError
from rucola.presentation import csv_text

EXAMPLE: Final = "SELECT topic, date, count(*) AS messages FROM messages GROUP BY ALL ORDER BY ALL"
FORMATS: Final = "csv", "json"
_CELL: Final = 500
"""Characters of a cell that a page shows."""


@page("/tables", navigation="Tables", needs="lake")
async def tables(visit: Visit) -> Response:
    lake = visit.console.lake
    if lake is None:
        raise ConfigError(visit.text("this console has no lake: start it with --lake"))
    sql, format_ = visit.query.get("sql", "").strip(), visit.query.get("format", "")
    if format_ and format_ not in FORMATS:
        raise InvalidArguments(f"format {format_!r}: expected {' or '.join(FORMATS)}", subject="format")
    status = await lake.status()
    topics = [one for one in status.topics if visit.may_view_topic(one.topic)]
    hidden = sum(not visit.may_query(one.topic) for one in topics)
    found, error = None, ""
    if sql:
        try:
            async with visit.console.audit.recorded(visit.account.name, visit.peer, f"sql {sql}"):
                found = await lake.query(sql, visit.may_query, MAX_EXPORTED_ROWS if format_ else MAX_ROWS)
        except MQError as failure:
            if format_:
                raise
            error = str(failure)
    if found is not None and format_ == "json":
        return response({"columns": found.columns, "rows": found.json_rows(), "cut": found.is_cut})
    if found is not None and format_ == "csv":
        note = [(f"only the first {len(found.rows)} rows",)] if found.is_cut else []
        return Response(
            found.csv() + csv_text(note), media_type="text/csv",
            headers={"content-disposition": 'attachment; filename="rucola.csv"'},
        )  # fmt: skip
    paging = Paging.of(visit, len(topics))
    wanted = archive_charts(visit.console.collector.archive, visit.text)
    return visit.render(
        "tables.html", state=status, topics=topics[paging.rows], paging=paging, sql=sql, example=EXAMPLE, error=error,
        found=found, hidden=hidden, max_s=MAX_S, max_rows=MAX_ROWS,
        charts=await charts_of(visit.console.history, visit.query.get("range", ""), wanted),
        cells=[[_shortened(cell) for cell in row] for row in found.cells()] if found is not None else [],
    )  # fmt: skip


def _shortened(cell: object) -> object:
    return f"{cell[:_CELL]}…" if isinstance(cell, str) and len(cell) > _CELL else cell
