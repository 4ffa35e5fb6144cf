"""Contents of queues: prints messages by time, tag and number."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import click
import msgspec

from rucola.admin import TOOLS_GROUP, MessageExt, MessageQueue, read_queue
from rucola.admin.commands.command import no_such_queue
from rucola.cli.admin.command import (
    begin_option,
    command,
    end_option,
    topic_option,
)
from rucola.cli.message_view import message_json
from rucola.cli.option_types import SINCE_HELP, TIME, check_window
from rucola.cli.output import print_table, printable, time_text
from rucola.client import PullConsumer

tags_option = click.option(
    "-s", "--subExpression", "expression", default="*", help="Only messages with these tags: 'TagA || TagB'."
)
charset_option = click.option("-c", "--charsetName", "charset", default="utf-8", help="Character encoding of bodies.")


def _line(message: MessageExt, charset: str, with_body: bool) -> str:
    try:
        body = message.body.decode(charset, "replace") if with_body else "NOT PRINT BODY"
    except LookupError:
        raise click.BadParameter(f"unknown character encoding {charset}", param_hint="-c") from None
    head = printable(
        f"MSGID: {message.msg_id} {message.topic}@{message.queue_id}:{message.queue_offset} "
        f"{time_text(message.store_timestamp)} TAGS: {message.tags or ''} KEYS: {message.keys or ''}"
    )
    error = f" BODY ERROR: {printable(message.body_error)}" if message.body_error is not None else ""
    return f"{head}{error} BODY: " + printable(body, keep="\t\n")


def _show(message: MessageExt, as_json: bool, charset: str, with_body: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(message_json(message)))
    else:
        click.echo(_line(message, charset, with_body))


@command("printMsg")
@topic_option
@charset_option
@tags_option
@begin_option
@end_option
@click.option("-d", "--printBody", "with_body", type=bool, default=True, help="Print bodies (true|false).")
def print_msg(
    namesrv_addr: str,
    as_json: bool,
    topic: str,
    charset: str,
    expression: str,
    begin_ms: int | None,
    end_ms: int | None,
    with_body: bool,
) -> None:
    """Print all messages of a topic, queue by queue.

    With --json the output has one JSON object per line.

    \b
    Examples:
      rucola admin printMsg -t Flights -s UA
      rucola admin printMsg -t Flights -b 2013-01-01#00:00:00:000 -e now --json
    """
    check_window(begin_ms, end_ms)

    async def run() -> None:
        async with PullConsumer(TOOLS_GROUP, namesrv_addr) as consumer:
            for queue in sorted(await consumer.queues(topic)):
                async for message in read_queue(consumer, queue, expression, begin_ms, end_ms):
                    _show(message, as_json, charset, with_body)

    asyncio.run(run())


@command("printMsgByQueue")
@topic_option
@click.option("-a", "--brokerName", "broker_name", required=True, help="Broker name.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), required=True, help="Queue id.")
@charset_option
@tags_option
@begin_option
@end_option
@click.option("-p", "--printMsg", "with_messages", type=bool, default=False, help="Print messages (true|false).")
@click.option("-d", "--printBody", "with_body", type=bool, default=False, help="Print bodies (true|false).")
@click.option("-f", "--calculate", "with_tags", type=bool, default=False, help="Count messages by tag (true|false).")
def print_msg_by_queue(
    namesrv_addr: str,
    as_json: bool,
    topic: str,
    broker_name: str,
    queue_id: int,
    charset: str,
    expression: str,
    begin_ms: int | None,
    end_ms: int | None,
    with_messages: bool,
    with_body: bool,
    with_tags: bool,
) -> None:
    """Print the messages of one queue (-p true), or their number by tag (-f true).

    \b
    Examples:
      rucola admin printMsgByQueue -t Flights -a broker-a -i 0 -p true -d true
      rucola admin printMsgByQueue -t Flights -a broker-a -i 0 -f true
    """
    check_window(begin_ms, end_ms)
    queue = MessageQueue(topic, broker_name, queue_id)
    tags: Counter[str] = Counter()

    async def run() -> None:
        async with PullConsumer(TOOLS_GROUP, namesrv_addr) as consumer:
            if queue not in (queues := await consumer.queues(topic)):
                raise no_such_queue(queue, queues)
            async for message in read_queue(consumer, queue, expression, begin_ms, end_ms):
                tags[message.tags or ""] += 1
                if with_messages:
                    _show(message, as_json, charset, with_body)

    asyncio.run(run())
    if with_tags and as_json:
        click.echo(msgspec.json.encode(dict(tags.most_common())))
    elif with_tags:
        print_table(("#Tag", "#Count"), tags.most_common())


@command("consumeMessage")
@topic_option
@click.option("-b", "--brokerName", "broker_name", help="With -i: only one queue, on this broker.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), help="With -b: only one queue, with this id.")
@click.option(
    "-o", "--offset", "queue_offset", type=click.IntRange(0), help="With -b and -i: begin at this queue offset."
)
@click.option(
    "-g", "--consumerGroup", "group", default=TOOLS_GROUP, show_default=True, help="Consumer group to pull as."
)
@click.option("-s", "--beginTimestamp", "begin_ms", type=TIME, help=SINCE_HELP)
@click.option("-e", "--endTimestamp", "end_ms", type=TIME, help="Only messages stored at this time or earlier.")
@click.option(
    "-c",
    "--MessageNumber",
    "max_count",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Maximum number of messages.",
)
def consume_message(
    namesrv_addr: str,
    as_json: bool,
    topic: str,
    broker_name: str | None,
    queue_id: int | None,
    queue_offset: int | None,
    group: str,
    begin_ms: int | None,
    end_ms: int | None,
    max_count: int,
) -> None:
    """Print the oldest messages of a topic or of one queue; commits no offset.

    With --json the output has one JSON object per line. The exit code is 1 if there is no message.

    \b
    Examples:
      rucola admin consumeMessage -t Flights -c 10
      rucola admin consumeMessage -t Flights -b broker-a -i 0 -o 4711 -c 1
    """
    if (broker_name is None) != (queue_id is None) or (queue_offset is not None and broker_name is None):
        raise click.UsageError("-b and -i belong together, and -o needs both")
    check_window(begin_ms, end_ms, "-s -e")
    shown = 0

    async def run() -> None:
        nonlocal shown
        async with PullConsumer(group, namesrv_addr) as consumer:
            queues = sorted(await consumer.queues(topic))
            if broker_name is not None and queue_id is not None:
                queue = MessageQueue(topic, broker_name, queue_id)
                if queue not in queues:
                    raise no_such_queue(queue, queues)
                queues = [queue]
            for queue in queues:
                async for message in read_queue(consumer, queue, "*", begin_ms, end_ms):
                    # The time range chooses where to start; an offset inside it skips the messages before.
                    if queue_offset is not None and message.queue_offset < queue_offset:
                        continue
                    _show(message, as_json, "utf-8", True)
                    shown += 1
                    if shown == max_count:
                        return

    asyncio.run(run())
    if not shown:
        click.echo("there is no such message", err=True)
        sys.exit(1)
