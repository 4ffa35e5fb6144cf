"""Router: handlers of messages as decorated functions, in the manner of FastStream and FastAPI.

    router = Router("kitchen")

    @router.subscriber("Orders", group="cooks", filter="food || drinks")
    @router.publisher("Meals")
    async def cook(order: Order) -> Meal:
        return Meal(order.dish)

    router.run()

A handler is a coroutine function, or a plain function, which runs in a thread. Its annotations select its arguments:

    order: Order                  the body, decoded as by the option `value` of a consumer; bytes and str as they are
    message: MessageExt           the message, alone or next to the value
    message: MessageExt[Order]    the message, with the decoded body as `message.value`

A handler that raises has its message retried; `ReconsumeLater` and `SuspendCurrentQueueAMoment` choose when. Its
result, unless None, is sent to each publisher's topic before the message is acknowledged, so at least once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Self, TypeVar, Unpack, get_args, get_origin, get_type_hints

from rucola.client.arguments import check_group_name, options_of
from rucola.client.asyncapi import Operation, document, summary_of
from rucola.client.connection_options import ConnectionOptions
from rucola.client.consumer.options import ConsumeKeywords, ConsumeOptions, MessageModel
from rucola.client.consumer.push_consumer import TAG, PushConsumer
from rucola.client.instance import ClientInstance
from rucola.client.producer.options import ProducerKeywords, ProducerOptions
from rucola.client.producer.producer import Producer
from rucola.client.producer.send_request import SendResult
from rucola.client.values import Values
from rucola.errors import ConfigError
from rucola.message import Message, MessageExt
from rucola.message.topics import check_topic

logger = logging.getLogger(__name__)

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Router:
    """Router that connects handlers to topics. `async with` opens and closes it; `run` does so for a whole program.

    `group` is the producer group of all publishers; for `options` see Producer. `instance` makes the client instance at
    each opening: broadcasting subscribers need a fixed `client_id`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None = None,
        *,
        instance: Callable[[], ClientInstance] | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        check_group_name(group)
        options_of(ProducerOptions, options, "Router")
        self.group = group
        self._instance = instance
        self._namesrv = namesrv
        self._options = options
        self._subscribers: list[_Subscriber] = []
        self._publishers: dict[Callable[..., Any], list[Publisher]] = {}
        self._made_publishers: list[Publisher] = []
        self._producer: Producer | None = None
        self._consumers: list[PushConsumer] = []

    def subscriber(
        self, topic: str, *, group: str, filter: str = "*", filter_type: str = TAG, **options: Unpack[ConsumeKeywords]
    ) -> Callable[[Handler], Handler]:
        """Return a decorator for a handler of a topic's messages. ConfigError.

        `filter` is tags ("food || drinks"), or with `filter_type` "SQL92" an expression over properties. `options` are
        the fields of ConsumeOptions; `value` replaces the annotation. Each subscriber needs its own group.
        """
        check_topic(topic)
        check_group_name(group)
        options_of(ConsumeOptions, options, "subscriber")
        if options.get("message_model") is MessageModel.BROADCASTING and self._instance is None:
            raise ConfigError(
                "a broadcasting subscriber finds its offsets by its client id: pass the router "
                "instance=lambda: ClientInstance(client_id=...)"
            )

        def decorate(handler: Handler) -> Handler:
            if any(other.group == group for other in self._subscribers):
                raise ConfigError(f"group {group} has a subscriber already: name another group for {_name(handler)}")
            takes = _Parameters.of(handler, has_value="value" in options)
            chosen = ConsumeKeywords(**options)
            if takes.value not in (None, bytes):
                chosen.setdefault("value", _TextCodec() if takes.value is str else takes.value)
            self._subscribers.append(_Subscriber(handler, takes, topic, group, filter, filter_type, chosen))
            return handler

        return decorate

    def publisher(self, topic: str, *, value: Any = None, tags: str | None = None) -> Publisher:
        """Return a publisher, which decorates handlers whose result is to be sent, and has `send`.

        `value` is the type of the values, or a codec; by default the handler's return annotation, or bytes and text.
        """
        check_topic(topic)
        made = Publisher(self, topic, value, tags)
        self._made_publishers.append(made)
        return made

    def asyncapi(self, version: str = "1") -> dict[str, Any]:
        """Return the AsyncAPI document of what this router receives and sends, for a JSON encoder."""
        receives = [one.operation() for one in self._subscribers]
        sends = [one.operation() for one in self._made_publishers]
        return document(self.group, version, [*receives, *sends])

    async def __aenter__(self) -> Self:
        if self._producer is not None:
            raise ConfigError("the router is open already")
        instance = ClientInstance(self._namesrv) if self._instance is None else self._instance()
        self._consumers = [one.consumer(instance, self._publishers.get(one.handler, [])) for one in self._subscribers]
        self._producer = Producer(self.group, instance=instance, **self._options)
        try:
            await self._producer.open()
            for consumer in self._consumers:
                await consumer.open()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            # Handlers that end in the meantime can still send, so the producer is closed last.
            for error in await asyncio.gather(*(one.close() for one in self._consumers), return_exceptions=True):
                if error is not None:
                    raise error
        finally:
            producer, self._producer, self._consumers = self._producer, None, []
            if producer is not None:
                await producer.close()

    def run(self) -> None:
        """Open the router; at SIGINT (Ctrl-C) or SIGTERM close it, after running handlers have returned.

        SystemExit with code 130 if Ctrl-C comes while the router opens, or again while it closes.
        """
        try:
            asyncio.run(self._run())
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)

    async def _run(self) -> None:
        stopped = asyncio.Event()
        with suppress(NotImplementedError):  # on Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        async with self:
            topics = ", ".join(f"{one.topic} for {one.group}" for one in self._subscribers)
            logger.info("router %s consumes %s", self.group, topics or "nothing")
            with suppress(asyncio.CancelledError):  # asyncio.run cancels its task at Ctrl-C
                await stopped.wait()

    async def _send(self, message: Message) -> SendResult:
        if self._producer is None:
            raise ConfigError(f"the router is not open: a message for topic {message.topic} cannot be sent")
        return await self._producer.send(message)


