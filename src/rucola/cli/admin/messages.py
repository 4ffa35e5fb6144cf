"""Message queries by key, offsetMsgId, unique key and queue offset, and direct consumption."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from rucola.admin import (
    MAX_LONG,
    PAGE,
    TOOLS_GROUP,
    AdminClient,
    KeyQueryResult,
    MessageExt,
    MessageQueue,
    MessageTrack,
)
from rucola.admin.commands.command import Result, check_window, split
from rucola.admin.commands.sending import SENT, TOOLS_PRODUCER, send_json
from rucola.cli.admin.archive_query import Origins, archive_option, archived_message, query_both
from rucola.cli.admin.catalogue import show
from rucola.cli.admin.command import begin_option, call_admin, command, end_option, topic_option
from rucola.cli.output import optional, print_json, print_table, printable, time_text, whole
from rucola.client import Message, Producer, PullConsumer
from rucola.client.consumer.pull_consumer import PullStatus
from rucola.client.producer.send_request import SendResult
from rucola.errors import BrokerError, ConfigError, RemotingError, TopicNotFound
from rucola.message.view import message_json, message_text

group_option = click.option(
    "-g", "--consumerGroup", "group", help="With -d: consumer group of the client that consumes the message now."
)
client_option = click.option(
    "-d", "--clientId", "client_id", help="With -g: id of the client that consumes the message now."
)


def _check_consume_options(group: str | None, client_id: str | None) -> None:
    if (group is None) != (client_id is None):
        raise click.UsageError("-g and -d belong together: a group, and the id of one of its clients")


@command("queryMsgByKey")
@topic_option
@click.option("-k", "--msgKey", "key", required=True, help="Key of the messages.")
@click.option(
    "-m",
    "--maxNum",
    "--max",
    "max_count",
    type=click.IntRange(1),
    default=PAGE,
    show_default=True,
    help="Maximum number of messages.",
)
@begin_option
@end_option
@archive_option
def query_msg_by_key(
    namesrv_addr: str,
    as_json: bool,
    topic: str,
    key: str,
    max_count: int,
    begin_ms: int | None,
    end_ms: int | None,
    lake: Path | None,
) -> None:
    """Find the messages of a topic with a key on all brokers, newest first.

    With --archive the command also searches a lake of `rucola pipeline archive` for messages that are no longer in the
    log, and shows the origin of each message.

    \b
    Examples:
      rucola admin queryMsgByKey -t Flights -k N14228
      rucola admin queryMsgByKey -t Flights -k N14228 --max 1000 --json
      rucola admin queryMsgByKey -t Flights -k N14228 --since 2013-01-01#00:00:00:000 --until now
      rucola admin queryMsgByKey -t Flights -k N14228 --archive lake
    """
    check_window(begin_ms, end_ms)
    window = begin_ms or 0, MAX_LONG if end_ms is None else end_ms

    def live() -> KeyQueryResult:
        return call_admin(namesrv_addr, lambda client: client.messages.query_by_key(topic, key, max_count, *window))

    result, origins = query_both(live, lake, topic, key, max_count, unique=False, window=window)
    if as_json:
        _print_result_json(result, origins)
    else:
        rows = [(each.msg_id, each.queue_id, each.queue_offset, *origins.cells(each)) for each in result.messages]
        print_table((whole("#Message ID"), whole("#QID"), "#Offset", *origins.columns), rows)
    if result.is_cut and len(result.messages) == max_count:
        click.echo(
            f"these are the newest {len(result.messages)}, there may be more: raise the limit with -m, or find older "
            f"ones with --until {result.messages[-1].store_timestamp}",
            err=True,
        )
    _report_missing(result)


@command("queryMsgById")
@click.option("-i", "--msgId", "msg_ids", required=True, help="One or more offsetMsgIds, separated by commas.")
@group_option
@client_option
@click.option(
    "-s", "--sendMessage", "resend", type=bool, default=False, help="Send a copy of the message now (true|false)."
)
@archive_option
def query_msg_by_id(
    namesrv_addr: str,
    as_json: bool,
    msg_ids: str,
    group: str | None,
    client_id: str | None,
    resend: bool,
    lake: Path | None,
) -> None:
    """Show the message with an offsetMsgId, and its state in each consumer group.

    With -g and -d that client consumes the message now, regardless of the offset of its group. With -s true a copy with
    the same unique key is sent to its topic. With --archive a lake is searched, too.

    \b
    Examples:
      rucola admin queryMsgById -i 7F00000100002A9F0000000000000000
      rucola admin queryMsgById -i 7F00000100002A9F0000000000000000 -g billing -d 10.0.0.7@4711
    """
    _check_consume_options(group, client_id)
    if lake is not None and (group is not None or resend):
        raise click.UsageError("--archive only shows messages; it cannot be combined with -g, -d or -s")
    ids = split(msg_ids)
    if group is not None and client_id is not None:
        _consume_directly(namesrv_addr, as_json, group, client_id, ids)
        return
    if resend:
        sent = call_admin(namesrv_addr, lambda client: _resend(client, ids))
        show(Result([send_json(result) for result in sent]), as_json, SENT)
        return

    # offsetMsgIds found only in the lake, which is also searched for an unreachable broker: it may have been removed.
    archived: set[str] = set()

    async def one(client: AdminClient, msg_id: str) -> MessageExt:
        try:
            return await client.messages.get(msg_id)
        except RemotingError:
            message = None if lake is None else archived_message(lake, msg_id)
            if message is None:
                raise
            archived.add(message.offset_msg_id)
            return message

    async def request(client: AdminClient) -> list[tuple[MessageExt, list[MessageTrack]]]:
        return [await _with_tracks(client, await one(client, msg_id)) for msg_id in ids]

    found = call_admin(namesrv_addr, request)
    _print_tracked(found, as_json, Origins() if lake is None else Origins(frozenset(archived)))


async def _resend(client: AdminClient, ids: list[str]) -> list[SendResult]:
    messages = [await client.messages.get(msg_id) for msg_id in ids]
    async with Producer(TOOLS_PRODUCER, client.connection) as producer:
        return [
            await producer.send(
                Message(one.topic, one.body, properties=one.properties, flag=one.flag, body_flags=one.body_flags)
            )
            for one in messages
        ]


@command("queryMsgByOffset")
@topic_option
@click.option("-b", "--brokerName", "broker_name", required=True, help="Broker name.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), required=True, help="Queue id.")
@click.option("-o", "--offset", "queue_offset", type=click.IntRange(0), required=True, help="Queue offset.")
def query_msg_by_offset(
    namesrv_addr: str, as_json: bool, topic: str, broker_name: str, queue_id: int, queue_offset: int
) -> None:
    """Show the message at a queue offset, and its state in each consumer group.

    \b
    Examples:
      rucola admin queryMsgByOffset -t Flights -b broker-a -i 0 -o 4711
    """
    queue = MessageQueue(topic, broker_name, queue_id)

    async def request(client: AdminClient) -> tuple[MessageExt, list[MessageTrack]]:
        await client.topics.route(topic)
        async with PullConsumer(TOOLS_GROUP, namesrv_addr) as consumer:
            result = await consumer.pull(queue, queue_offset, 1)
        if result.status is not PullStatus.FOUND or result.messages[0].queue_offset != queue_offset:
            raise ConfigError(
                f"{queue} has no message at offset {queue_offset}; it has {result.min_offset} to "
                f"{result.max_offset - 1}"
                if result.max_offset > result.min_offset
                else f"{queue} holds no message"
            )
        return await _with_tracks(client, result.messages[0])

    _print_tracked([call_admin(namesrv_addr, request)], as_json, Origins())


@command("queryMsgByUniqueKey")
@topic_option
@click.option("-i", "--msgId", "unique_key", required=True, help="Unique key of the message, assigned by its producer.")
@click.option("-a", "--showAll", "show_all", is_flag=True, help="Show all messages with this key, not only the oldest.")
@group_option
@client_option
@archive_option
def query_msg_by_unique_key(
    namesrv_addr: str,
    as_json: bool,
    topic: str,
    unique_key: str,
    show_all: bool,
    group: str | None,
    client_id: str | None,
    lake: Path | None,
) -> None:
    """Show the message with a unique key or offsetMsgId, the oldest if several have it.

    With -g and -d that client consumes the message now, regardless of the offset of its group. With --archive a lake is
    searched, too.

    \b
    Examples:
      rucola admin queryMsgByUniqueKey -t Flights -i C0A80107126755B4AAC2000100A30000
      rucola admin queryMsgByUniqueKey -t Flights -i C0A80107126755B4AAC2000100A30000 -g billing -d 10.0.0.7@4711
    """
    _check_consume_options(group, client_id)
    if lake is not None and group is not None:
        raise click.UsageError("--archive only shows messages; it cannot be combined with -g and -d")

    async def request(client: AdminClient) -> KeyQueryResult:
        result = await client.messages.query_by_unique_key(topic, unique_key)
        # As in RocketMQ's tool, an offsetMsgId, which has the same form but is in no index, finds its message, too.
        if not result.messages and await client.messages.is_offset_msg_id(unique_key):
            result.messages.append(await client.messages.get(unique_key))
        return result

    def live() -> KeyQueryResult:
        return call_admin(namesrv_addr, request)

    result, origins = query_both(live, lake, topic, unique_key, PAGE, unique=True)
    # Results are newest first; the message that was stored first is the original, later ones are copies.
    result.messages.sort(key=lambda message: (message.store_timestamp, message.physical_offset))
    if not show_all:
        del result.messages[1:]
    if group is not None and client_id is not None and result.messages:
        ids = [message.offset_msg_id for message in result.messages]
        _consume_directly(namesrv_addr, as_json, group, client_id, ids)
    elif as_json:
        _print_result_json(result, origins)
    elif result.messages:
        click.echo("\n\n".join(message_text(each) + origins.text(each) for each in result.messages))
    _report_missing(result)


def _consume_directly(namesrv_addr: str, as_json: bool, group: str, client_id: str, ids: list[str]) -> None:
    """Let a client consume messages, and print the results; exit with 1 if one failed."""

    async def request(client: AdminClient) -> list[dict[str, Any]]:
        return [
            {"msgId": msg_id} | msgspec.to_builtins(await client.messages.consume_directly(group, client_id, msg_id))
            for msg_id in ids
        ]

    results = call_admin(namesrv_addr, request)
    if as_json:
        print_json(results)
    else:
        print_table(
            (whole("#Message ID"), "#Result", "#Time(ms)", "#Remark"),
            [
                (result["msgId"], result["consumeResult"], result["spentTimeMills"], result["remark"] or "")
                for result in results
            ],
        )
    if any(result["consumeResult"] != "CR_SUCCESS" for result in results):
        sys.exit(1)


async def _with_tracks(client: AdminClient, message: MessageExt) -> tuple[MessageExt, list[MessageTrack]]:
    """A message and its tracks; no tracks if its topic was deleted."""
    try:
        return message, await client.messages.track(message)
    except (BrokerError, ConfigError, TopicNotFound):
        return message, []


def _tracks_json(tracks: list[MessageTrack]) -> list[dict[str, Any]]:
    return [
        {
            "consumerGroup": track.consumer_group,
            "trackType": track.track_type.name,
            "error": track.error,
            "passed": track.is_passed,
            "consumedUntilTimestamp": track.consumed_until_ms,
            "retryCount": track.retry_count,
            "lastFailedTimestamp": track.last_failed_ms,
            "deadTimestamp": track.dead_ms,
        }
        for track in tracks
    ]


def _print_tracked(found: list[tuple[MessageExt, list[MessageTrack]]], as_json: bool, origins: Origins) -> None:
    if as_json:
        print_json(
            [
                message_json(message) | origins.json(message) | {"tracks": _tracks_json(tracks)}
                for message, tracks in found
            ]
        )
        return
    for count, (message, tracks) in enumerate(found):
        click.echo(("\n" if count else "") + message_text(message) + origins.text(message))
        click.echo()
        if not tracks:
            click.echo("WARN: No Consumer")
        else:
            print_table(TRACK_COLUMNS, map(_track_row, tracks))
            for track in tracks:
                if track.error:
                    click.echo(f"{track.consumer_group}: {printable(track.error)}")


TRACK_COLUMNS = (
    "#Consumer Group", whole("#Status"), optional("#Passed"), "#Retries", "#Last Failed", "#Consumed Until",
)  # fmt: skip


def _track_row(track: MessageTrack) -> tuple[object, ...]:
    passed = {True: "yes", False: "no", None: ""}[track.is_passed]
    times = time_text(track.last_failed_ms), time_text(track.consumed_until_ms)
    return track.consumer_group, track.track_type.name, passed, track.retry_count, *times


def _print_result_json(result: KeyQueryResult, origins: Origins) -> None:
    print_json(
        {
            "messages": [message_json(message) | origins.json(message) for message in result.messages],
            "cut": result.is_cut,
            "crowded": result.incomplete_seconds,
            "searchable": {
                address: {"beginTimestamp": begin_ms, "endTimestamp": end_ms}
                for address, (begin_ms, end_ms) in result.index_ranges.items()
            },
            "failures": {address: str(error) for address, error in result.failures.items()},
        }
    )


def _report_missing(result: KeyQueryResult) -> None:
    """Report incomplete results, or the searched range if nothing was found; exit with 1 if a broker failed."""
    for address, times_ms in sorted(result.incomplete_seconds.items()):
        others = f" and {len(times_ms) - 1} more" if len(times_ms) > 1 else ""
        click.echo(
            f"there are at least {len(result.messages)}: {address} returns at most maxMsgsNumBatch messages per second "
            f"of store time, and has more at {time_text(times_ms[0])}{others}; raise the limit with updateBrokerConfig "
            f"-b {address} -k maxMsgsNumBatch -v 10000, and repeat the query",
            err=True,
        )
    for address, error in result.failures.items():
        click.echo(f"the messages of {address} are missing: {error}", err=True)
    if result.failures:
        sys.exit(1)
    if not result.messages:
        ranges = [_range_text(address, *ends) for address, ends in sorted(result.index_ranges.items())]
        click.echo(f"not found in the searchable range: {'; '.join(ranges) or 'unknown'}", err=True)


def _range_text(address: str, begin_ms: int, end_ms: int) -> str:
    if not end_ms:
        return f"{address} has nothing in its index"
    return f"{address} from {time_text(begin_ms)} to {time_text(end_ms)}"
