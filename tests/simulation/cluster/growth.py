"""The sizes of what a server or client keeps: lists, tables and queues in the objects below it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

_LEAVES = (str, bytes, bytearray, memoryview, int, float, type, asyncio.AbstractEventLoop)


def sizes(root: object) -> dict[str, int]:
    """The number of items of the largest container in each attribute of the program's own classes, by name.

    A deque with a `maxlen` counts as empty: that is its bound.
    """
    found: dict[str, int] = {}
    seen = {id(None)}
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen or isinstance(value, _LEAVES):
            continue
        seen.add(id(value))
        if isinstance(value, (dict, list, set, frozenset, tuple, deque)):
            is_bounded = isinstance(value, deque) and value.maxlen is not None
            found[name] = max(found.get(name, 0), 0 if is_bounded else len(value))
            waiting += [(f"{name}[]", item) for item in (value.values() if isinstance(value, dict) else value)]
        elif (owner := getattr(value, "__self__", None)) is not None:
            waiting.append(("", owner))  # a bound method
        elif type(value).__module__.startswith("rucola."):
            kind = type(value)
            waiting += [(f"{kind.__name__}.{each}", getattr(value, each, None)) for each in _attributes(value)]
    return found


def _attributes(value: object) -> list[str]:
    slots = [each for kind in type(value).__mro__ for each in _slots(kind)]
    return [*getattr(value, "__dict__", ()), *slots]


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
