"""OpenTelemetry for producers and consumers. Needs the extra `otel`, and an SDK that the program sets up.

    telemetry = Telemetry()
    Producer("shop", trace=telemetry)
    PushConsumer("kitchen", trace=telemetry)

Both faces, routers, outboxes and relays take it as their option `trace`. Names of spans, attributes and metrics are
those of OpenTelemetry's semantic conventions for messaging:

    send TOPIC         span of kind PRODUCER, or CLIENT for a batch: one call of a producer, with its retries
    process TOPIC      span of kind CONSUMER: one delivery to a listener; an exception is its error

    messaging.client.sent.messages          counter; with error.type those of sends that failed
    messaging.client.operation.duration     histogram, seconds from a request to its response
    messaging.client.consumed.messages      counter
    messaging.process.duration              histogram, seconds of a delivery

A sent message carries its context in properties, by default W3C's `traceparent` and `tracestate`. A message that has a
context already, as from the transaction in which an outbox stored it, keeps it: the span of its send is a child of it,
or links to it. The span of one delivered message is a child of the message's context; that of a batch has links.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final

from rucola.errors import missing_extra

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode
    from opentelemetry.util.types import AttributeValue
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing_extra(error, "otel"), name=error.name) from None

from rucola.client.producer.options import CompletedSend
from rucola.client.producer.producer import Producer, iterate
from rucola.client.producer.send_request import SendResult
from rucola.client.results import Results
from rucola.message import Message, MessageExt

SCOPE: Final = "rucola"
_SYSTEM: Final = {"messaging.system": "rocketmq"}


class Telemetry:
    """Spans and metrics of the producers and consumers that have it as their option `trace`.

    The providers are those of the process unless given. Thread-safe; nothing to open or to close.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer_provider, self._meter_provider = tracer_provider, meter_provider
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        self._request_s = meter.create_histogram("messaging.client.operation.duration", "s")
        self._process_s = meter.create_histogram("messaging.process.duration", "s")

    def inject(self, message: Message) -> Message:
        """Add the current context to a message, for one that is sent later and elsewhere; return the message."""
        message.properties.update(self.carrier())
        return message

    def carrier(self) -> dict[str, str]:
        """Return the current context as properties of a message."""
        found: dict[str, str] = {}
        propagate.inject(found)
        return found

    def flush(self) -> None:
        """Export what was recorded, in a process that may end without Python's exit handlers."""
        for provider in (
            self._tracer_provider or trace.get_tracer_provider(),
            self._meter_provider or metrics.get_meter_provider(),
        ):
            if (force_flush := getattr(provider, "force_flush", None)) is not None:  # the API has none, the SDK does
                force_flush()

    # Hooks of producers.

    def instrument(self, producer: Producer[Any]) -> None:
        """Wrap the sending methods of a producer; its constructor calls this."""
        for name in ("send", "send_oneway", "request", "send_in_transaction"):
            if method := getattr(producer, name, None):
                setattr(producer, name, self._wrap(method, producer.group))
        setattr(producer, "send_batch", self._wrap_batch(producer.send_batch, producer.group))  # noqa: B010
        setattr(producer, "send_many", self._wrap_many(producer.send_many, producer.group))  # noqa: B010

    def send_completed(self, send: CompletedSend) -> None:
        attributes = _destination("send", send.group, send.topic)
        self._sent.add(len(send.results), attributes)
        self._request_s.record(send.cost_ms / 1000, attributes)

    def transaction_ended(
        self, group: str, message: Message | MessageExt, address: str, state: str, *, from_check: bool
    ) -> None:
        """Add the outcome of a transaction to the span of its send, if that is current."""
        trace.get_current_span().add_event("transaction ended", {"messaging.rocketmq.transaction_state": state})

    def _wrap(self, method: Callable[..., Any], group: str) -> Any:
        async def traced(message: Any, *arguments: Any, **options: Any) -> Any:
            return await self._traced(group, [message], lambda: method(message, *arguments, **options))

        return traced

    def _wrap_batch(self, method: Callable[..., Any], group: str) -> Any:
        async def traced(messages: Iterable[Any], *arguments: Any, **options: Any) -> Any:
            batch = list(messages)
            return await self._traced(group, batch, lambda: method(batch, *arguments, **options))

        return traced

    async def _traced(self, group: str, messages: list[Any], call: Callable[[], Awaitable[Any]]) -> Any:
        if not messages or not all(map(_is_sendable, messages)):
            return await call()  # which refuses it
        send = _Send(self._tracer, group, messages)
        with trace.use_span(send.span, record_exception=False, set_status_on_exception=False):
            try:
                result = await call()
            except BaseException as error:
                self._fail(send, error)
                raise
        send.end(result[0] if isinstance(result, list) else result)
        return result

    def _wrap_many(self, method: Callable[..., Results[SendResult]], group: str) -> Any:
        def traced(messages: Iterable[Message] | AsyncIterable[Message], *arguments: Any, **options: Any) -> Any:
            sends: deque[_Send] = deque()

            async def taken() -> AsyncGenerator[Message, None]:
                async for message in iterate(messages):
                    if _is_sendable(message):  # the producer refuses any other
                        sends.append(_Send(self._tracer, group, [message]))
                    yield message

            async def results(untraced: Results[SendResult]) -> AsyncGenerator[SendResult, None]:
                try:
                    async with aclosing(untraced.__aiter__()) as stored:
                        async for result in stored:
                            sends.popleft().end(result)
                            yield result
                except BaseException as error:
                    for send in sends:
                        self._fail(send, error)
                    raise

            return Results("Producer.send_many", results(method(taken(), *arguments, **options)))

        return traced

    def _fail(self, send: _Send, error: BaseException) -> None:
        attributes = {
            **_destination("send", send.group, send.messages[0].topic),
            "error.type": type(error).__qualname__,
        }
        self._sent.add(len(send.messages), attributes)
        send.end(error=error)

    # Hook of consumers.

    @contextmanager
    def consuming(self, group: str, messages: Sequence[MessageExt]) -> Iterator[None]:
        """Record a delivery, which lasts as long as the context: for loops over messages, too."""
        topic = messages[0].topic
        attributes = _destination("process", group, topic)
        contexts = [propagate.extract(message.properties, Context()) for message in messages]
        parent = contexts[0] if len(messages) == 1 else Context()
        begin, failed = time.perf_counter(), {}
        token = context.attach(parent)
        try:
            with self._tracer.start_as_current_span(
                f"process {topic}",
                kind=SpanKind.CONSUMER,
                attributes=attributes | _details(messages),
                links=_links(contexts) if len(messages) > 1 else [],
            ):
                yield
        except BaseException as error:
            failed = {"error.type": type(error).__qualname__}
            raise
        finally:
            context.detach(token)
            self._consumed.add(len(messages), attributes | failed)
            self._process_s.record(time.perf_counter() - begin, attributes | failed)


