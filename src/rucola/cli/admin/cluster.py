"""Clusters, brokers and name servers: lists, statistics, settings and permissions."""

from __future__ import annotations

import time
from typing import Any

import click

from rucola.admin import AdminClient, TopicTraffic
from rucola.admin.brokers import shortest_rate
from rucola.admin.requests import gather_fail_fast
from rucola.cli.admin.command import (
    Target,
    call_admin,
    command,
    confirm,
    interval_option,
    rounds,
    target_options,
    yes_option,
)
from rucola.cli.output import optional, print_json, print_table, printable, whole
from rucola.errors import ConfigError, MQError


@command("clusterList")
@click.option("-m", "--moreStats", "more", is_flag=True, help="Show messages put and got yesterday and today.")
@interval_option
def cluster_list(namesrv_addr: str, as_json: bool, more: bool, interval: float | None) -> None:
    """List all brokers, with their version and load as far as they report it.

    \b
    Examples:
      rucola admin clusterList -n localhost:9876
      rucola admin clusterList -m -i 10
    """

    async def request(client: AdminClient) -> list[dict[str, Any]]:
        info = await client.cluster.info()
        brokers: list[dict[str, Any]] = [
            {"clusterName": cluster, "brokerName": name, "brokerId": broker_id, "brokerAddr": address}
            for cluster, names in sorted(info.cluster_addr_table.items())
            for name in sorted(names)
            for broker_id, address in sorted(info.broker_addr_table[name].broker_addrs.items())
        ]
        stats = await gather_fail_fast(_runtime_stats(client, broker["brokerAddr"]) for broker in brokers)
        return [broker | {"runtimeStats": one} for broker, one in zip(brokers, stats, strict=True)]

    # Each round uses a new connection, so that a name server that was restarted in the meantime is found again.
    for _ in rounds(interval):
        brokers = call_admin(namesrv_addr, request)
        if as_json:
            print_json(brokers)
        elif more:
            _print_totals(brokers)
        else:
            _print_load(brokers)


def _print_load(brokers: list[dict[str, Any]]) -> None:
    columns = (
        "#Cluster Name", "#Broker Name", whole("#BID"), whole("#Addr"), optional("#Version"), optional("#InTPS(LOAD)"),
        optional("#OutTPS(LOAD)"), optional("#PCWait(ms)"), optional("#Hour"), optional("#SPACE"),
    )  # fmt: skip
    names = ("clusterName", "brokerName", "brokerId", "brokerAddr")
    print_table(columns, [(*(one[name] for name in names), *_load(one["runtimeStats"])) for one in brokers])


def _print_totals(brokers: list[dict[str, Any]]) -> None:
    totals = ("#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")
    rows = [(one["clusterName"], one["brokerName"], *_totals(one["runtimeStats"])) for one in brokers]
    print_table(("#Cluster Name", "#Broker Name", *totals), rows)


def _totals(stats: dict[str, str]) -> tuple[int, ...]:
    """Messages put and got yesterday, and put and got today; 0 if not reported."""

    def count(kind: str, moment: str) -> int:
        return int(stats.get(f"msg{kind}Total{moment}", 0))

    # Brokers report running counters and their values at the last two midnights: the count of a day is a difference.
    yesterday = [count(kind, "TodayMorning") - count(kind, "YesterdayMorning") for kind in ("Put", "Get")]
    return (*yesterday, *(count(kind, "TodayNow") - count(kind, "TodayMorning") for kind in ("Put", "Get")))


async def _runtime_stats(client: AdminClient, address: str) -> dict[str, str]:
    """A broker's statistics; empty if it does not report them or is unreachable."""
    try:
        return await client.brokers.runtime_stats(address)
    except MQError:
        return {}


def _load(stats: dict[str, str]) -> tuple[str, ...]:
    """The columns of mqadmin from version to space."""

    def rate(name: str, pool: str) -> str:
        if name not in stats:
            return ""
        size, wait_ms = stats.get(f"{pool}Size", ""), stats.get(f"{pool}HeadWaitTimeMills", "")
        return f"{shortest_rate(stats[name]):.2f}({size},{wait_ms}ms)"

    earliest = stats.get("earliestMessageTimeStamp", "-1")
    return (
        stats.get("brokerVersionDesc", ""),
        rate("putTps", "sendThreadPoolQueue"),
        rate("getTransferedTps", "pullThreadPoolQueue"),
        stats.get("pageCacheLockTimeMills", ""),
        f"{(time.time() - int(earliest) / 1000) / 3600:.2f}" if int(earliest) >= 0 else "",
        f"{float(stats['commitLogDiskRatio']):.4f}" if "commitLogDiskRatio" in stats else "",
    )


