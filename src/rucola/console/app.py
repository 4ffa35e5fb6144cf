"""The console's application: routes, the account of a request, headers, and errors as pages."""

from __future__ import annotations

import logging
import re
import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.datastructures import URL
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rucola.admin import ResponseCode
from rucola.admin.commands import InvalidArguments
from rucola.admin.commands.authorization import Account, Forbidden
from rucola.console import api
from rucola.console.accounts import LOCAL, Accounts, TooManyFailures
from rucola.console.console import Console
from rucola.console.pages import PAGES
from rucola.console.visit import (
    COOKIE,
    DIRECTORY,
    PREFIX,
    NotFound,
    Page,
    Visit,
    peer_of,
    read_body,
    set_cookie,
    visitor_of,
)
from rucola.errors import BrokerError, ConfigError, InvalidMessage, MQError, RemotingError, TopicNotFound
from rucola.remoting.exposure import is_loopback

logger = logging.getLogger(__name__)

MAX_FORM_BYTES: Final = 5 << 20
"""A message of 4 MB, and the other fields."""
MAX_PUBLIC_FORM_BYTES: Final = 64 << 10
"""The account of a visitor without a login."""
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


_is_prefix = re.compile(r"(/[\w.~-]+)+", re.ASCII).fullmatch
"""Whether a header says a path, and no other site: it becomes a part of every link."""


class Guard:
    """Adds the headers of safety, removes the proxy's prefix, and refuses a foreign Host.

    A name of another site that resolves to this machine must not reach a console that asks for no password.
    """

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console

    def _prefix(self, scope: Scope) -> str:
        """Return the path before this console's, and remember the one that a trusted proxy names."""
        request = Request(scope)
        said = request.headers.get("x-forwarded-prefix", "").rstrip("/")
        if said and peer_of(request) in self._console.config.trusted_proxies and _is_prefix(said):
            scope[PREFIX] = said
            return said
        return self._console.config.prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        prefix = self._prefix(scope)
        if prefix and scope["path"].startswith(prefix + "/"):
            scope["path"] = scope["path"].removeprefix(prefix)
        is_static = scope["path"].startswith("/static/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = HEADERS | ({"cache-control": "public, max-age=31536000, immutable"} if is_static else {})
                names = {name.decode().lower() for name, _ in message["headers"]}
                message["headers"] += [
                    (name.encode(), value.encode()) for name, value in added.items() if name not in names
                ]
            await send(message)

        if not self._console.accounts.is_login_required:
            host = URL(scope=scope).hostname or ""
            if not is_loopback(host):
                refusal = PlainTextResponse(
                    "Without accounts, the console answers at 127.0.0.1 and localhost only.", 421
                )
                await refusal(scope, receive, send_with_headers)
                return
        await self._app(scope, receive, send_with_headers)


def application(console: Console) -> ASGIApp:
    routes: list[BaseRoute] = [
        Route(page.path, _endpoint(console, page), methods=["GET", "POST"] if page.takes_forms else ["GET"])
        for page in PAGES
    ]
    routes += [Route(path, _api(console, call), methods=methods) for path, call, methods in api.ROUTES]
    # Pages are not compressed: they have a secret, the token, beside what others write.
    routes.append(Mount("/static", GZipMiddleware(StaticFiles(directory=DIRECTORY / "static"))))
    return Starlette(routes=routes, middleware=[Middleware(Guard, console)], exception_handlers={404: _not_found})


def _not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse("There is no such page.", 404)


async def _account(console: Console, request: Request) -> Account | None:
    """The account that a trusted proxy names, or that of the session."""
    config, accounts = console.config, console.accounts
    is_proxy = peer_of(request) in config.trusted_proxies
    if config.user_header and is_proxy and (name := request.headers.get(config.user_header)):
        return accounts.named(name)
    return await accounts.account_of(request.cookies.get(COOKIE, ""))


async def _basic_account(console: Console, request: Request) -> Account | None:
    """The account of a script, by HTTP Basic. Raises TooManyFailures.

    No answer asks for it, so that a browser never sends it by itself.
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, password = b64decode(given, validate=True).decode().partition(":")
    except ValueError:
        return None
    return await console.accounts.checked(name, password, visitor_of(request, console.config))


def _endpoint(console: Console, page: Page) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        cookie = request.cookies.get(COOKIE, "")
        account = await _account(console, request)
        visit = Visit(console, request, account or LOCAL, cookie or secrets.token_urlsafe(32))
        if account is None and not page.is_public:
            response = visit.redirect("/login", then=visit.here() if request.method == "GET" else "")
        else:
            response = await _respond(visit, page, console.accounts)
        if not cookie and COOKIE not in response.headers.get("set-cookie", ""):
            set_cookie(visit, response, COOKIE, visit.cookie)
        return response

    return answer


async def _respond(visit: Visit, page: Page, accounts: Accounts) -> Response:
    try:
        if visit.request.method == "POST":
            visit.form = await read_form(visit.request, MAX_PUBLIC_FORM_BYTES if page.is_public else MAX_FORM_BYTES)
            if not accounts.is_token(visit.request.cookies.get(COOKIE, ""), visit.form.get("token", "")):
                return visit.render("error.html", status=403, error=visit.text("This form is too old: open it again."))
        return await page.answer(visit)
    except MQError as error:
        return visit.render("error.html", status=status_of(error), error=str(error))


_BUSY: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Codes of a broker that would answer later; with all others it refuses the request."""


def status_of(error: MQError) -> int:
    match error:
        case Forbidden():
            return 403
        case TopicNotFound() | NotFound():
            return 404
        case InvalidArguments() | ConfigError() | InvalidMessage():
            return 400
        case BrokerError():
            return 503 if error.code in _BUSY else 400
        case RemotingError():
            return 502
        case _:
            return 500


async def read_form(request: Request, max_bytes: int) -> Mapping[str, str]:
    """Return the fields of a form. Raises InvalidArguments."""
    body = await read_body(request, max_bytes)
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=1000))
    except ValueError as error:
        raise InvalidArguments(f"the form cannot be read: {error}") from None


def _api(console: Console, call: api.Call) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            account = await _account(console, request) or await _basic_account(console, request)
        except TooManyFailures:
            return api.failure(429, "too many failed logins: wait a minute")
        if account is None:
            return api.failure(401, "log in first, or send name and password (HTTP Basic)")
        try:
            return await call(console, request, account)
        except MQError as error:
            return api.failure(status_of(error), str(error), error.subject)

    return answer
