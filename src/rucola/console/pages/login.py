"""Login, logout, and what a visitor prefers: language and theme, in cookies."""

from __future__ import annotations

from starlette.responses import Response

from rucola.console.accounts import TooManyFailures
from rucola.console.visit import COOKIE, LANGUAGES, THEMES, Visit, page, set_cookie


@page("/login", takes_forms=True, is_public=True)
async def login(visit: Visit) -> Response:
    if visit.request.method == "GET":
        return visit.render("login.html", then=visit.query.get("then", ""), error="")
    name, then = visit.form.get("name", ""), visit.form.get("then", "")
    try:
        cookie = await visit.console.accounts.login(name, visit.form.get("password", ""), visit.peer)
    except TooManyFailures:
        error = visit.text("Too many failed logins: wait a minute.")
        return visit.render("login.html", status=429, then=then, error=error)
    if cookie is None:
        return visit.render("login.html", status=403, then=then, error=visit.text("Wrong name or password."))
    response = visit.back(then)
    set_cookie(visit, response, COOKIE, cookie)
    return response


@page("/logout", takes_forms=True, is_public=True)
async def logout(visit: Visit) -> Response:
    if visit.request.method == "POST":
        await visit.console.accounts.logout(visit.cookie)
    response = visit.redirect("/login")
    response.delete_cookie(COOKIE, path=visit.prefix or "/")
    return response


@page("/preferences", takes_forms=True, is_public=True)
async def preferences(visit: Visit) -> Response:
    response = visit.back(visit.form.get("then", ""))
    for name, allowed in (("language", LANGUAGES), ("theme", THEMES)):
        if (value := visit.form.get(name, "")) in allowed:
            set_cookie(visit, response, name, value, max_age=365 * 86_400)
    return response
