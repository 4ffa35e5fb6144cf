"""The buffer into which all connections of an event loop receive."""

from __future__ import annotations

from typing import Final

READ_SIZE: Final = 256 * 1024
"""Bytes, the most that one read returns."""
SMALL_READ_SIZE: Final = 8 * 1024
"""The most that a read returns if the connection takes turns: 256 KB can be a thousand requests, 3 ms."""


class ReceiveBuffer:
    """Shared by a loop's connections: the decoder copies the bytes before `buffer_updated` returns."""

    __slots__ = ("small_view", "view")

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_SIZE))
        self.small_view = self.view[:SMALL_READ_SIZE]
