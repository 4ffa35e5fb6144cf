"""ReadHooks: a server's processing of whole reads, in addition to its processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rucola.remoting.connection import FastPath


class ReadHooks(NamedTuple):
    """The default hooks do nothing."""

    around: Callable[[bool], object] = bool
    """Called with True before several requests of one read, and with False before their responses are written."""
    fast_path: FastPath | None = None
    """Called with an undecoded read; returns responses and the position after their requests, or (b"", 0)."""
