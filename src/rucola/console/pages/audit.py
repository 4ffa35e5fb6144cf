"""The audit: who did what and when, and how it ended."""

from __future__ import annotations

from starlette.responses import Response

from rucola.admin.commands.authorization import Forbidden, Role
from rucola.console.visit import Visit, page


@page("/audit", navigation="Audit")
async def audit(visit: Visit) -> Response:
    if not visit.account.may(Role.ADMIN):
        raise Forbidden(visit.text("the audit takes the role admin"), subject="audit")
    before = visit.query.get("before", "")
    entries = await visit.console.audit.entries(int(before) if before.isdecimal() and len(before) < 19 else None)
    return visit.render("audit.html", entries=entries)
