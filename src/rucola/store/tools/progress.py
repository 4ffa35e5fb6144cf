"""Progress of the offline tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Called with (bytes done, bytes in total) of a walk through the log."""
