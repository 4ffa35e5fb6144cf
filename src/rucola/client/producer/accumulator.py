"""Accumulator: sends that begin within `linger_ms` of each other share a request.

    add      among the messages of the same topic, or chosen queue, until one has waited for `linger_ms`, or half of its
             timeout, there are MAX_COUNT, or they have MAX_SIZE bytes
    send     one batch to one queue, by the deadline of its first message
    refuse   a batch that is refused is sent again message by message: each gets its own result or error

A message that no batch may have, or that may be compressed, is sent alone, after those before it. Corresponds to
`RecordAccumulator` of Kafka's producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.producer.options import ProducerOptions
from rucola.client.producer.send_request import (
    MAX_COUNT,
    MAX_SIZE,
    SendRequest,
    SendResult,
    build_encoded_request,
    encode_part,
    is_alone,
)
from rucola.client.producer.sender import RETRY_CODES, Sender
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError
from rucola.message import Message
from rucola.protocol.codes import ResponseCode
from rucola.remoting.deadline import Deadline

_Key: TypeAlias = tuple[str, MessageQueue | None]


class _Waiting(msgspec.Struct, frozen=True):
    message: Message
    unique_key: str
    encoded: bytes
    result: asyncio.Future[SendResult]


class _Batch:
    """Messages of one request that is not sent yet."""

    __slots__ = ("deadline", "messages", "size", "timer")

    def __init__(self, deadline: Deadline, timer: asyncio.TimerHandle) -> None:
        self.deadline = deadline
        self.timer = timer
        self.messages: list[_Waiting] = []
        self.size = 0


class Accumulator:
    """The waiting messages of one producer. `build` makes the request of a message that is alone in its batch.

    Belongs to one event loop.
    """

    def __init__(
        self, sender: Sender, options: ProducerOptions, build: Callable[[Message, MessageQueue | None], SendRequest]
    ) -> None:
        self._sender = sender
        self._options = options
        self._build = build
        self._batches: dict[_Key, _Batch] = {}
        self._tasks = BackgroundTasks()

    def add(
        self, message: Message, chosen: MessageQueue | None, deadline: Deadline
    ) -> asyncio.Future[SendResult] | None:
        """Return the future of a message's result; None if it is to be sent alone. InvalidMessage."""
        key, options = (message.topic, chosen), self._options
        max_size = min(MAX_SIZE, options.max_message_size)
        unique_key, encoded = "", b""
        must_be_alone = is_alone(message, min(options.compress_threshold, max_size))
        if not must_be_alone:
            unique_key, encoded = encode_part(message, chosen, options.max_message_size)
            must_be_alone = len(encoded) > max_size
        batch = self._batches.get(key)
        if batch is not None and (
            must_be_alone or batch.size + len(encoded) > max_size or batch.deadline.timeout_ms != deadline.timeout_ms
        ):
            self._send(key)
            batch = None
        if must_be_alone:
            return None
        loop = asyncio.get_running_loop()
        if batch is None:
            assert options.linger_ms is not None, "producers without linger_ms have no accumulator"
            linger_ms = min(options.linger_ms, deadline.timeout_ms / 2)
            batch = self._batches[key] = _Batch(deadline, loop.call_later(linger_ms / 1000, self._send, key))
        waiting = _Waiting(message, unique_key, encoded, loop.create_future())
        batch.messages.append(waiting)
        batch.size += len(encoded)
        if len(batch.messages) == MAX_COUNT:
            self._send(key)
        return waiting.result

    def flush(self) -> None:
        """Send what waits."""
        for key in list(self._batches):
            self._send(key)

    def _send(self, key: _Key) -> None:
        batch = self._batches.pop(key)
        batch.timer.cancel()
        # A caller that was cancelled has not sent its message.
        if messages := [waiting for waiting in batch.messages if not waiting.result.done()]:
            self._tasks.start(self._send_batch(messages, key[1], batch.deadline), f"send of a batch to {key[0]}")

    async def _send_batch(self, messages: list[_Waiting], chosen: MessageQueue | None, deadline: Deadline) -> None:
        """Send messages in one request and set their results."""
        first = messages[0].message
        try:
            if len(messages) == 1:
                request = self._build(first, chosen)
            else:
                body, keys = b"".join([each.encoded for each in messages]), [each.unique_key for each in messages]
                request = build_encoded_request(first.topic, body, keys)
            results = await self._sender.send(request, chosen, deadline)
        except BaseException as error:
            if len(messages) > 1 and _is_refusal(error):
                self._sender.counters_of(first.topic).sent_again(len(messages))
                await asyncio.gather(*(self._send_batch([each], chosen, deadline) for each in messages))
                return
            for each in messages:
                if not each.result.done():
                    each.result.set_exception(error) if isinstance(error, Exception) else each.result.cancel()
            if not isinstance(error, Exception):
                raise
        else:
            for each, result in zip(messages, results, strict=True):
                if not each.result.done():
                    each.result.set_result(result)


def _is_refusal(error: BaseException) -> bool:
    """Return whether a broker refused a batch because of one of its messages."""
    return isinstance(error, BrokerError) and error.code not in (ResponseCode.SYSTEM_BUSY, *RETRY_CODES)
