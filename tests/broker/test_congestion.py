"""Requests that would wait too long are refused, and served again when they would not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rucola.broker.config import BrokerConfig
from rucola.broker.flow_control import TICK_MS, Congestion
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection, Processor
from support.broker_peer import broker_peer

CODES = [code for code in RequestCode if code.name.startswith(("SEND", "CONSUMER_SEND", "PULL_M", "END_TR", "HEART"))]


class Scene:
    """A table of processors under a watch, and the time."""

    def __init__(self, **settings: Any) -> None:
        self.now_ms = 1000
        self.processors: dict[int, Processor] = dict.fromkeys(CODES, self.serve)
        self.congestion = Congestion(BrokerConfig(**settings), self.processors, lambda: self.now_ms)

    def serve(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.response(ResponseCode.SUCCESS)

    def tick(self, late_ms: int = 0) -> set[str]:
        """Let a turn end so late; the names of what is refused then."""
        self.now_ms += TICK_MS + late_ms
        self.congestion.tick()
        return {code.name for code in CODES if self.processors[code] != self.serve}

    def remark(self, code: RequestCode) -> str | None:
        answer = self.processors[code](None, RemotingCommand.request(code))  # type: ignore[arg-type]
        assert isinstance(answer, RemotingCommand)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        return answer.remark


SENDS = {code.name for code in CODES if "SEND" in code.name}


@pytest.mark.parametrize(
    ("late_ms", "refused"),
    [
        (199, set()),
        (200, SENDS),
        (3000, SENDS | {"END_TRANSACTION"}),
        (5000, SENDS | {"END_TRANSACTION", "PULL_MESSAGE"}),
        (31_000, {code.name for code in CODES}),
    ],
)
def test_what_waited_too_long_is_refused_until_a_turn_is_in_time(late_ms: int, refused: set[str]) -> None:
    here = Scene(broker_fast_failure_enable=True)
    assert here.tick() == set()
    assert here.tick(late_ms) == refused
    assert here.tick(late_ms) == refused
    assert here.tick() == set()


def test_the_remark_says_which_limit_and_where_it_is_set() -> None:
    here = Scene(broker_fast_failure_enable=True, wait_time_mills_in_pull_queue=70)
    here.tick(71)
    assert here.remark(RequestCode.PULL_MESSAGE) == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 71ms, "
        "limit 70 ms (waitTimeMillsInPullQueue on the broker)"
    )


def test_turns_are_not_looked_at_unless_that_is_asked_for() -> None:
    assert Scene().tick(60_000) == set()


async def test_no_message_is_taken_while_touching_pages_takes_too_long() -> None:
    here = Scene()
    began, touched = threading.Event(), threading.Event()

    def pages() -> None:
        began.set()
        touched.wait(20)

    touching = asyncio.create_task(here.congestion.touch(pages))
    await asyncio.to_thread(began.wait, 20)
    assert here.tick(979) == set()
    assert here.tick() == SENDS
    assert "PCBUSY" in (here.remark(RequestCode.SEND_MESSAGE_V2) or "")
    assert "osPageCacheBusyTimeOutMills" in (here.remark(RequestCode.SEND_MESSAGE_V2) or "")
    touched.set()
    await touching
    assert here.tick() == set()


async def test_a_loop_that_was_kept_up_is_no_busy_disk() -> None:
    """The pages have been touched meanwhile, though the loop had no time to notice."""

    here = Scene()
    began, may_end = threading.Event(), threading.Event()

    def pages() -> None:
        began.set()
        may_end.wait(20)

    touching = asyncio.create_task(here.congestion.touch(pages))
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


async def test_a_broker_refuses_and_takes_messages_again(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, broker_fast_failure_enable=True, wait_time_mills_in_send_queue=0) as peer:
        async with asyncio.timeout(30):
            while (answer := await peer.send()).code != ResponseCode.SYSTEM_BUSY:
                assert answer.code == ResponseCode.SUCCESS
            assert "waitTimeMillsInSendQueue" in (answer.remark or "")
            changed = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerFastFailureEnable=false\n")
            assert changed.code == ResponseCode.SUCCESS
            while (answer := await peer.send()).code != ResponseCode.SUCCESS:
                assert answer.code == ResponseCode.SYSTEM_BUSY
