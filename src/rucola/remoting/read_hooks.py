"""ReadHooks: how a server serves several requests of one read together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rucola.remoting.connection import ReadServer, RunServer


class ReadHooks(NamedTuple):
    """By default requests are served one by one, by their processors."""

    reads: Sequence[ReadServer] = ()
    """Called with an undecoded read until one has served requests at its start: returns responses, and the position
    after these requests, or 0."""
    runs: Mapping[int, RunServer] = {}
    """By request code: called, instead of a processor, with several requests that follow each other."""
