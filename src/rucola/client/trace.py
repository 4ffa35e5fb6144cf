"""MessageTrace: records sends and deliveries for `queryMsgTraceById` and Apache's dashboard.

    async with MessageTrace("host:9876") as trace, Producer("orders", "host:9876", trace=trace) as producer:
        ...

Any number of producers and consumers call it for stored messages, ended transactions, and start and end of deliveries.
Entries go, collected and encoded as in `rucola.protocol.trace`, to `RMQ_SYS_TRACE_TOPIC` (which needs
`traceTopicEnable`, or creation on demand). Tracing never delays or fails a traced message: entries beyond `MAX_UNSENT`,
and those that cannot be sent, are dropped and logged. TRACE_ON=false, of a message, and `traceOn=false`, of a broker,
disable it.

Corresponds to `AsyncTraceDispatcher` and the hooks of org.apache.rocketmq.client.trace of Apache RocketMQ 4.9.8.
Deliberate difference: every message of a batch has an entry; Apache writes one per batch, whose id no query finds.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Unpack

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.clock import now_ms
from rucola.client.connection_options import ConnectionOptions
from rucola.client.group_client import GroupClientKeywords
from rucola.client.lifecycle import Lifecycle, run_close_steps
from rucola.client.producer.options import CompletedSend
from rucola.client.producer.producer import Producer
from rucola.errors import MQError
from rucola.message import Message, MessageExt, properties
from rucola.message.batch import decode_batch
from rucola.message.ids import unique_id
from rucola.message.topics import TRACE_TOPIC
from rucola.outages import Outages
from rucola.protocol.codes import RequestCode
from rucola.protocol.trace import (
    ConsumeReturnType,
    EndTransaction,
    MessageType,
    Pub,
    SubAfter,
    SubBefore,
    Trace,
    encode,
)

logger = logging.getLogger(__name__)

COLLECT_MS = 500
"""How long entries are collected before they are sent together."""

MAX_COLLECTED = 1024

MAX_UNSENT = 16_384
"""The most entries that are collected or being sent, a few hundred bytes each."""

MAX_TEXT_SIZE = 118_000

MAX_KEYS_SIZE = 16_000
"""Properties are limited to 32,767 bytes."""

MAX_KEYS = 1000
"""Brokers limit the keys of a message (maxKeysPerMessage)."""

SEND_TIMEOUT_MS = 5000
DEFAULT_REGION = "DefaultRegion"
GROUP_PREFIX = "_INNER_TRACE_PRODUCER"

_numbers = itertools.count(1)
"""They make producer groups of several traces on one instance distinct."""


class MessageTrace(Lifecycle):
    """A message trace, on the event loop of its producers and consumers. `close` sends the remaining entries."""

    def __init__(
        self,
        namesrv: str | ConnectionOptions | None = None,
        *,
        topic: str = TRACE_TOPIC,
        **options: Unpack[GroupClientKeywords],
    ) -> None:
        super().__init__()
        self.topic = topic
        self._producer = Producer(f"{GROUP_PREFIX}-{next(_numbers)}", namesrv, **options)
        self._background = BackgroundTasks()
        self._sends = BackgroundTasks()
        self._pending: list[tuple[str, tuple[str, ...]]] = []
        """Encoded entries, each with the message's id and keys."""
        self._has_pending = asyncio.Event()
        self._sending_count = 0
        self._dropped_count = 0
        self._has_warned = False
        self._outages = Outages(logger)

    @property
    def _title(self) -> str:
        return f"message trace to {self.topic}"

    async def _start(self) -> None:
        self._has_pending, self._has_warned = asyncio.Event(), False
        if self._pending:
            self._has_pending.set()
        await self._producer.open()
        self._background.start(self._send_loop(), "message trace")

    async def _stop(self) -> None:
        await run_close_steps(self._background.close, self.flush, self._sends.close, self._producer.close)

    # Hooks of producers and consumers.

    def send_completed(self, send: CompletedSend) -> None:
        if send.topic.startswith(self.topic) or not send.region_id or not send.trace_on:
            return
        if send.code is RequestCode.SEND_BATCH_MESSAGE:
            _, bodies, strings = decode_batch(send.body)
            parts = [(len(body), properties.parse(joined)) for body, joined in zip(bodies, strings, strict=True)]
        else:
            parts = [(len(send.body), properties.parse(send.properties))]
        for (size, values), result in zip(parts, send.results, strict=True):
            self._add(
                Pub(
                    timestamp=send.begin_ms,
                    region_id=send.region_id,
                    group=send.group,
                    topic=send.topic,
                    msg_id=result.msg_id,
                    tags=values.get(properties.TAGS),
                    keys=values.get(properties.KEYS),
                    store_host=send.address,
                    body_length=size,
                    cost_ms=send.cost_ms,
                    message_type=_message_type(values),
                    offset_msg_id=result.offset_msg_id,
                    success=result.is_ok,
                )
            )

    def transaction_ended(
        self, group: str, message: Message | MessageExt, address: str, state: str, *, from_check: bool
    ) -> None:
        """Record the end of a transaction; `state` is the name of a LocalTransactionState."""
        self._add(
            EndTransaction(
                timestamp=now_ms(),
                region_id=message.properties.get(properties.MSG_REGION, DEFAULT_REGION),
                group=group,
                topic=message.topic,
                msg_id=message.unique_key or "",
                tags=message.tags,
                keys=message.keys,
                store_host=address,
                message_type=MessageType.TRANSACTION_COMMIT,
                transaction_id=message.unique_key,
                transaction_state=state,
                from_transaction_check=from_check,
            )
        )

    @contextmanager
    def consuming(self, group: str, messages: Sequence[MessageExt]) -> Iterator[None]:
        """Record a delivery to a listener, which lasts as long as the context. An exception marks it as failed."""
        traced = [message for message in messages if message.properties.get(properties.TRACE_ON) != "false"]
        request_id, begin_ms = unique_id(), now_ms()
        for message in traced:
            self._add(
                SubBefore(
                    timestamp=begin_ms,
                    region_id=message.properties.get(properties.MSG_REGION),
                    group=group,
                    request_id=request_id,
                    msg_id=message.msg_id,
                    retry_times=message.reconsume_times,
                    keys=message.keys,
                )
            )
        code = ConsumeReturnType.SUCCESS
        try:
            yield
        except BaseException as error:
            code = ConsumeReturnType.FAILED if isinstance(error, MQError) else ConsumeReturnType.EXCEPTION
            raise
        finally:
            end_ms = now_ms()
            for message in traced:
                self._add(
                    SubAfter(
                        request_id=request_id,
                        msg_id=message.msg_id,
                        cost_ms=(end_ms - begin_ms) // len(messages),
                        success=code is ConsumeReturnType.SUCCESS,
                        keys=message.keys,
                        context_code=code,
                        timestamp=end_ms,
                        group=group,
                    )
                )

    # Sending.

    def _add(self, trace: Trace) -> None:
        if not self.is_open and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the message trace to %s is not open, so it sends nothing: open it before its producers and consumers, "
                "as by `async with`",
                self.topic,
            )
        if len(self._pending) + self._sending_count >= MAX_UNSENT:
            self._dropped_count += 1
            return
        keys = trace.keys.split(properties.KEY_SEPARATOR) if trace.keys else ()
        self._pending.append((encode(trace), (trace.msg_id, *keys)))
        self._has_pending.set()
        if self.is_open and len(self._pending) >= MAX_COLLECTED:
            self._send_collected()

    async def _send_loop(self) -> None:
        while True:
            await self._has_pending.wait()
            await asyncio.sleep(COLLECT_MS / 1000)
            self._send_collected()

    async def flush(self) -> None:
        """Send the collected entries, and wait for all that are being sent."""
        self._send_collected()
        await self._sends.wait(SEND_TIMEOUT_MS)

    def _send_collected(self) -> None:
        self._sends.start(self._send_all(self._take()), f"message trace to {self.topic}")

    def _take(self) -> list[tuple[str, tuple[str, ...]]]:
        self._has_pending.clear()
        pending, self._pending = self._pending, []
        self._sending_count += len(pending)
        if self._dropped_count:
            logger.warning(
                "%d entries of the message trace were dropped: more than %d were not sent yet",
                self._dropped_count,
                MAX_UNSENT,
            )
            self._dropped_count = 0
        return pending

    async def _send_all(self, entries: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        try:
            # Concurrently, so that a hanging broker costs one timeout, not one for each message.
            await asyncio.gather(*(self._send(message) for message in _messages(self.topic, entries)))
        finally:
            self._sending_count -= len(entries)

    async def _send(self, message: Message) -> None:
        try:
            await self._producer.send(message, timeout_ms=SEND_TIMEOUT_MS)
        except MQError as error:
            self._outages.failed("sending of the message trace, whose entries are lost,", error)
        else:
            self._outages.succeeded("sending of the message trace, whose entries are lost,")


def _messages(topic: str, pending: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[Message]:
    """Join the entries into messages within the limits of text and keys."""
    texts: list[str] = []
    keys: dict[str, None] = {}
    for text, text_keys in pending:
        if texts and (
            sum(map(len, texts)) + len(text) > MAX_TEXT_SIZE
            or sum(map(len, (*keys, *text_keys))) > MAX_KEYS_SIZE
            or len(keys) + len(text_keys) > MAX_KEYS
        ):
            yield Message(topic, "".join(texts).encode(), keys=keys)
            texts, keys = [], {}
        texts.append(text)
        keys |= dict.fromkeys(text_keys)
    if texts:
        yield Message(topic, "".join(texts).encode(), keys=keys)


def _message_type(values: dict[str, str]) -> MessageType:
    if values.get(properties.TRAN_MSG) == "true":
        return MessageType.TRANSACTION_HALF
    return MessageType.DELAY if properties.DELAY in values else MessageType.NORMAL
