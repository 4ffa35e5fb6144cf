"""`rucola admin`: mqadmin's commands, by mqadmin's names and flags. Each asks an AdminClient and prints the answer.

Every command takes `-n` (or the environment variable NAMESRV_ADDR) and `--json`; without `--json` the columns are
mqadmin's.

Answers to org.apache.rocketmq.tools.command of Apache RocketMQ 4.9.8. Deliberate differences: bodies are printed
instead of written to files in /tmp; a key query that was cut, or that a broker did not answer, says so on stderr, and
ends with exit code 1 in the second case.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click
import msgspec

from rucola.admin import PAGE, AdminClient, KeyQueryResult, MessageExt, TopicConfig
from rucola.cli.message_view import message_json, message_text
from rucola.cli.output import print_json, print_table, time_text
from rucola.errors import MQError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def admin() -> None:
    """Ask and change a running cluster, with mqadmin's names and flags.

    \b
    Examples:
      rucola admin clusterList -n localhost:9876
      rucola admin queryMsgByKey -n localhost:9876 -t Orders -k 4711
      NAMESRV_ADDR=localhost:9876 rucola admin topicStatus -t Orders --json
    """


def command(name: str) -> Callable[[F], click.Command]:
    """A command of `admin` with the options that all of them have."""

    def decorate(function: F) -> click.Command:
        with_json = click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")(function)
        with_namesrv = click.option(
            "-n", "--namesrvAddr", "namesrv_addr", envvar="NAMESRV_ADDR", required=True, show_envvar=True,
            help="Name servers, host:port;host:port.",
        )(with_json)  # fmt: skip
        return admin.command(name)(with_namesrv)

    return decorate


def ask(namesrv_addr: str, question: Callable[[AdminClient], Awaitable[T]]) -> T:
    """The answer to one question, on a connection that lives as long as the question."""

    async def asking() -> T:
        async with AdminClient(namesrv_addr) as client:
            return await question(client)

    return asyncio.run(asking())


topic_option = click.option("-t", "--topic", required=True, help="Topic name.")


# Messages.


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
def query_msg_by_id(namesrv_addr: str, as_json: bool, msg_ids: str) -> None:
    """The message at the address that an offsetMsgId names.

    \b
    Examples:
      rucola admin queryMsgById -i 7F00000100002A9F0000000000000000
    """

    async def question(client: AdminClient) -> list[MessageExt]:
        return [await client.query_message_by_id(msg_id) for part in msg_ids.split(",") if (msg_id := part.strip())]

    messages = ask(namesrv_addr, question)
    if as_json:
        print_json([message_json(message) for message in messages])
    else:
        click.echo("\n\n".join(map(message_text, messages)))


@command("queryMsgByUniqueKey")
@topic_option
@click.option("-i", "--msgId", "unique_key", required=True, help="The id that the producer gave to the message.")
@click.option("-a", "--showAll", "show_all", is_flag=True, help="All messages with this id, not only the first.")
def query_msg_by_unique_key(namesrv_addr: str, as_json: bool, topic: str, unique_key: str, show_all: bool) -> None:
    """The message to which its producer gave an id; the oldest where several have it.

    \b
    Examples:
      rucola admin queryMsgByUniqueKey -t Flights -i C0A80107126755B4AAC2000100A30000
    """
    result = ask(namesrv_addr, lambda client: client.query_message_by_unique_key(topic, unique_key))
    if not show_all:
        del result.messages[1:]
    if as_json:
        _print_result_json(result)
    elif result.messages:
        click.echo("\n\n".join(map(message_text, result.messages)))
    _report_failures(result)


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


# Topics.


@command("topicStatus")
@topic_option
def topic_status(namesrv_addr: str, as_json: bool, topic: str) -> None:
    """Smallest and largest offset of every queue of a topic, and the time of its newest message.

    \b
    Examples:
      rucola admin topicStatus -t Flights
    """
    stats = ask(namesrv_addr, lambda client: client.examine_topic_stats(topic))
    if as_json:
        print_json([{**msgspec.to_builtins(queue), **msgspec.to_builtins(offset)} for queue, offset in stats.items()])
        return
    print_table(
        ("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"),
        [
            (queue.broker_name, queue.queue_id, at.min_offset, at.max_offset, time_text(at.last_update_timestamp))
            for queue, at in stats.items()
        ],
    )


@command("topicRoute")
@topic_option
@click.option("-l", "--list", "as_list", is_flag=True, help="A table instead of JSON.")
def topic_route(namesrv_addr: str, as_json: bool, topic: str, as_list: bool) -> None:
    """The brokers that have a topic, as JSON or, with -l, as a table.

    \b
    Examples:
      rucola admin topicRoute -t Flights -l
    """
    route = ask(namesrv_addr, lambda client: client.examine_topic_route(topic))
    if as_json or not as_list:
        print_json(route)
        return
    brokers = {data.broker_name: data for data in route.broker_datas}
    queues = [data for data in route.queue_datas if data.broker_name in brokers]
    queues.sort(key=lambda data: data.broker_name)
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
        ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"),
        [*rows, ("Total:", str(len(queues)), "", read_total, write_total, "")],
        footer=True,
    )


def _addresses_text(addresses: dict[int, str]) -> str:
    """`{0=127.0.0.1:10911}`, as Java prints a map."""
    return "{" + ", ".join(f"{broker_id}={address}" for broker_id, address in sorted(addresses.items())) + "}"


@command("updateTopic")
@click.option("-b", "--brokerAddr", "address", help="Create the topic on this broker.")
@click.option("-c", "--clusterName", "cluster", help="Create the topic on every master of this cluster.")
@topic_option
@click.option("-r", "--readQueueNums", "read_queue_nums", type=click.IntRange(1), default=8, show_default=True)
@click.option("-w", "--writeQueueNums", "write_queue_nums", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "-p", "--perm", type=click.Choice(["2", "4", "6"]), default="6", show_default=True, help="2 W, 4 R, 6 RW."
)
@click.option("-o", "--order", type=bool, default=False, help="Whether the topic is ordered (true|false).")
@click.option("-u", "--unit", type=bool, default=False, help="Whether it is a unit topic (true|false).")
@click.option(
    "-s", "--hasUnitSub", "has_unit_sub", type=bool, default=False, help="Has unit subscriptions (true|false)."
)
def update_topic(
    namesrv_addr: str,
    as_json: bool,
    address: str | None,
    cluster: str | None,
    topic: str,
    read_queue_nums: int,
    write_queue_nums: int,
    perm: str,
    order: bool,
    unit: bool,
    has_unit_sub: bool,
) -> None:
    """Create a topic, or change it, on one broker (-b) or on a whole cluster (-c).

    \b
    Examples:
      rucola admin updateTopic -c DefaultCluster -t Orders -r 4 -w 4
      rucola admin updateTopic -b localhost:10911 -t Orders -p 4
    """
    if (address is None) == (cluster is None):
        raise click.UsageError("name either a broker with -b or a cluster with -c")
    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=read_queue_nums,
        write_queue_nums=write_queue_nums,
        perm=int(perm),
        topic_sys_flag=unit | has_unit_sub << 1,
        order=order,
    )

    async def question(client: AdminClient) -> list[str]:
        order_conf: dict[str, int] = {}
        if cluster is not None:
            masters = await client.fetch_masters_of_cluster(cluster)
            order_conf = dict.fromkeys(masters, write_queue_nums)
            addresses = list(masters.values())
        else:
            assert address is not None
            addresses = [address]
            if order:
                name = await client.fetch_broker_name(address)
                order_conf = await client.examine_order_conf(topic) | {name: write_queue_nums}
        for one in addresses:
            await client.create_and_update_topic_config(one, config)
        if order:
            await client.create_or_update_order_conf(topic, order_conf)
        return addresses

    addresses = ask(namesrv_addr, question)
    if as_json:
        print_json({"brokerAddrs": addresses, "topicConfig": config})
        return
    for one in addresses:
        click.echo(f"create topic to {one} success.")
    click.echo(str(config))


# Clusters and groups.


@command("clusterList")
def cluster_list(namesrv_addr: str, as_json: bool) -> None:
    """All brokers, with their version and load where they tell.

    \b
    Examples:
      rucola admin clusterList -n localhost:9876
    """

    async def question(client: AdminClient) -> list[dict[str, Any]]:
        info = await client.examine_cluster_info()
        return [
            {
                "clusterName": cluster,
                "brokerName": name,
                "brokerId": broker_id,
                "brokerAddr": address,
                "runtimeStats": await _runtime_stats(client, address),
            }
            for cluster, names in sorted(info.cluster_addr_table.items())
            for name in sorted(names)
            for broker_id, address in sorted(info.broker_addr_table[name].broker_addrs.items())
        ]

    brokers = ask(namesrv_addr, question)
    if as_json:
        print_json(brokers)
        return
    columns = (
        "#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)", "#PCWait(ms)",
        "#Hour", "#SPACE",
    )  # fmt: skip
    names = ("clusterName", "brokerName", "brokerId", "brokerAddr")
    print_table(columns, [(*(broker[name] for name in names), *_load(broker["runtimeStats"])) for broker in brokers])


async def _runtime_stats(client: AdminClient, address: str) -> dict[str, str]:
    """A broker's figures; none where it does not tell them, or is away."""
    try:
        return await client.fetch_broker_runtime_stats(address)
    except MQError:
        return {}


