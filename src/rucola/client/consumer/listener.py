"""Listeners: the application's callbacks for messages, and the exceptions by which they request redelivery.

A listener that returns None has consumed its messages. A listener that raises has failed, and its messages are retried
(see `rucola.client.consumer.retry`). Two exceptions carry details:

    ReconsumeLater                 concurrently: the delay level, and which messages of a batch were consumed
    SuspendCurrentQueueAMoment     in order: how long the queue is suspended before its messages are redelivered

A listener may also return a status of Apache's listeners. Any other result is a failure, since it may be meant as one.

Corresponds to `MessageListenerConcurrently`, `MessageListenerOrderly` and their contexts of Apache RocketMQ 4.9.8.
Deliberate difference: Apache's listeners report details in a context, Rucola's by an exception.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from numbers import Real
from typing import Any, TypeAlias

from rucola.client.callbacks import Outcome, outcome_of, start_in_thread
from rucola.client.daemon_threads import DaemonThreads
from rucola.errors import ConfigError, MQError
from rucola.message.message import MessageExt, V

MAX_BATCH = 1024
"""The largest batch that a listener may request, as in Apache's client."""


class ConsumeConcurrentlyStatus(Enum):
    """What a concurrent listener may return."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """What an ordered listener may return."""

    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


ConsumeStatus: TypeAlias = ConsumeConcurrentlyStatus | ConsumeOrderlyStatus | None
"""None means that the messages were consumed."""

Listener: TypeAlias = Callable[[MessageExt[V]], Awaitable[ConsumeStatus]] | Callable[[MessageExt[V]], ConsumeStatus]
"""Receives one message; a coroutine function, or a plain function, which runs in a thread."""

BatchListener: TypeAlias = (
    Callable[[list[MessageExt[V]]], Awaitable[ConsumeStatus]] | Callable[[list[MessageExt[V]]], ConsumeStatus]
)
"""Receives several messages of one queue, in the order of the queue; otherwise like a Listener."""


class ReconsumeLater(MQError):
    """Raised by a listener: redeliver these messages later, to any member of the group.

    `delay_level` 0 lets the broker choose a growing delay; -1 selects the dead letter queue. Of a batch, the messages
    up to index `ack_index` were consumed; -1 means none. In order, the queue is suspended instead.
    """

    def __init__(self, delay_level: int = 0, *, ack_index: int = -1) -> None:
        _check_number("delay_level", delay_level, int)
        _check_number("ack_index", ack_index, int)
        self.delay_level = delay_level
        self.ack_index = ack_index
        super().__init__(f"reconsume later: delay level {delay_level}, consumed up to index {ack_index}")


class SuspendCurrentQueueAMoment(MQError):
    """Raised by an ordered listener: redeliver the same messages before any other of their queue.

    `suspend_ms` is 10 to 30,000, by default the option `suspend_current_queue_ms`. A concurrent consumer treats it as
    any other failure.
    """

    def __init__(self, suspend_ms: float | None = None) -> None:
        if suspend_ms is not None:
            _check_number("suspend_ms", suspend_ms, Real)
        self.suspend_ms = suspend_ms
        super().__init__("the queue is suspended")


class UnknownStatus(MQError):
    """A listener returned something else than a ConsumeStatus; `subject` is its type."""


class ListenerNotCalled(MQError):
    """No thread accepted the call: none can be started."""


def check_status(result: object) -> None:
    """Raise what the result of a listener asks for. UnknownStatus."""
    match result:
        case None | ConsumeConcurrentlyStatus.CONSUME_SUCCESS | ConsumeOrderlyStatus.SUCCESS:
            return
        case ConsumeConcurrentlyStatus.RECONSUME_LATER:
            raise ReconsumeLater
        case ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
            raise SuspendCurrentQueueAMoment
    raise UnknownStatus(
        f"the listener returned {result!r:.100}: it must return None or a ConsumeConcurrentlyStatus or "
        "ConsumeOrderlyStatus when it has consumed a message, and raise an exception to receive it again",
        subject=type(result).__name__,
    )


def _check_parameters(function: Callable[[Any], Any], argument: str) -> None:
    """Raise ConfigError if a listener cannot be called with one argument, since each message would fail."""
    try:
        # The function itself is called, not the one that `functools.wraps` refers to.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # functions of C may have none
        return
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(f"listener {name}{signature} must take one argument: it is called with {argument}") from None


class ListenerAdapter:
    """One calling convention for all listeners: single or batch, coroutine function or plain function."""

    def __init__(self, function: Callable[[Any], Any], max_count: int | None) -> None:
        """Wrap a Listener if `max_count` is None, else a BatchListener. ConfigError."""
        if not callable(function):
            raise ConfigError(f"a listener must be callable, and {function!r} cannot be called")
        _check_parameters(function, "a message" if max_count is None else "a list of messages")
        if max_count is not None and not 1 <= max_count <= MAX_BATCH:
            raise ConfigError(
                f"a batch listener takes 1 to {MAX_BATCH} messages at a time, not {max_count}", subject="max_count"
            )
        self.max_count = max_count or 1
        self.needs_thread = not inspect.iscoroutinefunction(function)
        """Whether the listener is a plain function, which must not block the event loop."""
        self._function = function
        self.takes_list = max_count is not None

    async def __call__(self, messages: list[MessageExt], threads: DaemonThreads) -> None:
        """Call the listener, and raise its failure. ListenerNotCalled: it has not seen the messages."""
        # A batch listener gets a copy, since it may modify its list.
        argument: Any = list(messages) if self.takes_list else messages[0]
        if not self.needs_thread:
            check_status(await self._function(argument))
        else:
            outcomes: list[Outcome] = []
            await self.start_in_thread(deque([argument]), outcomes, threads)
            await self.end(outcomes[0])

    async def end(self, outcome: Outcome) -> None:
        """End a call in a thread: await what it returned, if it is awaitable, and raise its failure."""
        check_status(await outcome_of(outcome))

    def start_in_thread(
        self, arguments: deque[Any], outcomes: list[Outcome], threads: DaemonThreads
    ) -> asyncio.Future[None]:
        """Call a plain function in a thread, see `callbacks.start_in_thread`. ListenerNotCalled."""
        try:
            return start_in_thread(self._function, arguments, outcomes, threads)
        except RuntimeError as error:
            raise ListenerNotCalled(f"no thread accepts a call of the listener: {error}") from error


def _check_number(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {value!r}: it must be a number")
