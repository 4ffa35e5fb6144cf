"""No request holds the event loop for long, however large it is and however much the server has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rucola.protocol.command import RemotingCommand
from simulation.step_loop import StepClient, StepLoop
from support.compatibility import rows
from support.largest_requests import BROKER_REQUESTS, NAMESRV_REQUESTS, started_broker, started_namesrv

MAX_STEPS = 1_000_000
"""The bound of one iteration, in instructions of Python: 8 to 20 ms, since the largest loops are the tightest."""


@pytest.mark.parametrize(
    ("who", "requests"), [("broker", BROKER_REQUESTS), ("name server", NAMESRV_REQUESTS)], ids=["broker", "namesrv"]
)
def test_every_code_has_its_largest_request(who: str, requests: Mapping[int, object]) -> None:
    assert requests.keys() == {row.code for row in rows() if row.is_answered_by(who)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "requests"),
    [(started_broker, BROKER_REQUESTS), (started_namesrv, NAMESRV_REQUESTS)],
    ids=["broker", "namesrv"],
)
def test_no_request_holds_the_loop_for_long(
    tmp_path: Path,
    start: Callable[[StepLoop, Path], tuple[Any, StepClient]],
    requests: Mapping[int, Callable[[], RemotingCommand]],
) -> None:
    """Counted in steps, which are the same in every run, and not in time."""
    loop = StepLoop()
    asyncio.set_event_loop(loop)
    try:
        server, client = start(loop, tmp_path)
        steps = {}
        for code, request in requests.items():
            response, steps[code] = loop.counted(client.request(request()))
            assert response.code != 3, code
        loop.run(server.stop())
        assert {code: count for code, count in steps.items() if count > MAX_STEPS} == {}
    finally:
        loop.close()
        asyncio.set_event_loop(None)
