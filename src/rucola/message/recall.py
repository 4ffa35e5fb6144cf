"""Recall handles: what a producer gets for a timer message, and gives back to recall it.

    v1 TOPIC BROKER DUE_MS UNIQ_KEY        in base64, with the alphabet for URLs

Corresponds to `RecallMessageHandle` of Apache RocketMQ 5.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, urlsafe_b64encode
from typing import NamedTuple

_parts = re.compile("v1 ([^ ]+) ([^ ]+) ([0-9]{1,18}) (.+)", re.DOTALL).fullmatch


class RecallHandle(NamedTuple):
    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    def __str__(self) -> str:
        return urlsafe_b64encode(" ".join(("v1", *map(str, self))).encode()).decode()


def parse_recall_handle(text: str) -> RecallHandle | None:
    """Return a parsed handle, None if the text is none."""
    try:
        found = _parts(b64decode(text, b"-_", validate=True).decode())
    except (binascii.Error, ValueError):
        return None
    if found is None:
        return None
    topic, broker_name, due, unique_key = found.groups()
    return RecallHandle(topic, broker_name, int(due), unique_key)
