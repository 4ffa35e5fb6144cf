"""ReadHooks: what a server does with whole reads, apart from its processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rucola.remoting.connection import FastPath


class ReadHooks(NamedTuple):
    """The hooks of a server's connections; the default ones do nothing."""

    around: Callable[[bool], object] = bool
    """Called with True before several requests of one read are processed, and with False before their responses are
    written."""
    fast_path: FastPath | None = None
    """Called with the connection and the bytes of each read before it is decoded, unless earlier requests wait.

    Returns the responses to the requests at the begin of the read that it has served, and the position behind them;
    (b"", 0) if there are none.
    """