@command("brokerStatus")
@target_options
def broker_status(namesrv_addr: str, as_json: bool, target: Target) -> None:
    """Show the statistics of one broker (-b), or of every master of a cluster (-c).

    \b
    Examples:
      rucola admin brokerStatus -b localhost:10911
    """

    async def request(client: AdminClient) -> dict[str, dict[str, str]]:
        addresses = await target.masters(client)
        return dict(zip(addresses, await gather_fail_fast(map(client.brokers.runtime_stats, addresses)), strict=True))

    _print_settings(call_admin(namesrv_addr, request), as_json, 32, ": ", "" if target.address else "{address:<24} ")


def _print_settings(
    tables: dict[str, dict[str, str]], as_json: bool, width: int, between: str, prefix: str = "", title: str = ""
) -> None:
    """Print the settings of servers; `prefix` and `title` are formatted with the address."""
    if as_json:
        print_json(tables)
        return
    for address, table in tables.items():
        if title:
            click.echo(title.format(address=address))
        for name, value in sorted(table.items()):
            click.echo(printable(f"{prefix.format(address=address)}{name:<{width}}{between}{value}"))


# Statistics.


@command("statsAll")
@click.option("-a", "--activeTopic", "only_active", is_flag=True, help="Only topics with messages put or got today.")
@click.option("-t", "--topic", help="Only this topic.")
def stats_all(namesrv_addr: str, as_json: bool, only_active: bool, topic: str | None) -> None:
    """Show the backlog, rates and daily counts of every topic and group.

    Rates are for the last minute, counts for the last 24 hours.

    \b
    Examples:
      rucola admin statsAll
      rucola admin statsAll -a -t Flights
    """

    async def request(client: AdminClient) -> list[TopicTraffic]:
        topics = [name for name in await client.topics.user_names() if topic in (None, name)]
        if topic is not None and not topics:
            raise ConfigError(f"there is no topic {topic}")
        return [await client.traffic.of_topic(name) for name in topics]

    found = call_admin(namesrv_addr, request)
    if only_active:
        found = [of for of in found if of.came.day_count or any(group.out.day_count for group in of.groups)]
    if as_json:
        print_json(found)
        return
    rows: list[tuple[object, ...]] = []
    for of in found:
        came = (f"{of.came.tps:.2f}", of.came.day_count)
        for group in of.groups:
            out = group.out
            rows.append(
                (of.topic, group.consumer_group, group.accumulation, came[0], f"{out.tps:.2f}", came[1], out.day_count)
            )
        if not of.groups:
            rows.append((of.topic, "", 0, came[0], "", came[1], "NO_CONSUMER"))
    columns = (
        "#Topic", "#Consumer Group", "#Accumulation", optional("#InTPS"), optional("#OutTPS"), "#InMsg24Hour",
        "#OutMsg24Hour",
    )  # fmt: skip
    print_table(columns, rows)


# Configuration.


@command("getBrokerConfig")
@target_options
def get_broker_config(namesrv_addr: str, as_json: bool, target: Target) -> None:
    """Show the settings of one broker (-b), or of every master of a cluster (-c).

    \b
    Examples:
      rucola admin getBrokerConfig -b localhost:10911
    """

    async def request(client: AdminClient) -> dict[str, dict[str, str]]:
        addresses = await target.masters(client)
        return dict(zip(addresses, await gather_fail_fast(map(client.brokers.config, addresses)), strict=True))

    title = "============{address}============"
    _print_settings(call_admin(namesrv_addr, request), as_json, 50, "=  ", title=title)


@command("updateBrokerConfig")
@target_options
@click.option("-k", "--key", required=True, help="Key of the setting in broker.conf.")
@click.option("-v", "--value", required=True, help="New value.")
def update_broker_config(namesrv_addr: str, as_json: bool, target: Target, key: str, value: str) -> None:
    """Change a setting of one running broker (-b) or of a whole cluster (-c).

    The setting is also changed in the configuration file that the broker was started with.

    \b
    Examples:
      rucola admin updateBrokerConfig -b localhost:10911 -k maxMessageSize -v 1048576
    """

    async def request(client: AdminClient) -> list[str]:
        addresses = await target.masters(client)
        for one in addresses:
            await client.brokers.update_config(one, {key: value})
        return addresses

    addresses = call_admin(namesrv_addr, request)
    if as_json:
        print_json({"brokerAddrs": addresses, key: value})
        return
    for one in addresses:
        click.echo(f"update broker config success, {one}")


