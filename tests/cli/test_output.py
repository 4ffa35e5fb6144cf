"""Output shared by all commands: JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from rucola.cli.output import to_json


class Renamed(msgspec.Struct, rename="camel", omit_defaults=True):
    queue_id: int
    broker_name: str = ""


class Plain(msgspec.Struct):
    message_id: str
    nested: list[Any]


@dataclasses.dataclass
class Counts:
    day_count: int
    by_topic: dict[str, Any]
    out_path: Path


def test_fields_are_in_camel_case_and_data_is_not() -> None:
    counts = Counts(1, {"my_topic": Plain("m_1", [Renamed(3), Counts(2, {}, Path("a_b"))])}, Path("/x"))
    assert to_json({"a_key": counts}) == {
        "a_key": {
            "dayCount": 1,
            "byTopic": {
                "my_topic": {
                    "messageId": "m_1",
                    "nested": [{"queueId": 3}, {"dayCount": 2, "byTopic": {}, "outPath": "a_b"}],
                }
            },
            "outPath": "/x",
        }
    }
