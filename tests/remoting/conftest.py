"""Every asynchronous test of this package runs on asyncio's event loop and on the one that batches socket writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rucola.remoting.event_loop import TurnLoop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The factories of the loops by the name that a test's id gets; pytest-asyncio calls this."""
    return {"asyncio": asyncio.SelectorEventLoop, "write-batching": TurnLoop}
