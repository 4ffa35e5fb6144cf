"""Send properties: editing of a message's property string from sent to stored form.

WAIT is removed. CLUSTER names the cluster that received the message and is added at the end, without a trailing
separator. Everything else stays unchanged, byte for byte: the string is edited, not rebuilt.

    UNIQ_KEY 0x01 7F00... 0x02 WAIT 0x01 true 0x02 TAGS 0x01 TagA 0x02                   as sent
    UNIQ_KEY 0x01 7F00... 0x02 TAGS 0x01 TagA 0x02 CLUSTER 0x01 DefaultCluster           as stored

The properties in a batch's header are appended to each message's properties, before CLUSTER, so that they win over
equal names.

Corresponds to the steps of `SendMessageProcessor` of Apache RocketMQ 4.9.8 between string2messageProperties and
messageProperties2String, and for batches to `CommitLog.MessageExtEncoder`. Deliberate differences: WAIT is not stored
with the messages of a batch either, where Apache stores it twice; a batch is refused if one of its messages has DELAY,
TRAN_MSG or a timer, or if its header has one of the last two, where Apache ignores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rucola import speed
from rucola.broker.delivery.delay import delay_level
from rucola.broker.delivery.timer import TIMER_PROPERTIES
from rucola.errors import InvalidMessage
from rucola.message import properties
from rucola.message.hashing import tags_code
from rucola.message.properties import is_true
from rucola.speed import EditedProperties

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

_MAX_OTHERS: Final = 32
"""Further properties of a usual message."""

_NAMES: Final = "\x02".join([*_READ, *sorted(_UNUSUAL)]).encode()
"""For the accelerator: the properties to read in order, then those that need more than editing."""


_texts = list["str | None"]


class PropertyEditor:
    """Edits property strings for a broker of one cluster."""

    def __init__(self, cluster_name: str) -> None:
        self._cluster = f"{properties.CLUSTER}\x01{cluster_name}"
        self._end = f"\x02{self._cluster}".encode()
        """Appended to each string."""

    def edit(self, strings: list[bytes], max_keys_size: int) -> EditedProperties:
        """Edit strings up to the first that is unusual: malformed, with long KEYS, or in need of more than editing."""
        if speed.edit_properties is not None:
            edited = speed.edit_properties(strings, self._end, _NAMES, max_keys_size)
            if edited is not None:
                return edited
        stored: list[bytes] = []
        codes, unique_keys, words, waits = columns = list[int](), _texts(), _texts(), _texts()
        for string in strings:
            try:
                split = _split(string.decode())
            except UnicodeDecodeError:
                break
            # Apache stores no property without a name or a value.
            if split is None or "" in split[0] or "" in split[0].values():
                break
            pairs, segments = split
            if len(pairs.keys() - _READ) > _MAX_OTHERS:
                break
            keys = pairs.get(properties.KEYS)
            if keys is not None and len(keys) > max_keys_size:
                break
            stored.append("\x02".join([*segments, self._cluster]).encode())
            codes.append(tags_code(pairs.get(properties.TAGS)))
            unique_keys.append(pairs.get(properties.UNIQ_KEY))
            words.append(keys)
            waits.append(pairs.get(properties.WAIT))
        return stored, *columns

    def edit_batch(self, strings: list[bytes], shared: bytes = b"") -> EditedBatch:
        """Edit the strings of a batch; `shared` is its header's. InvalidMessage for a delay or a transaction."""
        common, appended = _parsed(shared)
        end = "\x02".join(["", *appended, self._cluster]).encode()
        edited = []
        for string in strings:
            text = str(string, "utf-8", "replace")
            edited.append(_split(text) or _parsed(text))
        tags, unique_keys, keys = ([(pairs | common).get(name) for pairs, _ in edited] for name in _DISPATCHED)
        stored = [("\x02".join(segments).encode() + end).removeprefix(b"\x02") for _, segments in edited]
        return stored, tags, unique_keys, keys


def _split(text: str) -> tuple[dict[str, str], list[str]] | None:
    """Return pairs, and segments without WAIT; None if the text is malformed or has a name of `_UNUSUAL`."""
    pairs: dict[str, str] = {}
    segments: list[str] = []
    text = text.removesuffix("\x02")
    for segment in text.split("\x02") if text else ():
        name, separator, value = segment.partition("\x01")
        if not separator or name in _UNUSUAL or name in pairs:
            return None
        pairs[name] = value
        if name != properties.WAIT:
            segments.append(segment)
    return pairs, segments


def _parsed(text: bytes | str) -> tuple[dict[str, str], list[str]]:
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
