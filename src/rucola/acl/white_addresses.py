"""White addresses: patterns of peers that need no signature.

    10.10.103.7                   one address, also IPv6: 1050::5:600:300c:326b
    10.10.103.7,10.10.103.9       several
    10.10.103.{7,9}               several that differ in the last part, also 1050::5:600:300c:{326a,326b}
    10.10.103.*  10.10.*.*        a network
    10.10.5-250.*                 a range of one part, followed by `*`
    1050::5:600:300c:1-200        IPv6: a range in the last group, or in the last but one followed by `*`
    *                             every address
    (empty)                       none

Corresponds to `RemoteAddressStrategyFactory` of Apache RocketMQ 4.9.8. Deliberate differences: after a range, parts
other than ranges and `*` are an error, while Apache ignores them and so admits 10.10.5.8 for `10.10.5-9.7`; an IPv4
address in IPv6 form (::ffff:10.10.103.7) counts as IPv4.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final, TypeAlias

from rucola.errors import ConfigError

MAX_CACHED: Final = 10_000

_EVERY: Final = {"*", "*.*.*.*", "*:*:*:*:*:*:*:*"}

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"
"""Lowest and highest value of each part: 4 parts of an IPv4, 8 of an IPv6 address."""


class WhiteAddresses:
    """A set of patterns. ConfigError names a pattern that cannot be parsed."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._admits_all = False
        self._ranges: list[Ranges] = []
        self._known: dict[str, bool] = {}
        for pattern in patterns:
            text = pattern.strip()
            if text in _EVERY:
                self._admits_all = True
            elif text:
                self._ranges += _parse(text)
        self.is_empty = not self._admits_all and not self._ranges

    def admit(self, host: str) -> bool:
        """Return whether an address matches one of the patterns; False if `host` is no address."""
        if self._admits_all:
            return True
        if not self._ranges:
            return False
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            known = self._known[host] = self._matches(host)
        return known

    def _matches(self, host: str) -> bool:
        try:
            parts = _parts(host)
        except ValueError:
            return False
        return any(
            len(ranges) == len(parts)
            and all(low <= part <= high for part, (low, high) in zip(parts, ranges, strict=True))
            for ranges in self._ranges
        )


def _parse(text: str) -> list[Ranges]:
    try:
        if text.endswith("}"):
            head, _, choices = text[:-1].rpartition("{")
            if not head.endswith((".", ":")):
                raise ValueError
            return [_exactly(head + choice.strip()) for choice in choices.split(",")]
        if "," in text:
            return [_exactly(one.strip()) for one in text.split(",")]
        if "*" in text or "-" in text:
            return [_range_v6(text) if ":" in text else _range_v4(text)]
        return [_exactly(text)]
    except ValueError:
        raise ConfigError(
            f"{text!r} is no pattern of addresses: expected forms are 10.1.2.3, 10.1.2.*, 10.1.2-9.*, 10.1.2.{{3,4}}"
        ) from None


def _parts(host: str) -> tuple[int, ...]:
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        # ::ffff:10.1.2.3, as an IPv4 client appears on a socket for both.
        if address.ipv4_mapped is not None:
            return tuple(address.ipv4_mapped.packed)
        packed = address.packed
        return tuple(packed[at] << 8 | packed[at + 1] for at in range(0, 16, 2))
    return tuple(address.packed)


def _exactly(host: str) -> Ranges:
    return tuple((part, part) for part in _parts(host))


def _range_v4(text: str) -> Ranges:
    parts = [part.strip() for part in text.split(".")]
    if len(parts) != 4:
        raise ValueError
    return _ranges(parts, 10, 255)


def _range_v6(text: str) -> Ranges:
    groups = text.split(":")
    fixed = next(at for at, group in enumerate(groups) if "*" in group or "-" in group)
    tail = groups[fixed:]
    head = ":".join(groups[:fixed])
    if "::" in head or head.endswith(":"):
        # fe80::1:* has the head fe80::1 and one group after it: five groups of zeros are missing.
        left, _, right = head.partition("::")
        begin, end = left.split(":") if left else [], right.split(":") if right else []
        filled = 8 - len(tail) - len(begin) - len(end)
        if filled < 0:
            raise ValueError
        before = begin + ["0"] * filled + end
    else:
        before = head.split(":")
    if len(before) + len(tail) != 8 or len(tail) > 2:
        raise ValueError
    return _ranges(before + tail, 16, 0xFFFF)


def _ranges(parts: list[str], base: int, highest: int) -> Ranges:
    """Return the ranges of all parts. After the first part that is not a number, only `*` may follow."""
    # 10.1.2-9.* gives (10, 10), (1, 1), (2, 9), (0, 255).
    ranges: list[tuple[int, int]] = []
    only_wildcards = False
    for part in parts:
        if part == "*":
            low, high = 0, highest
        elif only_wildcards:
            raise ValueError
        elif "-" in part:
            first, _, last = part.partition("-")
            low, high = _number(first, base), _number(last, base)
        else:
            low = high = _number(part, base)
        only_wildcards |= part == "*" or "-" in part
        if not 0 <= low <= high <= highest:
            raise ValueError
        ranges.append((low, high))
    return tuple(ranges)


def _number(text: str, base: int) -> int:
    if not text.isascii() or not text.isalnum():
        raise ValueError
    return int(text, base)
