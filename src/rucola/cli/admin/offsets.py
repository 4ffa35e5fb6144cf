"""Consumer offsets: reset, skip and clone."""

from __future__ import annotations

import click

from rucola.admin import LATEST, AdminClient, MessageQueue, ResetResult
from rucola.cli.admin.command import (
    call_admin,
    command,
    confirm,
    no_such_queue,
    topic_option,
    yes_option,
)
from rucola.cli.option_types import TimeType
from rucola.cli.output import print_json, print_table, time_text, whole
from rucola.errors import ConfigError

group_option = click.option("-g", "--group", required=True, help="Consumer group.")
force_option = click.option(
    "-f",
    "--force",
    type=bool,
    default=True,
    show_default=True,
    help="Also move offsets forward, not only back (true|false).",
)


@command("resetOffsetByTime")
@group_option
@topic_option
@click.option(
    "-s", "--timestamp", "timestamp_ms", type=TimeType(latest=True), required=True,
    help="Time to reset to: 2013-01-01T05:15:00, milliseconds since 1970; now or -1 for the end.",
)  # fmt: skip
@force_option
@click.option("-c", "--cplus", "cpp", is_flag=True, help="For C++ clients of Apache's brokers.")
@yes_option
def reset_offset_by_time(
    namesrv_addr: str, as_json: bool, group: str, topic: str, timestamp_ms: int, force: bool, cpp: bool, yes: bool
) -> None:
    """Reset the offsets of a group on a topic to a time.

    The clients of the group need no restart.

    \b
    Examples:
      rucola admin resetOffsetByTime -g billing -t Orders -s 2013-01-01T00:00:00 --yes
      rucola admin resetOffsetByTime -g billing -t Orders -s now -f false
    """
    where = "the end" if timestamp_ms == LATEST else time_text(timestamp_ms)
    confirm(yes, f"reset the offsets of group {group} on topic {topic} to {where}")
    _reset(namesrv_addr, as_json, group, topic, timestamp_ms, force, cpp)


@command("skipAccumulatedMessage")
@group_option
@topic_option
@force_option
@yes_option
def skip_accumulated_message(namesrv_addr: str, as_json: bool, group: str, topic: str, force: bool, yes: bool) -> None:
    """Skip a group's backlog on a topic: the group continues with the next new message.

    \b
    Examples:
      rucola admin skipAccumulatedMessage -g billing -t Orders --yes
    """
    confirm(yes, f"let group {group} skip its whole backlog on topic {topic}")
    _reset(namesrv_addr, as_json, group, topic, LATEST, force)


@command("resetOffset")
@group_option
@topic_option
@click.option("-b", "--brokerName", "broker_name", required=True, help="Broker name.")
@click.option("-q", "--queueId", "queue_id", type=click.IntRange(0), required=True, help="Queue id.")
@click.option("-o", "--offset", "queue_offset", type=click.IntRange(0), required=True, help="Queue offset.")
@yes_option
def reset_offset(
    namesrv_addr: str,
    as_json: bool,
    group: str,
    topic: str,
    broker_name: str,
    queue_id: int,
    queue_offset: int,
    yes: bool,
) -> None:
    """Reset the offset of a group on one queue. Its clients need no restart.

    Brokers of RocketMQ 4 pass only times to clients, so with such a broker all clients of the group have to be stopped
    first. If one is running, the command reports it, and the offset is not changed.

    \b
    Examples:
      rucola admin resetOffset -g billing -t Orders -b broker-a -q 0 -o 4711 --yes
    """
    queue = MessageQueue(topic, broker_name, queue_id)
    confirm(yes, f"reset the offset of group {group} on {queue} to {queue_offset}")

    async def request(client: AdminClient) -> ResetResult:
        if queue not in (queues := await client.topics.queues(topic)):
            raise no_such_queue(queue, queues)
        return await client.offsets.reset(group, queue, queue_offset)

    _print_reset(call_admin(namesrv_addr, request), as_json, group, topic)


def _reset(
    namesrv_addr: str, as_json: bool, group: str, topic: str, timestamp_ms: int, force: bool, cpp: bool = False
) -> None:
    async def request(client: AdminClient) -> ResetResult:
        return await client.offsets.reset_by_time(topic, group, timestamp_ms, force=force, cpp=cpp)

    _print_reset(call_admin(namesrv_addr, request), as_json, group, topic)


def _print_reset(result: ResetResult, as_json: bool, group: str, topic: str) -> None:
    rows = [(queue.broker_name, queue.queue_id, offset) for queue, offset in sorted(result.offsets.items())]
    if as_json:
        queues = [dict(zip(("brokerName", "queueId", "offset"), row, strict=True)) for row in rows]
        print_json({"group": group, "topic": topic, "online": result.online, "queues": queues})
        return
    print_table(("#brokerName", whole("#queueId"), "#offset"), rows)
    if not result.online:
        click.echo(f"group {group} has no clients now; the next one starts at these offsets", err=True)


@command("cloneGroupOffset")
@click.option("-s", "--srcGroup", "source", required=True, help="Group to copy the offsets from.")
@click.option("-d", "--destGroup", "destination", required=True, help="Group to copy the offsets to.")
@topic_option
@click.option(
    "-o",
    "--offline",
    type=bool,
    default=False,
    help="Copy even if the group has unsubscribed from the topic (true|false).",
)
@yes_option
def clone_group_offset(
    namesrv_addr: str, as_json: bool, source: str, destination: str, topic: str, offline: bool, yes: bool
) -> None:
    """Copy the offsets of one group on a topic to another group.

    \b
    Examples:
      rucola admin cloneGroupOffset -s billing -d billing2 -t Orders --yes
    """
    confirm(yes, f"copy the offsets of group {source} on topic {topic} to group {destination}")

    async def clone(client: AdminClient) -> None:
        await client.topics.route(topic)
        if all(queue.topic != topic for queue in (await client.groups.consume_stats(source)).offset_table):
            raise ConfigError(f"group {source} has committed no offset on topic {topic}")
        await client.offsets.clone(source, destination, topic, offline=offline)

    call_admin(namesrv_addr, clone)
    if as_json:
        print_json({"srcGroup": source, "destGroup": destination, "topic": topic})
    else:
        click.echo(f"clone group offset success. srcGroup[{source}], destGroup=[{destination}], topic[{topic}]")
