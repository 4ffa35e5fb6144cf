"""Consumer offsets: reset, skip and clone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import (
    BrokerName,
    Flag,
    InvalidArguments,
    Option,
    QueueId,
    Result,
    Topic,
    command,
    no_such_queue,
    split,
)
from rucola.admin.offsets import ResetResult
from rucola.admin.requests import masters_of
from rucola.domain.group import LATEST
from rucola.domain.queue import MessageQueue
from rucola.errors import ConfigError, MQError, TopicNotFound
from rucola.presentation import Table, time_text, whole

Group = Annotated[str, Option("-g --group", "Consumer group.")]
Force = Annotated[bool, Option("-f --force", "Also move offsets forward, not only back.")]
Moment = Annotated[
    int,
    Option(
        "-s --timestamp",
        "Time to reset to: 2013-01-01T05:15:00, milliseconds since 1970; now or -1 for the end.",
        format="time or end",
    ),
]


async def _reset(client: AdminClient, group: str, topic: str, timestamp_ms: int, force: bool, cpp: bool) -> str:
    where = "the end" if timestamp_ms == LATEST else time_text(timestamp_ms) or "the beginning"
    return f"reset the offsets of group {group} on topic {topic} to {where}{await _undo_limit(client, group, topic)}"


async def _skip(client: AdminClient, group: str, topic: str, force: bool) -> str:
    limit = await _undo_limit(client, group, topic)
    return f"let group {group} skip its whole backlog on topic {topic}{limit}"


async def _undo_limit(client: AdminClient, group: str, topic: str) -> str:
    try:
        names = await _with_running_clients(client, group, topic)
    except TopicNotFound:
        raise
    except MQError as error:
        return f"; whether this can be undone while clients run is unknown: {error}"
    return f"; to undo it, all clients must be stopped first: RocketMQ 4 runs on {names}" if names else ""


async def _with_running_clients(client: AdminClient, group: str, topic: str) -> str:
    """The brokers of RocketMQ 4 with clients of a group, which they can reset to a time only."""
    names = []
    for name, address in masters_of((await client.topics.route(topic)).broker_datas).items():
        stats = await client.brokers.runtime_stats(address)
        is_old = "rucolaVersion" not in stats and stats.get("brokerVersionDesc", "").startswith("V4")
        if is_old and await client.groups.find_consumer_connection(group, address) is not None:
            names.append(name)
    return ", ".join(sorted(names))


def _changes(before_and_after: Mapping[MessageQueue, tuple[int, int]]) -> Table:
    rows = [
        (queue.broker_name, queue.queue_id, before, after, max(0, before - after), max(0, after - before))
        for queue, (before, after) in before_and_after.items()
    ]
    return Table(("#Broker Name", whole("#QID"), "#Before", "#After", "#Again", "#Skipped"), rows)


async def _by_time(
    client: AdminClient, group: str, topic: str, timestamp_ms: int = LATEST, force: bool = True, cpp: bool = False
) -> Table:
    return _changes(await client.offsets.preview_by_time(topic, group, timestamp_ms, force=force))


async def _undo(client: AdminClient, group: str, topic: str) -> tuple[str, Mapping[str, Any]] | None:
    """The command that restores the present offsets."""
    stats = await client.groups.consume_stats(group, topic)
    offsets = {queue: at.consumer_offset for queue, at in stats.offset_table.items() if at.consumer_offset >= 0}
    text = ",".join(f"{queue.broker_name}:{queue.queue_id}:{offset}" for queue, offset in offsets.items())
    return ("resetOffsets", {"group": group, "topic": topic, "offsets": text}) if offsets else None


@command("resetOffsetByTime", confirm=_reset, preview=_by_time)
async def reset_offset_by_time(
    client: AdminClient,
    group: Group,
    topic: Topic,
    timestamp_ms: Moment,
    force: Force = True,
    cpp: Annotated[bool, Flag("-c --cplus", "For C++ clients of Apache's brokers.")] = False,
) -> Result:
    """Reset the offsets of a group on a topic to a time.

    The clients of the group need no restart.

    \b
    Examples:
      rucola admin resetOffsetByTime -g billing -t Orders -s 2013-01-01T00:00:00 --yes
      rucola admin resetOffsetByTime -g billing -t Orders -s now -f false
    """
    undo = await _undo(client, group, topic)
    found = await client.offsets.reset_by_time(topic, group, timestamp_ms, force=force, cpp=cpp)
    return _report(found, group, topic, undo)


@command("skipAccumulatedMessage", confirm=_skip, preview=_by_time)
async def skip_accumulated_message(client: AdminClient, group: Group, topic: Topic, force: Force = True) -> Result:
    """Skip a group's backlog on a topic: the group continues with the next new message.

    \b
    Examples:
      rucola admin skipAccumulatedMessage -g billing -t Orders --yes
    """
    undo = await _undo(client, group, topic)
    return _report(await client.offsets.reset_by_time(topic, group, LATEST, force=force), group, topic, undo)


@command(
    "resetOffset", confirm="reset the offset of group {group} on {topic}@{broker_name}:{queue_id} to {queue_offset}"
)
async def reset_offset(
    client: AdminClient,
    group: Group,
    topic: Topic,
    broker_name: BrokerName,
    queue_id: QueueId,
    queue_offset: Annotated[int, Option("-o --offset", "Queue offset.", min=0)],
) -> Result:
    """Reset the offset of a group on one queue. Its clients need no restart.

    Brokers of RocketMQ 4 pass only times to clients, so with such a broker all clients of the group have to be stopped
    first. If one is running, the command reports it, and the offset is not changed.

    \b
    Examples:
      rucola admin resetOffset -g billing -t Orders -b broker-a -q 0 -o 4711 --yes
    """
    queue = MessageQueue(topic, broker_name, queue_id)
    if queue not in (queues := await client.topics.queues(topic)):
        raise no_such_queue(queue, queues)
    undo = await _undo(client, group, topic)
    return _report(await client.offsets.reset(group, queue, queue_offset), group, topic, undo)


def _parse_offsets(topic: str, text: str) -> dict[MessageQueue, int]:
    found = {}
    for part in split(text):
        broker, _, at = part.partition(":")
        queue_id, _, offset = at.partition(":")
        if not (broker and queue_id.isdecimal() and offset.isdecimal()):
            raise InvalidArguments(f"{part!r}: expected broker:queue:offset, such as broker-a:0:4711")
        found[MessageQueue(topic, broker, int(queue_id))] = int(offset)
    if not found:
        raise InvalidArguments("the offsets name no queue")
    return found


async def _to_offsets(client: AdminClient, group: str, topic: str, offsets: str) -> Table:
    wanted = _parse_offsets(topic, offsets)
    table = (await client.groups.consume_stats(group, topic)).offset_table
    return _changes({queue: (table[queue].consumer_offset, to) for queue, to in wanted.items() if queue in table})


async def _reset_all(client: AdminClient, group: str, topic: str, offsets: str) -> str:
    names = await _with_running_clients(client, group, topic)
    limit = f"; stop all clients of the group first: RocketMQ 4 on {names} refuses this otherwise" if names else ""
    return f"reset the offsets of group {group} on topic {topic} to {offsets}{limit}"


@command("resetOffsets", confirm=_reset_all, preview=_to_offsets)
async def reset_offsets(
    client: AdminClient,
    group: Group,
    topic: Topic,
    offsets: Annotated[str, Option("-o --offsets", "broker:queue:offset, separated by commas.")],
) -> Result:
    """Reset the offsets of a group on several queues, each as resetOffset does; the way back after a reset.

    The exit code is 1 if one of them failed; the others are reset.

    \b
    Examples:
      rucola admin resetOffsets -g billing -t Orders -o broker-a:0:4711,broker-a:1:4698 --yes
    """
    wanted = _parse_offsets(topic, offsets)
    await client.topics.route(topic)  # of a topic that is unknown nothing is tried
    undo = await _undo(client, group, topic)
    done, failures, is_online = dict[MessageQueue, int](), [], True
    for queue, offset in wanted.items():
        try:
            result = await client.offsets.reset(group, queue, offset)
        except MQError as error:
            failures.append(f"{queue.broker_name}:{queue.queue_id} is unchanged: {error}")
            continue
        done |= result.offsets
        is_online &= result.online
    report = _report(ResetResult(done, is_online), group, topic, undo)
    return replace(report, notes=[*failures, *(report.notes if done else [])], is_failure=bool(failures))


def _report(result: ResetResult, group: str, topic: str, undo: tuple[str, Mapping[str, Any]] | None) -> Result:
    rows = [
        {"brokerName": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
        for queue, offset in sorted(result.offsets.items())
    ]
    table = Table(("#brokerName", whole("#queueId"), "#offset"), [tuple(row.values()) for row in rows])
    notes = [] if result.online else [f"group {group} has no clients now; the next one starts at these offsets"]
    value = {"group": group, "topic": topic, "online": result.online, "queues": rows}
    return Result(value, [table], notes, undo=undo)


@command("cloneGroupOffset", confirm="copy the offsets of group {source} on topic {topic} to group {destination}")
async def clone_group_offset(
    client: AdminClient,
    source: Annotated[str, Option("-s --srcGroup", "Group to copy the offsets from.")],
    destination: Annotated[str, Option("-d --destGroup", "Group to copy the offsets to.")],
    topic: Topic,
    offline: Annotated[bool, Option("-o --offline", "Copy even if the group has unsubscribed from the topic.")] = False,
) -> Result:
    """Copy the offsets of one group on a topic to another group.

    \b
    Examples:
      rucola admin cloneGroupOffset -s billing -d billing2 -t Orders --yes
    """
    await client.topics.route(topic)
    if all(queue.topic != topic for queue in (await client.groups.consume_stats(source)).offset_table):
        raise ConfigError(f"group {source} has committed no offset on topic {topic}")
    await client.offsets.clone(source, destination, topic, offline=offline)
    text = f"clone group offset success. srcGroup[{source}], destGroup=[{destination}], topic[{topic}]"
    return Result({"srcGroup": source, "destGroup": destination, "topic": topic}, [text])
