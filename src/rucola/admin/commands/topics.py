"""Topics: lists, routes, queues, permissions and order."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import Flag, InvalidArguments, Masters, Option, Result, Row, Topic, command, split
from rucola.admin.commands.doctor import warning
from rucola.admin.name_servers import parse_order_conf
from rucola.domain.allocation import average
from rucola.domain.route import TopicRouteData
from rucola.domain.topic import TopicConfig
from rucola.errors import ConfigError
from rucola.presentation import Column, Table, optional, time_text, whole

PERMISSION = Option("-p --perm", "Permission: 2 write, 4 read, 6 both.", choices=("2", "4", "6"))


@command("topicList")
async def topic_list(
    client: AdminClient,
    by_cluster: Annotated[
        bool, Flag("-c --clusterModel", "Include the cluster and the consumer groups of each topic.")
    ] = False,
) -> Result:
    """List all topics.

    \b
    Examples:
      rucola admin topicList
      rucola admin topicList -c
    """
    if not by_cluster:
        names = await client.topics.names()
        return Result(names, names)
    rows = [
        {"clusterName": cluster, "topic": topic, "consumerGroup": group}
        for topic in await client.topics.user_names()
        for cluster in await client.topics.clusters(topic)
        for group in await client.topics.consumer_groups(topic) or [""]
    ]
    columns = (
        Column("#Cluster Name", "clusterName"), Column("#Topic", "topic"), Column("#Consumer Group", "consumerGroup"),
    )  # fmt: skip
    return Result(rows, [Table(columns, rows)])


@command("topicClusterList")
async def topic_cluster_list(client: AdminClient, topic: Topic) -> Result:
    """List the clusters of a topic.

    \b
    Examples:
      rucola admin topicClusterList -t Flights
    """
    clusters = await client.topics.clusters(topic)
    return Result(clusters, clusters)


@command("topicStatus", columns=(
    Column("#Broker Name", "brokerName"), whole("#QID", "queueId"), optional("#Min Offset", "minOffset"),
    Column("#Max Offset", "maxOffset"), optional("#Last Updated", "lastUpdateTimestamp", time_text),
))  # fmt: skip
async def topic_status(client: AdminClient, topic: Topic) -> list[Row]:
    """Show the offsets of a topic's queues, and the time of each one's newest message.

    \b
    Examples:
      rucola admin topicStatus -t Flights
    """
    stats = await client.topics.stats(topic)
    return [{**msgspec.to_builtins(queue), **msgspec.to_builtins(offset)} for queue, offset in stats.items()]


@command("topicRoute")
async def topic_route(
    client: AdminClient,
    topic: Topic,
    as_list: Annotated[bool, Flag("-l --list", "Print a table instead of JSON.")] = False,
) -> Result | TopicRouteData:
    """Show a topic's route, its brokers and queues, as JSON or a table (-l).

    \b
    Examples:
      rucola admin topicRoute -t Flights -l
    """
    route = await client.topics.route(topic)
    if not as_list:
        return route
    brokers = {data.broker_name: data for data in route.broker_datas}
    # The totals count each broker's queues once, as mqadmin does.
    queues = [data for data in route.queue_datas if data.broker_name in brokers]
    rows: list[tuple[object, ...]] = []
    for data in sorted(queues, key=lambda data: data.broker_name):
        broker = brokers[data.broker_name]
        # As Java prints a map: {0=127.0.0.1:10911}.
        addresses = ", ".join(f"{broker_id}={address}" for broker_id, address in sorted(broker.broker_addrs.items()))
        numbers = data.read_queue_nums, data.write_queue_nums, data.perm
        rows.append((broker.cluster, data.broker_name, f"{{{addresses}}}", *numbers))
    totals = [sum(data.read_queue_nums for data in queues), sum(data.write_queue_nums for data in queues)]
    rows.append(("Total:", str(len(queues)), "", *totals, ""))
    columns = "#ClusterName", "#BrokerName", whole("#BrokerAddrs"), "#ReadQueue", "#WriteQueue", "#Perm"
    return Result(route, [Table(columns, rows)])


@command("updateTopic", writes=True)
async def update_topic(
    client: AdminClient,
    target: Masters,
    topic: Topic,
    read_queue_nums: Annotated[int, Option("-r --readQueueNums", "Number of queues to read.", min=1)] = 8,
    write_queue_nums: Annotated[int, Option("-w --writeQueueNums", "Number of queues to write.", min=1)] = 8,
    perm: Annotated[str, PERMISSION] = "6",
    order: Annotated[bool, Option("-o --order", "Make it an ordered topic.")] = False,
    unit: Annotated[bool, Option("-u --unit", "Make it a unit topic.")] = False,
    has_unit_sub: Annotated[bool, Option("-s --hasUnitSub", "Mark the topic as having unit subscriptions.")] = False,
) -> Result:
    """Create or change a topic on one broker (-b) or on a whole cluster (-c).

    Warns if messages are then in queues that no consumer reads: a topic has fewer queues than before, or fewer to
    read than to write.

    \b
    Examples:
      rucola admin updateTopic -c DefaultCluster -t Orders -r 4 -w 4
      rucola admin updateTopic -b localhost:10911 -t Orders -p 4
    """
    config = TopicConfig(
        topic_name=topic, read_queue_nums=read_queue_nums, write_queue_nums=write_queue_nums, perm=int(perm),
        topic_sys_flag=unit | has_unit_sub << 1, order=order,
    )  # fmt: skip
    order_conf: dict[str, int] = {}
    addresses = await target.masters(client)
    # The order configuration names every broker of an ordered topic: a single one is added to those configured.
    if target.cluster is not None:
        order_conf = dict.fromkeys(await client.cluster.masters(target.cluster), write_queue_nums)
    elif order:
        name = await client.cluster.broker_name(*addresses)
        order_conf = await client.name_servers.order_conf(topic) | {name: write_queue_nums}
    for one in addresses:
        await client.topics.create_or_update(one, config)
    if order:
        await client.name_servers.put_order_conf(topic, order_conf)
    found = [finding for one in addresses for finding in await client.doctor.check_topic(one, topic)]
    return Result(
        {"brokerAddrs": addresses, "topicConfig": config, "findings": found},
        [*(f"create topic to {one} success." for one in addresses), str(config)],
        [warning(one) for one in found],
    )


@command("updateTopicPerm", writes=True)
async def update_topic_perm(
    client: AdminClient, target: Masters, topic: Topic, perm: Annotated[str, PERMISSION]
) -> Result:
    """Change the permission of a topic on one broker (-b) or a whole cluster (-c).

    \b
    Examples:
      rucola admin updateTopicPerm -c DefaultCluster -t Orders -p 4
    """
    changed, text = [], []
    for one in await target.masters(client):
        config = (await client.topics.configs(one)).get(topic)
        if config is None:
            raise ConfigError(f"broker {one} has no topic {topic}")
        before, config.perm = config.perm, int(perm)
        await client.topics.create_or_update(one, config)
        changed.append({"brokerAddr": one, "oldPerm": before, "topicConfig": config})
        text += [f"update topic perm from {before} to {perm} in {one} success.", f"{config}."]
    return Result(changed, text)


async def _topic_deletion(client: AdminClient, topic: str, cluster: str) -> str:
    if cluster not in await client.topics.clusters(topic):
        raise ConfigError(f"cluster {cluster} has no topic {topic}")
    return f"delete topic {topic} from cluster {cluster}"


@command("deleteTopic", confirm=_topic_deletion)
async def delete_topic(
    client: AdminClient,
    topic: Topic,
    cluster: Annotated[str, Option("-c --clusterName", "Name of the cluster to delete the topic from.")],
) -> Result:
    """Delete a topic from all brokers of a cluster, and from the name servers.

    \b
    Examples:
      rucola admin deleteTopic -c DefaultCluster -t Orders --yes
    """
    addresses = list((await client.cluster.masters(cluster)).values())
    for address in addresses:
        await client.topics.delete_on_broker(address, topic)
    await client.topics.delete_on_name_servers(topic, cluster)
    places = f"cluster [{cluster}]", "NameServer"
    text = [f"delete topic [{topic}] from {place} success." for place in places]
    return Result({"topic": topic, "brokerAddrs": addresses}, text)


@command("updateOrderConf", writes=True)
async def update_order_conf(
    client: AdminClient,
    *,
    topic: Topic,
    conf: Annotated[
        str | None, Option("-v --orderConf", "For -m put: the number of queues by broker, broker-a:4;broker-b:4.")
    ] = None,
    method: Annotated[str, Option("-m --method", "Operation.", choices=("put", "get", "delete"))],
) -> Result:
    """Set, show or delete the order configuration of a topic.

    It has the number of queues on each broker, which an ordered topic keeps even if a broker is unreachable.

    \b
    Examples:
      rucola admin updateOrderConf -t Orders -m put -v "broker-a:4;broker-b:4"
      rucola admin updateOrderConf -t Orders -m get
    """
    if (method == "put") != (conf is not None):
        raise InvalidArguments("-v belongs to -m put, and only to it")
    counts: dict[str, int] = {}
    if conf is not None:
        counts = parse_order_conf(conf)
        await client.name_servers.put_order_conf(topic, counts)
    elif method == "delete":
        await client.name_servers.delete_order_conf(topic)
    elif not (counts := await client.name_servers.order_conf(topic)):
        raise ConfigError(f"topic {topic} has no order configuration")
    done = "get" if method == "get" else "update" if counts else "delete"
    conf = ";".join(f"{name}:{count}" for name, count in counts.items())
    text = f"{done} orderConf success. topic=[{topic}], orderConf=[{conf}]"
    return Result({"topic": topic, "orderConf": counts}, [text])


@command("allocateMQ")
async def allocate_mq(
    client: AdminClient,
    topic: Topic,
    ip_list: Annotated[str, Option("-i --ipList", "Client ids or addresses, separated by commas.")],
) -> Result:
    """Show how the average strategy assigns the queues of a topic to clients.

    \b
    Examples:
      rucola admin allocateMQ -t Orders -i 10.0.0.1,10.0.0.2
    """
    clients = sorted(split(ip_list))
    if not clients:
        raise InvalidArguments("-i names no client")
    queues = await client.topics.queues(topic)
    assignments = {one: average(one, queues, clients) for one in clients}
    rows = [(one, queue.broker_name, queue.queue_id) for one, assigned in assignments.items() for queue in assigned]
    return Result({"result": assignments}, [Table((whole("#Client"), "#Broker Name", whole("#QID")), rows)])


@command("queryCq")
async def query_cq(
    client: AdminClient,
    topic: Topic,
    queue_id: Annotated[int, Option("-q --queue", "Queue id.", min=0)],
    index: Annotated[int, Option("-i --index", "Queue offset of the first unit.", min=0)],
    count: Annotated[int, Option("-c --count", "Number of units.", min=1)] = 10,
    address: Annotated[
        str | None,
        Option("-b --broker", "Address of a broker; by default the first one of the route.", format="address"),
    ] = None,
    group: Annotated[str | None, Option("-g --consumer", "Also show the subscription of this consumer group.")] = None,
) -> Result:
    """Show units of a ConsumeQueue: physical offset, size and tags code of messages.

    \b
    Examples:
      rucola admin queryCq -t Flights -q 0 -i 0 -c 20
    """
    if address is None:
        route = await client.topics.route(topic)
        address = min(data.broker_addrs[min(data.broker_addrs)] for data in route.broker_datas)
    found = await client.topics.consume_queue_units(address, topic, queue_id, index, count, group)
    text: list[str | Table] = []
    if found.subscription_data is not None:
        text.append(f"Subscription: {found.subscription_data.sub_string}")
    elif found.filter_data is not None:
        text += found.filter_data.splitlines()
    text.append(f"Queue data: max: {found.max_queue_index}, min: {found.min_queue_index}")
    rows = [
        (number, unit.physic_offset, unit.physic_size, unit.tags_code)
        for number, unit in enumerate(found.queue_data, index)
    ]
    text.append(Table(("#Index", "#Physic Offset", "#Physic Size", "#Tags Code"), rows))
    missing = [f"index {index} of queue {queue_id} of topic {topic} does not exist at {address}"]
    return Result(found, text, [] if rows else missing, is_failure=not rows)
