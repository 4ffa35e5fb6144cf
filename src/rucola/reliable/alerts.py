"""Alerts: what needs a person, to a function, the log, a webhook or by e-mail.

A stub that becomes MANUAL, STUCK or DEAD is due for an alert. It stays due until every sink has taken the alert, so a
relay that crashes in between, or a mail server that is away, delays an alert and does not lose it.

Alerts are digests: at most one per kind in `interval_ms`, with the number of messages, the first ids and the command
that helps. A hundred thousand messages that get stuck together are one e-mail and not a hundred thousand.
"""

from __future__ import annotations

import asyncio
import json
import logging
import smtplib
import urllib.request
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from typing import Final, Protocol

import msgspec

logger = logging.getLogger(__name__)

INTERVAL_MS: Final = 60_000
SHOWN: Final = 20
TIMEOUT_S: Final = 10.0

BROKER_AWAY: Final = "BROKER_AWAY"

_WHAT_HELPS: Final = {
    "MANUAL": "They are not sent again by themselves. Look at one with `show`, then `resend` or `void` it.",
    "STUCK": "A group has not confirmed them. See whether it runs; `resend` has them delivered once more.",
    "DEAD": "Fix the consumer, then `rucola admin redriveDlq -g GROUP` has them delivered once more.",
    BROKER_AWAY: "Messages wait in the outbox and are sent when a broker is back.",
}


class Alert(msgspec.Struct, frozen=True):
    """Something that needs a person. `kind` is the state of the messages, or BROKER_AWAY."""

    kind: str
    count: int
    message_ids: tuple[str, ...]
    """The first of them."""
    detail: str

    def text(self) -> str:
        """Everything that the alert says, in lines."""
        lines = [self.title(), self.detail, _WHAT_HELPS.get(self.kind, ""), *self.message_ids]
        if self.count > len(self.message_ids) > 0:
            lines.append(f"and {self.count - len(self.message_ids)} more: `rucola reliable list --status {self.kind}`")
        return "\n".join(filter(None, lines))

    def title(self) -> str:
        """One line."""
        if not self.message_ids:
            return f"rucola: {self.kind}"
        return f"rucola: {self.count} message{'s' * (self.count > 1)} {self.kind}"


class Sink(Protocol):
    """Takes an alert, in a thread; raises if it could not be delivered."""

    def __call__(self, alert: Alert) -> None: ...


def log_sink(alert: Alert) -> None:
    """Write the alert to the log as one error."""
    logger.error("%s", alert.text().replace("\n", "; "))


def webhook_sink(url: str, timeout_s: float = TIMEOUT_S) -> Sink:
    """Post the alert's fields, and its text as `text`, as a JSON object."""

    def post(alert: Alert) -> None:
        body = json.dumps(msgspec.to_builtins(alert) | {"text": alert.text()}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=timeout_s):  # an answer other than 2xx raises
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
    """Send the alert as a mail."""

    def mail(alert: Alert) -> None:
        message = EmailMessage()
        message["Subject"] = alert.title()
        message["From"] = sender
        message["To"] = ", ".join(recipients)
        message.set_content(alert.text())
        with smtplib.SMTP(host, port, timeout=timeout_s) as server:
            if starttls:
                server.starttls()
            if user is not None:
                server.login(user, password or "")
            server.send_message(message)

    return mail


class Alerts:
    """Delivers alerts to all sinks, at most one per kind in `interval_ms`."""

    def __init__(
        self, sinks: Sequence[Sink] = (), *, interval_ms: int = INTERVAL_MS, clock_s: Callable[[], float] | None = None
    ) -> None:
        self._sinks: tuple[Sink, ...] = (log_sink, *sinks)
        self.interval_ms = interval_ms
        self._clock_s = clock_s or (lambda: asyncio.get_running_loop().time())
        self._next_s: dict[tuple[Sink, str], float] = {}
        self._failed: set[tuple[Sink, str]] = set()

    def wait_ms(self, kind: str) -> int:
        """How long until an alert of this kind may be raised; 0 for now."""
        next_s = max((self._next_s.get((sink, kind), 0.0) for sink in self._sinks), default=0.0)
        return max(0, int((next_s - self._clock_s()) * 1000))

    async def raise_alert(self, alert: Alert) -> bool:
        """Deliver an alert; whether every sink took it. Raised once more, it goes only to those that did not."""
        again = {key for key in self._failed if key[1] == alert.kind}
        due = [sink for sink in self._sinks if not again or (sink, alert.kind) in again]
        self._failed -= again
        for sink in due:
            self._next_s[sink, alert.kind] = self._clock_s() + self.interval_ms / 1000
            try:
                await asyncio.to_thread(sink, alert)
            except Exception as error:
                logger.warning("an alert could not be delivered and is tried again: %s: %s", alert.title(), error)
                self._failed.add((sink, alert.kind))
        return not any(kind == alert.kind for _, kind in self._failed)


def digest(kind: str, message_ids: Sequence[str], details: Sequence[str | None]) -> Alert:
    """One alert for messages that are in the same state."""
    detail = next(filter(None, details), "")
    return Alert(kind, len(message_ids), tuple(message_ids[:SHOWN]), detail)
