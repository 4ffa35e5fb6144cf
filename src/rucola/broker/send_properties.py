"""Send properties: editing of a message's property string from sent to stored form.

WAIT is removed. CLUSTER names the cluster that received the message and is added at the end, without a trailing
separator. Everything else stays unchanged, byte for byte: the string is edited, not rebuilt, since every message passes
here.

    UNIQ_KEY 0x01 7F00... 0x02 WAIT 0x01 true 0x02 TAGS 0x01 TagA 0x02                   as sent
    UNIQ_KEY 0x01 7F00... 0x02 TAGS 0x01 TagA 0x02 CLUSTER 0x01 DefaultCluster           as stored

The properties in a batch's header are appended to each message's properties, before CLUSTER, so that they win over
equal names.

Single messages. Most messages of a topic have the same properties in the same order. After two consecutive messages
with equal names, a regular expression for these names is kept for the topic; it returns the values in half the time of
splitting the string. For the names UNIQ_KEY, WAIT, TAGS it is (written with ; for 0x02 and = for 0x01)

    (?P<before>UNIQ_KEY=(?P<value0>[^;]+));WAIT=(?P<value1>[^;]+)(?P<behind>;TAGS=(?P<value2>[^;]+));?(?P<never>(?!))?

`before` + `behind` is the stored string without CLUSTER; the values of TAGS, UNIQ_KEY, KEYS and WAIT are groups; the
group `never`, which cannot match, represents a missing name (here KEYS). Values contain no 0x02. A string that does not
match is split instead.

Batches. If all messages have the same names in the same order, their strings are joined, and edited by two
replacements; otherwise one by one.

Corresponds to the steps of SendMessageProcessor of Apache RocketMQ 4.9.8 between string2messageProperties and
messageProperties2String, and for batches to CommitLog.MessageExtEncoder. Deliberate differences: WAIT is not stored
with the messages of a batch either, where Apache stores it twice; a batch is refused if one of its messages has DELAY,
TRAN_MSG or a timer, or if its header has one of the last two, where Apache ignores them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from rucola import speed
from rucola.broker.delivery.delay import delay_level
from rucola.broker.delivery.timer import TIMER_PROPERTIES
from rucola.errors import InvalidMessage
from rucola.message import properties
from rucola.message.batch import decode_part
from rucola.message.hashing import tags_code
from rucola.message.properties import is_true
from rucola.speed import BatchColumns

EditedProperties = tuple[bytes, str | None, str | None, str | None, str | None]
"""Of one message: (stored property string, tag, unique key, KEYS, WAIT)."""

EditedBatch = tuple[list[bytes], Sequence[str | None], Sequence[str | None], Sequence[str | None]]
"""Of a batch, one item per message in each: (stored property strings, tags, unique keys, KEYS)."""

_UNUSUAL: Final = frozenset(
    {
        *(properties.DELAY, properties.TRAN_MSG, properties.CLUSTER, *TIMER_PROPERTIES),
        *(properties.INNER_MULTI_DISPATCH, properties.INNER_MULTI_QUEUE_OFFSET),
    }
)

_DISPATCHED: Final = (properties.TAGS, properties.UNIQ_KEY, properties.KEYS)

_READ: Final = (*_DISPATCHED, properties.WAIT)

_NAMES: Final = "\x02".join([*_READ, *sorted(_UNUSUAL)]).encode()
"""For the accelerator: the properties to read in order, then those that need more than editing."""

_MOST_NAMES: Final = 64
"""Bound of a regular expression's names, since compiling delays senders."""

_WAIT_TRUE: Final = f"\x02{properties.WAIT}\x01true\x02".encode()
_BETWEEN: Final = b"\x00\x02"


