"""Topics: lists, routes, queues, permissions and order."""

from __future__ import annotations

import sys

import click
import msgspec

from rucola.admin import AdminClient, TopicConfig, parse_order_conf
from rucola.cli.admin.command import (
    Target,
    call_admin,
    command,
    confirm,
    target_options,
    topic_option,
    yes_option,
)
from rucola.cli.admin.doctor import warn
from rucola.cli.option_types import ADDRESS
from rucola.cli.output import LAYOUT, optional, print_json, print_table, printable, time_text, whole
from rucola.client.consumer.allocation import average
from rucola.errors import ConfigError
from rucola.protocol.diagnosis import Finding


@command("topicList")
@click.option(
    "-c",
    "--clusterModel",
    "by_cluster",
    is_flag=True,
    help="Include the cluster and the consumer groups of each topic.",
)
def topic_list(namesrv_addr: str, as_json: bool, by_cluster: bool) -> None:
    """List all topics.

    \b
    Examples:
      rucola admin topicList
      rucola admin topicList -c
    """

    async def request(client: AdminClient) -> list[tuple[str, str, str]]:
        rows: list[tuple[str, str, str]] = []
        for topic in await client.topics.user_names():
            clusters = await client.topics.clusters(topic)
            groups = await client.topics.consumer_groups(topic) or [""]
            rows += [(cluster, topic, group) for cluster in clusters for group in groups]
        return rows

    if by_cluster:
        rows = call_admin(namesrv_addr, request)
        if as_json:
            print_json([dict(zip(("clusterName", "topic", "consumerGroup"), row, strict=True)) for row in rows])
        else:
            print_table(("#Cluster Name", "#Topic", "#Consumer Group"), rows)
        return
    topics = call_admin(namesrv_addr, lambda client: client.topics.names())
    if as_json:
        print_json(topics)
    else:
        click.echo("\n".join(map(printable, topics)))


@command("topicClusterList")
@topic_option
def topic_cluster_list(namesrv_addr: str, as_json: bool, topic: str) -> None:
    """List the clusters of a topic.

    \b
    Examples:
      rucola admin topicClusterList -t Flights
    """
    clusters = call_admin(namesrv_addr, lambda client: client.topics.clusters(topic))
    if as_json:
        print_json(clusters)
    else:
        click.echo("\n".join(map(printable, clusters)))


@command("topicStatus")
@topic_option
def topic_status(namesrv_addr: str, as_json: bool, topic: str) -> None:
    """Show the offsets of a topic's queues, and the time of each one's newest message.

    \b
    Examples:
      rucola admin topicStatus -t Flights
    """
    stats = call_admin(namesrv_addr, lambda client: client.topics.stats(topic))
    if as_json:
        print_json([{**msgspec.to_builtins(queue), **msgspec.to_builtins(offset)} for queue, offset in stats.items()])
        return
    print_table(
        ("#Broker Name", whole("#QID"), optional("#Min Offset"), "#Max Offset", optional("#Last Updated")),
        [
            (queue.broker_name, queue.queue_id, at.min_offset, at.max_offset, time_text(at.last_update_timestamp))
            for queue, at in stats.items()
        ],
    )


@command("topicRoute")
@topic_option
@click.option("-l", "--list", "as_list", is_flag=True, help="Print a table instead of JSON.")
def topic_route(namesrv_addr: str, as_json: bool, topic: str, as_list: bool) -> None:
    """Show a topic's route, its brokers and queues, as JSON or a table (-l).

    \b
    Examples:
      rucola admin topicRoute -t Flights -l
    """
    route = call_admin(namesrv_addr, lambda client: client.topics.route(topic))
    if as_json or not as_list:
        print_json(route)
        return
    brokers = {data.broker_name: data for data in route.broker_datas}
    queues = [data for data in route.queue_datas if data.broker_name in brokers]
    queues.sort(key=lambda data: data.broker_name)
    # The totals count each broker's queues once, as mqadmin does.
    rows: list[tuple[object, ...]] = []
    for data in queues:
        broker = brokers[data.broker_name]
        addresses = _addresses_text(broker.broker_addrs)
        rows.append(
            (broker.cluster, data.broker_name, addresses, data.read_queue_nums, data.write_queue_nums, data.perm)
        )
    read_total = sum(data.read_queue_nums for data in queues)
    write_total = sum(data.write_queue_nums for data in queues)
    print_table(
        ("#ClusterName", "#BrokerName", whole("#BrokerAddrs"), "#ReadQueue", "#WriteQueue", "#Perm"),
        [*rows, ("Total:", str(len(queues)), "", read_total, write_total, "")],
        footer=True,
    )


def _addresses_text(addresses: dict[int, str]) -> str:
    """Format addresses as Java prints a map: `{0=127.0.0.1:10911}`."""
    return "{" + ", ".join(f"{broker_id}={address}" for broker_id, address in sorted(addresses.items())) + "}"


