"""Every test here runs on a loop of asyncio's and on one whose answers leave at the end of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from rucola.remoting.event_loop import TurnLoop


@pytest.fixture(autouse=True, params=[asyncio.SelectorEventLoop, TurnLoop], ids=["at once", "in turns"])
def loop_type(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[asyncio.AbstractEventLoop]:
    """The type of the loop on which `asyncio.run` runs a test."""
    loop_type: type[asyncio.AbstractEventLoop] = request.param

    def run(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=loop_type) as runner:
            runner.run(main)

    monkeypatch.setattr(asyncio, "run", run)
    return loop_type
