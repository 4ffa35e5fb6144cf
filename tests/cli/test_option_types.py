"""Option values: times in every accepted format, and addresses."""

from __future__ import annotations

import time

import click
import pytest

from rucola.cli.option_types import ADDRESS, ADDRESSES, TimeType
from rucola.presentation import parse_time


@pytest.mark.usefixtures("_utc")
@pytest.mark.parametrize(
    "text",
    [
        "1357017300250",
        "2013-01-01T05:15:00.250",
        "2013-01-01 05:15:00.250",
        "2013-01-01T05:15:00.250Z",
        "2013-01-01T07:15:00.250+02:00",
        "20130101T051500.250",
        "2013-01-01#05:15:00:250",
        " 2013-01-01#05:15:00:250 ",
    ],
)
def test_every_format_of_a_time_is_accepted(text: str) -> None:
    assert parse_time(text) == 1_357_017_300_250


@pytest.mark.usefixtures("_utc")
def test_a_date_is_its_midnight_and_now_is_now() -> None:
    assert parse_time("2013-01-01") == 1_356_998_400_000
    before = time.time_ns() // 1_000_000
    assert before <= parse_time("now") <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("milliseconds", [1, 250, 333, 999])
def test_milliseconds_are_exact(milliseconds: int) -> None:
    assert parse_time(f"2013-01-01T05:15:00.{milliseconds:03}Z") % 1000 == milliseconds


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-5", "2013-01-01#05:15:00", "2013-13-01", "2013-01-01T25:00", "0001-01-01", "1" * 16]
)
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time: write"):
        TimeType().convert(text, None, None)


def test_minus_one_is_the_end_where_that_has_a_meaning() -> None:
    assert TimeType(latest=True).convert("-1", None, None) == -1


def test_addresses_are_checked() -> None:
    assert ADDRESS.convert("[::1]:1", None, None) == "[::1]:1"
    assert ADDRESSES.convert("a:1;b:2", None, None) == "a:1;b:2"
    with pytest.raises(click.BadParameter, match="several addresses"):
        ADDRESS.convert("a:1;b:2", None, None)
    for wrong in ("a", "a:", ""):
        with pytest.raises(click.BadParameter, match="is no address: write host:port"):
            ADDRESS.convert(wrong, None, None)
    for wrong in ("", ";", "a:1;b"):
        with pytest.raises(click.BadParameter, match="is no address"):
            ADDRESSES.convert(wrong, None, None)
