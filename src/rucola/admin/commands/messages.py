"""Messages: by key, id and queue offset, direct consumption, traces, and discarded transactions."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec

from rucola.admin.client import AdminClient
from rucola.admin.commands.archive_query import Archive, Origins, archived_message, query_both
from rucola.admin.commands.command import (
    BeginTime,
    BrokerName,
    EndTime,
    Flag,
    InvalidArguments,
    Option,
    Result,
    Row,
    Topic,
    check_window,
    command,
    split,
)
from rucola.admin.commands.sending import SENT, TOOLS_PRODUCER, send_json
from rucola.admin.message_track import MessageTrack
from rucola.admin.message_view import message_json, message_text
from rucola.admin.queries import MAX_LONG, PAGE, KeyQueryResult
from rucola.admin.traces import TracedDelivery
from rucola.client import Message, Producer
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError, ConfigError, RemotingError, TopicNotFound
from rucola.message import MessageExt
from rucola.message.topics import TRACE_TOPIC
from rucola.presentation import Column, Table, optional, time_text, to_json, whole

Group = Annotated[
    str | None, Option("-g --consumerGroup", "With -d: consumer group of the client that consumes the message now.")
]
ClientId = Annotated[str | None, Option("-d --clientId", "With -g: id of the client that consumes the message now.")]


def _check_consume_options(group: str | None, client_id: str | None) -> None:
    if (group is None) != (client_id is None):
        raise InvalidArguments("-g and -d belong together: a group, and the id of one of its clients")


@command("queryMsgByKey", shows_bodies=True)
async def query_msg_by_key(
    client: AdminClient,
    topic: Topic,
    key: Annotated[str, Option("-k --msgKey", "Key of the messages.")],
    max_count: Annotated[int, Option("-m --maxNum --max", "Maximum number of messages.", min=1)] = PAGE,
    begin_ms: BeginTime = None,
    end_ms: EndTime = None,
    lake: Archive = None,
) -> Result:
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
    result, origins = await query_both(
        lambda: client.messages.query_by_key(topic, key, max_count, *window),
        lake, topic, key, max_count, unique=False, window=window,
    )  # fmt: skip
    rows = [(each.msg_id, each.queue_id, each.queue_offset, *origins.cells(each)) for each in result.messages]
    notes = _missing(result)
    if result.is_cut and len(rows) == max_count:
        cut = f"these are the newest {len(rows)}, there may be more: raise the limit with -m, or find older ones with "
        notes.insert(0, f"{cut}--until {result.messages[-1].store_timestamp}")
    table = Table((whole("#Message ID"), whole("#QID"), "#Offset", *origins.columns), rows)
    return Result(_result_json(result, origins), [table], notes, is_failure=bool(result.failures))


@command(
    "queryMsgById", shows_bodies=True,
    effects={
        "resend": "send a copy of message {msg_ids} to its topic",
        "client_id": "let client {client_id} of group {consumer_group} consume message {msg_ids}",
    },
)  # fmt: skip
async def query_msg_by_id(
    client: AdminClient,
    msg_ids: Annotated[str, Option("-i --msgId", "One or more offsetMsgIds, separated by commas.")],
    consumer_group: Group = None,
    client_id: ClientId = None,
    resend: Annotated[bool, Option("-s --sendMessage", "Send a copy of the message now.")] = False,
    lake: Archive = None,
) -> Result:
    """Show the message with an offsetMsgId, and its state in each consumer group.

    With -g and -d that client consumes the message now, regardless of the offset of its group. With -s true a copy with
    the same unique key is sent to its topic. With --archive a lake is searched, too.

    \b
    Examples:
      rucola admin queryMsgById -i 7F00000100002A9F0000000000000000
      rucola admin queryMsgById -i 7F00000100002A9F0000000000000000 -g billing -d 10.0.0.7@4711
    """
    _check_consume_options(consumer_group, client_id)
    if lake is not None and (consumer_group is not None or resend):
        raise InvalidArguments("--archive only shows messages; it cannot be combined with -g, -d or -s")
    ids = split(msg_ids)
    if consumer_group is not None and client_id is not None:
        return await _consume_directly(client, consumer_group, client_id, ids)
    if resend:
        return await _resend(client, ids)
    # offsetMsgIds found only in the lake, which is also searched for an unreachable broker: it may have been removed.
    archived, found = set[str](), list[tuple[MessageExt, list[MessageTrack]]]()
    for msg_id in ids:
        try:
            message = await client.messages.get(msg_id)
        except RemotingError:
            in_lake = None if lake is None else await archived_message(lake, msg_id)
            if in_lake is None:
                raise
            message = in_lake
            archived.add(message.offset_msg_id)
        found.append((message, await _tracks(client, message)))
    return _tracked(found, Origins() if lake is None else Origins(frozenset(archived)))


async def _resend(client: AdminClient, ids: list[str]) -> Result:
    messages = [await client.messages.get(msg_id) for msg_id in ids]
    async with Producer(TOOLS_PRODUCER, client.connection) as producer:
        sent = [
            await producer.send(
                Message(one.topic, one.body, properties=one.properties, flag=one.flag, body_flags=one.body_flags)
            )
            for one in messages
        ]
    rows = [send_json(one) for one in sent]
    return Result(rows, [Table(SENT, rows)])


@command("queryMsgByOffset", shows_bodies=True)
async def query_msg_by_offset(
    client: AdminClient,
    topic: Topic,
    broker_name: BrokerName,
    queue_id: Annotated[int, Option("-i --queueId", "Queue id.", min=0)],
    queue_offset: Annotated[int, Option("-o --offset", "Queue offset.", min=0)],
) -> Result:
    """Show the message at a queue offset, and its state in each consumer group.

    \b
    Examples:
      rucola admin queryMsgByOffset -t Flights -b broker-a -i 0 -o 4711
    """
    message = await client.messages.at(MessageQueue(topic, broker_name, queue_id), queue_offset)
    return _tracked([(message, await _tracks(client, message))], Origins())


@command(
    "queryMsgByUniqueKey",
    shows_bodies=True,
    effects={"client_id": "let client {client_id} of group {group} consume message {unique_key}"},
)
async def query_msg_by_unique_key(
    client: AdminClient,
    topic: Topic,
    unique_key: Annotated[str, Option("-i --msgId", "Unique key of the message, assigned by its producer.")],
    show_all: Annotated[bool, Flag("-a --showAll", "Show all messages with this key, not only the oldest.")] = False,
    group: Group = None,
    client_id: ClientId = None,
    lake: Archive = None,
) -> Result:
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
        raise InvalidArguments("--archive only shows messages; it cannot be combined with -g and -d")

    async def live() -> KeyQueryResult:
        result = await client.messages.query_by_unique_key(topic, unique_key)
        # As in RocketMQ's tool, an offsetMsgId, which has the same form but is in no index, finds its message, too.
        if not result.messages and await client.messages.is_offset_msg_id(unique_key):
            message = await client.messages.get(unique_key)
            if message.topic != topic:
                raise ConfigError(f"{unique_key} is a message of {message.topic}, not of {topic}", subject=unique_key)
            result.messages.append(message)
        return result

    result, origins = await query_both(live, lake, topic, unique_key, PAGE, unique=True)
    # Results are newest first; the message that was stored first is the original, later ones are copies.
    result.messages.sort(key=lambda message: (message.store_timestamp, message.physical_offset))
    if not show_all:
        del result.messages[1:]
    notes, is_failure = _missing(result), bool(result.failures)
    if group is not None and client_id is not None and result.messages:
        ids = [message.offset_msg_id for message in result.messages]
        done = await _consume_directly(client, group, client_id, ids)
        return replace(done, notes=notes, is_failure=done.is_failure or is_failure)
    text = [line for each in result.messages for line in ("", *_lines(each, origins))][1:]
    return Result(_result_json(result, origins), text, notes, is_failure=is_failure)


def _lines(message: MessageExt, origins: Origins) -> list[str]:
    return (message_text(message) + origins.text(message)).replace("\r\n", "\n").split("\n")


_CONSUMED = (
    whole("#Message ID", "msgId"), Column("#Result", "consumeResult"), Column("#Time(ms)", "spentTimeMills"),
    Column("#Remark", "remark", lambda remark: remark or ""),
)  # fmt: skip


async def _consume_directly(client: AdminClient, group: str, client_id: str, ids: list[str]) -> Result:
    """Let a client consume messages; a failure if one failed."""
    rows: list[Row] = [
        {"msgId": one} | msgspec.to_builtins(await client.messages.consume_directly(group, client_id, one))
        for one in ids
    ]
    return Result(rows, [Table(_CONSUMED, rows)], is_failure=any(row["consumeResult"] != "CR_SUCCESS" for row in rows))


async def _tracks(client: AdminClient, message: MessageExt) -> list[MessageTrack]:
    """The tracks of a message; none if its topic was deleted."""
    try:
        return await client.messages.track(message)
    except (BrokerError, ConfigError, TopicNotFound):
        return []


TRACK_COLUMNS = (
    Column("#Consumer Group", "consumerGroup"), whole("#Status", "trackType"),
    optional("#Passed", "passed", {True: "yes", False: "no", None: ""}.get), Column("#Retries", "retryCount"),
    Column("#Last Failed", "lastFailedTimestamp", time_text),
    Column("#Consumed Until", "consumedUntilTimestamp", time_text),
)  # fmt: skip


def _track_json(track: MessageTrack) -> Row:
    return {
        "consumerGroup": track.consumer_group,
        "trackType": track.track_type.name,
        "error": track.error,
        "passed": track.is_passed,
        "consumedUntilTimestamp": track.consumed_until_ms,
        "retryCount": track.retry_count,
        "lastFailedTimestamp": track.last_failed_ms,
        "deadTimestamp": track.dead_ms,
    }


def _tracked(found: list[tuple[MessageExt, list[MessageTrack]]], origins: Origins) -> Result:
    value, text = [], list[str | Table]()
    for message, tracks in found:
        rows = [_track_json(track) for track in tracks]
        value.append(message_json(message) | origins.json(message) | {"tracks": rows})
        text += [*([""] if text else []), *_lines(message, origins), ""]
        text.append(Table(TRACK_COLUMNS, rows) if rows else "WARN: No Consumer")
        text += [f"{track.consumer_group}: {track.error}" for track in tracks if track.error]
    return Result(value, text)


def _result_json(result: KeyQueryResult, origins: Origins) -> Row:
    return {
        "messages": [message_json(message) | origins.json(message) for message in result.messages],
        "cut": result.is_cut,
        "crowded": result.incomplete_seconds,
        "searchable": {
            address: {"beginTimestamp": begin_ms, "endTimestamp": end_ms}
            for address, (begin_ms, end_ms) in result.index_ranges.items()
        },
        "failures": {address: str(error) for address, error in result.failures.items()},
    }


def _missing(result: KeyQueryResult) -> list[str]:
    """Describe what is missing in a result, or the searched range if nothing was found."""
    notes = []
    for address, times_ms in sorted(result.incomplete_seconds.items()):
        others = f" and {len(times_ms) - 1} more" if len(times_ms) > 1 else ""
        notes.append(
            f"there are at least {len(result.messages)}: {address} returns at most maxMsgsNumBatch messages per second "
            f"of store time, and has more at {time_text(times_ms[0])}{others}; raise the limit with updateBrokerConfig "
            f"-b {address} -k maxMsgsNumBatch -v 10000, and repeat the query"
        )
    notes += [f"the messages of {address} are missing: {error}" for address, error in result.failures.items()]
    if not result.failures and not result.messages:
        ranges = [_range_text(address, *ends) for address, ends in sorted(result.index_ranges.items())]
        notes.append(f"not found in the searchable range: {'; '.join(ranges) or 'unknown'}")
    return notes


def _range_text(address: str, begin_ms: int, end_ms: int) -> str:
    if not end_ms:
        return f"{address} has nothing in its index"
    return f"{address} from {time_text(begin_ms)} to {time_text(end_ms)}"


@command("resumeCheckHalfMessage", writes=True)
async def resume_check_half_message(
    client: AdminClient,
    msg_ids: Annotated[str, Option("-i --msgId", "One or more offsetMsgIds, separated by commas.")],
) -> Result:
    """Open transactions again that a broker discarded after too many checks.

    The ids belong to messages in TRANS_CHECK_MAX_TIME_TOPIC, which `printMsg -t TRANS_CHECK_MAX_TIME_TOPIC` lists.
    The broker asks the producers of each transaction again, with a new count of checks. mqadmin has no command for it.

    \b
    Examples:
      rucola admin resumeCheckHalfMessage -i 7F00000100002A9F0000000000004E20
    """
    ids = split(msg_ids)
    for one in ids:
        await client.messages.resume_check_half_message(one)
    return Result({"resumed": ids}, [f"{one} resumed" for one in ids])


@command("queryMsgTraceById")
async def query_msg_trace_by_id(
    client: AdminClient,
    msg_id: Annotated[str, Option("-i --msgId", "Unique key of the message, assigned by its producer.")],
    trace_topic: Annotated[str, Option("-t --traceTopic", "Topic with the traces.")] = TRACE_TOPIC,
) -> Result:
    """Show the trace of a message: producers, consumers, times and durations.

    Only clients with tracing enabled record traces.

    \b
    Examples:
      rucola admin queryMsgTraceById -i C0A80107126755B4AAC2000100A30000
    """
    view = await client.traces.query(msg_id, trace_topic)
    if not (view.sends or view.transactions or view.deliveries):
        raise ConfigError(f"topic {trace_topic} has no trace of {msg_id}")
    text: list[str | Table] = []
    if view.sends:
        columns = "#Type", "#ProducerGroup", whole("#ClientHost"), "#SendTime", "#CostTimes", "#Status"
        rows = [
            ("Pub", one.group, host, time_text(one.timestamp), f"{one.cost_ms}ms", _status(one.success))
            for host, one in view.sends
        ]
        text += [Table(columns, rows), ""]
    if view.transactions:
        of_ends = "#Type", "#ProducerGroup", whole("#ClientHost"), "#EndTime", "#State", optional("#FromCheck")
        rows = [
            ("EndTransaction", one.group, host, time_text(one.timestamp), one.transaction_state,
             str(one.from_transaction_check).lower())
            for host, one in view.transactions
        ]  # fmt: skip
        text += [Table(of_ends, rows), ""]
    if view.deliveries:
        columns = "#Type", "#ConsumerGroup", whole("#ClientHost"), "#ConsumerTime", "#CostTimes", "#Status"
        text.append(Table(columns, [_delivery_row(one) for one in view.deliveries]))
    value = {
        "sends": [{"clientHost": host} | to_json(one) for host, one in view.sends],
        "transactions": [{"clientHost": host} | to_json(one) for host, one in view.transactions],
        "deliveries": view.deliveries,
    }
    return Result(value, text, ["the trace may be incomplete"] if view.is_cut else [])


def _delivery_row(one: TracedDelivery) -> tuple[str, ...]:
    begin_ms = one.begin.timestamp if one.begin is not None else 0
    if one.end is None:
        return "Sub", one.group, one.client_host, time_text(begin_ms), "", "not ended"
    at_ms = begin_ms or one.end.timestamp
    return "Sub", one.group, one.client_host, time_text(at_ms), f"{one.end.cost_ms}ms", _status(one.end.success)


def _status(success: bool) -> str:
    return "success" if success else "failed"
