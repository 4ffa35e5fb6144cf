"""MessageTrace: writes down what becomes of messages, for `queryMsgTraceById` and Apache's dashboard.

    async with MessageTrace("host:9876") as trace, Producer("orders", "host:9876", trace=trace) as producer:
        ...

One MessageTrace serves any number of producers and consumers. It is told of every message that was stored, of every
transaction that was ended, and of every message that a listener begins and is done with; it collects that for
`COLLECT_MS` and sends it, as `rucola.protocol.trace` lays it out, to `RMQ_SYS_TRACE_TOPIC`, with the ids and keys of
the messages as keys. A broker makes that topic when its `traceTopicEnable` is true, or on demand.

Tracing never holds up or breaks what it watches: beyond `MAX_PENDING` entries new ones are dropped, and what cannot be
sent is dropped, both with a line in the log. A broker with `traceOn=false` wants nothing traced; what is sent to it is
passed over, and so is a message that has the property TRACE_ON=false.

Answers to `AsyncTraceDispatcher` and the hooks of org.apache.rocketmq.client.trace of Apache RocketMQ 4.9.8. Deliberate
difference: of a batch each message is told of, where Apache writes one entry whose id nobody asks for.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.clock import now_ms
from rucola.client.instance import ClientInstance
from rucola.client.lifecycle import Lifecycle, run_close_steps
from rucola.client.producer.producer import CompletedSend, Producer
from rucola.errors import MQError
from rucola.message import Message, MessageExt, properties
from rucola.message.batch import decode_batch
from rucola.message.ids import unique_id
from rucola.message.topics import TRACE_TOPIC
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
"""How long entries are collected after the first."""

MAX_PENDING = 2048
"""Most entries that wait to be sent."""

MAX_TEXT_SIZE = 118_000
"""Characters of entries in one message."""

MAX_KEYS_SIZE = 16_000
"""Characters of keys in one message, whose properties take 32,767 bytes at most."""

SEND_TIMEOUT_MS = 5000
DEFAULT_REGION = "DefaultRegion"
GROUP_PREFIX = "_INNER_TRACE_PRODUCER"

_numbers = itertools.count(1)


class MessageTrace(Lifecycle):
    """A trace under way. `async with` opens and closes it; closing sends what is left. Belongs to one event loop."""

    def __init__(
        self, namesrv: str | None = None, *, topic: str = TRACE_TOPIC, instance: ClientInstance | None = None
    ) -> None:
        super().__init__()
        self.topic = topic
        self._producer = Producer(f"{GROUP_PREFIX}-{next(_numbers)}", namesrv, instance=instance)
        self._background = BackgroundTasks()
        self._pending: list[tuple[str, tuple[str, ...]]] = []
        self._is_waiting = asyncio.Event()
        self._dropped_count = 0

    @property
    def _title(self) -> str:
        return f"message trace to {self.topic}"

    async def _start(self) -> None:
        await self._producer.open()
        self._background.start(self._keep_sending(), "message trace")

    async def _stop(self) -> None:
        await run_close_steps(self._background.close, self.flush, self._producer.close)

    # What producers and consumers tell.

    def sent(self, sent: CompletedSend) -> None:
        """A request was answered: its messages are stored."""
        if sent.topic.startswith(self.topic) or not sent.region_id or not sent.trace_on:
            return
        if sent.code is RequestCode.SEND_BATCH_MESSAGE:
            _, bodies, strings = decode_batch(sent.body)
            parts = [(len(body), properties.parse(joined)) for body, joined in zip(bodies, strings, strict=True)]
        else:
            parts = [(len(sent.body), properties.parse(sent.properties))]
        for (size, pairs), result in zip(parts, sent.results, strict=True):
            self._add(
                Pub(
                    timestamp=sent.begin_ms,
                    region_id=sent.region_id,
                    group=sent.group,
                    topic=sent.topic,
                    msg_id=result.msg_id,
                    tags=pairs.get(properties.TAGS),
                    keys=pairs.get(properties.KEYS),
                    store_host=sent.address,
                    body_length=size,
                    cost_ms=sent.cost_ms,
                    message_type=_message_type(pairs),
                    offset_msg_id=result.offset_msg_id,
                    success=result.is_ok,
                )
            )

    def ended(self, group: str, message: Message | MessageExt, address: str, state: str, *, from_check: bool) -> None:
        """A transaction was ended, at this broker and as its state says."""
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
        """A listener consumes these messages, from now to the end of the context; an error that leaves it is told."""
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

    # What is sent.

    def _add(self, trace: Trace) -> None:
        if len(self._pending) >= MAX_PENDING:
            self._dropped_count += 1
            return
        keys = trace.keys.split(properties.KEY_SEPARATOR) if trace.keys else ()
        self._pending.append((encode(trace), (trace.msg_id, *keys)))
        self._is_waiting.set()

    async def _keep_sending(self) -> None:
        while True:
            await self._is_waiting.wait()
            await asyncio.sleep(COLLECT_MS / 1000)
            await self.flush()

    async def flush(self) -> None:
        """Send what was collected, now."""
        self._is_waiting.clear()
        pending, self._pending = self._pending, []
        if self._dropped_count:
            logger.warning("%d entries of the message trace were dropped: too many at a time", self._dropped_count)
            self._dropped_count = 0
        # Together, so that a broker that hangs costs one timeout, not one for each message.
        await asyncio.gather(*(self._send(message) for message in _messages(self.topic, pending)))

    async def _send(self, message: Message) -> None:
        try:
            await self._producer.send(message, timeout_ms=SEND_TIMEOUT_MS)
        except MQError as error:
            logger.warning("a part of the message trace is lost: %s", error)


def _messages(topic: str, pending: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[Message]:
    """The entries in messages of the size that is allowed."""
    texts: list[str] = []
    keys: dict[str, None] = {}
    for text, of_text in pending:
        if texts and (
            sum(map(len, texts)) + len(text) > MAX_TEXT_SIZE or sum(map(len, (*keys, *of_text))) > MAX_KEYS_SIZE
        ):
            yield Message(topic, "".join(texts).encode(), keys=keys)
            texts, keys = [], {}
        texts.append(text)
        keys |= dict.fromkeys(of_text)
    if texts:
        yield Message(topic, "".join(texts).encode(), keys=keys)


def _message_type(pairs: dict[str, str]) -> MessageType:
    if pairs.get(properties.TRAN_MSG) == "true":
        return MessageType.TRANSACTION_HALF
    return MessageType.DELAY if properties.DELAY in pairs else MessageType.NORMAL
