"""Log lines that peers can cause at will."""

from __future__ import annotations

import logging

import pytest

from rucola.remoting.seldom_lines import LINE_INTERVAL_S, SeldomLines

logger = logging.getLogger("rucola.tests")


def test_a_kind_has_one_line_in_an_interval_with_the_number_of_others(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 5.0
    lines = SeldomLines(clock_s=lambda: now_s)
    for number in range(1000):
        lines.log(logger, logging.WARNING, "one", "peer %d failed", number)
    lines.log(logger, logging.ERROR, "other", "100%% of %s", "it", error=KeyError("x"))
    now_s += LINE_INTERVAL_S
    for number in range(3):
        lines.log(logger, logging.WARNING, "one", "peer %d failed", number)
    now_s += LINE_INTERVAL_S * 9
    lines.log(logger, logging.WARNING, "one", "peer %d failed", 7)
    now_s += LINE_INTERVAL_S
    lines.log(logger, logging.WARNING, "one", "peer %d failed", 8)
    assert [record.message for record in caplog.records] == [
        "peer 0 failed", "100% of it", "peer 0 failed; 999 more since the last line",
        "peer 7 failed; 2 more since the last line", "peer 8 failed",
    ]  # fmt: skip
    assert [record.exc_info is not None for record in caplog.records] == [False, True, False, False, False]