@command("updateTopic")
@target_options
@topic_option
@click.option(
    "-r",
    "--readQueueNums",
    "read_queue_nums",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Number of queues to read.",
)
@click.option(
    "-w",
    "--writeQueueNums",
    "write_queue_nums",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Number of queues to write.",
)
@click.option(
    "-p",
    "--perm",
    type=click.Choice(["2", "4", "6"]),
    default="6",
    show_default=True,
    help="Permission: 2 write, 4 read, 6 both.",
)
@click.option("-o", "--order", type=bool, default=False, help="Make it an ordered topic (true|false).")
@click.option("-u", "--unit", type=bool, default=False, help="Make it a unit topic (true|false).")
@click.option(
    "-s",
    "--hasUnitSub",
    "has_unit_sub",
    type=bool,
    default=False,
    help="Mark the topic as having unit subscriptions (true|false).",
)
def update_topic(
    namesrv_addr: str,
    as_json: bool,
    target: Target,
    topic: str,
    read_queue_nums: int,
    write_queue_nums: int,
    perm: str,
    order: bool,
    unit: bool,
    has_unit_sub: bool,
) -> None:
    """Create or change a topic on one broker (-b) or on a whole cluster (-c).

    Warns if messages are then in queues that no consumer reads: a topic has fewer queues than before, or fewer to
    read than to write.

    \b
    Examples:
      rucola admin updateTopic -c DefaultCluster -t Orders -r 4 -w 4
      rucola admin updateTopic -b localhost:10911 -t Orders -p 4
    """
    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=read_queue_nums,
        write_queue_nums=write_queue_nums,
        perm=int(perm),
        topic_sys_flag=unit | has_unit_sub << 1,
        order=order,
    )

    async def request(client: AdminClient) -> tuple[list[str], list[Finding]]:
        order_conf: dict[str, int] = {}
        # The order configuration names every broker of an ordered topic: a single one is added to those configured.
        if target.cluster is not None:
            masters = await client.cluster.masters(target.cluster)
            order_conf = dict.fromkeys(masters, write_queue_nums)
            addresses = list(masters.values())
        else:
            addresses = await target.masters(client)
            if order:
                name = await client.cluster.broker_name(*addresses)
                order_conf = await client.name_servers.order_conf(topic) | {name: write_queue_nums}
        for one in addresses:
            await client.topics.create_or_update(one, config)
        if order:
            await client.name_servers.put_order_conf(topic, order_conf)
        found = [finding for one in addresses for finding in await client.doctor.check_topic(one, topic)]
        return addresses, found

    addresses, found = call_admin(namesrv_addr, request)
    warn(found)
    if as_json:
        print_json({"brokerAddrs": addresses, "topicConfig": config, "findings": found})
        return
    for one in addresses:
        click.echo(f"create topic to {one} success.")
    click.echo(str(config))


@command("updateTopicPerm")
@target_options
@topic_option
@click.option(
    "-p", "--perm", type=click.Choice(["2", "4", "6"]), required=True, help="Permission: 2 write, 4 read, 6 both."
)
def update_topic_perm(namesrv_addr: str, as_json: bool, target: Target, topic: str, perm: str) -> None:
    """Change the permission of a topic on one broker (-b) or a whole cluster (-c).

    \b
    Examples:
      rucola admin updateTopicPerm -c DefaultCluster -t Orders -p 4
    """

    async def request(client: AdminClient) -> list[tuple[str, int, TopicConfig]]:
        changed = []
        for one in await target.masters(client):
            config = (await client.topics.configs(one)).get(topic)
            if config is None:
                raise ConfigError(f"broker {one} has no topic {topic}")
            before, config.perm = config.perm, int(perm)
            await client.topics.create_or_update(one, config)
            changed.append((one, before, config))
        return changed

    changed = call_admin(namesrv_addr, request)
    if as_json:
        print_json([{"brokerAddr": one, "oldPerm": before, "topicConfig": config} for one, before, config in changed])
        return
    for one, before, config in changed:
        click.echo(f"update topic perm from {before} to {perm} in {one} success.\n{config}.")


@command("deleteTopic")
@topic_option
@click.option("-c", "--clusterName", "cluster", required=True, help="Name of the cluster to delete the topic from.")
@yes_option
def delete_topic(namesrv_addr: str, as_json: bool, topic: str, cluster: str, yes: bool) -> None:
    """Delete a topic from all brokers of a cluster, and from the name servers.

    \b
    Examples:
      rucola admin deleteTopic -c DefaultCluster -t Orders --yes
    """

    async def check(client: AdminClient) -> None:
        if cluster not in await client.topics.clusters(topic):
            raise ConfigError(f"cluster {cluster} has no topic {topic}")

    async def delete(client: AdminClient) -> list[str]:
        addresses = list((await client.cluster.masters(cluster)).values())
        for address in addresses:
            await client.topics.delete_on_broker(address, topic)
        await client.topics.delete_on_name_servers(topic, cluster)
        return addresses

    call_admin(namesrv_addr, check)
    confirm(yes, f"delete topic {topic} from cluster {cluster}")
    addresses = call_admin(namesrv_addr, delete)
    if as_json:
        print_json({"topic": topic, "brokerAddrs": addresses})
        return
    click.echo(f"delete topic [{topic}] from cluster [{cluster}] success.")
    click.echo(f"delete topic [{topic}] from NameServer success.")


