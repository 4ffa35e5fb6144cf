"""Expectations of errors by what they carry; their texts are held by snapshots."""

from __future__ import annotations

from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


def raises(kind: type[E], /, **expected: object) -> pytest.RaisesExc[E]:
    """Expect an error with these attributes; those of a `Refused` may also be its fields."""

    def check(error: E) -> bool:
        carried = vars(error) | getattr(error, "fields", {})
        assert {name: carried.get(name, getattr(error, name, None)) for name in expected} == expected, error
        return True

    return pytest.raises(kind, check=check)
