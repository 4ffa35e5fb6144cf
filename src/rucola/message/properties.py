"""Message properties: names, and the string that carries them.

On disk and on the wire the properties of a message are one UTF-8 string of at most 32,767 bytes:

    name 0x01 value 0x02 name 0x01 value 0x02 ... name 0x01 value

There are no lengths and no escapes. The first 0x01 ends a name, so a value may hold 0x01, but a name may not; neither
may hold 0x02 or be empty. On disk nothing follows the last value; clients of other languages end the string with 0x02,
and `parse` accepts both.

Parsing is as tolerant as Apache's: a segment without 0x01, with an empty name or with an empty value is ignored, the
last of two equal names wins, and invalid UTF-8 becomes U+FFFD. `join` accepts exactly what `parse` would return, so the
broker can always write again what it has read.

Answers to org.apache.rocketmq.common.message.MessageConst and MessageDecoder.string2messageProperties.
Apache writes anything; `join` rejects properties that would not survive a round trip.
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
"""Names that the system gives a meaning to. An application may not choose them for its own properties."""


def parse(data: bytes | memoryview | str) -> dict[str, str]:
    """Return the properties of a property string, in the order in which their names first appear.

    Never raises: whatever is no property is passed over (see the module's docstring).
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
    """Return the values of many property strings by name, or None where these do not have the same names in one order.

    Each list is as long as `strings`. The messages of a batch are mostly alike, since one place in a program made them;
    all together they are taken apart for a third of what `parse` costs for each. Where a value is empty it is given as
    it is; None also for strings that hold anything which `parse` would pass over otherwise.
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
    """Tell whether a boolean property or ext field is true by Java's rule: only the word `true`, in any case."""
    return value is True or (isinstance(value, str) and value.lower() == "true")


def join(properties: Mapping[str, str]) -> bytes:
    """Return the property string of `properties` in UTF-8, as it lies on disk: nothing after the last value.

    Raises InvalidMessage for an empty name or value, a name with 0x01, a name or value with 0x02, text that is not
    Unicode, and a string above 32,767 bytes: `parse` would not return these properties.
    """
    if not properties:
        return b""
    text = "\x02".join([f"{name}\x01{value}" for name, value in properties.items()])
    count = len(properties)
    # Almost always there is one 0x01 per pair and one 0x02 between pairs; then no pair may begin or end with one.
    is_usual = text.count("\x01") == count and text.count("\x02") == count - 1
    if not is_usual or "\x01\x02" in text or "\x02\x01" in text or text[0] == "\x01" or text[-1] == "\x01":
        _check(properties)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"properties hold a character that is not Unicode text: {error}") from error
    if len(data) > MAX_PROPERTIES_SIZE:
        raise InvalidMessage(f"properties take {len(data)} bytes; a record holds {MAX_PROPERTIES_SIZE} at most")
    return data


def _check(properties: Mapping[str, str]) -> None:
    """Raise InvalidMessage for the first property that `parse` would not return."""
    for name, value in properties.items():
        if not name or not value:
            raise InvalidMessage(f"property {name!r} has the value {value!r}; name and value may not be empty")
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise InvalidMessage(
                f"property {name!r} has the value {value!r}; 0x02 separates properties, and the first 0x01 ends a name"
            )
