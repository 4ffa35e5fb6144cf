"""One request of a page: its account, language and form; and rendering the answer.

Every value that a template shows is escaped. Texts are English in the code and in templates, and translated by the
catalogue of the visitor's language, `translations/LANGUAGE/*.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rucola.acl.requirements import ResourceType
from rucola.admin.commands import CATALOGUE, InvalidArguments
from rucola.admin.commands.authorization import Account, Role, authorize
from rucola.console.accounts import SESSION_S
from rucola.console.config import ConsoleConfig
from rucola.console.console import Console
from rucola.errors import ConfigError
from rucola.message import MessageExt
from rucola.message.topics import is_system_topic
from rucola.presentation import END_OF_TIMES_MS, duration_text, printable, size_text

COOKIE: Final = "rucola_session"
PREFIX: Final = "rucola.prefix"
"""The key of the scope of a request with the prefix that a trusted proxy says."""
DIRECTORY: Final = Path(__file__).parent
LANGUAGES: Final = {"en": "English", "zh": "中文"}
THEMES: Final = "auto", "light", "dark"
ROWS: Final = 50
"""Rows of a page of a list."""
MOST_QUEUES: Final = 20
"""Queues, and members, on the page of a topic or group; a command has all."""


@cache
def translations(language: str) -> dict[str, str]:
    """Return the texts of a language by English text."""
    texts: dict[str, str] = {}
    for path in sorted((DIRECTORY / "translations" / language).glob("*.json")):
        texts |= json.loads(path.read_text(encoding="utf-8"))
    return texts


@cache
def static_hash(name: str) -> str:
    return sha256((DIRECTORY / "static" / name).read_bytes()).hexdigest()[:12]


def time_element(time_ms: int | None) -> Markup:
    """A time for `console.js`, which shows it in the reader's zone; UTC without JavaScript."""
    if not time_ms or time_ms <= 0:
        return Markup("–")
    if time_ms >= END_OF_TIMES_MS:  # clients claim any time
        return Markup("{}").format(time_ms)
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    iso = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}">{}</time>').format(iso, f"{moment:%Y-%m-%d %H:%M:%S} UTC")


def clock_element(time_ms: int) -> Markup:
    """A time near now: hour and minute with JavaScript if it is today in the reader's zone."""
    return Markup(str(time_element(time_ms)).replace("<time ", "<time data-clock ", 1))  # noqa: S704 - it is markup


def number_text(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def measure(value: float | None, unit: str) -> str:
    """Return a value of a chart as text."""
    match unit:
        case _ if value is None:
            return "–"
        case "rate":
            return number_text(value, 1)
        case "seconds":
            return duration_text(value * 1000)
        case "milliseconds":
            return duration_text(value)
        case "percent":
            return f"{value:.0%}"
        case "size":
            return size_text(value)
    return number_text(value)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rucola.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "time": time_element, "clock": clock_element, "number": number_text, "printable": printable,
        "duration": lambda value: measure(value, "milliseconds"), "rate": lambda value: measure(value, "rate"),
        "percent": lambda value: measure(value, "percent"),
        "size": lambda value: measure(value, "size"), "measure": measure,
    }  # fmt: skip
    return environment


_ENVIRONMENT: Final = _environment()


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request. Raises InvalidArguments if it is longer."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise InvalidArguments(f"the body has more than {max_bytes} bytes", subject="body")
    return bytes(body)


def peer_of(request: Request) -> str:
    """Return the address that sends a request, a proxy's if there is one."""
    return request.client.host if request.client else ""


def visitor_of(request: Request, config: ConsoleConfig) -> str:
    """Return the address of the visitor, which a trusted proxy tells."""
    peer = peer_of(request)
    forwarded = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    return forwarded if peer in config.trusted_proxies and forwarded else peer


def prefix_of(request: Request, config: ConsoleConfig) -> str:
    """Return the path under which a proxy serves the console, which a trusted one may say in each request."""
    return str(request.scope.get(PREFIX, config.prefix))


class NotFound(ConfigError):
    """The address of a page names what does not exist; its status is 404."""


