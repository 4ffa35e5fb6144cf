"""Groups: backlogs, connected clients, and settings of consumer groups."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click
import msgspec

from rucola.admin import (
    AdminClient,
    ConsumerRunningInfo,
    ConsumeStats,
    MessageQueue,
    OffsetWrapper,
    SubscriptionGroupConfig,
    dlq_topic,
    retry_topic,
    version_text,
)
from rucola.cli.admin.command import (
    Target,
    call_admin,
    command,
    confirm,
    target_options,
    topic_option,
    yes_option,
)
from rucola.cli.option_types import ADDRESS
from rucola.cli.output import LAYOUT, Column, optional, print_json, print_table, printable, time_text, whole
from rucola.errors import ConfigError, MQError
from rucola.protocol.connections import ClientConnection

group_option = click.option("-g", "--consumerGroup", "group", required=True, help="Consumer group.")


def _diff(at: OffsetWrapper) -> int:
    return at.broker_offset - at.consumer_offset


def _last_time(at: OffsetWrapper) -> str:
    return time_text(at.last_timestamp).partition(",")[0] or "N/A"


@command("consumerProgress")
@click.option("-g", "--groupName", "group", help="One consumer group; by default all that have a retry topic.")
@click.option("-t", "--topicName", "topic", help="Only this topic of the group.")
@click.option(
    "-s",
    "--showClientIP",
    "with_clients",
    type=bool,
    default=False,
    help="Show the client that each queue is assigned to (true|false).",
)
@click.option(
    "-d",
    "--showDelay",
    "with_delay",
    type=bool,
    default=False,
    help="Show how long the next message has been waiting (true|false).",
)
def consumer_progress(
    namesrv_addr: str, as_json: bool, group: str | None, topic: str | None, with_clients: bool, with_delay: bool
) -> None:
    """Show the consumer offsets and the backlog (Diff) of consumer groups.

    \b
    Examples:
      rucola admin consumerProgress
      rucola admin consumerProgress -g billing -s true -d true
    """
    if group is None:
        _all_groups(namesrv_addr, as_json)
        return
    name = group

    async def request(client: AdminClient) -> tuple[ConsumeStats, dict[MessageQueue, str], dict[MessageQueue, int]]:
        stats = await client.groups.consume_stats(name, topic)
        if not stats.offset_table:
            await client.groups.check_exists(name)
        owners = await _owners(client, name) if with_clients else {}
        topics = sorted({queue.topic for queue in stats.offset_table}) if with_delay else []
        return stats, owners, await client.groups.consume_delays(name, topics)

    stats, owners, delays_ms = call_admin(namesrv_addr, request)
    diff_total = sum(map(_diff, stats.offset_table.values()))
    if as_json:
        queues = [
            {**msgspec.to_builtins(queue), **msgspec.to_builtins(at), "diff": _diff(at)}
            | ({"clientId": owners.get(queue)} if with_clients else {})
            | ({"delayMs": delays_ms.get(queue, 0)} if with_delay else {})
            for queue, at in stats.offset_table.items()
        ]
        print_json({"group": group, "consumeTps": stats.consume_tps, "diffTotal": diff_total, "queues": queues})
        return
    columns: list[str | Column] = [
        "#Topic", "#Broker Name", whole("#QID"), "#Broker Offset", "#Consumer Offset", "#Diff", optional("#LastTime"),
    ]  # fmt: skip
    rows = [
        [
            queue.topic, queue.broker_name, queue.queue_id, at.broker_offset, at.consumer_offset, _diff(at),
            _last_time(at),
        ]
        for queue, at in stats.offset_table.items()
    ]  # fmt: skip
    # mqadmin has the client between the consumer offset and the difference, and the delay as the last column.
    if with_clients:
        columns.insert(5, "#Client IP")
        for row, queue in zip(rows, stats.offset_table, strict=True):
            row.insert(5, owners.get(queue, "N/A").partition("@")[0])
    if with_delay:
        columns.append("#Delay(ms)")
        for row, queue in zip(rows, stats.offset_table, strict=True):
            row.append(delays_ms.get(queue, 0))
    print_table(columns, rows)
    click.echo(f"\nConsume TPS: {stats.consume_tps:.2f}\nDiff Total: {diff_total}")
    if not stats.offset_table:
        click.echo(f"group {group} has committed no offset", err=True)


async def _owners(client: AdminClient, group: str) -> dict[MessageQueue, str]:
    """The client id that each queue is assigned to; a client that does not respond is reported on stderr."""
    connection = await client.groups.find_consumer_connection(group)
    owners: dict[MessageQueue, str] = {}
    for one in connection.connection_set if connection else []:
        try:
            info = await client.groups.running_info(group, one.client_id)
        except MQError as error:
            click.echo(f"client {one.client_id} does not report its queues: {error}", err=True)
        else:
            owners |= dict.fromkeys(info.mq_table, one.client_id)
    return owners


def _all_groups(namesrv_addr: str, as_json: bool) -> None:
    async def request(client: AdminClient) -> list[dict[str, Any]]:
        groups = []
        for name in await client.groups.names():
            stats = await client.groups.consume_stats(name)
            connection = await client.groups.find_consumer_connection(name)
            groups.append(
                {
                    "group": name,
                    "count": len(connection.connection_set) if connection else 0,
                    "version": min((one.version for one in connection.connection_set), default=0) if connection else 0,
                    "type": connection.consume_type.removeprefix("CONSUME_") if connection else "",
                    "model": connection.message_model if connection else "",
                    "consumeTps": stats.consume_tps,
                    "diffTotal": sum(map(_diff, stats.offset_table.values())),
                }
            )
        return groups

    groups = call_admin(namesrv_addr, request)
    if as_json:
        print_json(groups)
        return
    # A push consumer reports that it consumes passively, although it pulls internally.
    kinds = {"PASSIVELY": "PUSH", "ACTIVELY": "PULL"}
    rows = [
        (
            entry["group"],
            entry["count"],
            version_text(entry["version"]) if entry["count"] else "OFFLINE",
            kinds.get(entry["type"], ""),
            entry["model"],
            f"{entry['consumeTps']:.0f}",
            entry["diffTotal"],
        )
        for entry in groups
    ]
    print_table(("#Group", "#Count", optional("#Version"), optional("#Type"), "#Model", "#TPS", "#Diff Total"), rows)


@command("brokerConsumeStats")
@click.option("-b", "--brokerAddr", "address", type=ADDRESS, required=True, help="Address of the broker, host:port.")
@click.option(
    "-l",
    "--level",
    type=click.IntRange(0),
    default=0,
    help="Only queues with a backlog of at least this many messages.",
)
@click.option("-o", "--order", type=bool, default=False, help="Only ordered topics (true|false).")
@click.option(
    "-t", "--timeoutMillis", "timeout_ms", type=click.IntRange(1), default=50_000, show_default=True,
    help="Timeout of the request, in milliseconds.",
)  # fmt: skip
def broker_consume_stats(
    namesrv_addr: str, as_json: bool, address: str, level: int, order: bool, timeout_ms: int
) -> None:
    """Show the consumer offsets and backlogs of all groups of a broker, by queue.

    \b
    Examples:
      rucola admin brokerConsumeStats -b localhost:10911 -l 1000
    """
    stats = call_admin(
        namesrv_addr,
        lambda client: client.brokers.consume_stats(address, only_ordered=order, timeout_ms=timeout_ms),
    )
    rows = [
        (queue.topic, group, queue.broker_name, queue.queue_id, at.broker_offset, at.consumer_offset, _diff(at),
         _last_time(at))
        for group, topics in stats.groups.items()
        for of_topic in topics
        for queue, at in of_topic.offset_table.items()
        if _diff(at) >= level
    ]  # fmt: skip
    if as_json:
        names = (
            "topic", "group", "brokerName", "queueId", "brokerOffset", "consumerOffset", "diff", "lastTime",
        )  # fmt: skip
        queues = [dict(zip(names, row, strict=True)) for row in rows]
        print_json({"brokerAddr": stats.broker_addr, "diffTotal": stats.total_diff, "queues": queues})
        return
    columns = (
        "#Topic", "#Group", "#Broker Name", whole("#QID"), "#Broker Offset", "#Consumer Offset", "#Diff",
        optional("#LastTime"),
    )  # fmt: skip
    print_table(columns, rows)
    click.echo(f"\nDiff Total: {stats.total_diff}")


# Clients.


@command("consumerConnection")
@group_option
@click.option("-b", "--brokerAddr", "address", type=ADDRESS, help="Query only this broker, host:port.")
def consumer_connection(namesrv_addr: str, as_json: bool, group: str, address: str | None) -> None:
    """Show the connected clients of a consumer group, and its subscriptions.

    \b
    Examples:
      rucola admin consumerConnection -g billing
    """
    connection = call_admin(namesrv_addr, lambda client: client.groups.consumer_connection(group, address))
    if as_json:
        print_json(connection)
        return
    _print_clients(connection.connection_set)
    click.echo("\nBelow is subscription:")
    print_table(
        ("#Topic", "#SubExpression"),
        [(data.topic, data.sub_string) for _, data in sorted(connection.subscription_table.items())],
    )
    click.echo(
        f"\nConsumeType: {connection.consume_type}\nMessageModel: {connection.message_model}\n"
        f"ConsumeFromWhere: {connection.consume_from_where}"
    )


@command("producerConnection")
@click.option("-g", "--producerGroup", "group", required=True, help="Producer group.")
@topic_option
def producer_connection(namesrv_addr: str, as_json: bool, group: str, topic: str) -> None:
    """Show the connected clients of a producer group.

    They are queried from one broker of the topic.

    \b
    Examples:
      rucola admin producerConnection -g airline -t Flights
    """
    connection = call_admin(namesrv_addr, lambda client: client.groups.producer_connection(group, topic))
    if as_json:
        print_json(connection)
        return
    _print_clients(connection.connection_set)


def _print_clients(connections: Iterable[ClientConnection]) -> None:
    print_table(
        (whole("#ClientId"), whole("#ClientAddr"), optional("#Language"), optional("#Version")),
        [(one.client_id, one.client_addr, one.language, version_text(one.version)) for one in connections],
    )


@command("producer")
@click.option("-b", "--broker", "address", type=ADDRESS, required=True, help="Address of the broker, host:port.")
def producer(namesrv_addr: str, as_json: bool, address: str) -> None:
    """Show all producer groups of a broker, with their connected clients.

    \b
    Examples:
      rucola admin producer -b localhost:10911
    """
    groups = call_admin(namesrv_addr, lambda client: client.groups.producers(address))
    if as_json:
        print_json(groups)
        return
    print_table(
        (
            "#Group", whole("#ClientId"), whole("#RemoteIP"), optional("#Language"), optional("#Version"),
            optional("#LastUpdate"),
        ),
        [
            (group, one.client_id, one.remote_ip, one.language, version_text(one.version),
             time_text(one.last_update_timestamp))
            for group, infos in sorted(groups.items())
            for one in infos
        ],
    )  # fmt: skip


@command("consumerStatus")
@group_option
@click.option("-i", "--clientId", "client_id", help="One client; by default all clients of the group.")
@click.option("-b", "--brokerAddr", "address", type=ADDRESS, help="Only clients connected to this broker, host:port.")
@click.option("-s", "--jstack", is_flag=True, help="Include the thread dump of Java clients.")
def consumer_status(
    namesrv_addr: str, as_json: bool, group: str, client_id: str | None, address: str | None, jstack: bool
) -> None:
    """Show the running state of the clients of a consumer group.

    Prints settings, subscriptions, assigned queues and rates. Checks that all clients have the same subscriptions and
    different client ids, and that no queue is assigned twice; otherwise the exit code is 1.

    \b
    Examples:
      rucola admin consumerStatus -g billing
      rucola admin consumerStatus -g billing -i 10.0.0.7@4711 --json
    """

    async def request(client: AdminClient) -> tuple[dict[str, ConsumerRunningInfo], dict[str, list[str]]]:
        if client_id is not None:
            return {client_id: await client.groups.running_info(group, client_id, jstack=jstack)}, {}
        connection = await client.groups.consumer_connection(group, address)
        infos = {
            one.client_id: await client.groups.running_info(group, one.client_id, jstack=jstack)
            for one in connection.connection_set
        }
        return infos, connection.shared_client_ids

    infos, shared_ids = call_admin(namesrv_addr, request)
    # Brokers keep one subscription per group. A queue is assigned to two clients briefly during a rebalance, and
    # permanently if they see different members.
    wanted = {frozenset((data.topic, data.sub_string) for data in info.subscription_set) for info in infos.values()}
    held = [queue for info in infos.values() for queue in info.mq_table]
    shared = sorted({queue for queue in held if held.count(queue) > 1})
    if as_json:
        print_json(
            {
                "sameSubscription": len(wanted) <= 1,
                "queuesWithSeveralOwners": shared,
                "sharedClientIds": shared_ids,
                "clients": {name: _info_json(info) for name, info in infos.items()},
            }
        )
    else:
        for name, info in infos.items():
            _print_info(name, info)
        if client_id is None and len(wanted) <= 1:
            click.echo("Same subscription in the same group of consumer")
            click.echo(f"Rebalance {'Failed' if shared or shared_ids else 'OK'}")
    if len(wanted) > 1:
        click.echo("WARN: Different subscription in the same group of consumer!!!", err=True)
    for queue in shared:
        click.echo(f"WARN: {queue} has several owners", err=True)
    for name, addresses in shared_ids.items():
        click.echo(
            f"WARN: client id {printable(name)} is that of several clients, at {', '.join(addresses)}, which consume "
            "the same queues; or one has reconnected, and its old connection disappears within two minutes",
            err=True,
        )
    if len(wanted) > 1 or shared or shared_ids:
        sys.exit(1)


def _info_json(info: ConsumerRunningInfo) -> dict[str, Any]:
    members: dict[str, Any] = {
        "properties": info.properties,
        "subscriptionSet": info.subscription_set,
        "mqTable": [
            {**msgspec.to_builtins(queue), **msgspec.to_builtins(held)} for queue, held in info.mq_table.items()
        ],
        "statusTable": info.status_table,
    }
    return members | ({} if info.jstack is None else {"jstack": info.jstack})


def _print_info(name: str, info: ConsumerRunningInfo) -> None:
    click.echo(f"#Client {name}\n\n#Consumer Properties#")
    for key, value in sorted(info.properties.items()):
        click.echo(printable(f"{key:<40}: {value}"))
    click.echo("\n#Consumer Subscription#")
    rows = [(data.topic, str(data.class_filter_mode).lower(), data.sub_string) for data in info.subscription_set]
    print_table(("#Topic", optional("#ClassFilter"), "#SubExpression"), sorted(rows))
    click.echo("\n#Consumer Offset#")
    print_table(
        ("#Topic", "#Broker Name", whole("#QID"), "#Consumer Offset", "#Cached", "#LastPull", "#LastConsume"),
        [
            (queue.topic, queue.broker_name, queue.queue_id, held.commit_offset, held.cached_msg_count,
             time_text(held.last_pull_timestamp), time_text(held.last_consume_timestamp))
            for queue, held in info.mq_table.items()
        ],
    )  # fmt: skip
    if info.status_table:
        click.echo("\n#Consumer RT&TPS#")
        print_table(
            ("#Topic", "#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS", "#ConsumeFailed TPS", "#FailedMsgs"),
            [
                (topic, f"{at.pull_rt:.2f}", f"{at.pull_tps:.2f}", f"{at.consume_rt:.2f}", f"{at.consume_ok_tps:.2f}",
                 f"{at.consume_failed_tps:.2f}", at.consume_failed_msgs)
                for topic, at in sorted(info.status_table.items())
            ],
        )  # fmt: skip
    if info.jstack is not None:
        click.echo(f"\n#Consumer jstack#\n{printable(info.jstack, keep=LAYOUT)}")
    click.echo()


# Settings.


@command("updateSubGroup")
@target_options
@click.option("-g", "--groupName", "group", required=True, help="Consumer group.")
@click.option("-s", "--consumeEnable", "consume_enable", type=bool, help="Permit the group to consume (true|false).")
@click.option(
    "-m",
    "--consumeFromMinEnable",
    "from_min",
    type=bool,
    help="Let a new group begin at the oldest message (true|false).",
)
@click.option("-d", "--consumeBroadcastEnable", "broadcast", type=bool, help="Permit broadcasting (true|false).")
@click.option(
    "-q", "--retryQueueNums", "retry_queue_nums", type=click.IntRange(0), help="Number of queues of the retry topic."
)
@click.option(
    "-r", "--retryMaxTimes", "retry_max_times", type=click.IntRange(0), help="Maximum number of retries of a message."
)
@click.option("-i", "--brokerId", "broker_id", type=click.IntRange(0), help="Broker id to consume from.")
@click.option(
    "-w",
    "--whichBrokerWhenConsumeSlowly",
    "slow_broker",
    type=click.IntRange(0),
    help="Broker id to consume from if the group is slow.",
)
@click.option(
    "-a",
    "--notifyConsumerIdsChanged",
    "notify",
    type=bool,
    help="Notify clients when members join or leave (true|false).",
)
def update_sub_group(namesrv_addr: str, as_json: bool, target: Target, group: str, **wanted: Any) -> None:
    """Create or change a consumer group on one broker (-b) or a whole cluster (-c).

    Settings that are not given stay unchanged; a new group gets the defaults.

    \b
    Examples:
      rucola admin updateSubGroup -c DefaultCluster -g billing -r 3
      rucola admin updateSubGroup -b localhost:10911 -g billing -s false
    """
    fields = {
        "consume_enable": wanted["consume_enable"],
        "consume_from_min_enable": wanted["from_min"],
        "consume_broadcast_enable": wanted["broadcast"],
        "retry_queue_nums": wanted["retry_queue_nums"],
        "retry_max_times": wanted["retry_max_times"],
        "broker_id": wanted["broker_id"],
        "which_broker_when_consume_slowly": wanted["slow_broker"],
        "notify_consumer_ids_changed_enable": wanted["notify"],
    }
    changes = {name: value for name, value in fields.items() if value is not None}

    async def request(client: AdminClient) -> dict[str, SubscriptionGroupConfig]:
        configs = {}
        for one in await target.masters(client):
            known = (await client.groups.configs(one)).get(group)
            config = msgspec.structs.replace(known or SubscriptionGroupConfig(group_name=group), **changes)
            await client.groups.create_or_update(one, config)
            configs[one] = config
        return configs

    configs = call_admin(namesrv_addr, request)
    if as_json:
        print_json(configs)
        return
    for one, config in configs.items():
        click.echo(f"create subscription group to {one} success.")
        _print_config(config)


def _print_config(config: SubscriptionGroupConfig) -> None:
    for name, value in msgspec.to_builtins(config).items():
        click.echo(f"{name:<40}= {str(value).lower() if isinstance(value, bool) else value}")


@command("getConsumerConfig")
@click.option("-g", "--groupName", "group", required=True, help="Consumer group.")
def get_consumer_config(namesrv_addr: str, as_json: bool, group: str) -> None:
    """Show the settings of a consumer group on every broker that has it.

    \b
    Examples:
      rucola admin getConsumerConfig -g billing
    """

    async def request(client: AdminClient) -> list[tuple[str, str, SubscriptionGroupConfig]]:
        info = await client.cluster.info()
        found = []
        for cluster in sorted(info.cluster_addr_table):
            for name, address in (await client.cluster.masters(cluster)).items():
                config = (await client.groups.configs(address)).get(group)
                if config is not None:
                    found.append((cluster, name, config))
        return found

    found = call_admin(namesrv_addr, request)
    if not found:
        raise ConfigError(f"no broker has a consumer group {group}")
    if as_json:
        print_json([{"clusterName": cluster, "brokerName": name, "config": config} for cluster, name, config in found])
        return
    for cluster, name, config in found:
        click.echo(f"============================={cluster}:{name}=============================")
        _print_config(config)


@command("deleteSubGroup")
@target_options
@click.option("-g", "--groupName", "group", required=True, help="Consumer group.")
@click.option(
    "-r", "--removeOffset", "remove_offset", type=bool, default=False, help="Delete its offsets, too (true|false)."
)
@yes_option
def delete_sub_group(
    namesrv_addr: str,
    as_json: bool,
    target: Target,
    group: str,
    remove_offset: bool,
    yes: bool,
) -> None:
    """Delete a consumer group from one broker (-b) or from a whole cluster (-c).

    With -c its retry and dead letter topics are deleted, too.

    \b
    Examples:
      rucola admin deleteSubGroup -c DefaultCluster -g billing -r true --yes
    """

    async def delete(client: AdminClient) -> list[str]:
        addresses = await target.masters(client)
        leftovers = {retry_topic(group), dlq_topic(group)} & set(await client.topics.names())
        if target.cluster is None or not leftovers:  # topics without the group are left by an interrupted run
            await client.groups.check_exists(group)
        for one in addresses:
            await client.groups.delete(one, group, remove_offset=remove_offset)
        if target.cluster is not None:
            await client.dead_letters.reset_redrive_offset(group)
            for topic in (retry_topic(group), dlq_topic(group)):
                for one in addresses:
                    await client.topics.delete_on_broker(one, topic)
                await client.topics.delete_on_name_servers(topic, target.cluster)
        return addresses

    leftovers = " with its retry and dead letter topics" if target.cluster is not None else ""
    confirm(yes, f"delete group {group}{leftovers} from {target}")
    addresses = call_admin(namesrv_addr, delete)
    if as_json:
        print_json({"group": group, "brokerAddrs": addresses})
        return
    for one in addresses:
        click.echo(f"delete subscription group [{group}] from broker [{one}] success.")
