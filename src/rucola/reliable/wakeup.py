"""Wakeup of an idle relay: an in-process event and, on PostgreSQL, a LISTEN connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from sqlalchemy.engine import URL

from rucola.client.background_tasks import BackgroundTasks
from rucola.outages import Outages

logger = logging.getLogger(__name__)

RECONNECT_S = 5.0


class Wakeup:
    """Event of one loop, set by commits in this process or by PostgreSQL's NOTIFY."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._background = BackgroundTasks()

    def wake(self) -> None:
        """End the current wait, or the next one. Thread-safe."""
        with suppress(RuntimeError):  # the loop is closed, so there is no relay to wake
            self._loop.call_soon_threadsafe(self._event.set)

    def listen(self, url: URL, channel: str) -> None:
        """Wake on NOTIFY of `channel` until closed; while the connection is down, only polling wakes the relay."""
        self._background.start(keep_listening(url, {channel: self._event.set}), f"LISTEN {channel}")

    async def wait(self, timeout_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        is_woken = self._event.is_set()
        self._event.clear()
        return is_woken

    async def close(self) -> None:
        await self._background.close()


async def keep_listening(url: URL, channels: Mapping[str, Callable[[], None]]) -> None:
    """Call back on NOTIFY of a channel of PostgreSQL, by one connection for all; reconnect until cancelled."""
    import psycopg  # imported here, since other databases do not need it
    from psycopg import sql

    conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
    outages = Outages(logger, level=logging.INFO)
    subject = "LISTEN " + ", ".join(channels)
    while True:
        try:
            async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
                for channel in channels:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                outages.succeeded(subject)
                for wake in channels.values():
                    wake()  # stubs may have been announced while there was no connection
                async for notification in connection.notifies():
                    channels[notification.channel]()
        except (psycopg.Error, OSError) as error:
            outages.failed(subject, error)
        await asyncio.sleep(RECONNECT_S)