class _Send:
    """The span of one call of a producer, whose context its messages carry until it ends."""

    def __init__(self, tracer: trace.Tracer, group: str, messages: list[Message]) -> None:
        self.group, self.messages = group, messages
        created = [propagate.extract(message.properties, Context()) for message in messages]
        is_inner = trace.get_current_span().get_span_context().is_valid
        is_single = len(messages) == 1
        topic = messages[0].topic
        self.span: Span = tracer.start_span(
            f"send {topic}",
            None if is_inner or not is_single else created[0],
            SpanKind.PRODUCER if is_single else SpanKind.CLIENT,
            _destination("send", group, topic) | _details(messages),
            _links(created) if is_inner or not is_single else [],
        )
        self._carrier: dict[str, str] = {}
        propagate.inject(self._carrier, trace.set_span_in_context(self.span))
        self._carriers = [
            message for message, one in zip(messages, created, strict=True) if not _span_context(one).is_valid
        ]
        for message in self._carriers:
            message.properties.update(self._carrier)

    def end(self, result: object = None, error: BaseException | None = None) -> None:
        """End the span, and take its context from the messages, which may be sent again."""
        for message in self._carriers:
            for name in self._carrier:
                message.properties.pop(name, None)
        if len(self.messages) == 1 and (unique_key := self.messages[0].unique_key):
            self.span.set_attribute("messaging.message.id", unique_key)
        if isinstance(result, SendResult):
            self.span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
        if error is not None:
            self.span.set_attribute("error.type", type(error).__qualname__)
            self.span.record_exception(error)
            self.span.set_status(StatusCode.ERROR, str(error))
        self.span.end()


def _is_sendable(message: object) -> bool:
    return isinstance(message, Message) and isinstance(message.body, bytes | bytearray | memoryview)


def _destination(operation: str, group: str, topic: str) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        **_SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    return found | ({"messaging.consumer.group.name": group} if operation == "process" else {})


def _details(messages: Sequence[Message] | Sequence[MessageExt]) -> dict[str, AttributeValue]:
    if len(messages) > 1:
        return {"messaging.batch.message_count": len(messages)}
    (message,) = messages
    found: dict[str, AttributeValue] = {"messaging.message.body.size": len(message.body)}
    if message.tags:
        found["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        found["messaging.rocketmq.message.keys"] = message.keys.split()
    if message.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    if isinstance(message, MessageExt):
        found["messaging.message.id"] = message.msg_id
        found["messaging.destination.partition.id"] = str(message.queue_id)
    return found


def _links(contexts: Iterable[Context]) -> list[Link]:
    return [Link(found) for one in contexts if (found := _span_context(one)).is_valid]


def _span_context(one: Context) -> trace.SpanContext:
    return trace.get_current_span(one).get_span_context()
