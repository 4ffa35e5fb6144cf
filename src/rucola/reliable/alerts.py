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
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from typing import Final, Protocol

import msgspec

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


class Alert(msgspec.Struct, frozen=True):
    """One alert. `kind` is the state of the messages, or BROKER_AWAY."""

    kind: str
    count: int
    message_ids: tuple[str, ...]
    """The first ids, at most 20."""
    detail: str

    def text(self) -> str:
        """Return the complete text, in lines."""
        lines = [self.title(), self.detail, _WHAT_HELPS.get(self.kind, ""), *self.message_ids]
        if self.count > len(self.message_ids) > 0:
            lines.append(f"and {self.count - len(self.message_ids)} more: `rucola reliable list --status {self.kind}`")
        return "\n".join(filter(None, lines))

    def title(self) -> str:
        """Return the summary, one line."""
        if not self.message_ids:
            return f"rucola: {self.kind}"
        return f"rucola: {self.count} message{'s' * (self.count > 1)} {self.kind}"


class Sink(Protocol):
    """A function that delivers an alert; called in a thread, raises if the delivery fails."""

    def __call__(self, alert: Alert) -> None: ...


def log_sink(alert: Alert) -> None:
    """Write the alert to the log as one error."""
    logger.error("%s", alert.text().replace("\n", "; "))


def webhook_sink(url: str, timeout_s: float = TIMEOUT_S) -> Sink:
    """Return a sink that posts an alert's fields and its `text` as JSON. ReliableError unless it is an HTTP URL."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ReliableError(f"{url!r} is no address for alerts: write https://HOST/PATH")

    def post(alert: Alert) -> None:
        body = json.dumps(msgspec.to_builtins(alert) | {"text": alert.text()}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310 - the operator's URL
        # Raises for a status other than 2xx.
        with urllib.request.urlopen(request, timeout=timeout_s):  # noqa: S310 - the operator's URL
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
    timeout_s: float = TIMEOUT_S,
) -> Sink:
    """Return a sink that sends the alert by e-mail."""

    def mail(alert: Alert) -> None:
        message = EmailMessage()
        message["Subject"] = alert.title()
        message["From"] = sender
        message["To"] = ", ".join(recipients)
        message.set_content(alert.text())
        with smtplib.SMTP(host, port, timeout=timeout_s) as server:
            if starttls:
                server.starttls(context=ssl.create_default_context())  # verifies, before the password is sent
            if user is not None:
                server.login(user, password or "")
            server.send_message(message)

    return mail


class Alerts:
    """Delivers alerts to the log and all sinks, at most one per kind in `interval_ms`."""

    def __init__(
        self, sinks: Sequence[Sink] = (), *, interval_ms: int = INTERVAL_MS, clock_s: Callable[[], float] | None = None
    ) -> None:
        self._sinks: tuple[Sink, ...] = (log_sink, *sinks)
        self.interval_ms = interval_ms
        self._clock_s = clock_s or (lambda: asyncio.get_running_loop().time())
        self._next_s: dict[tuple[Sink, str], float] = {}
        self._failed: set[tuple[Sink, str]] = set()

    def wait_ms(self, kind: str) -> int:
        """Return the time until an alert of this kind may be raised, 0 if now."""
        next_s = max((self._next_s.get((sink, kind), 0.0) for sink in self._sinks), default=0.0)
        return max(0, int((next_s - self._clock_s()) * 1000))

    async def raise_alert(self, alert: Alert) -> bool:
        """Deliver an alert; return whether every sink accepted it. A repeated alert goes only to sinks that failed."""
        again = {key for key in self._failed if key[1] == alert.kind}
        due = [sink for sink in self._sinks if not again or (sink, alert.kind) in again]
        self._failed -= again
        for sink in due:
            self._next_s[sink, alert.kind] = self._clock_s() + self.interval_ms / 1000
            try:
                await asyncio.to_thread(sink, alert)
            except Exception as error:
                logger.warning("delivery of an alert failed and will be retried: %s: %s", alert.title(), error)
                self._failed.add((sink, alert.kind))
        return not any(kind == alert.kind for _, kind in self._failed)


def digest(kind: str, message_ids: Sequence[str], details: Sequence[str | None], count: int) -> Alert:
    detail = next(filter(None, details), "")
    return Alert(kind, count, tuple(message_ids[:SHOWN]), detail)
