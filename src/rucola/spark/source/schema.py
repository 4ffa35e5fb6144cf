"""The columns of a message, as Spark SQL types.

This module imports neither Arrow nor numpy nor a session, so that Python processes in which Spark only reads the schema
start quickly.
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
    "bodyError": "string",
    "bornTimestampRaw": "bigint",
    "storeTimestampRaw": "bigint",
}
"""Name and type of every column, in order.

`body` is decompressed; if that is impossible it is as stored, and `bodyError` says why. `tags` is null without a tag,
`keys` without keys. `msgId` is the producer's unique key, or the offsetMsgId of a message without one. Timestamps are
UTC with millisecond resolution. A number that is no time from 1970 to 2262, which Spark, pandas and Python all have, is
a null timestamp and is in `bornTimestampRaw` or `storeTimestampRaw`. The last three columns are null for every other
message.
"""

LAST_TIME_MS: Final = (2**63 - 1) // 10**6
"""The last time of pandas, in 2262. A number of milliseconds outside 0 to this is no time here."""

CORRUPT: Final = "_corrupt"
"""The additional column of corruptRecords=column: NULL for a message, the reason for a damaged record."""

TYPES: Final[Mapping[str, str]] = {**COLUMNS, CORRUPT: "string"}


def ddl(names: Sequence[str]) -> str:
    """Return the schema of these columns as DDL of Spark SQL."""
    return ", ".join(f"{name} {TYPES[name]}" for name in names)
