"""Calls of application code, which may raise anything, even the exceptions that asyncio interprets."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeAlias

Outcome: TypeAlias = tuple[Any, BaseException | None]
"""The result of a call in a thread, or the exception that it raised."""


async def invoke(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a coroutine function on the event loop, or a plain function in a thread."""
    return await (
        function(argument) if inspect.iscoroutinefunction(function) else outcome_of(start_in_thread(function, argument))
    )


def is_addressed_to(task: asyncio.Task[Any] | None, error: BaseException) -> bool:
    """Return whether an exception from a callback must end the calling task; all others are the application's failures.

    CancelledError      if the task itself was cancelled, not something that the callback awaited
    GeneratorExit       if its coroutine is closed, which happens outside the task
    KeyboardInterrupt   on the main thread, the only one on which Ctrl-C raises it
    """
    match error:
        case asyncio.CancelledError():
            # `cancelling` counts cancellations of the task itself, not of a future that the callback awaited.
            return task is not None and task.cancelling() > 0
        case GeneratorExit():
            return _running_task() is not task
        case KeyboardInterrupt():
            return threading.current_thread() is threading.main_thread()
    return False


def start_in_thread(
    function: Callable[[Any], Any], argument: Any, threads: Executor | None = None
) -> asyncio.Future[Outcome]:
    """Call a function in a thread. RuntimeError if no thread accepts the call, which is then never made."""
    call = _ThreadCall(function, argument)
    try:
        return asyncio.get_running_loop().run_in_executor(threads, call)
    except RuntimeError:
        # If no thread can be started, the executor nevertheless keeps the call for its next thread.
        call.is_withdrawn = True
        raise


async def outcome_of(future: asyncio.Future[Outcome]) -> Any:
    """Return a call's result, awaiting an awaitable one (`async def __call__`, a lambda), or raise its exception."""
    result, error = await future
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback references this frame: a reference cycle
    return await result if inspect.isawaitable(result) else result


class _ThreadCall:
    """A call in a thread that returns its exception as a value: futures alter StopIteration and CancelledError."""

    __slots__ = ("argument", "function", "is_withdrawn")

    def __init__(self, function: Callable[[Any], Any], argument: Any) -> None:
        self.function = function
        self.argument = argument
        self.is_withdrawn = False
        """Set on the event loop's thread, read on the executor's: do not make the call."""

    def __call__(self) -> Outcome:
        if self.is_withdrawn:
            return None, None
        try:
            return self.function(self.argument), None
        except BaseException as error:
            return None, error


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs on this thread
        return None
