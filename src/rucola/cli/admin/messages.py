"""Finding messages: by key, by offsetMsgId, by unique key, by queue offset; and giving one to a consumer."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from rucola.admin import PAGE, AdminClient, KeyQueryResult, MessageExt, MessageQueue, MessageTrack
from rucola.cli.admin.command import ask, command, topic_option
from rucola.cli.message_view import message_json, message_text
from rucola.cli.output import print_json, print_table
from rucola.client import PullConsumer
from rucola.client.pull import PullStatus
from rucola.errors import BrokerError, ConfigError

TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group in whose name tools pull; brokers have it from the start."""

group_option = click.option("-g", "--consumerGroup", "group", help="With -d: let this group's client consume it now.")
client_option = click.option("-d", "--clientId", "client_id", help="With -g: the client that shall consume it.")


def _both_or_none(group: str | None, client_id: str | None) -> None:
    if (group is None) != (client_id is None):
        raise click.UsageError("-g and -d belong together: a group, and the id of one of its clients")


@command("queryMsgByKey")
@topic_option
@click.option("-k", "--msgKey", "key", required=True, help="One of the message's keys.")
@click.option("-m", "--maxNum", "max_count", type=click.IntRange(1), default=PAGE, show_default=True, help="At most.")
def query_msg_by_key(namesrv_addr: str, as_json: bool, topic: str, key: str, max_count: int) -> None:
    """Messages of a topic that have a key, newest first.

    \b
    Examples:
      rucola admin queryMsgByKey -t Flights -k N14228
      rucola admin queryMsgByKey -t Flights -k N14228 -m 1000 --json
    """
    result = ask(namesrv_addr, lambda client: client.query_message_by_key(topic, key, max_count))
    if as_json:
        _print_result_json(result)
    else:
        rows = [(message.msg_id, message.queue_id, message.queue_offset) for message in result.messages]
        print_table(("#Message ID", "#QID", "#Offset"), rows)
    if result.is_cut:
        click.echo(f"these are the newest {len(result.messages)}, there may be more: ask for more with -m", err=True)
    _report_failures(result)


@command("queryMsgById")
@click.option("-i", "--msgId", "msg_ids", required=True, help="offsetMsgId, several with ',' between them.")
@group_option
@client_option
def query_msg_by_id(namesrv_addr: str, as_json: bool, msg_ids: str, group: str | None, client_id: str | None) -> None:
    """The message at the address that an offsetMsgId names, and what became of it in each group.

    With -g and -d that client consumes the message now, whatever its group's offset is.

    \b
    Examples:
      rucola admin queryMsgById -i 7F00000100002A9F0000000000000000
      rucola admin queryMsgById -i 7F00000100002A9F0000000000000000 -g billing -d 10.0.0.7@4711
    """
    _both_or_none(group, client_id)
    ids = [msg_id for part in msg_ids.split(",") if (msg_id := part.strip())]
    if group is not None and client_id is not None:
        _consume_directly(namesrv_addr, as_json, group, client_id, ids)
        return

    async def question(client: AdminClient) -> list[tuple[MessageExt, list[MessageTrack]]]:
        return [await _with_tracks(client, await client.query_message_by_id(msg_id)) for msg_id in ids]

    _print_tracked(ask(namesrv_addr, question), as_json)


