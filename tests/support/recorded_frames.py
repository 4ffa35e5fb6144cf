"""The recorded frames of `golden/wire.jsonl`: requests that went to a real Apache RocketMQ 4.9.8 and their answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rucola import fastjson
from rucola.errors import RemoteProtocolError
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder


@dataclass(frozen=True)
class Exchange:
    """One recorded request and, unless it was one-way, its answer; whole frames."""

    id: int
    serializer: str
    code: int
    port: int
    request: bytes
    answer: bytes | None

    def __str__(self) -> str:
        return f"{self.serializer}-{self.code}-{self.id}"


@cache
def exchanges(golden: Path) -> list[Exchange]:
    """Every recorded request, in the order in which they were sent."""
    rows = frames(golden)
    answers = {row["pairOf"]: bytes.fromhex(row["frame"]) for row in rows if "pairOf" in row}
    return [
        Exchange(
            id=row["id"],
            serializer=row["serialize"],
            code=row["code"],
            port=int(row["dst"].rpartition(":")[2]),
            request=bytes.fromhex(row["frame"]),
            answer=answers.get(row["id"]),
        )
        for row in rows
        if row["type"] != "response"
    ]


@cache
def frames(golden: Path) -> list[dict[str, Any]]:
    """Every row of the recording."""
    with open(golden / "wire.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def decode(frame: bytes) -> RemotingCommand:
    """The one command of a whole frame."""
    (command,) = FrameDecoder().receive_data(frame)
    return command


def shape(body: bytes) -> Any:
    """What a body is made of: names and kinds of a JSON document's members, else whether there are bytes at all.

    Maps from data (topics, groups, queues, numbers) count as the set of the shapes of their values, and a list as
    the set of the shapes of its items, so that only differences of format show.
    """
    if not body:
        return "nothing"
    try:
        return _shape(fastjson.loads(body))
    except RemoteProtocolError:
        return "bytes"


MAPS_OF_DATA = {
    "brokerAddrs", "brokerAddrTable", "clusterAddrTable", "consumeStatsList", "filterServerTable", "offsetTable",
    "table", "topicConfigTable", "subscriptionGroupTable", "subscriptionTable", "offsets", "configTable", "properties",
}  # fmt: skip


def _shape(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        if name in MAPS_OF_DATA or not any(isinstance(key, str) for key in value):
            return "map", frozenset(_shape(member) for member in value.values())
        return "object", frozenset((key, _shape(member, key)) for key, member in value.items())
    if isinstance(value, list):
        return "list", frozenset(_shape(item, name) for item in value)
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, (int, float)) else "text"