class PropertyEditor:
    """Edits property strings for a broker of one cluster. Belongs to the event loop."""

    def __init__(self, cluster_name: str) -> None:
        self._cluster = f"{properties.CLUSTER}\x01{cluster_name}"
        self._end = self._shared_end = f"\x02{self._cluster}".encode()
        """Appended to single messages, and to a batch's with the properties of `_shared`."""
        self.editing: Final = (self._end, _NAMES)
        self._shared = ""
        self._shared_columns: list[tuple[int, str]] = []
        self._last_names: dict[str, tuple[str, ...]] = {}
        """By topic, from the last message that was split."""
        self._patterns: dict[str, tuple[re.Pattern[str], tuple[int, ...]]] = {}
        """By topic: the regular expression, and the numbers of its groups to read."""

    def edit(self, topic: str, text: str) -> EditedProperties | None:
        """Return the edited property string with the values read from it; None if it is malformed or needs more."""
        # 1. The accelerator, then 2. the expression of the topic, then 3. splitting: each has a result for fewer
        # strings than the next, and costs less.
        if speed.edit_properties is not None and (edited := speed.edit_properties(text, self._end, _NAMES)) is not None:
            return edited
        known = self._patterns.get(topic)
        if known is not None and (found := known[0].fullmatch(text)) is not None:
            before, behind, tags, unique_key, keys, wait = found.group(*known[1])
            return (before + behind).encode() + self._end, tags, unique_key, keys, wait
        # 3. Splitting. It finds the names, for which an expression is made when they come for the second time in a row.
        split = self._split(text)
        if split is None:
            return None
        pairs, segments = split
        if "" in pairs or "" in pairs.values():
            return None  # Apache stores no property without a name or a value
        names = tuple(pairs)
        if names == self._last_names.get(topic) and names[0] != properties.WAIT and len(names) <= _MOST_NAMES:
            self._patterns[topic] = _pattern(names)
        self._last_names[topic] = names
        tags, unique_key, keys, wait = map(pairs.get, _READ)
        return "\x02".join([*segments, self._cluster]).encode(), tags, unique_key, keys, wait

    def _split(self, text: str) -> tuple[dict[str, str], list[str]] | None:
        """Return pairs, and segments without WAIT; None as for `edit`."""
        pairs: dict[str, str] = {}
        segments: list[str] = []
        for segment in text.removesuffix("\x02").split("\x02"):
            name, separator, value = segment.partition("\x01")
            if not separator or name in _UNUSUAL or name in pairs:
                return None
            pairs[name] = value
            if name != properties.WAIT:
                segments.append(segment)
        return pairs, segments

    def read_batch(self, body: bytes, shared: str, position: int, max_count: int) -> tuple[BatchColumns, int]:
        """Return up to `max_count` edited messages of a batch from `position`, and their end. Raises InvalidMessage."""
        if speed.read_batch is not None and not position and shared == self._shared and not self._shared_columns:
            columns = speed.read_batch(body, self._shared_end, _NAMES, max_count)
            if columns is not None and columns[0]:
                return columns, len(body)
        flags, bodies, strings, end = decode_part(body, position, max_count)
        if not bodies:
            raise InvalidMessage("the batch is empty")
        stored, tags, unique_keys, keys = self.edit_batch(strings, shared)
        return (flags, bodies, stored, list(map(tags_code, tags)), unique_keys, keys), end

    def edit_batch(self, strings: list[bytes], shared: str = "") -> EditedBatch:
        """Return the edited property strings; `shared` is the header's. InvalidMessage for delay or transaction."""
        if shared != self._shared:  # usually equal to the last batch's: empty, or WAIT
            common, appended = _parsed(shared)
            self._shared_end = "\x02".join(["", *appended, self._cluster]).encode()
            self._shared_columns = [(number, common[name]) for number, name in enumerate(_DISPATCHED) if name in common]
            self._shared = shared
        columns = self._of_alike(strings, self._shared_end) or self._of_each(strings, self._shared_end)
        if not self._shared_columns:
            return columns
        stored, *dispatched = columns
        for number, value in self._shared_columns:
            dispatched[number] = [value] * len(strings)
        tags, unique_keys, keys = dispatched
        return stored, tags, unique_keys, keys

    def _of_alike(self, strings: list[bytes], end: bytes) -> EditedBatch | None:
        """Edit strings with equal names in the same order at once; None otherwise. `end` starts with a separator."""
        if strings[0].endswith(b"\x02"):
            strings = [string.removesuffix(b"\x02") for string in strings]
        columns = properties.columns(strings)
        if columns is None or not _UNUSUAL.isdisjoint(columns):
            return None
        waits = columns.get(properties.WAIT)
        # The replacement below removes WAIT=true alone; other values are edited one by one.
        if waits is not None and waits.count("true") < len(strings):
            return None
        # 1. Join the strings into one. Each begins with a separator, so that the search for WAIT matches whole
        #    properties only. Between them is 0x00 0x02: a string that contains it changes the count below.
        #    With ; for 0x02, = for 0x01 and 0 for 0x00, two messages become
        #        ;WAIT=true;A=1;CLUSTER=c0;WAIT=true;A=2;CLUSTER=c    and, by step 2,    ;A=1;CLUSTER=c0;A=2;CLUSTER=c
        joined = b"\x02" + (end + _BETWEEN).join(strings) + end
        # 2. Remove WAIT from all of them by one replacement, and split them again.
        if waits is not None:
            joined = joined.replace(_WAIT_TRUE, b"\x02")
        stored = joined[1:].split(_BETWEEN)
        if len(stored) != len(strings):
            return None
        absent = [None] * len(strings)
        tags, unique_keys, keys = (columns.get(name, absent) for name in _DISPATCHED)
        return stored, tags, unique_keys, keys

    def _of_each(self, strings: list[bytes], end: bytes) -> EditedBatch:
        edited = []
        for string in strings:
            text = str(string, "utf-8", "replace")
            edited.append(self._split(text) or _parsed(text))
        tags, unique_keys, keys = ([pairs.get(name) for pairs, _ in edited] for name in _DISPATCHED)
        stored = [("\x02".join(segments).encode() + end).removeprefix(b"\x02") for _, segments in edited]
        return stored, tags, unique_keys, keys


