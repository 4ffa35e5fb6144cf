"""Saved views: a list for all, and the form that saves a page."""

from __future__ import annotations

from starlette.responses import Response

from rucola.admin.commands.authorization import Role
from rucola.console.visit import Visit, page


@page("/views", takes_forms=True)
async def views(visit: Visit) -> Response:
    saved, account = visit.console.views, visit.account
    is_admin = account.may(Role.ADMIN)
    if visit.request.method == "POST":
        id_ = visit.form.get("delete", "")
        if id_.isdecimal() and len(id_) < 19:
            await saved.delete(int(id_), None if is_admin else account.name)
        else:
            await saved.save(visit.form.get("name", ""), visit.form.get("path", ""), account.name)
        return visit.redirect("/views")
    # A view of others may have a name in its address that the account may not see.
    found = [one for one in await saved.all() if account.may(Role.VIEWER) or one.account == account.name]
    return visit.render("views.html", views=found, is_admin=is_admin, path=visit.query.get("path", ""))
