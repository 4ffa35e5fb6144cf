"""Measurement and floor in alternating rounds, so that other load affects both alike.

The floor of requests to the broker is an echo server with requests and responses of the same sizes, driven by the
same load generator in the same rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from figures import median
from load import Run, ask, drive
from servers import Process, Server, echo

ECHO = "asyncio echo with the same bytes"


@dataclass(frozen=True)
class Options:
    """Thoroughness: the number of rounds, the divisor of their size, and whether large cases have their full size."""

    rounds: int = 5
    divisor: int = 1
    is_full: bool = False
    peer: Process | None = None
    """The other broker that the benchmark `peer` measures."""

    def count(self, full: int) -> int:
        return full // self.divisor


@dataclass(frozen=True)
class Pairs:
    """The runs of the same load on the broker and on the echo server, by round."""

    broker: list[Run]
    echo: list[Run]
    requests: int
    """Number of requests that the broker answered, including the warm-up."""

    def of_broker(self, measure: Callable[[Run], float]) -> float:
        return median(measure, self.broker)

    def of_echo(self, measure: Callable[[Run], float]) -> float:
        return median(measure, self.echo)


def beside_echo(
    broker: Server, frames: Sequence[bytes], count: int, rounds: int, *, connections: int = 1, in_flight: int = 1
) -> Pairs:
    """Drive both servers in turns; `frames` must be of one size. The first round is a warm-up and not counted."""
    sizes = {len(frame) for frame in frames}
    if len(sizes) != 1:
        raise ValueError(f"an echo needs requests of one size, not of {sorted(sizes)}")
    warm_up = count // 4
    pairs = Pairs([], [], 1 + warm_up + rounds * count)
    with echo(len(frames[0]), ask(broker, frames[0])) as floor:
        for server in (floor, broker):
            drive(server, frames, warm_up, connections=connections, in_flight=in_flight)
        for _ in range(rounds):
            for server, runs in ((floor, pairs.echo), (broker, pairs.broker)):
                runs.append(drive(server, frames, count, connections=connections, in_flight=in_flight))
    return pairs


def in_turns(acts: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """Return the median seconds of each act, in alternating rounds after a warm-up."""
    seconds: list[list[float]] = []
    for _ in range(rounds + 1):
        seconds.append([])
        for act in acts:
            begin = time.perf_counter()
            act()
            seconds[-1].append(time.perf_counter() - begin)
    return [median(float, column) for column in zip(*seconds[1:], strict=True)]
