"""HA handshake: master and slave find where their logs diverge, before anything is copied.

Both sides exchange the epochs of their logs (`rucola.protocol.replication_epochs`; not with 4.9.8). The slave compares:

- A master with an older epoch than the slave has seen is refused, and gets the newer one.
- A log of the slave beyond the divergence exists only there: `LogDiverged` has its start.
- Otherwise the slave joins, and its log is copied from a little before its end.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Final

from rucola.epochs import Epoch, divergence
from rucola.errors import RemotingConnectError, StoreError
from rucola.protocol.replication import encode_report
from rucola.protocol.replication_epochs import (
    INTRODUCTION,
    JOINS,
    KNOWS_EPOCHS,
    Greeting,
    Join,
    checked_size,
    decode_greeting,
    decode_join,
    encode_greeting,
    encode_join,
)
from rucola.remoting.byte_stream import Stream

_REPORT: Final = Struct(">q")


class NoGreeting(RemotingConnectError):
    """A master that closes the connection at the introduction, as Rucola did before epochs: a wrong report to it."""


class LogDiverged(StoreError):
    """Log with bytes that its master lacks, from `physical_offset`; 0 if nothing of the log may be kept."""

    def __init__(self, physical_offset: int, text: str) -> None:
        super().__init__(text)
        self.physical_offset = physical_offset

    def __reduce__(self) -> tuple[type[LogDiverged], tuple[int, str]]:
        return LogDiverged, (self.physical_offset, str(self))


async def greet(stream: Stream, join: Join, log_begin: int, timeout_ms: int) -> tuple[Greeting | None, bytes]:
    """Introduce a slave to its master; return the greeting, or None and the first bytes of a master without epochs.

    `log_begin` is the start of the slave's log. Raises LogDiverged, NoGreeting and RemotingConnectError.
    """
    await stream.write(encode_report(KNOWS_EPOCHS) + encode_report(join.begin))
    first = await read_exactly(stream, INTRODUCTION.size, timeout_ms, NoGreeting)
    if INTRODUCTION.unpack(first)[0] != KNOWS_EPOCHS:
        return None, first
    greeting = decode_greeting(await read_exactly(stream, checked_size(first, KNOWS_EPOCHS), timeout_ms))
    if greeting.epoch < join.newest_epoch:
        await stream.write(encode_join(join))
        raise RemotingConnectError(
            f"it is master in epoch {greeting.epoch} only; this slave has followed that of epoch {join.newest_epoch}"
        )
    await stream.write(encode_join(join))  # even if the logs have diverged: the master logs that as well
    _check_divergence(greeting, join, log_begin)
    return greeting, b""


def _check_divergence(greeting: Greeting, join: Join, log_begin: int) -> None:
    mine, theirs = as_epochs(join.epochs), as_epochs(greeting.epochs)
    point = divergence(mine, join.end, theirs, greeting.end)
    if point >= join.end:
        return
    text = f"this log ends at {join.end}, and equals the master's up to {point} only, as their epochs show"
    if point <= log_begin or point < greeting.begin:
        raise LogDiverged(0, f"{text}, which leaves nothing of it")
    raise LogDiverged(point, text)


async def welcome(stream: Stream, received: bytes, greeting: Greeting, timeout_ms: int) -> tuple[Join | None, bytes]:
    """Introduce a master to a slave; return the join, or None and the first report of a slave without epochs.

    `received` has been read before. Raises RemotingConnectError.
    """
    first = received + await read_exactly(stream, _REPORT.size - len(received), timeout_ms)
    if _REPORT.unpack(first) != (KNOWS_EPOCHS,):
        return None, first
    await read_exactly(stream, _REPORT.size, timeout_ms)  # its first report, for a master without epochs
    await stream.write(encode_greeting(greeting))
    size = checked_size(await read_exactly(stream, INTRODUCTION.size, timeout_ms), JOINS)
    return decode_join(await read_exactly(stream, size, timeout_ms)), b""


def as_epochs(pairs: tuple[tuple[int, int], ...]) -> list[Epoch]:
    return [Epoch(*pair) for pair in pairs]


async def read_exactly(
    stream: Stream, size: int, timeout_ms: int, when_closed: type[RemotingConnectError] = RemotingConnectError
) -> bytes:
    """Read `size` bytes. Raises RemotingConnectError if the peer is too slow, `when_closed` if it closes."""
    data = b""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while len(data) < size:
                piece = await stream.read(size - len(data))
                if not piece:
                    raise RemotingConnectError(
                        "it closed the connection; its log has the reason if that was on purpose"
                    )
                data += piece
    except RemotingConnectError as error:
        raise when_closed(str(error)) from None
    except TimeoutError:
        raise RemotingConnectError(f"nothing arrived for {timeout_ms} ms (haHousekeepingInterval)") from None
    return data
