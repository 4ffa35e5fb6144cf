"""Editing: a property string as a client sends it, made what lies on disk.

WAIT is a matter between client and broker and goes, CLUSTER says where the message was taken in and is put at the end,
and so is no separator. All else stays as it came, byte for byte: the string is edited, not rebuilt, since every message
passes here.

    UNIQ_KEY 0x01 7F00... 0x02 WAIT 0x01 true 0x02 TAGS 0x01 TagA 0x02                   as it comes
    UNIQ_KEY 0x01 7F00... 0x02 TAGS 0x01 TagA 0x02 CLUSTER 0x01 DefaultCluster           as it is stored

The properties of a batch are in the header of its request. They are appended to those of each of its messages, before
CLUSTER, so of equal names theirs win.

Messages of a topic mostly have the same properties in the same order. So the first two that do leave a form behind, and
those that follow are taken apart by it in half the time. A form says nothing of values.

Answers to what SendMessageProcessor of Apache RocketMQ 4.9.8 does between string2messageProperties and
messageProperties2String, and for batches to CommitLog.MessageExtEncoder. Deliberate differences: WAIT is not stored
with the messages of a batch either, where Apache stores it twice; a batch with DELAY, TRAN_MSG or a time in one of its
messages, or with the last two in its header, is refused, where Apache ignores that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from rucola.broker.delivery.delay import delay_level
from rucola.broker.delivery.timer import TIMER_PROPERTIES
from rucola.errors import InvalidMessage
from rucola.message import properties
from rucola.message.properties import is_true

EditedProperties = tuple[bytes, str | None, str | None, str | None, str | None]
"""Of a message: (stored property string, tag, unique key, KEYS, WAIT)."""

EditedBatch = tuple[list[bytes], Sequence[str | None], Sequence[str | None], Sequence[str | None]]
"""Of the messages of a batch: (stored property strings, tags, unique keys, KEYS)."""

_UNUSUAL: Final = frozenset({properties.DELAY, properties.TRAN_MSG, properties.CLUSTER, *TIMER_PROPERTIES})
"""Properties that a string must not have to be stored as it is, but for WAIT and CLUSTER."""

_DISPATCHED: Final = (properties.TAGS, properties.UNIQ_KEY, properties.KEYS)
"""Properties that lead to a message."""

_READ: Final = (*_DISPATCHED, properties.WAIT)
"""All that are read here."""

_MOST_NAMES: Final = 64
"""A string with more is taken apart by hand: to make a form takes long, and senders wait."""

_WAIT_TRUE: Final = f"\x02{properties.WAIT}\x01true\x02".encode()
_BETWEEN: Final = b"\x00\x02"


class PropertyEditor:
    """The editing of a broker that belongs to a cluster."""

    def __init__(self, cluster_name: str) -> None:
        self._cluster = f"{properties.CLUSTER}\x01{cluster_name}"
        self._end = self._shared_end = f"\x02{self._cluster}".encode()
        self._shared = ""
        self._shared_columns: list[tuple[int, str]] = []
        self._last_names: dict[str, tuple[str, ...]] = {}
        self._forms: dict[str, tuple[re.Pattern[str], tuple[int, ...]]] = {}

    def edit(self, topic: str, text: str) -> EditedProperties | None:
        """Return what the property string of a message for `topic` becomes.

        None where the string is not well formed, or asks for more than to be stored.
        """
        form = self._forms.get(topic)
        if form is not None and (found := form[0].fullmatch(text)) is not None:
            before, behind, tags, unique_key, keys, wait = found.group(*form[1])
            return (before + behind).encode() + self._end, tags, unique_key, keys, wait
        edited = self._by_hand(text)
        if edited is None:
            return None
        pairs, segments = edited
        if "" in pairs or "" in pairs.values():
            return None  # Apache stores no property without a name or a value
        names = tuple(pairs)
        if names == self._last_names.get(topic) and names[0] != properties.WAIT and len(names) <= _MOST_NAMES:
            self._forms[topic] = _form(names)
        self._last_names[topic] = names
        tags, unique_key, keys, wait = map(pairs.get, _READ)
        return "\x02".join([*segments, self._cluster]).encode(), tags, unique_key, keys, wait

    def _by_hand(self, text: str) -> tuple[dict[str, str], list[str]] | None:
        """Return a property string as pairs, and as segments without WAIT; None as in `edit`."""
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

    def edit_batch(self, strings: list[bytes], shared: str = "") -> EditedBatch:
        """Return what the property strings of a batch become; `shared` is the one in the header of its request.

        Raises InvalidMessage for a message that asks for what those of a batch cannot have.
        """
        if shared != self._shared:  # mostly it is that of the last batch: nothing, or WAIT
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
        """The same for strings with the same names in the same order, all at once; None where that cannot be.

        `end` is appended to each, and begins with a separator.
        """
        if strings[0].endswith(b"\x02"):
            strings = [string.removesuffix(b"\x02") for string in strings]
        columns = properties.columns(strings)
        if columns is None or not _UNUSUAL.isdisjoint(columns):
            return None
        waits = columns.get(properties.WAIT)
        if waits is not None and waits.count("true") < len(strings):
            return None
        # With a separator on both sides a property is found as a whole; what no string holds is between them.
        joined = b"\x02" + (end + _BETWEEN).join(strings) + end
        if waits is not None:
            joined = joined.replace(_WAIT_TRUE, b"\x02")
        stored = joined[1:].split(_BETWEEN)
        if len(stored) != len(strings):
            return None
        absent = [None] * len(strings)
        tags, unique_keys, keys = (columns.get(name, absent) for name in _DISPATCHED)
        return stored, tags, unique_keys, keys

    def _of_each(self, strings: list[bytes], end: bytes) -> EditedBatch:
        """The same for any strings, one by one."""
        edited = []
        for string in strings:
            text = str(string, "utf-8", "replace")
            edited.append(self._by_hand(text) or _parsed(text))
        tags, unique_keys, keys = ([pairs.get(name) for pairs, _ in edited] for name in _DISPATCHED)
        stored = [("\x02".join(segments).encode() + end).removeprefix(b"\x02") for _, segments in edited]
        return stored, tags, unique_keys, keys


def _parsed(text: str) -> tuple[dict[str, str], list[str]]:
    """Return a property string of a batch as pairs, and as segments without WAIT and CLUSTER.

    Raises InvalidMessage if it asks for a delay, a transaction or a time of its own.
    """
    pairs = properties.parse(text)
    if delay_level(pairs) > 0:
        raise InvalidMessage("a batch cannot be delayed; send the message alone, or without DELAY")
    if is_true(pairs.get(properties.TRAN_MSG)):
        raise InvalidMessage("a batch cannot be half of a transaction; send the message alone, or without TRAN_MSG")
    if not pairs.keys().isdisjoint(TIMER_PROPERTIES):
        raise InvalidMessage(
            f"a batch cannot be delivered at a time of its own ({', '.join(TIMER_PROPERTIES)}); send the message alone"
        )
    kept = pairs.keys() - {properties.WAIT, properties.CLUSTER}
    return pairs, [f"{name}\x01{value}" for name, value in pairs.items() if name in kept]


@lru_cache(maxsize=1024)
def _form(names: tuple[str, ...]) -> tuple[re.Pattern[str], tuple[int, ...]]:
    """Return what matches the property strings of these names, of which WAIT is not the first, and its groups.

    They are what is before WAIT and what is behind it, then the values of _READ.
    """
    segments = [f"{re.escape(name)}\x01(?P<value{number}>[^\x02]+)" for number, name in enumerate(names)]
    at = names.index(properties.WAIT) if properties.WAIT in names else len(names)
    before = "\x02".join(segments[:at])
    wait, *behind = [f"\x02{segment}" for segment in segments[at:]] or [""]
    pattern = re.compile(f"(?P<before>{before}){wait}(?P<behind>{''.join(behind)})\x02?(?P<never>(?!))?")
    number_of = pattern.groupindex
    read = (f"value{names.index(name)}" if name in names else "never" for name in _READ)
    return pattern, (number_of["before"], number_of["behind"], *(number_of[group] for group in read))
