"""Runs every asynchronous test on asyncio's own event loop and on one that batches writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from rucola.remoting.batching_event_loop import BatchingEventLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loops of the tests in this directory, by the name that appears in a test's id."""
    return {"immediate": asyncio.SelectorEventLoop, "batching": BatchingEventLoop}