def _parsed(text: str) -> tuple[dict[str, str], list[str]]:
    """Return pairs, and segments to store. Raises InvalidMessage for a delay, a transaction or a timer."""
    pairs = properties.parse(text)
    if delay_level(pairs) > 0:
        raise InvalidMessage("a batch cannot be delayed; send the message alone, or without DELAY")
    if is_true(pairs.get(properties.TRAN_MSG)):
        raise InvalidMessage("a batch cannot be half of a transaction; send the message alone, or without TRAN_MSG")
    if not pairs.keys().isdisjoint(TIMER_PROPERTIES):
        raise InvalidMessage(
            f"a batch cannot be delivered at a time of its own ({', '.join(TIMER_PROPERTIES)}); send the message alone"
        )
    kept = pairs.keys() - {properties.WAIT, properties.CLUSTER, properties.INNER_MULTI_QUEUE_OFFSET}
    return pairs, [f"{name}\x01{value}" for name, value in pairs.items() if name in kept]


@lru_cache(maxsize=1024)
def _pattern(names: tuple[str, ...]) -> tuple[re.Pattern[str], tuple[int, ...]]:
    """Return the pattern for these names, WAIT not first, and its groups to read: `before`, `behind`, then `_READ`."""
    # 1. One group for the value of each name.
    segments = [f"{re.escape(name)}\x01(?P<value{number}>[^\x02]+)" for number, name in enumerate(names)]
    # 2. The segments before and after WAIT are one group each; WAIT itself is between them.
    at = names.index(properties.WAIT) if properties.WAIT in names else len(names)
    before = "\x02".join(segments[:at])
    wait, *behind = [f"\x02{segment}" for segment in segments[at:]] or [""]
    pattern = re.compile(f"(?P<before>{before}){wait}(?P<behind>{''.join(behind)})\x02?(?P<never>(?!))?")
    # 3. Groups are read by number, which is faster than by name.
    number_of = pattern.groupindex
    read = (f"value{names.index(name)}" if name in names else "never" for name in _READ)
    return pattern, (number_of["before"], number_of["behind"], *(number_of[group] for group in read))
