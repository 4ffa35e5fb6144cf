"""Calls of application code, which may raise anything, even the exceptions that asyncio interprets."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias

from rucola.client.daemon_threads import DaemonThreads

Outcome: TypeAlias = tuple[Any, BaseException | None]
"""The result of a call in a thread, or the exception that it raised."""


async def invoke(function: Callable[[Any], Any], argument: Any, threads: DaemonThreads) -> Any:
    """Call a coroutine function on the event loop, or a plain function in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(argument)
    outcomes: list[Outcome] = []
    await start_in_thread(function, deque([argument]), outcomes, threads)
    return await outcome_of(outcomes[0])


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
    function: Callable[[Any], Any], arguments: deque[Any], outcomes: list[Outcome], threads: DaemonThreads
) -> asyncio.Future[None]:
    """Call a function in a thread with each of the `arguments`, which the thread removes, as may the caller.

    The calls see the context variables of the caller. The thread appends each outcome when the call returns.
    RuntimeError if no thread accepts the calls, which are then never made.
    """

    def call_all() -> None:
        while True:
            try:
                argument = arguments.popleft()
            except IndexError:
                return
            # Exceptions are values: futures alter StopIteration and CancelledError.
            try:
                outcomes.append((function(argument), None))
            except BaseException as error:
                outcomes.append((None, error))

    return asyncio.wrap_future(threads.submit(partial(copy_context().run, call_all)))


async def outcome_of(outcome: Outcome) -> Any:
    """Return a call's result, awaiting an awaitable one (`async def __call__`, a lambda), or raise its exception."""
    result, error = outcome
    if error is not None:
        try:
            raise error
        finally:
            del error, outcome  # its traceback references this frame: a reference cycle
    return await result if inspect.isawaitable(result) else result


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs on this thread
        return None