class Publisher:
    """Sends values to a topic; made by `Router.publisher`."""

    def __init__(self, router: Router, topic: str, value: Any, tags: str | None) -> None:
        self.topic = topic
        self._router = router
        self._tags = tags
        self._kind = value
        self._values = Values(value) if value is not None else None

    def operation(self) -> Operation:
        """Return what AsyncAPI knows of this publisher."""
        return Operation("send", self.topic, self.topic, self._kind, "", {"tags": self._tags} if self._tags else {})

    def __call__(self, handler: Handler) -> Handler:
        """Send the results of a handler; the decorator below or above `subscriber`."""
        if self._values is None:
            returned = _without_none(_hints(handler).get("return"))
            if returned in (None, Any):
                raise ConfigError(f"{_name(handler)} has no return annotation: add one, or pass value= to publisher")
            self._kind = returned
            if returned not in (bytes, str):
                self._values = Values(returned)
        self._router._publishers.setdefault(handler, []).append(self)
        return handler

    async def send(
        self, value: Any, *, keys: str | None = None, tags: str | None = None, properties: dict[str, str] | None = None
    ) -> SendResult:
        """Send a value and wait until it is stored. ConfigError if the router is not open; the errors of a Producer."""
        return await self._router._send(
            Message(self.topic, self._encode(value), tags or self._tags, keys, dict(properties or {}))
        )

    def _encode(self, value: Any) -> bytes:
        if self._values is not None:
            return self._values.encode(self.topic, value)
        kind = type(value).__name__
        if not isinstance(value, bytes | str):
            raise ConfigError(f"the publisher of topic {self.topic} sends bytes and str: pass value={kind}")
        return value.encode() if isinstance(value, str) else value