@dataclass(slots=True)
class Visit:
    """A request with its account; `form` has the fields of a POST, whose token was right."""

    console: Console
    request: Request
    account: Account
    cookie: str
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def peer(self) -> str:
        return visitor_of(self.request, self.console.config)

    @property
    def language(self) -> str:
        chosen = self.request.cookies.get("language", "")
        if chosen in LANGUAGES:
            return chosen
        accepted = self.request.headers.get("accept-language", "")
        wanted = (part.strip().split(";")[0].split("-")[0].lower() for part in accepted.split(","))
        return next((one for one in wanted if one in LANGUAGES), "en")

    @property
    def theme(self) -> str:
        chosen = self.request.cookies.get("theme", "")
        return chosen if chosen in THEMES else "auto"

    def text(self, english: str, /, **fields: object) -> str:
        """Return a text in the visitor's language, with its fields."""
        found = translations(self.language).get(english, english)
        return found.format(**fields) if fields else found

    def absent(self, english: str, name: str) -> str:
        """Return a text that says what is absent, as far as the brokers that answer know."""
        unread = ", ".join(self.console.collector.snapshot.unread)
        doubt = self.text("{brokers} could not be read, and may have it", brokers=unread) if unread else ""
        return f"{self.text(english, name=name)}{doubt and '; '}{doubt}"

    @property
    def prefix(self) -> str:
        return prefix_of(self.request, self.console.config)

    def url(self, path: str, /, **query: object) -> str:
        """Return the address of a page, below the proxy's prefix; arguments that are None or "" are left out."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return self.prefix + quote(path) + ("?" + urlencode(given) if given else "")

    @property
    def page_path(self) -> str:
        """The path of this page, without the proxy's prefix."""
        return str(self.request.scope["path"])

    def here(self, **query: object) -> str:
        """Return the address of this page with other values in its query."""
        return self.url(self.page_path, **{**self.query, **query})

    @property
    def view_path(self) -> str:
        """The address of this page without the proxy's prefix, as a saved view has it."""
        return self.here().removeprefix(self.prefix)

    def static(self, name: str) -> str:
        return self.url(f"/static/{name}", v=static_hash(name))

    def may(self, role: str, type_: str = "", name: str = "") -> bool:
        """Whether the account has a role, such as `operator`, for a `Topic` or `Group`."""
        return self.account.may(Role[role.upper()], ResourceType(type_) if type_ else None, name)

    def may_view_topic(self, name: str) -> bool:
        return self.account.may(Role.VIEWER, ResourceType.TOPIC, name)

    def may_view_group(self, name: str) -> bool:
        return self.account.may(Role.VIEWER, ResourceType.GROUP, name)

    def hides_body(self, message: MessageExt) -> str:
        """Return why the account does not see the body of a message; empty if it does."""
        return self.console.body_policy.hides(self.account, message)

    def may_query(self, topic: str) -> bool:
        """Whether the account may run queries over a topic's messages, which can read bodies, or guess them."""
        policy = self.console.body_policy
        # Dead letters, retries and delayed messages are of any topic.
        if (is_system_topic(topic) or topic.startswith("%")) and policy.hides_any(self.account):
            return False
        return self.may_view_topic(topic) and not policy.hides_topic(self.account, topic)

    def require(self, command: str, **arguments: object) -> None:
        """Raise Forbidden unless the account may run a command of the catalogue, of which this page is a view."""
        authorize(self.account, CATALOGUE[command], arguments)

    def render(self, template: str, /, *, status: int = 200, **values: Any) -> Response:
        """Return a page of `templates/`, which sees the visit as `visit`, and `t`, `url` and `snapshot`."""
        return HTMLResponse(self.markup(template, **values), status)

    def markup(self, template: str, /, **values: Any) -> str:
        """Return a template as text, as `render` does."""
        return _ENVIRONMENT.get_template(template).render(
            visit=self, t=self.text, url=self.url, here=self.here, static=self.static,
            token=self.console.accounts.token(self.cookie), snapshot=self.console.collector.snapshot,
            now_ms=time.time_ns() // 1_000_000,
            navigation=[page for page in PAGES if page.is_shown(self.console.config)], **values,
        )  # fmt: skip

    def back(self, path: str) -> Response:
        """Redirect to an address that a form of ours carried; to the first page if it is another site's."""
        prefix = self.prefix
        is_ours = path.startswith(f"{prefix}/") and not path.startswith("//") and "\\" not in path
        return RedirectResponse(path if is_ours else f"{prefix}/", 303)

    def redirect(self, path: str, /, **query: object) -> Response:
        return RedirectResponse(self.url(path, **query), 303)


def set_cookie(visit: Visit, response: Response, name: str, value: str, max_age: int = SESSION_S) -> None:
    """Set a cookie that scripts do not see and other sites do not send."""
    is_proxy = peer_of(visit.request) in visit.console.config.trusted_proxies
    scheme = visit.request.headers.get("x-forwarded-proto", "") if is_proxy else visit.request.url.scheme
    path = visit.prefix or "/"
    response.set_cookie(name, value, max_age, path=path, secure=scheme == "https", httponly=True, samesite="strict")


@dataclass(frozen=True, slots=True)
class Paging:
    """A page of a list: `number` from 1 on."""

    number: int
    count: int
    """Pages."""
    total: int
    """Rows of all pages."""
    size: int
    """Rows of a page."""

    @classmethod
    def of(cls, visit: Visit, total: int, size: int = ROWS) -> Paging:
        count = max(1, -(-total // size))
        given = visit.query.get("page", "1")
        number = min(max(1, int(given)), count) if given.isdecimal() and len(given) < 10 else 1
        return cls(number, count, total, size)

    @property
    def rows(self) -> slice:
        return slice((self.number - 1) * self.size, self.number * self.size)


Answer: TypeAlias = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    path: str
    answer: Answer
    navigation: str = ""
    """The title in the navigation; empty for a page that others link."""
    needs: str = ""
    """The setting without which the navigation does not have the page."""
    takes_forms: bool = False
    is_public: bool = False
    """Shown to visitors without a login."""

    def is_shown(self, config: ConsoleConfig) -> bool:
        """Whether the navigation has the page."""
        return bool(self.navigation) and not (self.needs and getattr(config, self.needs) is None)


PAGES: Final[list[Page]] = []
"""All pages, in the order of the navigation, as `pages` imports their modules."""


def page(
    path: str, *, navigation: str = "", needs: str = "", takes_forms: bool = False, is_public: bool = False
) -> Callable[[Answer], Answer]:
    """Add a coroutine to the pages; a page that takes forms gets those with the right token only."""

    def add(answer: Answer) -> Answer:
        PAGES.append(Page(path, answer, navigation, needs, takes_forms, is_public))
        return answer

    return add
