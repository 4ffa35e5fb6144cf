"""Requests that would wait too long are refused, and served again when they would not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rucola import refusals
from rucola.access import Action, Caller, Reason, Refused, Resource
from rucola.broker.config import BrokerConfig
from rucola.broker.flow_control import TICK_MS, FlowControl
from rucola.protocol.codes import RequestCode, ResponseCode
from support.broker_peer import broker_peer
from support.errors import raises

CALLER, RESOURCE = Caller("127.0.0.1:1"), Resource("T", "g")
ACTIONS = {Action.PUBLISH, Action.RETRY, Action.FETCH, Action.RECEIVE, Action.END_TRANSACTION, Action.HEARTBEAT}


class Scene:
    """Flow control, and the time."""

    def __init__(self, **settings: Any) -> None:
        self.now_ms = 1000
        self.flow_control = FlowControl(BrokerConfig(**settings), lambda: self.now_ms)
        self.checks = {action: check for action in Action if (check := self.flow_control.check_for(action))}

    def tick(self, late_ms: int = 0) -> set[Action]:
        """Let an iteration of the event loop end this late, and return the actions that are refused then."""
        self.now_ms += TICK_MS + late_ms
        self.flow_control.tick()
        return {action for action in self.checks if self.refusal(action) is not None}

    def refusal(self, action: Action) -> str | None:
        try:
            self.checks[action](CALLER, RESOURCE)
        except Refused as refused:
            return str(refused) if refused.reason is Reason.BUSY else "another reason"
        return None


SENDS = {Action.PUBLISH, Action.RETRY}


@pytest.mark.parametrize(
    ("late_ms", "refused"),
    [
        (199, set()),
        (200, SENDS),
        (3000, SENDS | {Action.END_TRANSACTION}),
        (5000, SENDS | {Action.END_TRANSACTION, Action.FETCH, Action.RECEIVE}),
        (31_000, ACTIONS),
    ],
)
def test_requests_that_waited_too_long_are_refused_until_the_loop_catches_up(
    late_ms: int, refused: set[Action]
) -> None:
    here = Scene(broker_fast_failure_enable=True)
    assert here.tick() == set()
    assert here.tick(late_ms) == refused
    assert here.tick(late_ms) == refused
    assert here.tick() == set()


def test_the_refusal_names_the_limit_and_its_setting() -> None:
    here = Scene(broker_fast_failure_enable=True, wait_time_mills_in_pull_queue=70)
    here.tick(71)
    assert here.refusal(Action.FETCH) == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 71ms, "
        "limit 70 ms (waitTimeMillsInPullQueue on the broker)"
    )


def test_sockets_that_many_iterations_serve_count_as_one_long_iteration() -> None:
    """The loop serves a bounded number of sockets in an iteration, so that ticks come in time."""
    round_ms = [0]
    control = FlowControl(BrokerConfig(broker_fast_failure_enable=True), lambda: 0, lambda: round_ms[0])
    check = control.check_for(Action.PUBLISH)
    assert check is not None
    round_ms[0] = 200
    control.tick()
    with raises(Refused, refusal=refusals.BUSY, waited_ms=200):
        check(Caller("127.0.0.1:1"), Resource())
    round_ms[0] = 199
    control.tick()
    check(Caller("127.0.0.1:1"), Resource())


def test_requests_of_other_actions_are_not_checked() -> None:
    assert Scene().checks.keys() == ACTIONS


def test_loop_iterations_are_not_measured_by_default() -> None:
    assert Scene().tick(60_000) == set()


async def test_sends_are_refused_while_touching_pages_is_slow() -> None:
    here = Scene()
    began, touched = threading.Event(), threading.Event()

    def pages() -> None:
        began.set()
        touched.wait(20)

    touching = asyncio.create_task(here.flow_control.touch(pages))
    await asyncio.to_thread(began.wait, 20)
    assert here.tick(979) == set()
    assert here.tick() == SENDS
    assert "PCBUSY" in (here.refusal(Action.PUBLISH) or "")
    assert "osPageCacheBusyTimeOutMills" in (here.refusal(Action.PUBLISH) or "")
    touched.set()
    await touching
    assert here.tick() == set()


async def test_a_blocked_loop_does_not_count_as_a_busy_disk() -> None:
    """The pages have been touched meanwhile, though the loop had no time to notice."""

    here = Scene()
    began, may_end = threading.Event(), threading.Event()

    def pages() -> None:
        began.set()
        may_end.wait(20)

    touching = asyncio.create_task(here.flow_control.touch(pages))
    await asyncio.to_thread(began.wait, 20)
    assert here.tick(5000) == SENDS
    may_end.set()
    threads = threading.Event()
    for _ in range(2000):  # without a turn of the loop
        if here.tick(5000) == set():
            break
        threads.wait(0.01)
    assert here.tick(5000) == set()
    assert not touching.done()
    await touching


async def test_a_broker_under_load_refuses_then_accepts_messages(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, broker_fast_failure_enable=True, wait_time_mills_in_send_queue=0) as peer:
        async with asyncio.timeout(30):
            while (answer := await peer.send()).code != ResponseCode.SYSTEM_BUSY:
                assert answer.code == ResponseCode.SUCCESS
            assert "waitTimeMillsInSendQueue" in (answer.remark or "")
            changed = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerFastFailureEnable=false\n")
            assert changed.code == ResponseCode.SUCCESS
            while (answer := await peer.send()).code != ResponseCode.SUCCESS:
                assert answer.code == ResponseCode.SYSTEM_BUSY
