"""Settings of a console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rucola.admin.commands.archive_query import MessageArchive
from rucola.console.lake import LakeQuery
from rucola.errors import ConfigError
from rucola.remoting.exposure import LOOPBACK, is_loopback

if TYPE_CHECKING:
    from rucola.console.reliable_outbox import ReliableOutbox


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """Raises ConfigError if all hosts that reach the address could use the console."""

    bind_address: str = LOOPBACK
    port: int = 8080
    """0 picks a free port."""
    directory: Path | None = None
    """Holds history, audit and sessions; None keeps them in memory."""
    lake: MessageArchive | None = None
    """Searched for messages that are no longer in the log."""
    query_lake: LakeQuery | None = None
    """Runs SQL over `lake`, for the page of its tables."""
    outbox: ReliableOutbox | None = None
    """The database of business reliability, which the console closes."""
    default_settings: Mapping[str, str] = field(default_factory=dict)
    """The defaults of a broker's settings, by key; those without one are left out."""
    accounts: Path | None = None
    """File with the accounts, see `accounts`; None lets every visitor do everything."""
    body_roles: Path | None = None
    """File with the roles that see bodies, see `body_policy`; None shows them to all viewers of the topic."""
    user_header: str = ""
    """The header in which a trusted proxy names the user, such as `X-Remote-User`."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses whose `X-Forwarded-` headers and user header count."""
    prefix: str = ""
    """The path under which a proxy serves the console, such as `/rucola`."""
    interval_s: float = 10.0
    requests_per_second: float = 50.0
    """Budget of requests to brokers for topics and groups; the state of brokers is asked once in `interval_s`."""

    def __post_init__(self) -> None:
        if not is_loopback(self.bind_address) and self.accounts is None:
            raise ConfigError(
                f"the console does not start on {self.bind_address}, where everyone who reaches it could change the "
                f"cluster: give it accounts, or let it listen on {LOOPBACK}",
                subject="accounts",
            )
        if self.user_header and not (self.trusted_proxies and self.accounts):
            raise ConfigError("a user header needs trusted proxies and accounts", subject="user_header")
        if self.prefix and not (self.prefix.startswith("/") and not self.prefix.endswith("/")):
            raise ConfigError(f"prefix {self.prefix!r}: expected a path such as /rucola", subject="prefix")
