"""An event loop that counts the steps of each iteration: how long a server holds its loop, the same in every run.

A step is one instruction of Python's bytecode, in the loop's own thread. The loop's clock counts STEP_S for each, so
that work which is divided by time (`rucola.slices`, `Connection`) is divided by steps here. A wait takes no time: the
clock is set to its end. Work for threads is done at once and not counted.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

from rucola.protocol.command import RemotingCommand
from simulation.in_memory import deliver
from simulation.memory_loop import MemoryClient, MemoryLoop

T = TypeVar("T")

STEP_S = 40e-9
"""What a step counts for on the loop's clock: about what one takes, with the calls into C that it makes."""


class StepLoop(MemoryLoop):
    """`most_steps` is the greatest number of steps in one iteration since it was last set to 0."""

    def __init__(self) -> None:
        self.most_steps = 0
        self._steps = 0
        self._steps_before = 0
        self._waited_s = 0.0
        self._is_counting = 1
        super().__init__(_Iterations(self._iterated))

    def time(self) -> float:
        return super().time() + self._waited_s + self._steps * STEP_S

    def run_in_executor(self, executor: Any, work: Callable[..., Any], *arguments: Any) -> Any:
        self._is_counting, before = 0, self._is_counting
        try:
            return super().run_in_executor(executor, work, *arguments)
        finally:
            self._is_counting = before

    def connect(self, port: int) -> StepClient:
        assert self._protocols is not None
        return StepClient(self._protocols(), port, self)

    def counted(self, work: Awaitable[T]) -> tuple[T, int]:
        """Run `work` to its end; return its result and the steps of the longest iteration."""
        self.most_steps, self._steps_before = 0, self._steps
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            result = self.run_until_complete(work)
        finally:
            sys.settrace(before)
        return result, self.most_steps

    def _trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            self._steps += self._is_counting
        return self._trace

    def _iterated(self, timeout: float | None) -> None:
        """Note the steps of an iteration that ends with a wait of `timeout` seconds."""
        self.most_steps = max(self.most_steps, self._steps - self._steps_before)
        self._steps_before = self._steps
        assert timeout is not None, "nothing is left to happen"
        self._waited_s += timeout


class _Iterations(selectors.DefaultSelector):
    """Calls `iterated` with the time to wait, and does not wait."""

    def __init__(self, iterated: Callable[[float | None], None]) -> None:
        super().__init__()
        self._iterated = iterated

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._iterated(timeout)
        return super().select(0)


class StepClient(MemoryClient):
    """A client whose requests are awaited."""

    def __init__(self, protocol: Any, port: int, loop: StepLoop) -> None:
        self._answered: dict[int, asyncio.Future[RemotingCommand]] = {}
        super().__init__(protocol, port, loop)

    async def request(self, command: RemotingCommand) -> RemotingCommand:
        """Send a request and wait for its response."""
        answered = self._answered[command.opaque] = self._loop.create_future()
        deliver(self._protocol, command.encode())
        return await answered

    def prepared(
        self, commands: Sequence[RemotingCommand]
    ) -> tuple[Callable[[], None], list[asyncio.Future[RemotingCommand]]]:
        """Return a function that sends requests, which the server gets in one read, and the futures of the responses.

        Both are made in advance, so that only the server's steps are counted.
        """
        answers = [self._loop.create_future() for _ in commands]
        self._answered |= dict(zip([command.opaque for command in commands], answers, strict=True))
        data = b"".join(command.encode() for command in commands)
        return lambda: deliver(self._protocol, data), answers

    def _receive(self, data: bytes) -> None:
        for command in self._decoder.receive_data(data):
            if command.flag & 1:
                self._answered.pop(command.opaque).set_result(command)
            else:
                self.told.append(command)
