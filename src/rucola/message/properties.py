"""Message properties: their names and their encoding as one UTF-8 string of at most 32,767 bytes.

    name 0x01 value 0x02 name 0x01 value 0x02 ... name 0x01 value

There are no lengths and no escapes. A value may contain 0x01; otherwise names and values contain no separator and are
not empty. On disk nothing follows the last value; clients of other languages send a final 0x02.

`parse` is as tolerant as Apache: it ignores a segment without 0x01, an empty name or an empty value; the last of equal
names wins; invalid UTF-8 becomes U+FFFD. Counterpart of org.apache.rocketmq.common.message.MessageConst and
MessageDecoder.string2messageProperties. Deliberate difference: `join` rejects what `parse` would not return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rucola.errors import InvalidMessage

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
KEY_SEPARATOR: Final = " "
MAX_PROPERTIES_SIZE: Final = 0x7FFF

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
BUYER_ID: Final = "BUYER_ID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
UNIQ_KEY: Final = "UNIQ_KEY"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
INSTANCE_ID: Final = "INSTANCE_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
CLUSTER: Final = "CLUSTER"
MSG_TYPE: Final = "MSG_TYPE"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
"""Recalls the timer message with this unique key and the same time."""
POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
SHARDING_KEY: Final = "__SHARDINGKEY"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"

RESERVED: Final = frozenset(
    {
        KEYS, TAGS, WAIT, DELAY, RETRY_TOPIC, REAL_TOPIC, REAL_QID, TRAN_MSG, PGROUP, MIN_OFFSET, MAX_OFFSET,
        BUYER_ID, ORIGIN_MESSAGE_ID, TRANSFER_FLAG, CORRECTION_FLAG, MQ2_FLAG, RECONSUME_TIME, MSG_REGION,
        TRACE_ON, UNIQ_KEY, MAX_RECONSUME_TIMES, CONSUME_START_TIME, INSTANCE_ID, CORRELATION_ID,
        REPLY_TO_CLIENT, TTL, ARRIVE_TIME, PUSH_REPLY_TIME, CLUSTER, MSG_TYPE, INNER_MULTI_QUEUE_OFFSET,
    }
)  # fmt: skip
"""Property names that applications may not use."""


def parse(data: bytes | memoryview | str) -> dict[str, str]:
    """Parse a property string. Never raises: malformed segments are ignored."""
    text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    properties: dict[str, str] = {}
    for segment in text.split("\x02"):
        name, _, value = segment.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


_ALL_BUT_SEPARATORS: Final = bytes(byte for byte in range(256) if byte not in (1, 2))


def columns(strings: Sequence[bytes]) -> dict[str, list[str]] | None:
    """Parse many strings into lists of values by name, at a third of the cost; None if names or order differ.

    An empty value is returned as it is; other segments that `parse` ignores make the result None.
    """
    names = list(parse(strings[0]))
    count = len(names) * len(strings)
    joined = b"\x02".join(strings)
    if joined.translate(None, _ALL_BUT_SEPARATORS) != (b"\x01\x02" * count)[:-1]:
        return None
    try:
        parts = joined.decode().replace("\x01", "\x02").split("\x02")
    except UnicodeDecodeError:
        return None
    if parts[::2] != names * len(strings):
        return None
    return {name: parts[2 * number + 1 :: 2 * len(names)] for number, name in enumerate(names)}


def is_true(value: bool | str | None) -> bool:
    """Return whether a boolean property or ext field is true, as in Java: only `true` is, in any case."""
    return value is True or (isinstance(value, str) and value.lower() == "true")


def join(properties: Mapping[str, str]) -> bytes:
    """Encode `properties`, without a final separator. Raises InvalidMessage if `parse` would not return them."""
    if not properties:
        return b""
    text = "\x02".join([f"{name}\x01{value}" for name, value in properties.items()])
    count = len(properties)
    # Two counts replace checks of every pair: with the right number of separators, only an empty name or value is left
    # to exclude, a separator next to another or at an end.
    is_usual = text.count("\x01") == count and text.count("\x02") == count - 1
    if not is_usual or "\x01\x02" in text or "\x02\x01" in text or text[0] == "\x01" or text[-1] == "\x01":
        _check(properties)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"properties contain a character that is not Unicode text: {error}") from error
    if len(data) > MAX_PROPERTIES_SIZE:
        raise InvalidMessage(f"properties take {len(data)} bytes; a record has room for {MAX_PROPERTIES_SIZE}")
    return data


def _check(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if not name or not value:
            raise InvalidMessage(f"property {name!r} has the value {value!r}; name and value may not be empty")
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise InvalidMessage(
                f"property {name!r} has the value {value!r}; 0x02 separates properties, and the first 0x01 ends a name"
            )
