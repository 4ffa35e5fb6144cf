"""Outages of brokers and name servers, as one client sees them.

All loops of a client share one subject per broker, so that they log a few lines together (see `rucola.outages`). An
error response is a separate subject, since it concerns only its request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rucola.errors import MQError, is_unreachable
from rucola.outages import Outages

logger = logging.getLogger(__name__)


class BrokerOutages:
    """Outages of one client. Belongs to one event loop."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._outages = Outages(logger, clock_s)

    @property
    def any_failing(self) -> bool:
        """Whether an outage lasts; if not, successes need no report."""
        return self._outages.any_failing

    def failed(self, broker_name: str, purpose: str, error: MQError) -> None:
        """Report a failed request; `purpose` names it, such as "group g: pull of ..."."""
        self._outages.failed(f"broker {broker_name}" if is_unreachable(error) else purpose, error)

    def succeeded(self, broker_name: str, purpose: str) -> None:
        self._outages.succeeded(f"broker {broker_name}")
        self._outages.succeeded(purpose)

    def failed_anywhere(self, purpose: str, error: MQError) -> None:
        """Report the failure of work that needs any broker or name server; a known outage is not reported again."""
        if not (is_unreachable(error) and self.any_failing):
            self._outages.failed(purpose, error)

    def succeeded_anywhere(self, purpose: str) -> None:
        self._outages.succeeded(purpose)
