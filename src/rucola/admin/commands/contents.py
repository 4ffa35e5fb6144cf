"""Contents of queues: messages by time, tag and number."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import (
    SINCE,
    BeginTime,
    EndTime,
    InvalidArguments,
    Option,
    Result,
    Topic,
    check_window,
    command,
    no_such_queue,
)
from rucola.admin.message_view import WHY_HIDDEN, message_json
from rucola.admin.queue_reader import TOOLS_GROUP, read_queue
from rucola.client import PullConsumer
from rucola.domain.queue import MessageQueue
from rucola.message import MessageExt
from rucola.presentation import Table, printable, time_text

Tags = Annotated[str, Option("-s --subExpression", "Only messages with these tags: 'TagA || TagB'.")]
Charset = Annotated[str, Option("-c --charsetName", "Character encoding of bodies.")]


def _shown(message: MessageExt, charset: str = "utf-8", with_body: bool = True) -> Result:
    shown = WHY_HIDDEN.get()(message) or message.body.decode(charset, "replace")
    body = shown if with_body else "NOT PRINT BODY"
    error = f" BODY ERROR: {message.body_error}" if message.body_error is not None else ""
    head = (
        f"MSGID: {message.msg_id} {message.topic}@{message.queue_id}:{message.queue_offset} "
        f"{time_text(message.store_timestamp)} TAGS: {message.tags or ''} KEYS: {message.keys or ''}{error} BODY: "
    )
    return Result(message_json(message), (printable(head) + body).split("\n"))


def _check_charset(charset: str) -> None:
    try:
        codecs.lookup(charset)
    except LookupError:
        raise InvalidArguments(f"unknown character encoding {charset}") from None


@command("printMsg", shows_bodies=True)
async def print_msg(
    client: AdminClient,
    topic: Topic,
    charset: Charset = "utf-8",
    expression: Tags = "*",
    begin_ms: BeginTime = None,
    end_ms: EndTime = None,
    with_body: Annotated[bool, Option("-d --printBody", "Print bodies.")] = True,
) -> AsyncIterator[Result]:
    """Print all messages of a topic, queue by queue.

    With --json the output has one JSON object per line.

    \b
    Examples:
      rucola admin printMsg -t Flights -s UA
      rucola admin printMsg -t Flights -b 2013-01-01#00:00:00:000 -e now --json
    """
    check_window(begin_ms, end_ms)
    _check_charset(charset)
    async with PullConsumer(TOOLS_GROUP, client.connection) as consumer:
        for queue in sorted(await consumer.queues(topic)):
            async for message in read_queue(consumer, queue, expression, begin_ms, end_ms):
                yield _shown(message, charset, with_body)


@command("printMsgByQueue", shows_bodies=True)
async def print_msg_by_queue(
    client: AdminClient,
    topic: Topic,
    broker_name: Annotated[str, Option("-a --brokerName", "Broker name.")],
    queue_id: Annotated[int, Option("-i --queueId", "Queue id.", min=0)],
    charset: Charset = "utf-8",
    expression: Tags = "*",
    begin_ms: BeginTime = None,
    end_ms: EndTime = None,
    with_messages: Annotated[bool, Option("-p --printMsg", "Print messages.")] = False,
    with_body: Annotated[bool, Option("-d --printBody", "Print bodies.")] = False,
    with_tags: Annotated[bool, Option("-f --calculate", "Count messages by tag.")] = False,
) -> AsyncIterator[Result]:
    """Print the messages of one queue (-p true), or their number by tag (-f true).

    \b
    Examples:
      rucola admin printMsgByQueue -t Flights -a broker-a -i 0 -p true -d true
      rucola admin printMsgByQueue -t Flights -a broker-a -i 0 -f true
    """
    check_window(begin_ms, end_ms)
    _check_charset(charset)
    queue = MessageQueue(topic, broker_name, queue_id)
    tags: Counter[str] = Counter()
    async with PullConsumer(TOOLS_GROUP, client.connection) as consumer:
        if queue not in (queues := await consumer.queues(topic)):
            raise no_such_queue(queue, queues)
        async for message in read_queue(consumer, queue, expression, begin_ms, end_ms):
            tags[message.tags or ""] += 1
            if with_messages:
                yield _shown(message, charset, with_body)
    if with_tags:
        yield Result(dict(tags.most_common()), [Table(("#Tag", "#Count"), tags.most_common())])


@command("consumeMessage", shows_bodies=True)
async def consume_message(
    client: AdminClient,
    topic: Topic,
    broker_name: Annotated[str | None, Option("-b --brokerName", "With -i: only one queue, on this broker.")] = None,
    queue_id: Annotated[int | None, Option("-i --queueId", "With -b: only one queue, with this id.", min=0)] = None,
    queue_offset: Annotated[
        int | None, Option("-o --offset", "With -b and -i: begin at this queue offset.", min=0)
    ] = None,
    group: Annotated[str, Option("-g --consumerGroup", "Consumer group to pull as.")] = TOOLS_GROUP,
    begin_ms: Annotated[int | None, Option("-s --beginTimestamp", SINCE, format="time")] = None,
    end_ms: Annotated[
        int | None, Option("-e --endTimestamp", "Only messages stored at this time or earlier.", format="time")
    ] = None,
    max_count: Annotated[int, Option("-c --MessageNumber", "Maximum number of messages.", min=1)] = 128,
) -> AsyncIterator[Result]:
    """Print the oldest messages of a topic or of one queue; commits no offset.

    With --json the output has one JSON object per line. The exit code is 1 if there is no message.

    \b
    Examples:
      rucola admin consumeMessage -t Flights -c 10
      rucola admin consumeMessage -t Flights -b broker-a -i 0 -o 4711 -c 1
    """
    if (broker_name is None) != (queue_id is None) or (queue_offset is not None and broker_name is None):
        raise InvalidArguments("-b and -i belong together, and -o needs both")
    check_window(begin_ms, end_ms, "-s -e")
    shown = 0
    async with PullConsumer(group, client.connection) as consumer:
        queues = sorted(await consumer.queues(topic))
        if broker_name is not None and queue_id is not None:
            queue = MessageQueue(topic, broker_name, queue_id)
            if queue not in queues:
                raise no_such_queue(queue, queues)
            queues = [queue]
        for queue in queues:
            async for message in read_queue(consumer, queue, "*", begin_ms, end_ms, begin_offset=queue_offset or 0):
                yield _shown(message)
                shown += 1
                if shown == max_count:
                    return
    if not shown:
        yield Result(None, [], ["there is no such message"], is_failure=True)
