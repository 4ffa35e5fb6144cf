"""`rucola produce` and `rucola consume`: messages from standard input, and to standard output."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO, Final

import click
import msgspec

from rucola.admin import TOOLS_GROUP
from rucola.admin.commands.sending import TOOLS_PRODUCER
from rucola.admin.message_view import JSON_FIELDS, message_json
from rucola.cli.admin.command import credentials_option
from rucola.cli.option_types import namesrv_option
from rucola.cli.output import LAYOUT, printable
from rucola.client import ConsumeFromWhere, Message, MessageExt, MessageQueue, Producer, PullConsumer, PushConsumer
from rucola.client.instance import UNREACHABLE
from rucola.errors import InvalidMessage
from rucola.name_server_addresses import DEFAULT_NAMESRV

MAX_LINE: Final = 16 * 1024 * 1024
LINGER_MS: Final = 1
SUSPEND_MS: Final = 15_000
IDLE_MS: Final = 1000
RETRY_S: Final = 1

BODY: Final = r"{body}\n"
_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}
_FIELD: Final = re.compile(r"\{(\w+)(?:\[([^\]]+)\])?\}|(\\[nt\\])")

_namesrv_option = namesrv_option("namesrv", "Name servers.", default=DEFAULT_NAMESRV)


class _Line(msgspec.Struct, rename="camel"):
    """A message as JSON; other fields of `rucola consume --json` are ignored."""

    body: str | None = None
    body_base64: str | None = None
    tags: str | None = None
    keys: str | list[str] | None = None
    properties: dict[str, str] = {}


@click.command()
@click.argument("topic")
@_namesrv_option
@click.option(
    "-p", "--body", metavar="TEXT|@FILE", help="Send one message with this body, or a file's content (@-: stdin)."
)
@click.option("-k", "--key", "keys", multiple=True, help="A key of each message; may be repeated.")
@click.option("-c", "--tags", help="The tag of each message.")
@click.option(
    "-H",
    "--property",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of each message; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Lines are JSON: {body or bodyBase64, keys, tags, properties}.")
@credentials_option
def produce(
    topic: str,
    namesrv: str,
    body: str | None,
    keys: tuple[str, ...],
    tags: str | None,
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Send each line of standard input as a message.

    Lines are sent as they arrive, and each is stored when the next ones are read. Empty lines are skipped, since no
    broker accepts an empty body. The number of messages is on stderr; after a failure the exit code is 1, and messages
    that were read with the failed one may be stored.

    \b
    Examples:
      echo "one pizza" | rucola produce Orders -k order-1 -c food
      rucola produce Orders < orders.txt
      rucola produce Photos -p @photo.jpg -H camera=7
      rucola consume Orders --from-beginning --no-follow --json | rucola produce Copies --json
    """
    if body == "":
        raise click.UsageError("-p is empty, and no broker accepts an empty body")
    if body is not None and as_json:
        raise click.UsageError("--json is for lines of standard input: leave out -p")
    properties = dict(_property(pair) for pair in pairs)

    def message(line: bytes) -> Message:
        return Message(topic, line, tags, keys or None, properties)

    def message_of_json(line: bytes) -> Message:
        one = msgspec.json.decode(line, type=_Line)
        if (one.body is None) == (one.body_base64 is None):
            raise InvalidMessage("either body or bodyBase64 is needed")
        content = one.body.encode() if one.body is not None else base64.b64decode(one.body_base64 or "", validate=True)
        given = one.properties | properties
        return Message(topic, content, tags or one.tags, keys or one.keys, given)

    lines = _lines(sys.stdin.buffer) if body is None else _once(_content(body))
    asyncio.run(_produce(namesrv, topic, lines, message_of_json if as_json else message))


async def _produce(
    namesrv: str, topic: str, chunks: AsyncIterator[list[bytes]], message: Callable[[bytes], Message]
) -> None:
    sent = number = empty = 0
    try:
        async with Producer(TOOLS_PRODUCER, namesrv, linger_ms=LINGER_MS) as producer:
            await producer.queues(topic)  # a bad name, or no name server, is an error before anything is read
            async for chunk in chunks:
                messages = []
                for line in chunk:
                    number += 1
                    if not line:
                        empty += 1
                        continue
                    try:
                        messages.append(message(line))
                    except (InvalidMessage, msgspec.MsgspecError, binascii.Error) as error:
                        raise InvalidMessage(f"line {number}: {error}") from None
                async for _ in producer.send_many(messages):
                    sent += 1
    finally:
        skipped = f", {empty} empty line{'s' * (empty != 1)} skipped" if empty else ""
        click.echo(f"{sent} message{'s' * (sent != 1)} sent{skipped}", err=True)


async def _lines(stream: BinaryIO) -> AsyncIterator[list[bytes]]:
    """Yield lines in groups, as they arrive. InvalidMessage for one that is longer than MAX_LINE."""
    rest = b""
    while data := await asyncio.to_thread(stream.read1):  # type: ignore[attr-defined]
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > MAX_LINE:
            raise InvalidMessage(f"a line of standard input is longer than {MAX_LINE} bytes")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _once(body: bytes) -> AsyncIterator[list[bytes]]:
    yield [body]


def _content(body: str) -> bytes:
    if not body.startswith("@"):
        return body.encode("utf-8", "surrogateescape")
    return sys.stdin.buffer.read() if body == "@-" else Path(body[1:]).read_bytes()


