"""The recording `golden/differential.jsonl.xz`: requests to a real Apache 4.9.8, its responses and resulting state.

`golden/README.md` describes the format. Each sequence uses topics and groups of its own.
"""

from __future__ import annotations

import base64
import json
import lzma
import struct
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).parents[2] / "golden" / "differential.jsonl.xz"
BROKER = "b"
NAMESRV = "n"


@dataclass(frozen=True)
class Sequence:
    """Requests, the response to each, and the resulting state. `number` counts from 1."""

    number: int
    name: str
    requests: list[dict[str, Any]]
    answers: list[dict[str, Any]]
    state: dict[str, Any]


@cache
def recorded() -> list[Sequence]:
    """Return all sequences in recorded order."""
    with lzma.open(RECORDING, "rt", encoding="utf-8") as lines:
        return [Sequence(number, **json.loads(line)) for number, line in enumerate(lines, 1)]


class Placeholders:
    """Values for the placeholders of one replay: names, addresses, times, and fields of earlier responses.

    `answers` holds the header fields of responses by index of their request, for `$ref`.
    """

    def __init__(self, suffix: str, broker: str, namesrv: str) -> None:
        self.suffix = suffix
        self.answers: dict[int, dict[str, str]] = {}
        self._values = {"{N}": suffix, "{K}": f"K{suffix}", "{BR}": broker, "{NS}": namesrv}
        for kind in "TGC":
            self._values |= {f"{{{kind}{number}}}": f"{kind}{letter}{suffix}" for number, letter in enumerate("abc")}

    def fill(self, value: Any) -> Any:
        """Replace the placeholders in a JSON value, at any depth."""
        if isinstance(value, str):
            for placeholder, text in self._values.items():
                value = value.replace(placeholder, text)
            return value
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$now" in value:
            return str(time.time_ns() // 1_000_000 + value["$now"])
        if "$ref" in value:
            return (
                self._referred(*value["$ref"]) if "add" not in value else self._referred(*value["$ref"], value["add"])
            )
        if "$b64" in value:
            return value
        return {self.fill(name): self.fill(member) for name, member in value.items()}

    def _referred(self, request: int, field: str, add: int = 0) -> str:
        answer = self.answers.get(request, {})
        match field:
            case "qoff":
                return str(int(answer.get("queueOffset", "0")) + add)
            case "phys":
                return str(int(answer.get("msgId", "0")[-16:], 16) + add)
            case "msgId":
                return answer.get("msgId", "")
            case _:
                raise ValueError(f"unknown field {field!r} in a $ref")

    def body(self, value: Any) -> bytes:
        """Encode the body of a request."""
        if isinstance(value, dict) and "$b64" in value:
            return base64.b64decode(value["$b64"])
        value = self.fill(value)
        if isinstance(value, dict) and "$batch" in value:
            return b"".join(_batched(self.body(body), flag, properties) for body, flag, properties in value["$batch"])
        return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _batched(body: bytes, flag: int, properties: str) -> bytes:
    """Encode one message for the body of SEND_BATCH_MESSAGE."""
    pairs = properties.encode()
    head = struct.pack(">iiiii", 22 + len(body) + len(pairs), 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(pairs)) + pairs
