"""Flights of the demonstration: number of rows, and their conversion to messages."""

from __future__ import annotations

import msgspec
import pytest

from rucola.demo import flights


@pytest.mark.slow
def test_every_flight_is_loaded() -> None:
    assert sum(1 for _ in flights.rows()) == flights.COUNT


def test_a_flight_becomes_a_message() -> None:
    first = flights.message(next(flights.rows(1)))
    assert (first.topic, first.tags, first.keys) == ("Flights", "UA", "N14228 UA1545-2013-01-01")
    row = msgspec.json.decode(first.body)
    assert (row["dep_delay"], row["origin"], row["dest"], row["time_hour"]) == (2, "EWR", "IAH", "2013-01-01T10:00:00Z")


def test_unknown_values_are_null() -> None:
    without_tail = next(row for row in flights.rows() if row["tailnum"] is None)
    message = flights.message(without_tail)
    assert message.keys == flights.flight_id(without_tail)
    assert b'"tailnum":null' in message.body
