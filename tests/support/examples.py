"""Numbers of examples of properties, by hypothesis's profile."""

from __future__ import annotations

from hypothesis import settings

FULL = 100
"""hypothesis's own number, which the profile `quick` replaces by a smaller one (tests/conftest.py)."""


def examples(count: int) -> int:
    """Return `count`, or as much less of it as the profile takes of the usual number; never fewer than 5."""
    return max(count * settings.default.max_examples // FULL, min(count, 5))