@command("getNamesrvConfig")
def get_namesrv_config(namesrv_addr: str, as_json: bool) -> None:
    """Show the settings of every name server.

    \b
    Examples:
      rucola admin getNamesrvConfig -n localhost:9876
    """
    tables = call_admin(namesrv_addr, lambda client: client.name_servers.configs())
    _print_settings(tables, as_json, 50, "=  ", title="============{address}============")


@command("updateNamesrvConfig")
@click.option("-k", "--key", required=True, help="Key of the setting in namesrv.conf.")
@click.option("-v", "--value", required=True, help="New value.")
def update_namesrv_config(namesrv_addr: str, as_json: bool, key: str, value: str) -> None:
    """Change a setting of every name server given by -n.

    \b
    Examples:
      rucola admin updateNamesrvConfig -k orderMessageEnable -v true
    """

    async def change(client: AdminClient) -> None:
        for address, settings in (await client.name_servers.configs()).items():
            if key not in settings:  # the name server would accept and ignore it
                raise ConfigError(f"name server {address} has no setting {key}; getNamesrvConfig lists all")
        await client.name_servers.update_config({key: value})

    call_admin(namesrv_addr, change)
    if as_json:
        print_json({key: value})
    else:
        click.echo(f"update name server config success!{namesrv_addr}\n{key} : {value}")


@command("updateKvConfig")
@click.option("-s", "--namespace", required=True, help="Namespace of the key.")
@click.option("-k", "--key", required=True, help="Key.")
@click.option("-v", "--value", required=True, help="Value.")
def update_kv_config(namesrv_addr: str, as_json: bool, namespace: str, key: str, value: str) -> None:
    """Set a value in the key-value table of every name server.

    \b
    Examples:
      rucola admin updateKvConfig -s ORDER_TOPIC_CONFIG -k Orders -v "broker-a:4"
    """
    call_admin(namesrv_addr, lambda client: client.name_servers.put_kv(namespace, key, value))
    if as_json:
        print_json({"namespace": namespace, "key": key, "value": value})
    else:
        click.echo("create or update kv config to namespace success.")


@command("deleteKvConfig")
@click.option("-s", "--namespace", required=True, help="Namespace of the key.")
@click.option("-k", "--key", required=True, help="Key.")
@yes_option
def delete_kv_config(namesrv_addr: str, as_json: bool, namespace: str, key: str, yes: bool) -> None:
    """Delete a value from the key-value table of every name server.

    \b
    Examples:
      rucola admin deleteKvConfig -s ORDER_TOPIC_CONFIG -k Orders --yes
    """
    if call_admin(namesrv_addr, lambda client: client.name_servers.get_kv(namespace, key)) is None:
        raise ConfigError(f"namespace {namespace} has no key {key}")
    confirm(yes, f"delete {key} from namespace {namespace}")
    call_admin(namesrv_addr, lambda client: client.name_servers.delete_kv(namespace, key))
    if as_json:
        print_json({"namespace": namespace, "key": key})
    else:
        click.echo("delete kv config from namespace success.")


# Permissions.

broker_name_option = click.option("-b", "--brokerName", "broker_name", required=True, help="Broker name.")


async def _check_broker(client: AdminClient, broker_name: str) -> None:
    await client.cluster.master_address(broker_name)


@command("wipeWritePerm")
@broker_name_option
@yes_option
def wipe_write_perm(namesrv_addr: str, as_json: bool, broker_name: str, yes: bool) -> None:
    """Stop all sends to a broker, by removing the write permission from its routes.

    Consumers continue. Undo it with addWritePerm.

    \b
    Examples:
      rucola admin wipeWritePerm -b broker-a --yes
    """
    call_admin(namesrv_addr, lambda client: _check_broker(client, broker_name))
    confirm(yes, f"stop all sends to broker {broker_name}")
    counts = call_admin(namesrv_addr, lambda client: client.name_servers.wipe_write_permission(broker_name))
    if as_json:
        print_json(counts)
        return
    for address, count in counts.items():
        click.echo(f"wipe write perm of broker[{broker_name}] in name server[{address}] OK, {count}")


@command("addWritePerm")
@broker_name_option
def add_write_perm(namesrv_addr: str, as_json: bool, broker_name: str) -> None:
    """Permit sends to a broker again, after wipeWritePerm.

    \b
    Examples:
      rucola admin addWritePerm -b broker-a
    """
    call_admin(namesrv_addr, lambda client: _check_broker(client, broker_name))
    counts = call_admin(namesrv_addr, lambda client: client.name_servers.add_write_permission(broker_name))
    if as_json:
        print_json(counts)
        return
    for address, count in counts.items():
        click.echo(f"add write perm of broker[{broker_name}] in name server[{address}] OK, {count}")
