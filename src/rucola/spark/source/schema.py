"""The columns of a message, in Spark's words.

This much is known without Arrow, numpy or a session, so that the processes in which Spark only asks for a schema start
quickly. `columns` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

COLUMNS: Final[Mapping[str, str]] = {
    "topic": "string",
    "flag": "int",
    "body": "binary",
    "properties": "map<string,string>",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "tags": "string",
    "keys": "array<string>",
    "msgId": "string",
    "offsetMsgId": "string",
    "commitLogOffset": "bigint",
    "storeSize": "int",
    "sysFlag": "int",
    "bornHost": "string",
    "storeHost": "string",
    "reconsumeTimes": "int",
    "preparedTransactionOffset": "bigint",
}
"""Name and type of every column, in order.

`body` is decompressed; `tags` is null without a tag and `keys` null without keys; `msgId` is the unique key that the
producer gave or, without one, the offsetMsgId; timestamps are UTC, in steps of a millisecond.
"""


CORRUPT: Final = "_corrupt"
"""A further column, where it is asked for: NULL for a message, and of a damaged record what is wrong with it."""

TYPES: Final[Mapping[str, str]] = {**COLUMNS, CORRUPT: "string"}
"""Name and type of all columns there can be."""


def ddl(names: Sequence[str]) -> str:
    """Return the schema of these columns as Spark's SQL writes it."""
    return ", ".join(f"{name} {TYPES[name]}" for name in names)
