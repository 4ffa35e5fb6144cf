"""Alerts about messages that need an operator, to the log, a webhook, e-mail or any function.

A stub that becomes MANUAL, STUCK or DEAD is due for an alert until every sink has accepted it: a crashed relay or an
unreachable mail server delays an alert but does not lose it. Alerts are digests: at most one per kind in `interval_ms`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import smtplib
import ssl
import urllib.parse
import urllib.request
from collections.abc import Sequence, Set
from email.message import EmailMessage
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from sqlalchemy import Row

from rucola.reliable.errors import ReliableError

logger = logging.getLogger(__name__)

INTERVAL_MS: Final = 60_000
SHOWN: Final = 20
TIMEOUT_S: Final = 10.0

BROKER_AWAY: Final = "BROKER_AWAY"

_WHAT_HELPS: Final = {
    "MANUAL": "They are not sent again automatically. Inspect one with `show`, then `resend` or `void` it.",
    "STUCK": "A group has not confirmed them. Check that it is running; `resend` delivers them again.",
    "DEAD": "Fix the consumer, then run `rucola admin redriveDlq -g GROUP --database URL` to deliver them again.",
    BROKER_AWAY: "Messages wait in the outbox and are sent when the broker is reachable again.",
}


class Alert(msgspec.Struct, frozen=True, omit_defaults=True):
    """One alert. `kind` is the state of the messages, or BROKER_AWAY."""

    kind: str
    count: int
    message_ids: tuple[str, ...]
    """The first ids, at most 20."""
    detail: str
    tenant: str = ""
    """The tenant, of several; see `rucola.reliable.tenants`."""

    def text(self) -> str:
        """Return the complete text, in lines."""
        lines = [self.title(), self.detail, _WHAT_HELPS.get(self.kind, ""), *self.message_ids]
        if self.count > len(self.message_ids) > 0:
            lines.append(f"and {self.count - len(self.message_ids)} more: `rucola reliable list --status {self.kind}`")
        return "\n".join(filter(None, lines))

    def title(self) -> str:
        """Return the summary, one line."""
        where = f"rucola, {self.tenant}" if self.tenant else "rucola"
        if not self.message_ids:
            return f"{where}: {self.kind}"
        return f"{where}: {self.count} message{'s' * (self.count > 1)} {self.kind}"


class DueAlert(NamedTuple):
    """A stub in a state that is to be alerted; one that was reopened is alerted again."""

    seq: int
    reopened_at: int | None


class Sink(Protocol):
    """A function that delivers an alert; called in a thread, raises if the delivery fails."""

    def __call__(self, alert: Alert) -> None: ...


def log_sink(alert: Alert) -> None:
    """Write the alert to the log as one error."""
    logger.error("%s", alert.text().replace("\n", "; "))


def webhook_sink(url: str) -> Sink:
    """Return a sink that posts an alert's fields and its `text` as JSON. ReliableError unless it is an HTTP URL."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ReliableError(f"{url!r} is no address for alerts: write https://HOST/PATH")

    def post(alert: Alert) -> None:
        body = json.dumps(msgspec.to_builtins(alert) | {"text": alert.text()}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310 - the operator's URL
        # Raises for a status other than 2xx.
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - the operator's URL
            pass

    return post


def email_sink(
    host: str,
    port: int,
    sender: str,
    recipients: Sequence[str],
    *,
    user: str | None = None,
    password: str | None = None,
    starttls: bool = False,
) -> Sink:
    """Return a sink that sends the alert by e-mail."""

    def mail(alert: Alert) -> None:
        message = EmailMessage()
        message["Subject"] = alert.title()
        message["From"] = sender
        message["To"] = ", ".join(recipients)
        message.set_content(alert.text())
        with smtplib.SMTP(host, port, timeout=TIMEOUT_S) as server:
            if starttls:
                server.starttls(context=ssl.create_default_context())  # verifies, before the password is sent
            if user is not None:
                server.login(user, password or "")
            server.send_message(message)

    return mail


class Alerts:
    """Delivers alerts to the log and all sinks, at most one per kind in `interval_ms`, with the name of the tenant."""

    def __init__(self, sinks: Sequence[Sink] = (), *, interval_ms: int = INTERVAL_MS, tenant: str = "") -> None:
        self._tenant = tenant
        self._sinks: tuple[Sink, ...] = (log_sink, *sinks)
        self.interval_ms = interval_ms
        self._next_s: dict[str, float] = {}
        # By sink and kind, the stubs that were due at the last alert that the sink has accepted.
        self._told: dict[tuple[Sink, str], Set[DueAlert]] = {}

    def wait_ms(self, kind: str) -> int:
        """Return the time until an alert of this kind may be raised, 0 if now."""
        return max(0, int((self._next_s.get(kind, 0.0) - asyncio.get_running_loop().time()) * 1000))

    def is_told(self, row: Row[Any]) -> bool:
        """Return whether every sink has accepted an alert about a stub."""
        return all(self._is_told(sink, row) for sink in self._sinks)

    async def tell(self, kind: str, rows: Sequence[Row[Any]], due: Set[DueAlert]) -> None:
        """Raise one alert for all `due` stubs of a kind, `rows` among them; each sink gets its new rows."""
        self._note_alert(kind)
        for sink in self._sinks:
            untold = [row for row in rows if not self._is_told(sink, row)]
            count = len(due - self._told.get((sink, kind), frozenset()))
            if untold and await self._deliver(sink, digest(untold, count)):
                self._told[sink, kind] = due

    async def raise_alert(self, alert: Alert) -> None:
        """Deliver an alert about no particular message."""
        self._note_alert(alert.kind)
        for sink in self._sinks:
            await self._deliver(sink, alert)

    def _note_alert(self, kind: str) -> None:
        self._next_s[kind] = asyncio.get_running_loop().time() + self.interval_ms / 1000

    def _is_told(self, sink: Sink, row: Row[Any]) -> bool:
        return DueAlert(row.seq, row.reopened_at) in self._told.get((sink, row.status), ())

    async def _deliver(self, sink: Sink, alert: Alert) -> bool:
        alert = msgspec.structs.replace(alert, tenant=self._tenant)
        try:
            await asyncio.to_thread(sink, alert)
        except Exception as error:
            logger.warning("delivery of an alert failed and will be retried: %s: %s", alert.title(), error)
            return False
        return True


def digest(rows: Sequence[Row[Any]], count: int) -> Alert:
    """Return the alert about `count` stubs of one state, of which `rows` are some."""
    detail = next(filter(None, (row.error for row in rows)), "")
    return Alert(rows[0].status, count, tuple(row.message_id for row in rows[:SHOWN]), detail)
