"""Groups: backlogs, connected clients, and settings of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import (
    BrokerAddress,
    ConsumerGroup,
    Flag,
    GroupName,
    InvalidArguments,
    Masters,
    Option,
    Result,
    Row,
    Target,
    Topic,
    command,
)
from rucola.domain.client import ClientConnection, ConsumerConnection
from rucola.domain.group import MessageRequestMode, SubscriptionGroupConfig
from rucola.domain.pop import PopQueueStatus
from rucola.domain.queue import MessageQueue
from rucola.domain.statistics import OffsetWrapper
from rucola.errors import ConfigError
from rucola.message.topics import dlq_topic, retry_topic
from rucola.presentation import Column, Table, optional, time_text, whole
from rucola.protocol.command import version_text
from rucola.protocol.connections import ConsumerRunningInfo


def _diff(at: OffsetWrapper) -> int:
    return at.broker_offset - at.consumer_offset


def _last_time(timestamp_ms: int) -> str:
    return time_text(timestamp_ms).partition(",")[0] or "N/A"


# mqadmin has the client between the consumer offset and the difference, and the delay as the last column.
_PROGRESS = (
    Column("#Topic", "topic"), Column("#Broker Name", "brokerName"), whole("#QID", "queueId"),
    Column("#Broker Offset", "brokerOffset"), Column("#Consumer Offset", "consumerOffset"),
    whole("#Client IP", "clientId", lambda client_id: (client_id or "N/A").partition("@")[0]),
    Column("#Diff", "diff"), Column("#Ready", "ready"), Column("#In Flight", "inFlight"),
    optional("#Oldest", "oldestMs", _last_time), optional("#LastTime", "lastTimestamp", _last_time),
    Column("#Delay(ms)", "delayMs"),
)  # fmt: skip


@command("consumerProgress")
async def consumer_progress(
    client: AdminClient,
    group: Annotated[
        str | None, Option("-g --groupName", "One consumer group; by default all that have a retry topic.")
    ] = None,
    topic: Annotated[str | None, Option("-t --topicName", "Only this topic of the group.")] = None,
    clients: Annotated[bool, Option("-s --showClientIP", "Show the client that each queue is assigned to.")] = False,
    delays: Annotated[bool, Option("-d --showDelay", "Show how long the next message has been waiting.")] = False,
) -> Result:
    """Show the consumer offsets and the backlog (Diff) of consumer groups.

    Of a group that consumes by POP also the messages that it has not received (Ready) and not acknowledged (In Flight),
    and since when the oldest of these is held.

    \b
    Examples:
      rucola admin consumerProgress
      rucola admin consumerProgress -g billing -s true -d true
    """
    if group is None:
        if topic is not None:
            raise InvalidArguments("-t belongs to -g: a topic of one group")
        return await _all_groups(client)
    stats = await client.groups.consume_stats(group, topic)
    if not stats.offset_table:
        await client.groups.check_exists(group)
    owners, notes = await _owners(client, group) if clients else ({}, [])
    topics = sorted({queue.topic for queue in stats.offset_table}) if delays else []
    delays_ms = await client.groups.consume_delays(group, topics)
    popped = await client.groups.pop_queues(group, topic)
    rows = [
        msgspec.to_builtins(queue) | msgspec.to_builtins(at) | {"diff": _diff(at)}
        | (_popped(popped.get(queue), at) if popped else {})
        | ({"clientId": owners.get(queue)} if clients else {})
        | ({"delayMs": delays_ms.get(queue, 0)} if delays else {})
        for queue, at in stats.offset_table.items()
    ]  # fmt: skip
    total = sum(map(_diff, stats.offset_table.values()))
    is_shown = {"clientId": clients, "delayMs": delays} | dict.fromkeys(("ready", "inFlight", "oldestMs"), bool(popped))
    table = Table([one for one in _PROGRESS if is_shown.get(one.key, True)], rows)
    if not rows:
        notes.append(f"group {group} has committed no offset")
    return Result(
        {"group": group, "consumeTps": stats.consume_tps, "diffTotal": total, "queues": rows},
        [table, "", f"Consume TPS: {stats.consume_tps:.2f}", f"Diff Total: {total}"],
        notes,
    )


def _popped(status: PopQueueStatus | None, at: OffsetWrapper) -> Row:
    if status is None:  # nothing was received of this queue
        return {"ready": _diff(at), "inFlight": 0, "oldestMs": 0}
    return {"ready": status.ready, "inFlight": status.in_flight + status.waiting, "oldestMs": status.oldest_ms}


async def _owners(client: AdminClient, group: str) -> tuple[dict[MessageQueue, str], list[str]]:
    """The client id that each queue is assigned to, and a note for each client that does not respond."""
    connection = await client.groups.find_consumer_connection(group)
    infos, failures = await client.groups.running_infos(group, connection or ConsumerConnection())
    owners = {queue: client_id for client_id, info in infos.items() for queue in info.mq_table}
    return owners, [f"client {one} does not report its queues: {error}" for one, error in failures.items()]


async def _all_groups(client: AdminClient) -> Result:
    groups: list[Row] = []
    for name in await client.groups.names():
        stats = await client.groups.consume_stats(name)
        connection = await client.groups.find_consumer_connection(name)
        members = connection.connection_set if connection else []
        groups.append(
            {
                "group": name,
                "count": len(members),
                "version": min((one.version for one in members), default=0),
                "type": connection.consume_type.removeprefix("CONSUME_") if connection else "",
                "model": connection.message_model if connection else "",
                "consumeTps": stats.consume_tps,
                "diffTotal": sum(map(_diff, stats.offset_table.values())),
            }
        )
    # A push consumer reports that it consumes passively, although it pulls internally.
    kinds = {"PASSIVELY": "PUSH", "ACTIVELY": "PULL"}
    rows = [
        (one["group"], one["count"], version_text(one["version"]) if one["count"] else "OFFLINE",
         kinds.get(one["type"], ""), one["model"], f"{one['consumeTps']:.0f}", one["diffTotal"])
        for one in groups
    ]  # fmt: skip
    columns = "#Group", "#Count", optional("#Version"), optional("#Type"), "#Model", "#TPS", "#Diff Total"
    return Result(groups, [Table(columns, rows)])


_BROKER_STATS = (
    Column("#Topic", "topic"), Column("#Group", "group"), Column("#Broker Name", "brokerName"),
    whole("#QID", "queueId"), Column("#Broker Offset", "brokerOffset"), Column("#Consumer Offset", "consumerOffset"),
    Column("#Diff", "diff"), optional("#LastTime", "lastTime"),
)  # fmt: skip


@command("brokerConsumeStats")
async def broker_consume_stats(
    client: AdminClient,
    address: BrokerAddress,
    level: Annotated[
        int, Option("-l --level", "Only queues with a backlog of at least this many messages.", min=0)
    ] = 0,
    order: Annotated[bool, Option("-o --order", "Only ordered topics.")] = False,
    timeout_ms: Annotated[
        int, Option("-t --timeoutMillis", "Timeout of the request, in milliseconds.", min=1)
    ] = 50_000,
) -> Result:
    """Show the consumer offsets and backlogs of all groups of a broker, by queue.

    \b
    Examples:
      rucola admin brokerConsumeStats -b localhost:10911 -l 1000
    """
    stats = await client.brokers.consume_stats(address, only_ordered=order, timeout_ms=timeout_ms)
    rows: list[Row] = [
        {
            "topic": queue.topic, "group": group, "brokerName": queue.broker_name, "queueId": queue.queue_id,
            "brokerOffset": at.broker_offset, "consumerOffset": at.consumer_offset, "diff": _diff(at),
            "lastTime": _last_time(at.last_timestamp),
        }
        for group, topics in stats.groups.items()
        for of_topic in topics
        for queue, at in of_topic.offset_table.items()
        if _diff(at) >= level
    ]  # fmt: skip
    value = {"brokerAddr": stats.broker_addr, "diffTotal": stats.total_diff, "queues": rows}
    return Result(value, [Table(_BROKER_STATS, rows), "", f"Diff Total: {stats.total_diff}"])


# Clients.


@command("consumerConnection")
async def consumer_connection(
    client: AdminClient,
    group: ConsumerGroup,
    address: Annotated[
        str | None, Option("-b --brokerAddr", "Query only this broker, host:port.", format="address")
    ] = None,
) -> Result:
    """Show the connected clients of a consumer group, and its subscriptions.

    \b
    Examples:
      rucola admin consumerConnection -g billing
    """
    connection = await client.groups.consumer_connection(group, address)
    rows = [(data.topic, data.sub_string) for _, data in sorted(connection.subscription_table.items())]
    return Result(
        connection,
        [
            _clients(connection.connection_set), "", "Below is subscription:",
            Table(("#Topic", "#SubExpression"), rows), "", f"ConsumeType: {connection.consume_type}",
            f"MessageModel: {connection.message_model}", f"ConsumeFromWhere: {connection.consume_from_where}",
        ],
    )  # fmt: skip


@command("producerConnection")
async def producer_connection(
    client: AdminClient, group: Annotated[str, Option("-g --producerGroup", "Producer group.")], topic: Topic
) -> Result:
    """Show the connected clients of a producer group.

    They are queried from one broker of the topic.

    \b
    Examples:
      rucola admin producerConnection -g airline -t Flights
    """
    connection = await client.groups.producer_connection(group, topic)
    return Result(connection, [_clients(connection.connection_set)])


def _clients(connections: Iterable[ClientConnection]) -> Table:
    columns = whole("#ClientId"), whole("#ClientAddr"), optional("#Language"), optional("#Version")
    rows = [(one.client_id, one.client_addr, one.language, version_text(one.version)) for one in connections]
    return Table(columns, rows)


@command("producer")
async def producer(
    client: AdminClient,
    address: Annotated[str, Option("-b --broker", "Address of the broker, host:port.", format="address")],
) -> Result:
    """Show all producer groups of a broker, with their connected clients.

    \b
    Examples:
      rucola admin producer -b localhost:10911
    """
    groups = await client.groups.producers(address)
    columns = (
        "#Group", whole("#ClientId"), whole("#RemoteIP"), optional("#Language"), optional("#Version"),
        optional("#LastUpdate"),
    )  # fmt: skip
    rows = [
        (group, one.client_id, one.remote_ip, one.language, version_text(one.version),
         time_text(one.last_update_timestamp))
        for group, infos in sorted(groups.items())
        for one in infos
    ]  # fmt: skip
    return Result(groups, [Table(columns, rows)])


@command("consumerStatus")
async def consumer_status(
    client: AdminClient,
    group: ConsumerGroup,
    client_id: Annotated[
        str | None, Option("-i --clientId", "One client; by default all clients of the group.")
    ] = None,
    address: Annotated[
        str | None, Option("-b --brokerAddr", "Only clients connected to this broker, host:port.", format="address")
    ] = None,
    jstack: Annotated[bool, Flag("-s --jstack", "Include the thread dump of Java clients.")] = False,
) -> Result:
    """Show the running state of the clients of a consumer group.

    Prints settings, subscriptions, assigned queues and rates. Checks that all clients have the same subscriptions and
    different client ids, and that no queue is assigned twice; otherwise the exit code is 1.

    \b
    Examples:
      rucola admin consumerStatus -g billing
      rucola admin consumerStatus -g billing -i 10.0.0.7@4711 --json
    """
    ids, shared_ids = [client_id or ""], dict[str, list[str]]()
    if client_id is None:
        connection = await client.groups.consumer_connection(group, address)
        ids, shared_ids = [one.client_id for one in connection.connection_set], connection.shared_client_ids
    infos = {one: await client.groups.running_info(group, one, jstack=jstack) for one in ids}
    # Brokers keep one subscription per group. A queue is assigned to two clients briefly during a rebalance, and
    # permanently if they see different members.
    wanted = {info.subscriptions for info in infos.values()}
    held = [queue for info in infos.values() for queue in info.mq_table]
    shared = sorted({queue for queue in held if held.count(queue) > 1})
    is_same = len(wanted) <= 1
    text = [part for name, info in infos.items() for part in _info_text(name, info)]
    if client_id is None and is_same:
        text += ["Same subscription in the same group of consumer"]
        text += [f"Rebalance {'Failed' if shared or shared_ids else 'OK'}"]
    notes = [] if is_same else ["WARN: Different subscription in the same group of consumer!!!"]
    notes += [f"WARN: {queue} has several owners" for queue in shared]
    notes += [
        f"WARN: client id {name} is that of several clients, at {', '.join(addresses)}, which consume the same queues; "
        "or one has reconnected, and its old connection disappears within two minutes"
        for name, addresses in shared_ids.items()
    ]
    value = {
        "sameSubscription": is_same,
        "queuesWithSeveralOwners": shared,
        "sharedClientIds": shared_ids,
        "clients": {name: _info_json(info) for name, info in infos.items()},
    }
    return Result(value, text, notes, is_failure=bool(notes))


def _info_json(info: ConsumerRunningInfo) -> dict[str, Any]:
    members: dict[str, Any] = {
        "properties": info.properties,
        "subscriptionSet": info.subscription_set,
        "mqTable": [msgspec.to_builtins(queue) | msgspec.to_builtins(held) for queue, held in info.mq_table.items()],
        "statusTable": info.status_table,
    }
    return members | ({} if info.jstack is None else {"jstack": info.jstack})


def _info_text(name: str, info: ConsumerRunningInfo) -> Iterator[str | Table]:
    yield from (f"#Client {name}", "", "#Consumer Properties#")
    yield from (f"{key:<40}: {value}" for key, value in sorted(info.properties.items()))
    yield from ("", "#Consumer Subscription#")
    subscriptions = [(one.topic, str(one.class_filter_mode).lower(), one.sub_string) for one in info.subscription_set]
    yield Table(("#Topic", optional("#ClassFilter"), "#SubExpression"), sorted(subscriptions))
    yield from ("", "#Consumer Offset#")
    yield Table(
        ("#Topic", "#Broker Name", whole("#QID"), "#Consumer Offset", "#Cached", "#LastPull", "#LastConsume"),
        [
            (queue.topic, queue.broker_name, queue.queue_id, held.commit_offset, held.cached_msg_count,
             time_text(held.last_pull_timestamp), time_text(held.last_consume_timestamp))
            for queue, held in info.mq_table.items()
        ],
    )  # fmt: skip
    if info.status_table:
        yield from ("", "#Consumer RT&TPS#")
        yield Table(
            ("#Topic", "#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS", "#ConsumeFailed TPS", "#FailedMsgs"),
            [
                (topic, f"{at.pull_rt:.2f}", f"{at.pull_tps:.2f}", f"{at.consume_rt:.2f}", f"{at.consume_ok_tps:.2f}",
                 f"{at.consume_failed_tps:.2f}", at.consume_failed_msgs)
                for topic, at in sorted(info.status_table.items())
            ],
        )  # fmt: skip
    if info.jstack is not None:
        yield from ("", "#Consumer jstack#", *info.jstack.splitlines())
    yield ""


# Settings.


@command("updateSubGroup", writes=True)
async def update_sub_group(
    client: AdminClient,
    target: Masters,
    group_name: GroupName,
    consume_enable: Annotated[bool | None, Option("-s --consumeEnable", "Permit the group to consume.")] = None,
    consume_from_min_enable: Annotated[
        bool | None, Option("-m --consumeFromMinEnable", "Let a new group begin at the oldest message.")
    ] = None,
    consume_broadcast_enable: Annotated[
        bool | None, Option("-d --consumeBroadcastEnable", "Permit broadcasting.")
    ] = None,
    retry_queue_nums: Annotated[
        int | None, Option("-q --retryQueueNums", "Number of queues of the retry topic.", min=0)
    ] = None,
    retry_max_times: Annotated[
        int | None, Option("-r --retryMaxTimes", "Maximum number of retries of a message.", min=0)
    ] = None,
    broker_id: Annotated[int | None, Option("-i --brokerId", "Broker id to consume from.", min=0)] = None,
    which_broker_when_consume_slowly: Annotated[
        int | None,
        Option("-w --whichBrokerWhenConsumeSlowly", "Broker id to consume from if the group is slow.", min=0),
    ] = None,
    notify_consumer_ids_changed_enable: Annotated[
        bool | None, Option("-a --notifyConsumerIdsChanged", "Notify clients when members join or leave.")
    ] = None,
) -> Result:
    """Create or change a consumer group on one broker (-b) or a whole cluster (-c).

    Settings that are not given stay unchanged; a new group gets the defaults.

    \b
    Examples:
      rucola admin updateSubGroup -c DefaultCluster -g billing -r 3
      rucola admin updateSubGroup -b localhost:10911 -g billing -s false
    """
    given = {name: value for name, value in locals().items() if name not in ("client", "target") and value is not None}
    configs, text = {}, list[str]()
    for one in await target.masters(client):
        known = (await client.groups.configs(one)).get(group_name) or SubscriptionGroupConfig(group_name=group_name)
        configs[one] = msgspec.structs.replace(known, **given)
        await client.groups.create_or_update(one, configs[one])
        text += [f"create subscription group to {one} success.", *_config_text(configs[one])]
    return Result(configs, text)


def _config_text(config: SubscriptionGroupConfig) -> list[str]:
    return [
        f"{name:<40}= {str(value).lower() if isinstance(value, bool) else value}"
        for name, value in msgspec.to_builtins(config).items()
    ]


@command("getConsumerConfig")
async def get_consumer_config(client: AdminClient, group: GroupName) -> Result:
    """Show the settings of a consumer group on every broker that has it.

    \b
    Examples:
      rucola admin getConsumerConfig -g billing
    """
    found, text = [], list[str]()
    for cluster in sorted((await client.cluster.info()).cluster_addr_table):
        for name, address in (await client.cluster.masters(cluster)).items():
            if config := (await client.groups.configs(address)).get(group):
                found.append({"clusterName": cluster, "brokerName": name, "config": config})
                text += [
                    f"============================={cluster}:{name}=============================",
                    *_config_text(config),
                ]
    if not found:
        raise ConfigError(f"no broker has a consumer group {group}")
    return Result(found, text)


@command("setConsumeMode", writes=True)
async def set_consume_mode(
    client: AdminClient,
    target: Masters,
    topic: Annotated[str, Option("-t --topicName", "Name of the topic.")],
    group_name: GroupName,
    mode: Annotated[str, Option("-m --mode", "PULL or POP.")],
    pop_share_queue_num: Annotated[
        int, Option("-q --popShareQueueNum", "By POP: share queues with this number of members; 0 with all.", min=0)
    ] = 0,
) -> Result:
    """Set whether a group receives a topic's messages by PULL or by POP, for clients that ask the broker.

    \b
    Examples:
      rucola admin setConsumeMode -c DefaultCluster -t Orders -g billing -m POP
    """
    wanted = MessageRequestMode(
        topic=topic, consumer_group=group_name, mode=mode, pop_share_queue_num=pop_share_queue_num
    )
    addresses = await target.masters(client)
    for one in addresses:
        await client.groups.set_message_request_mode(one, wanted)
    summary = f"topic[{topic}] group[{group_name}] consume mode[{mode}] popShareQueueNum[{pop_share_queue_num}]"
    lines = [*(f"set consume mode to {one} success." for one in addresses), summary]
    return Result({"brokerAddrs": addresses, "mode": msgspec.to_builtins(wanted)}, lines)


_POP_QUEUES = (
    Column("#Topic", "topic"), Column("#Broker Name", "brokerName"), whole("#QID", "queueId"),
    Column("#Consumer Offset", "committedOffset"), Column("#Ready", "ready"), Column("#In Flight", "inFlight"),
    Column("#Waiting", "waiting"), optional("#Oldest", "oldestMs", _last_time), Column("#Blocked", "blocked"),
)  # fmt: skip
_POP_MESSAGES = (
    Column("#Topic", "topic"), Column("#Broker Name", "brokerName"), whole("#QID", "queueId"),
    whole("#Offset", "queueOffset"), Column("#Client", "client"), Column("#Attempt", "attempt"),
    optional("#Until", "visibleMs", _last_time), optional("#Message Group", "messageGroup"),
)  # fmt: skip


@command("popStatus", is_repeatable=True)
async def pop_status(
    client: AdminClient,
    group: GroupName,
    topic: Annotated[str | None, Option("-t --topicName", "Only this topic of the group.")] = None,
) -> Result:
    """Show what a group that consumes by POP holds: which client which message until when, and what blocks a queue.

    \b
    Examples:
      rucola admin popStatus -g billing
      rucola admin popStatus -g billing -t Orders
    """
    queues: list[Row] = []
    messages: list[Row] = []
    receives = 0
    for cluster in sorted((await client.cluster.info()).cluster_addr_table):
        for name, address in (await client.cluster.masters(cluster)).items():
            status = await client.groups.pop_status(address, group, topic)
            receives += status.receives
            for queue in status.queues:
                place = {"topic": queue.topic, "brokerName": name, "queueId": queue.queue_id}
                queues.append(msgspec.to_builtins(queue) | place | {"messages": len(queue.messages)})
                messages += [place | msgspec.to_builtins(message) for message in queue.messages]
    notes = [] if queues else [f"group {group} has received nothing by POP"]
    return Result(
        {"group": group, "receives": receives, "queues": queues, "messages": messages},
        [Table(_POP_QUEUES, queues), "", Table(_POP_MESSAGES, messages), "", f"Waiting receives: {receives}"],
        notes,
    )


@command(
    "releasePop",
    confirm="let others receive what group {group} holds of topic {topic} now, while its holders may still work on it",
)
async def release_pop(
    client: AdminClient,
    target: Masters,
    group: GroupName,
    topic: Topic,
    queue_id: Annotated[int | None, Option("-q --queueId", "Only this queue.", min=0)] = None,
    offset: Annotated[int | None, Option("-o --offset", "Only the message at this queue offset.", min=0)] = None,
) -> Result:
    """Let others receive messages that a group holds by POP, at once; recorded in the audit log.

    \b
    Examples:
      rucola admin releasePop -c DefaultCluster -g billing -t Orders
      rucola admin releasePop -b localhost:10911 -g billing -t Orders -q 3 -o 42
    """
    released = {
        one: await client.groups.release_pop(one, group, topic, queue_id, offset)
        for one in await target.masters(client)
    }
    return Result({"released": released}, [f"released {count} messages on {one}" for one, count in released.items()])


async def _deletion(client: AdminClient, target: Target, group: str, remove_offset: bool) -> str:
    await _check_deletable(client, target, group)
    leftovers = " with its retry and dead letter topics" if target.cluster is not None else ""
    return f"delete group {group}{leftovers} from {target}"


async def _check_deletable(client: AdminClient, target: Target, group: str) -> None:
    topics = {retry_topic(group), dlq_topic(group)}
    if target.cluster is None or not topics & {*await client.topics.names()}:
        await client.groups.check_exists(group)  # topics without the group are left by an interrupted run


@command("deleteSubGroup", confirm=_deletion)
async def delete_sub_group(
    client: AdminClient,
    target: Masters,
    group: GroupName,
    remove_offset: Annotated[bool, Option("-r --removeOffset", "Delete its offsets, too.")] = False,
) -> Result:
    """Delete a consumer group from one broker (-b) or from a whole cluster (-c).

    With -c its retry and dead letter topics are deleted, too.

    \b
    Examples:
      rucola admin deleteSubGroup -c DefaultCluster -g billing -r true --yes
    """
    addresses = await target.masters(client)
    topics = retry_topic(group), dlq_topic(group)
    await _check_deletable(client, target, group)
    for one in addresses:
        await client.groups.delete(one, group, remove_offset=remove_offset)
    if target.cluster is not None:
        await client.dead_letters.reset_redrive_offset(group)
        for topic in topics:
            for one in addresses:
                await client.topics.delete_on_broker(one, topic)
            await client.topics.delete_on_name_servers(topic, target.cluster)
    text = [f"delete subscription group [{group}] from broker [{one}] success." for one in addresses]
    return Result({"group": group, "brokerAddrs": addresses}, text)
