"""Settings of the order service, from environment variables."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rucola.name_server_addresses import DEFAULT_NAMESRV, default_name_servers

SQLITE_TIMEOUT_S = 30.0
"""SQLite has one writer at a time; the others wait up to this long for their turn."""


class Settings(NamedTuple):
    """Where the database and the broker are, and whether this process relays."""

    database: str = "sqlite:///orders.db"
    """ORDERS_DATABASE: sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/NAME."""
    namesrv: str = DEFAULT_NAMESRV
    """ROCKETMQ_NAMESRV or NAMESRV_ADDR: name servers, host:port;host:port."""
    relay: bool = True
    """ORDERS_RELAY: "on" relays in the web process; "off" leaves it to `rucola reliable relay`."""
    lease_s: float = 30.0
    """ORDERS_LEASE: seconds for which the claims of a crashed process block its messages."""

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the variables; those that are not set have their defaults. SystemExit names an invalid one."""
        default = cls()
        relay = os.environ.get("ORDERS_RELAY", "on")
        lease = os.environ.get("ORDERS_LEASE", str(default.lease_s))
        if relay not in ("on", "off"):
            raise SystemExit(f"ORDERS_RELAY is {relay!r}: write on or off")
        if not lease.replace(".", "", 1).isdecimal() or float(lease) < 1:
            raise SystemExit(f"ORDERS_LEASE is {lease!r}: write seconds, at least 1")
        return cls(
            os.environ.get("ORDERS_DATABASE", default.database),
            default_name_servers(),
            relay == "on",
            float(lease),
        )

    def engine(self) -> Engine:
        """Create an engine for threads; the caller disposes of it."""
        return create_engine(self.database, connect_args=self._connect_args())

    def async_engine(self) -> AsyncEngine:
        """Create an engine for asyncio; psycopg has both faces, SQLite's second one is aiosqlite."""
        url = make_url(self.database)
        if url.get_backend_name() == "sqlite":
            url = url.set(drivername="sqlite+aiosqlite")
        return create_async_engine(url, connect_args=self._connect_args())

    def _connect_args(self) -> dict[str, Any]:
        return {"timeout": SQLITE_TIMEOUT_S} if self.database.startswith("sqlite") else {}