def _load(stats: dict[str, str]) -> tuple[str, ...]:
    """mqadmin's columns from version to space, empty where the broker does not tell."""

    def rate(name: str, pool: str) -> str:
        if name not in stats:
            return ""
        size, wait_ms = stats.get(f"{pool}Size", ""), stats.get(f"{pool}HeadWaitTimeMills", "")
        return f"{float(stats[name].split()[0]):.2f}({size},{wait_ms}ms)"

    earliest = stats.get("earliestMessageTimeStamp")
    return (
        stats.get("brokerVersionDesc", ""),
        rate("putTps", "sendThreadPoolQueue"),
        rate("getTransferedTps", "pullThreadPoolQueue"),
        stats.get("pageCacheLockTimeMills", ""),
        f"{(time.time() - int(earliest) / 1000) / 3600:.2f}" if earliest else "",
        f"{float(stats['commitLogDiskRatio']):.4f}" if "commitLogDiskRatio" in stats else "",
    )


@command("consumerProgress")
@click.option("-g", "--groupName", "group", help="One consumer group; without it, all that have a retry topic.")
@click.option("-t", "--topicName", "topic", help="Only this topic of the group.")
def consumer_progress(namesrv_addr: str, as_json: bool, group: str | None, topic: str | None) -> None:
    """How far consumer groups have come, and how many messages are before them.

    \b
    Examples:
      rucola admin consumerProgress
      rucola admin consumerProgress -g billing
    """
    if group is None:
        _all_groups(namesrv_addr, as_json)
        return
    stats = ask(namesrv_addr, lambda client: client.examine_consume_stats(group, topic))
    diff_total = sum(at.broker_offset - at.consumer_offset for at in stats.offset_table.values())
    if as_json:
        queues = [
            {**msgspec.to_builtins(queue), **msgspec.to_builtins(at), "diff": at.broker_offset - at.consumer_offset}
            for queue, at in stats.offset_table.items()
        ]
        print_json({"group": group, "consumeTps": stats.consume_tps, "diffTotal": diff_total, "queues": queues})
        return
    print_table(
        ("#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff", "#LastTime"),
        [
            (
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                at.broker_offset,
                at.consumer_offset,
                at.broker_offset - at.consumer_offset,
                time_text(at.last_timestamp).partition(",")[0] or "N/A",
            )
            for queue, at in stats.offset_table.items()
        ],
    )
    click.echo(f"\nConsume TPS: {stats.consume_tps:.2f}\nDiff Total: {diff_total}")
    if not stats.offset_table:
        click.echo(f"group {group} has committed no offset", err=True)


def _all_groups(namesrv_addr: str, as_json: bool) -> None:
    async def question(client: AdminClient) -> list[dict[str, Any]]:
        groups = []
        for name in await client.fetch_consumer_groups():
            stats = await client.examine_consume_stats(name)
            diff_total = sum(at.broker_offset - at.consumer_offset for at in stats.offset_table.values())
            groups.append({"group": name, "consumeTps": stats.consume_tps, "diffTotal": diff_total})
        return groups

    groups = ask(namesrv_addr, question)
    if as_json:
        print_json(groups)
        return
    rows = [(entry["group"], f"{entry['consumeTps']:.0f}", entry["diffTotal"]) for entry in groups]
    print_table(("#Group", "#TPS", "#Diff Total"), rows)
