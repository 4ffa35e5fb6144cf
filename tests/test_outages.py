"""Log lines of outages, and those that peers can cause at will, over simulated time."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.outages import FIRST_SUMMARY_S, LINE_INTERVAL_S, MAX_SUBJECTS, Outages, log_rate_limited
from simulation.memory_loop import MemoryLoop

logger = logging.getLogger("test.outages")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def lines() -> Lines:
    handler = Lines()
    logger.handlers = [handler]
    return handler


def test_a_day_of_failures_has_few_lines(lines: Lines) -> None:
    clock = Clock()
    outages = Outages(logger, clock)
    for second in range(86_400):
        clock.now_s = second
        outages.failed("broker a", "refused")
    clock.now_s = 86_400
    assert outages.any_failing
    outages.succeeded("broker a")
    assert not outages.any_failing
    assert lines.texts[0] == "broker a failed, retrying: refused"
    assert lines.texts[1] == "broker a: still failing after 60 s, 61 failures, the last: refused"
    assert lines.texts[-1] == "broker a: works again after 86400 s, 86400 failures"
    assert 8 < len(lines.texts) < 35


def test_short_outages_have_two_lines_and_successes_none(lines: Lines) -> None:
    clock = Clock()
    outages = Outages(logger, clock)
    outages.succeeded("x")
    for _ in range(3):
        outages.failed("x", "a")
        outages.succeeded("x")
        outages.succeeded("x")
        clock.now_s += 2 * FIRST_SUMMARY_S
    assert lines.texts == 3 * ["x failed, retrying: a", "x: works again after 0 s, 1 failures"]


def test_a_subject_that_fails_every_other_second_is_not_logged_each_time(lines: Lines) -> None:
    clock = Clock()
    outages = Outages(logger, clock)
    for second in range(3600):
        clock.now_s = second
        (outages.failed("x", "a") if second % 2 else outages.succeeded("x"))
    assert 2 <= len(lines.texts) <= 2 * 3600 / FIRST_SUMMARY_S + 2


def test_subjects_are_independent_and_bounded(lines: Lines) -> None:
    outages = Outages(logger, Clock())
    for number in range(MAX_SUBJECTS + 10):
        outages.failed(f"s{number}", "a")
    assert len(lines.texts) == MAX_SUBJECTS + 10
    outages.succeeded("s0")
    assert len(lines.texts) == MAX_SUBJECTS + 10, "the oldest are forgotten"
    for number in range(10, MAX_SUBJECTS + 10):
        outages.succeeded(f"s{number}")
    assert not outages.any_failing


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=200))
def test_the_log_tells_the_truth_and_is_bounded(steps: list[tuple[bool, int]]) -> None:
    """Lines alternate between failing and working, and any minute has at most two."""
    handler = Lines()
    logger.handlers = [handler]
    clock = Clock()
    outages = Outages(logger, clock)
    times: list[float] = []
    for is_failure, pause in steps:
        clock.now_s += pause
        (outages.failed if is_failure else lambda subject, _: outages.succeeded(subject))("x", "a")
        times += [clock.now_s] * (len(handler.texts) - len(times))
        assert outages.is_failing("x") == is_failure or not any(failed for failed, _ in steps)
    for first, third in zip(times, times[2:], strict=False):
        assert third - first >= FIRST_SUMMARY_S
    again = [index for index, text in enumerate(handler.texts) if "works again" in text]
    assert all(index > 0 and "works again" not in handler.texts[index - 1] for index in again)


def test_a_kind_has_one_line_in_an_interval_with_the_number_of_others(caplog: pytest.LogCaptureFixture) -> None:
    loop = MemoryLoop()

    async def log(kind: str, message: str, *args: object, error: BaseException | None = None) -> None:
        log_rate_limited(logging.getLogger("rucola.tests"), logging.WARNING, kind, message, *args, error=error)

    def fail(*numbers: int) -> None:
        for number in numbers:
            loop.run(log("one", "peer %d failed", number))

    fail(*range(1000))
    loop.run(log("other", "100%% of %s", "it", error=KeyError("x")))
    for intervals, numbers in ((1, (0, 1, 2)), (9, (7,)), (1, (8,))):
        loop.now_ms += int(intervals * LINE_INTERVAL_S * 1000)
        fail(*numbers)
    loop.close()
    assert [record.message for record in caplog.records] == [
        "peer 0 failed", "100% of it", "peer 0 failed; 999 more since the last line",
        "peer 7 failed; 2 more since the last line", "peer 8 failed",
    ]  # fmt: skip
    assert [record.exc_info is not None for record in caplog.records] == [False, True, False, False, False]
