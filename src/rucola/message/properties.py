"""Message properties: their names and their encoding as a string.

On disk and on the wire the properties of a message are one UTF-8 string of at most 32,767 bytes:

    name 0x01 value 0x02 name 0x01 value 0x02 ... name 0x01 value

There are no lengths and no escapes. The first 0x01 ends a name, so a value may contain 0x01, but a name may not;
neither may contain 0x02 or be empty. On disk nothing follows the last value; clients of other languages terminate the
string with 0x02, and `parse` accepts both.

Parsing is as tolerant as Apache's: a segment without 0x01, with an empty name or with an empty value is ignored, the
last of two equal names wins, and invalid UTF-8 becomes U+FFFD. `join` accepts exactly the results of `parse`, so the
broker can always store again a message that it has read.

Counterpart of org.apache.rocketmq.common.message.MessageConst and MessageDecoder.string2messageProperties.
Apache writes any string; `join` rejects properties that would not survive a round trip.
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
"""Property names reserved by the system; applications may not use them for their own properties."""


def parse(data: bytes | memoryview | str) -> dict[str, str]:
    """Parse a property string into a dictionary, in order of the names' first appearance.

    Never raises: malformed segments are ignored, as described in the module's docstring.
    """
    text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    properties: dict[str, str] = {}
    for segment in text.split("\x02"):
        name, _, value = segment.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


_ALL_BUT_SEPARATORS: Final = bytes(byte for byte in range(256) if byte not in (1, 2))


def columns(strings: Sequence[bytes]) -> dict[str, list[str]] | None:
    """Parse many property strings into one list of values for each name.

    Returns None if they differ in shape. Each list is as long as `strings`. The messages of a batch mostly have the
    same names in the same order, and parsing them together costs a third of `parse` for each:

        1. join all strings; only the separators 0x01 and 0x02 remain after `translate`
        2. if these alternate as often as the first string predicts, every string has as many properties as it
        3. split once; every second part is a name, and slices with the stride of one string are the columns

    None is returned for strings with other names or another order, and for any segment that `parse` would ignore,
    except that an empty value is returned as it is.
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
    """Tell whether a boolean property or ext field is true by Java's rule.

    Only the word `true` is, in any case.
    """
    return value is True or (isinstance(value, str) and value.lower() == "true")


def join(properties: Mapping[str, str]) -> bytes:
    """Encode `properties` as a property string in UTF-8, without a separator after the last value.

    Raises InvalidMessage for an empty name or value, a name with 0x01, a name or value with 0x02, text that is not
    Unicode, and a string above 32,767 bytes, since `parse` would not return these properties.
    """
    if not properties:
        return b""
    text = "\x02".join([f"{name}\x01{value}" for name, value in properties.items()])
    count = len(properties)
    # Two counts over the whole string replace checks of every pair. With one 0x01 per pair and one 0x02 between
    # pairs, only an empty name or value is left to exclude: a separator next to another, or at an end.
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
    """Raise InvalidMessage for the first property that would not survive a round trip."""
    for name, value in properties.items():
        if not name or not value:
            raise InvalidMessage(f"property {name!r} has the value {value!r}; name and value may not be empty")
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise InvalidMessage(
                f"property {name!r} has the value {value!r}; 0x02 separates properties, and the first 0x01 ends a name"
            )