@command("updateOrderConf")
@topic_option
@click.option("-v", "--orderConf", "conf", help="For -m put: the number of queues by broker, broker-a:4;broker-b:4.")
@click.option("-m", "--method", type=click.Choice(["put", "get", "delete"]), required=True, help="Operation.")
def update_order_conf(namesrv_addr: str, as_json: bool, topic: str, conf: str | None, method: str) -> None:
    """Set, show or delete the order configuration of a topic.

    It has the number of queues on each broker, which an ordered topic keeps even if a broker is unreachable.

    \b
    Examples:
      rucola admin updateOrderConf -t Orders -m put -v "broker-a:4;broker-b:4"
      rucola admin updateOrderConf -t Orders -m get
    """
    if (method == "put") != (conf is not None):
        raise click.UsageError("-v belongs to -m put, and only to it")
    if conf is not None:
        counts = parse_order_conf(conf)
        call_admin(namesrv_addr, lambda client: client.name_servers.put_order_conf(topic, counts))
    elif method == "delete":
        counts = {}
        call_admin(namesrv_addr, lambda client: client.name_servers.delete_order_conf(topic))
    else:
        counts = call_admin(namesrv_addr, lambda client: client.name_servers.order_conf(topic))
        if not counts:
            raise ConfigError(f"topic {topic} has no order configuration")
    text = ";".join(f"{name}:{count}" for name, count in counts.items())
    if as_json:
        print_json({"topic": topic, "orderConf": counts})
    elif method == "get":
        click.echo(f"get orderConf success. topic=[{topic}], orderConf=[{text}]")
    else:
        click.echo(f"{'update' if counts else 'delete'} orderConf success. topic=[{topic}], orderConf=[{text}]")


@command("allocateMQ")
@topic_option
@click.option("-i", "--ipList", "ip_list", required=True, help="Client ids or addresses, separated by commas.")
def allocate_mq(namesrv_addr: str, as_json: bool, topic: str, ip_list: str) -> None:
    """Show how the average strategy assigns the queues of a topic to clients.

    \b
    Examples:
      rucola admin allocateMQ -t Orders -i 10.0.0.1,10.0.0.2
    """
    clients = sorted(client for part in ip_list.split(",") if (client := part.strip()))
    if not clients:
        raise click.UsageError("-i names no client")
    queues = call_admin(namesrv_addr, lambda client: client.topics.queues(topic))
    assignments = {client: average(client, queues, clients) for client in clients}
    if as_json:
        print_json({"result": assignments})
    else:
        rows = [
            (client, queue.broker_name, queue.queue_id)
            for client, assigned in assignments.items()
            for queue in assigned
        ]
        print_table((whole("#Client"), "#Broker Name", whole("#QID")), rows)


@command("queryCq")
@topic_option
@click.option("-q", "--queue", "queue_id", type=click.IntRange(0), required=True, help="Queue id.")
@click.option("-i", "--index", type=click.IntRange(0), required=True, help="Queue offset of the first unit.")
@click.option("-c", "--count", type=click.IntRange(1), default=10, show_default=True, help="Number of units.")
@click.option(
    "-b", "--broker", "address", type=ADDRESS, help="Address of a broker; by default the first one of the route."
)
@click.option("-g", "--consumer", "group", help="Also show the subscription of this consumer group.")
def query_cq(
    namesrv_addr: str,
    as_json: bool,
    topic: str,
    queue_id: int,
    index: int,
    count: int,
    address: str | None,
    group: str | None,
) -> None:
    """Show units of a ConsumeQueue: physical offset, size and tags code of messages.

    \b
    Examples:
      rucola admin queryCq -t Flights -q 0 -i 0 -c 20
    """

    async def one_address(client: AdminClient) -> str:
        route = await client.topics.route(topic)
        return next(iter(sorted(data.broker_addrs[min(data.broker_addrs)] for data in route.broker_datas)))

    at = address or call_admin(namesrv_addr, one_address)
    found = call_admin(
        namesrv_addr, lambda client: client.topics.consume_queue_units(at, topic, queue_id, index, count, group)
    )
    if as_json:
        print_json(found)
    else:
        if found.subscription_data is not None:
            click.echo(printable(f"Subscription: {found.subscription_data.sub_string}"))
        elif found.filter_data is not None:
            click.echo(printable(found.filter_data, keep=LAYOUT))
        click.echo(f"Queue data: max: {found.max_queue_index}, min: {found.min_queue_index}")
        rows = [
            (index + number, unit.physic_offset, unit.physic_size, unit.tags_code)
            for number, unit in enumerate(found.queue_data)
        ]
        print_table(("#Index", "#Physic Offset", "#Physic Size", "#Tags Code"), rows)
    if not found.queue_data:
        click.echo(f"index {index} of queue {queue_id} of topic {topic} does not exist at {at}", err=True)
        sys.exit(1)