def _property(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not name or not equals:
        raise click.UsageError(f"-H {pair}: write NAME=VALUE")
    return name, value


@click.command()
@click.argument("topic")
@_namesrv_option
@click.option("-g", "--group", help="Consume as a member of this group, which does not receive the messages again.")
@click.option(
    "-s", "--subscription", "tags", default="*", show_default=True, help='Tags, for example "food || drinks".'
)
@click.option("--from-beginning", is_flag=True, help="Start with the oldest message; a group only if it is new.")
@click.option("-N", "--count", type=click.IntRange(1), help="End after this many messages.")
@click.option(
    "--no-follow", is_flag=True, help="End after the messages that exist now; with -g, after a second without one."
)
@click.option("-f", "--format", "template", default=BODY, show_default=True, help="Text for each message, see above.")
@click.option("--json", "as_json", is_flag=True, help="Print each message as a line of JSON.")
@credentials_option
def consume(
    topic: str,
    namesrv: str,
    group: str | None,
    tags: str,
    from_beginning: bool,
    count: int | None,
    no_follow: bool,
    template: str,
    as_json: bool,
) -> None:
    """Print the messages of a topic as they arrive, until Ctrl-C.

    Without -g all queues are read, and no offset is committed. With -g this is one of the group's consumers, and
    acknowledges each message after it was printed.

    -f has the fields of --json in braces, for example {body}, {keys}, {tags}, {msgId}, {queueId}, {queueOffset},
    {storeTimestamp} and {properties[NAME]}, and the escapes \\n, \\t and \\\\. In a pipe a body is written as it is, on
    a terminal without control characters.

    \b
    Examples:
      rucola consume Orders
      rucola consume Orders --from-beginning --no-follow -f '{queueId} {queueOffset} {keys} {body}\\n'
      rucola consume Orders -g billing -N 10 --json
    """
    if as_json and template != BODY:
        raise click.UsageError("--json prints whole messages: leave out -f")
    render = _json_line if as_json else _template(template)
    left = count

    def show(message: MessageExt) -> bool:
        """Print a message; return whether more are wanted."""
        nonlocal left
        if left == 0:  # the last one was of another queue
            return False
        click.echo(render(message), nl=False)
        sys.stdout.flush()
        if left is not None:
            left -= 1
        return left != 0

    if group is None:
        asyncio.run(_read(namesrv, topic, tags, show, from_beginning=from_beginning, follows=not no_follow))
    else:
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        start = first if from_beginning else ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        asyncio.run(_consume(PushConsumer(group, namesrv, consume_from=start), topic, tags, show, not no_follow))


async def _consume(
    consumer: PushConsumer, topic: str, tags: str, show: Callable[[MessageExt], bool], follows: bool
) -> None:
    consumer.subscribe(topic, tags)
    async with consumer:
        async for message in consumer.messages(None if follows else IDLE_MS):
            wants_more = show(message)
            consumer.ack(message)
            if not wants_more:
                return


class _Enough(Exception):
    """All wanted messages are printed."""


async def _read(
    namesrv: str, topic: str, tags: str, show: Callable[[MessageExt], bool], *, from_beginning: bool, follows: bool
) -> None:
    async with PullConsumer(TOOLS_GROUP, namesrv) as consumer:

        async def read(queue: MessageQueue) -> None:
            end = await consumer.max_offset(queue)
            offset = max(0, await consumer.min_offset(queue)) if from_beginning else end
            while follows or offset < end:
                try:
                    result = await consumer.pull(queue, offset, subscription=tags, suspend_ms=SUSPEND_MS * follows)
                except UNREACHABLE as error:
                    if not follows:
                        raise
                    click.echo(printable(f"{error}; trying again"), err=True)
                    await asyncio.sleep(RETRY_S)
                    continue
                for message in result.messages:
                    if (follows or message.queue_offset < end) and not show(message):
                        raise _Enough
                if not follows and result.next_begin_offset <= offset:
                    break  # the queue is shorter than it was
                offset = result.next_begin_offset

        try:
            async with asyncio.TaskGroup() as readers:
                for queue in await consumer.queues(topic):
                    readers.create_task(read(queue))
        except* _Enough:
            pass
        except* Exception as errors:
            raise errors.exceptions[0] from None


def _json_line(message: MessageExt) -> bytes:
    return msgspec.json.encode(message_json(message)) + b"\n"


def _template(text: str) -> Callable[[MessageExt], bytes]:
    """Return what renders a message. UsageError for a field that no message has, and for a text without a field."""
    is_terminal = sys.stdout.isatty()
    found = _FIELD.findall(text)
    if not any(name for name, *_ in found):
        raise click.UsageError(f"-f {text!r} has no field, such as {{body}}; there are body, {', '.join(JSON_FIELDS)}")
    for name, key, _ in found:
        if name and name != "body" and name not in JSON_FIELDS:
            raise click.UsageError(f"-f: no message has a field {name}; there are body, {', '.join(JSON_FIELDS)}")
        if key and name != "properties":
            raise click.UsageError(f"-f: {name} has no parts; write {{{name}}}")

    def render(message: MessageExt) -> bytes:
        def replacement(match: re.Match[str]) -> str:
            name, key, escape = match.groups()
            if escape is not None:
                return _ESCAPES[escape]
            if name == "body":
                return printable(message.body.decode(errors="replace"), LAYOUT) if is_terminal else _raw(message.body)
            value = message.properties.get(key) if key else getattr(message, JSON_FIELDS[name])
            return "" if value is None else printable(value if isinstance(value, str) else _json(value))

        return _FIELD.sub(replacement, text).encode("utf-8", "surrogateescape")

    return render


def _raw(body: bytes) -> str:
    return body.decode("utf-8", "surrogateescape")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
