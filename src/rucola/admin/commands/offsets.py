"""Consumer offsets: reset, skip and clone."""

from __future__ import annotations

from typing import Annotated

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import BrokerName, Flag, Option, QueueId, Result, Topic, command, no_such_queue
from rucola.admin.offsets import ResetResult
from rucola.domain.group import LATEST
from rucola.domain.queue import MessageQueue
from rucola.errors import ConfigError
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
    where = "the end" if timestamp_ms == LATEST else time_text(timestamp_ms)
    return f"reset the offsets of group {group} on topic {topic} to {where}"


@command("resetOffsetByTime", confirm=_reset)
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
    found = await client.offsets.reset_by_time(topic, group, timestamp_ms, force=force, cpp=cpp)
    return _report(found, group, topic)


@command("skipAccumulatedMessage", confirm="let group {group} skip its whole backlog on topic {topic}")
async def skip_accumulated_message(client: AdminClient, group: Group, topic: Topic, force: Force = True) -> Result:
    """Skip a group's backlog on a topic: the group continues with the next new message.

    \b
    Examples:
      rucola admin skipAccumulatedMessage -g billing -t Orders --yes
    """
    return _report(await client.offsets.reset_by_time(topic, group, LATEST, force=force), group, topic)


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
    return _report(await client.offsets.reset(group, queue, queue_offset), group, topic)


def _report(result: ResetResult, group: str, topic: str) -> Result:
    rows = [
        {"brokerName": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
        for queue, offset in sorted(result.offsets.items())
    ]
    table = Table(("#brokerName", whole("#queueId"), "#offset"), [tuple(row.values()) for row in rows])
    notes = [] if result.online else [f"group {group} has no clients now; the next one starts at these offsets"]
    return Result({"group": group, "topic": topic, "online": result.online, "queues": rows}, [table], notes)


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