@command("queryMsgByOffset")
@topic_option
@click.option("-b", "--brokerName", "broker_name", required=True, help="Broker name.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), required=True)
@click.option("-o", "--offset", "queue_offset", type=click.IntRange(0), required=True, help="Queue offset.")
def query_msg_by_offset(
    namesrv_addr: str, as_json: bool, topic: str, broker_name: str, queue_id: int, queue_offset: int
) -> None:
    """The message at an offset of a queue.

    \b
    Examples:
      rucola admin queryMsgByOffset -t Flights -b broker-a -i 0 -o 4711
    """
    queue = MessageQueue(topic, broker_name, queue_id)

    async def question(client: AdminClient) -> tuple[MessageExt, list[MessageTrack]]:
        await client.examine_topic_route(topic)
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

    _print_tracked([ask(namesrv_addr, question)], as_json)


@command("queryMsgByUniqueKey")
@topic_option
@click.option("-i", "--msgId", "unique_key", required=True, help="The id that the producer gave to the message.")
@click.option("-a", "--showAll", "show_all", is_flag=True, help="All messages with this id, not only the first.")
@group_option
@client_option
def query_msg_by_unique_key(
    namesrv_addr: str,
    as_json: bool,
    topic: str,
    unique_key: str,
    show_all: bool,
    group: str | None,
    client_id: str | None,
) -> None:
    """The message to which its producer gave an id; the oldest where several have it.

    With -g and -d that client consumes the message now, whatever its group's offset is.

    \b
    Examples:
      rucola admin queryMsgByUniqueKey -t Flights -i C0A80107126755B4AAC2000100A30000
      rucola admin queryMsgByUniqueKey -t Flights -i C0A80107126755B4AAC2000100A30000 -g billing -d 10.0.0.7@4711
    """
    _both_or_none(group, client_id)
    result = ask(namesrv_addr, lambda client: client.query_message_by_unique_key(topic, unique_key))
    if not show_all:
        del result.messages[1:]
    if group is not None and client_id is not None and result.messages:
        ids = [message.offset_msg_id for message in result.messages]
        _consume_directly(namesrv_addr, as_json, group, client_id, ids)
    elif as_json:
        _print_result_json(result)
    elif result.messages:
        click.echo("\n\n".join(map(message_text, result.messages)))
    _report_failures(result)


def _consume_directly(namesrv_addr: str, as_json: bool, group: str, client_id: str, ids: list[str]) -> None:
    """Let a client consume messages, and print what came of it; exit code 1 where one failed."""

    async def question(client: AdminClient) -> list[dict[str, Any]]:
        return [
            {"msgId": msg_id} | msgspec.to_builtins(await client.consume_message_directly(group, client_id, msg_id))
            for msg_id in ids
        ]

    results = ask(namesrv_addr, question)
    if as_json:
        print_json(results)
    else:
        print_table(
            ("#Message ID", "#Result", "#Time(ms)", "#Remark"),
            [
                (result["msgId"], result["consumeResult"], result["spentTimeMills"], result["remark"] or "")
                for result in results
            ],
        )
    if any(result["consumeResult"] != "CR_SUCCESS" for result in results):
        sys.exit(1)


async def _with_tracks(client: AdminClient, message: MessageExt) -> tuple[MessageExt, list[MessageTrack]]:
    """A message and what became of it; without tracks where its topic is gone."""
    try:
        return message, await client.message_track_detail(message)
    except (BrokerError, ConfigError):
        return message, []


def _tracks_json(tracks: list[MessageTrack]) -> list[dict[str, str]]:
    return [
        {"consumerGroup": track.consumer_group, "trackType": track.track_type.name, "error": track.error}
        for track in tracks
    ]


def _print_tracked(found: list[tuple[MessageExt, list[MessageTrack]]], as_json: bool) -> None:
    if as_json:
        print_json([message_json(message) | {"tracks": _tracks_json(tracks)} for message, tracks in found])
        return
    for count, (message, tracks) in enumerate(found):
        click.echo(("\n" if count else "") + message_text(message))
        click.echo()
        if not tracks:
            click.echo("WARN: No Consumer")
        else:
            rows = [(track.consumer_group, track.track_type.name, track.error) for track in tracks]
            print_table(("#Consumer Group", "#Status", "#Remark"), rows)


def _print_result_json(result: KeyQueryResult) -> None:
    print_json(
        {
            "messages": [message_json(message) for message in result.messages],
            "cut": result.is_cut,
            "failures": {address: str(error) for address, error in result.failures.items()},
        }
    )


def _report_failures(result: KeyQueryResult) -> None:
    for address, error in result.failures.items():
        click.echo(f"the messages of {address} are missing: {error}", err=True)
    if result.failures:
        sys.exit(1)
    if not result.messages:
        click.echo("no message has it", err=True)
