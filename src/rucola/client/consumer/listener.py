"""Listeners: how the application is called with messages, and what it says of them.

A listener that returns is done with its messages; one that raises anything has failed. Two errors carry more:

    ReconsumeLater                 side by side: when these come again, and which of a batch are done all the same
    SuspendCurrentQueueAMoment     in order: how long the queue rests before the same messages come again

Answers to `MessageListenerConcurrently`, `MessageListenerOrderly` and their contexts of Apache RocketMQ 4.9.8.
Deliberate difference: Apache's listeners say by what they return, and by their context, what here an error says.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from numbers import Real
from typing import Any, TypeAlias

from rucola.errors import ConfigError, MQError
from rucola.message import MessageExt

MAX_BATCH = 1024
"""Most messages that a listener can ask for at a time, as in Apache's client."""

Listener: TypeAlias = Callable[[MessageExt], Awaitable[Any]] | Callable[[MessageExt], Any]
"""Takes one message. A coroutine function, or a plain function, which runs in a thread. What it says is ignored."""

BatchListener: TypeAlias = Callable[[list[MessageExt]], Awaitable[Any]] | Callable[[list[MessageExt]], Any]
"""Takes messages of one queue, in its order; else as a Listener."""


class ReconsumeLater(MQError):
    """Raised by a listener: these messages come again later, to some member of the group.

    `delay_level` 0 lets the broker choose, longer each time; -1 sends them to the dead letter queue at once. Of a batch
    the messages up to index `ack_index` are done; -1 is none. In order, the queue is suspended instead.
    """

    def __init__(self, delay_level: int = 0, *, ack_index: int = -1) -> None:
        _check_number("delay_level", delay_level, int)
        _check_number("ack_index", ack_index, int)
        self.delay_level = delay_level
        self.ack_index = ack_index
        super().__init__(f"to be consumed again later, delay level {delay_level}, done up to index {ack_index}")


class SuspendCurrentQueueAMoment(MQError):
    """Raised by a listener in order: the same messages come again, and nothing else of their queue before.

    `suspend_ms` is 10 to 30,000; None is what the consumer was given. Side by side it counts as any other error.
    """

    def __init__(self, suspend_ms: float | None = None) -> None:
        if suspend_ms is not None:
            _check_number("suspend_ms", suspend_ms, Real)
        self.suspend_ms = suspend_ms
        super().__init__("the queue is suspended")


class ListenerAdapter:
    """A listener made ready to be called with several messages at a time, or with one."""

    def __init__(self, function: Callable[[Any], Any], max_count: int | None) -> None:
        """`max_count` None is a Listener, any number a BatchListener.

        ConfigError unless it is 1 to 1024, and for a listener that cannot be called.
        """
        if not callable(function):
            raise ConfigError(f"a listener is called with messages, and {function!r} cannot be")
        if max_count is not None and not 1 <= max_count <= MAX_BATCH:
            raise ConfigError(f"a batch listener takes 1 to {MAX_BATCH} messages at a time, not {max_count}")
        self.max_count = max_count or 1
        self.needs_thread = not inspect.iscoroutinefunction(function)
        self._function = function
        self._takes_list = max_count is not None

    async def __call__(self, messages: list[MessageExt], threads: Executor | None) -> None:
        """Call the listener, in one of the threads if it is no coroutine function. Raises whatever it raises.

        ListenerNotCalled if no thread takes the call: then the listener has not seen the messages.
        """
        argument: Any = list(messages) if self._takes_list else messages[0]  # its own list: it may change that
        if not self.needs_thread:
            await self._function(argument)
            return
        try:
            outcome = _in_thread(self._function, argument, threads)
        except RuntimeError as error:
            raise ListenerNotCalled(f"no thread takes a call of the listener: {error}") from error
        await _result_of(outcome)


class ListenerNotCalled(MQError):
    """No thread takes a call: the pool is shut down, as at the end of the program, or the system has no thread left."""


async def call(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function of the application, in a thread if it is no coroutine function, and return its result."""
    return await (
        function(argument) if inspect.iscoroutinefunction(function) else _result_of(_in_thread(function, argument))
    )


def is_addressed_to(task: asyncio.Task[Any] | None, error: BaseException) -> bool:
    """Tell whether an error that came out of a call of the application is addressed to the calling task.

    Any other is a failure of the application: CancelledError if it awaited something that had been cancelled,
    SystemExit if a library called `sys.exit`, StopIteration, an exception of the application's own that derives from
    BaseException. The task must end with

        CancelledError      if the task itself was cancelled
        GeneratorExit       if its coroutine is closed, which happens outside the task
        KeyboardInterrupt   on the main thread, the only one on which Ctrl-C raises it
    """
    match error:
        case asyncio.CancelledError():
            return task is not None and task.cancelling() > 0
        case GeneratorExit():
            return _running_task() is not task
        case KeyboardInterrupt():
            return threading.current_thread() is threading.main_thread()
    return False


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return None


_Outcome: TypeAlias = tuple[Any, BaseException | None]


class _ThreadCall:
    """A call of a function in a thread, which returns its result, or the error that it raised, as a value.

    As exceptions of a future some errors do not arrive: asyncio refuses StopIteration, so that the future never
    completes, and turns concurrent.futures.CancelledError into a cancellation of the task that waits.
    """

    __slots__ = ("argument", "function", "is_withdrawn")

    def __init__(self, function: Callable[[Any], Any], argument: Any) -> None:
        self.function = function
        self.argument = argument
        self.is_withdrawn = False

    def __call__(self) -> _Outcome:
        if self.is_withdrawn:
            return None, None
        try:
            return self.function(self.argument), None
        except BaseException as error:
            return None, error


def _in_thread(
    function: Callable[[Any], Any], argument: Any, threads: Executor | None = None
) -> asyncio.Future[_Outcome]:
    """Call a function in a thread. RuntimeError if none takes the call, which is then not made."""
    call = _ThreadCall(function, argument)
    try:
        return asyncio.get_running_loop().run_in_executor(threads, call)
    except RuntimeError:
        call.is_withdrawn = True  # if no thread could be started, the executor keeps the call for the next one
        raise


async def _result_of(called: asyncio.Future[_Outcome]) -> Any:
    """Wait for a call in a thread and return its result, or raise its error.

    Some are coroutine functions at heart and do not look it: an object with `async def __call__`, a lambda around one.
    The awaitable that such a call returns is awaited, or a message would count as done before it was looked at.
    """
    result, error = await called
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame: a cycle
    return await result if inspect.isawaitable(result) else result


def _check_number(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {value!r}: it must be a number")
