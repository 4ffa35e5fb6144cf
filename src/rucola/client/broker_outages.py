"""Outages of brokers and name servers, as one client sees them.

If a broker is away, all loops of a client that send requests to it (pulls of every queue, heartbeats, commits, locks)
fail, each once a second. They share one subject, "broker NAME", so that together they log a few lines (see
`rucola.outages`). An error that the broker itself responded with concerns only the request, which is a subject of its
own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rucola.errors import MQError, is_unreachable
from rucola.outages import Outages

logger = logging.getLogger(__name__)


class BrokerOutages:
    """Outages of one client, reported by all of its loops. Belongs to one event loop."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._outages = Outages(logger, clock_s)

    @property
    def any_failing(self) -> bool:
        """Whether an outage lasts; if not, successes need no report."""
        return self._outages.any_failing

    def failed(self, broker_name: str, purpose: str, error: MQError) -> None:
        """Report a failed request to a broker.

        `purpose` names the request, such as "group g: pull of ...".
        """
        self._outages.failed(f"broker {broker_name}" if is_unreachable(error) else purpose, error)

    def succeeded(self, broker_name: str, purpose: str) -> None:
        """Report that the same request has succeeded."""
        self._outages.succeeded(f"broker {broker_name}")
        self._outages.succeeded(purpose)

    def failed_anywhere(self, purpose: str, error: MQError) -> None:
        """Report the failure of work that needs any broker or name server.

        They may be known to be away already: while an outage lasts, unreachable ones are not reported again.
        """
        if not (is_unreachable(error) and self.any_failing):
            self._outages.failed(purpose, error)

    def succeeded_anywhere(self, purpose: str) -> None:
        """Report that the same work has succeeded."""
        self._outages.succeeded(purpose)