class _Parameters(NamedTuple):
    names: tuple[str, ...]
    """"message" and "value", in order."""
    value: Any

    @classmethod
    def of(cls, handler: Callable[..., Any], *, has_value: bool) -> _Parameters:
        """Read a handler's signature. ConfigError unless it has a value, a message, or both."""
        hints = {} if has_value else _hints(handler)
        names: list[str] = []
        value: Any = None
        of_message: Any = None
        for parameter in inspect.signature(handler).parameters.values():
            if parameter.default is not parameter.empty:
                continue
            hint = hints.get(parameter.name, parameter.annotation)
            if _is_message(hint):
                names.append("message")
                (of_message,) = get_args(hint) or (None,)
                if of_message is Any:
                    of_message = None
            else:
                names.append("value")
                value = hint
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"{_name(handler)} must take a value, a MessageExt, or one of each")
        if has_value:
            return cls(tuple(names), None)
        if of_message is bytes:
            raise ConfigError(f"{_name(handler)} takes a MessageExt[bytes]: annotate MessageExt, and read message.body")
        if "value" not in names:
            return cls(tuple(names), of_message)
        if of_message not in (None, value):
            raise ConfigError(f"{_name(handler)} takes values of two types, {of_message} and {value}: annotate one")
        if value in (inspect.Parameter.empty, Any):
            raise ConfigError(f"annotate what {_name(handler)} takes: bytes, a type, MessageExt; or pass value=")
        return cls(tuple(names), value)


class _Subscriber(NamedTuple):
    handler: Callable[..., Any]
    takes: _Parameters
    topic: str
    group: str
    filter: str
    filter_type: str
    options: ConsumeKeywords

    def operation(self) -> Operation:
        """Return what AsyncAPI knows of this subscriber."""
        value = self.takes.value or self.options.get("value")
        binding = {"group": self.group, "filter": self.filter}
        return Operation("receive", self.group, self.topic, value, summary_of(self.handler), binding)

    def consumer(self, instance: ClientInstance, publishers: list[Publisher]) -> PushConsumer:
        """Return a consumer that calls the handler, and sends its result to the publishers."""
        consumer = PushConsumer(self.group, instance=instance, **self.options)
        consumer.subscribe(self.topic, self.filter, self.filter_type)
        consumer.listen(self._listener(publishers))
        return consumer

    def _listener(self, publishers: list[Publisher]) -> Callable[[MessageExt], Any]:
        handler, names, takes_body = self.handler, self.takes.names, self.options.get("value") is None

        def arguments(message: MessageExt) -> list[Any]:
            value = message.body if takes_body else message.value
            return [message if name == "message" else value for name in names]

        async def publish(result: Any) -> Any:
            if inspect.isawaitable(result):  # of an object with `async def __call__`, which looks like a plain function
                result = await result
            if not publishers:
                return result  # the status of the consumption
            if result is not None:
                for publisher in publishers:
                    await publisher.send(result)
            return None

        async def deliver(message: MessageExt) -> Any:
            return await publish(await handler(*arguments(message)))

        def deliver_in_thread(message: MessageExt) -> Any:
            # The consumer awaits the coroutine on the event loop, as part of this delivery.
            return publish(handler(*arguments(message)))

        return deliver if inspect.iscoroutinefunction(handler) else deliver_in_thread


class _TextCodec:
    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, body: bytes) -> str:
        return body.decode()


def _is_message(hint: Any) -> bool:
    """Return whether an annotation, or its source, is MessageExt with or without a type."""
    if isinstance(hint, str):
        return hint.partition("[")[0].rpartition(".")[2] == "MessageExt"
    return hint is MessageExt or get_origin(hint) is MessageExt


def _name(handler: Callable[..., Any]) -> str:
    return f"handler {getattr(handler, '__qualname__', handler)}"


def _hints(handler: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a handler as types. ConfigError for a name that only exists in a function."""
    try:
        return get_type_hints(handler)
    except (NameError, TypeError) as error:
        raise ConfigError(
            f"the annotations of {_name(handler)} cannot be read ({error}): define the type at the top of its module, "
            "or pass value="
        ) from None


def _without_none(hint: Any) -> Any:
    """Return `Meal` for `Meal | None`, since None is not sent."""
    kinds = get_args(hint)
    if type(None) in kinds and len(kinds) == 2:
        return next(kind for kind in kinds if kind is not type(None))
    return None if hint is type(None) else hint
