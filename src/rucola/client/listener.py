"""Listeners: how the application is called with messages, and what it says of them.

A listener that returns is done with its messages; one that raises is not. Two errors say more than that:

    ReconsumeLater                 side by side: when these come again, and which of a batch are done all the same
    SuspendCurrentQueueAMoment     in order: how long the queue rests before the same messages come again

Answers to `MessageListenerConcurrently`, `MessageListenerOrderly` and their contexts of Apache RocketMQ 4.9.8.
Deliberate difference: Apache's listeners say by what they return, and by their context, what here an error says.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
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
        self.delay_level = delay_level
        self.ack_index = ack_index
        super().__init__(f"to be consumed again later, delay level {delay_level}, done up to index {ack_index}")


class SuspendCurrentQueueAMoment(MQError):
    """Raised by a listener in order: the same messages come again, and nothing else of their queue before.

    `suspend_ms` is 10 to 30,000; None is what the consumer was given. Side by side it counts as any other error.
    """

    def __init__(self, suspend_ms: float | None = None) -> None:
        self.suspend_ms = suspend_ms
        super().__init__("the queue is suspended")


class Call:
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
        """Call the listener, in one of the threads where it is no coroutine function. Whatever it raises is raised."""
        argument: Any = messages if self._takes_list else messages[0]
        if self.needs_thread:
            await _in_thread(self._function, argument, threads)
        else:
            await self._function(argument)


async def call(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function of the application, in a thread where it is no coroutine function, and return what it says."""
    return await (function(argument) if inspect.iscoroutinefunction(function) else _in_thread(function, argument))


async def _in_thread(function: Callable[[Any], Any], argument: Any, threads: Executor | None = None) -> Any:
    """Call a function in a thread, and return what it says.

    Some are coroutine functions at heart and do not look it: an object with `async def __call__`, a lambda around one.
    What such a call returns is awaited, or a message would count as done before anybody had looked at it.
    """
    result = await asyncio.get_running_loop().run_in_executor(threads, function, argument)
    return await result if inspect.isawaitable(result) else result
