"""Calls of application code: listeners, local transactions and transaction checks.

A callback is either a coroutine function, which runs on the event loop, or a plain function, which runs in a thread.
Application code may raise anything, including exceptions that asyncio gives a meaning of their own; this module keeps
these apart from cancellations of the calling task.
"""

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
    """Call an application's function, in a thread if it is a plain one."""
    return await (
        function(argument) if inspect.iscoroutinefunction(function) else outcome_of(start_in_thread(function, argument))
    )


def is_addressed_to(task: asyncio.Task[Any] | None, error: BaseException) -> bool:
    """Return whether an exception from a callback must end the calling task.

    Every other exception is a failure of the application: a CancelledError because it awaited something that had been
    cancelled, SystemExit because a library called `sys.exit`, StopIteration, or the application's own subclass of
    BaseException. The calling task must end on

        CancelledError      if the task itself was cancelled
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
            # On any other thread only application code can have raised it.
            return threading.current_thread() is threading.main_thread()
    return False


def start_in_thread(
    function: Callable[[Any], Any], argument: Any, threads: Executor | None = None
) -> asyncio.Future[Outcome]:
    """Call a function in a thread.

    Raises RuntimeError if no thread accepts the call, which is then never made.
    """
    call = _ThreadCall(function, argument)
    try:
        return asyncio.get_running_loop().run_in_executor(threads, call)
    except RuntimeError:
        # If no thread can be started, the executor nevertheless keeps the call for its next thread.
        call.is_withdrawn = True
        raise


async def outcome_of(future: asyncio.Future[Outcome]) -> Any:
    """Wait for a call in a thread and return its result, or raise its exception.

    An awaitable result is awaited: an object with `async def __call__`, or a lambda around a coroutine function, does
    not look like a coroutine function, and its message would otherwise count as consumed before the listener ran.
    """
    result, error = await future
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback references this frame: a reference cycle
    return await result if inspect.isawaitable(result) else result


class _ThreadCall:
    """A call in a thread that returns its result or exception as a value.

    Some exceptions do not survive as exceptions of a future: asyncio rejects StopIteration, so that the future never
    completes, and turns concurrent.futures.CancelledError into a cancellation of the waiting task.
    """

    __slots__ = ("argument", "function", "is_withdrawn")

    def __init__(self, function: Callable[[Any], Any], argument: Any) -> None:
        self.function = function
        self.argument = argument
        self.is_withdrawn = False
        """Set on the event loop's thread, read on the executor's: the call must not be made any more."""

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
