"""Clusters, brokers and name servers: lists, statistics, settings, permissions and clean-up."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated

from rucola.admin.brokers import shortest_rate
from rucola.admin.client import AdminClient
from rucola.admin.commands.command import (
    ALL_MASTERS,
    BrokerName,
    Flag,
    Masters,
    Option,
    Result,
    Target,
    command,
    report,
)
from rucola.admin.requests import gather_fail_fast
from rucola.errors import ConfigError, MQError
from rucola.presentation import Table, optional, whole

Key = Annotated[str, Option("-k --key", "Key.")]
Namespace = Annotated[str, Option("-s --namespace", "Namespace of the key.")]
NewValue = Annotated[str, Option("-v --value", "New value.")]


@command("clusterList", is_repeatable=True)
async def cluster_list(
    client: AdminClient,
    more: Annotated[bool, Flag("-m --moreStats", "Show messages put and got yesterday and today.")] = False,
) -> Result:
    """List all brokers, with their version and load as far as they report it.

    \b
    Examples:
      rucola admin clusterList -n localhost:9876
      rucola admin clusterList -m -i 10
    """
    info = await client.cluster.info()
    found = [
        (cluster, name, broker_id, address)
        for cluster, names in sorted(info.cluster_addr_table.items())
        for name in sorted(names)
        for broker_id, address in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]
    stats = await gather_fail_fast(_runtime_stats(client, one[3]) for one in found)
    keys = "clusterName", "brokerName", "brokerId", "brokerAddr", "runtimeStats"
    brokers = [dict(zip(keys, (*one, of), strict=True)) for one, of in zip(found, stats, strict=True)]
    if more:
        columns = "#Cluster Name", "#Broker Name", "#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday"
        rows = [(*one[:2], *_totals(of)) for one, of in zip(found, stats, strict=True)]
        return Result(brokers, [Table(columns, rows)])
    return Result(brokers, [Table(_LOAD, [(*one, *_load(of)) for one, of in zip(found, stats, strict=True)])])


_LOAD = (
    "#Cluster Name", "#Broker Name", whole("#BID"), whole("#Addr"), optional("#Version"), optional("#InTPS(LOAD)"),
    optional("#OutTPS(LOAD)"), optional("#PCWait(ms)"), optional("#Hour"), optional("#SPACE"),
)  # fmt: skip


def _totals(stats: dict[str, str]) -> list[int]:
    """Messages put and got yesterday, and put and got today; 0 if not reported."""
    # Brokers report running counters and their values at the last two midnights: the count of a day is a difference.
    return [
        int(stats.get(f"msg{kind}Total{end}", 0)) - int(stats.get(f"msg{kind}Total{begin}", 0))
        for begin, end in (("YesterdayMorning", "TodayMorning"), ("TodayMorning", "TodayNow"))
        for kind in ("Put", "Get")
    ]


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

    earliest = int(stats.get("earliestMessageTimeStamp", "-1"))
    own = f"({stats['rucolaVersion']})" if "rucolaVersion" in stats else ""
    return (
        f"{stats.get('brokerVersionDesc', '')}{own}",
        rate("putTps", "sendThreadPoolQueue"),
        rate("getTransferedTps", "pullThreadPoolQueue"),
        stats.get("pageCacheLockTimeMills", ""),
        f"{(time.time() - earliest / 1000) / 3600:.2f}" if earliest >= 0 else "",
        f"{float(stats['commitLogDiskRatio']):.4f}" if "commitLogDiskRatio" in stats else "",
    )


@command("brokerStatus")
async def broker_status(client: AdminClient, target: Masters) -> Result:
    """Show the statistics of one broker (-b), or of every master of a cluster (-c).

    \b
    Examples:
      rucola admin brokerStatus -b localhost:10911
    """
    tables = await target.ask(client, client.brokers.runtime_stats)
    text = [
        f"{'' if target.address else f'{address:<24} '}{name:<32}: {value}"
        for address, table in tables.items()
        for name, value in sorted(table.items())
    ]
    return Result(tables, text)


def _settings(tables: dict[str, dict[str, str]]) -> Result:
    text = []
    for address, table in tables.items():
        text.append(f"============{address}============")
        text += [f"{name:<50}=  {value}" for name, value in sorted(table.items())]
    return Result(tables, text)


# Statistics.


@command("statsAll")
async def stats_all(
    client: AdminClient,
    only_active: Annotated[bool, Flag("-a --activeTopic", "Only topics with messages put or got today.")] = False,
    topic: Annotated[str | None, Option("-t --topic", "Only this topic.")] = None,
) -> Result:
    """Show the backlog, rates and daily counts of every topic and group.

    Rates are for the last minute, counts for the last 24 hours.

    \b
    Examples:
      rucola admin statsAll
      rucola admin statsAll -a -t Flights
    """
    topics = [name for name in await client.topics.user_names() if topic in (None, name)]
    if topic is not None and not topics:
        raise ConfigError(f"there is no topic {topic}")
    found = await client.traffic.of_topics(topics)
    if only_active:
        found = [of for of in found if of.came.day_count or any(group.out.day_count for group in of.groups)]
    rows: list[tuple[object, ...]] = []
    for of in found:
        tps, count = f"{of.came.tps:.2f}", of.came.day_count
        for group in of.groups:
            out = group.out
            rows.append(
                (of.topic, group.consumer_group, group.accumulation, tps, f"{out.tps:.2f}", count, out.day_count)
            )
        if not of.groups:
            rows.append((of.topic, "", 0, tps, "", count, "NO_CONSUMER"))
    columns = (
        "#Topic", "#Consumer Group", "#Accumulation", optional("#InTPS"), optional("#OutTPS"), "#InMsg24Hour",
        "#OutMsg24Hour",
    )  # fmt: skip
    return Result(found, [Table(columns, rows)])


# Configuration.


@command("getBrokerConfig")
async def get_broker_config(client: AdminClient, target: Masters) -> Result:
    """Show the settings of one broker (-b), or of every master of a cluster (-c).

    \b
    Examples:
      rucola admin getBrokerConfig -b localhost:10911
    """
    return _settings(await target.ask(client, client.brokers.config))


async def _changed_settings(
    client: AdminClient, target: Target, key: str, value: str, expected: str | None = None
) -> Table:
    tables = await target.ask(client, client.brokers.config)
    rows = [(address, table.get(key, ""), value) for address, table in tables.items()]
    return Table((whole("#Broker"), "#Now", "#Then"), rows)


@command("updateBrokerConfig", writes=True, preview=_changed_settings)
async def update_broker_config(
    client: AdminClient,
    target: Masters,
    key: Annotated[str, Option("-k --key", "Key of the setting in broker.conf.")],
    value: NewValue,
    expected: Annotated[
        str | None, Option("-e --expected", "Change nothing unless this is the value now, at every broker.")
    ] = None,
) -> Result:
    """Change a setting of one running broker (-b) or of a whole cluster (-c).

    The setting is also changed in the configuration file that the broker was started with. Apache's broker accepts keys
    and values that it does not know, and ignores them: the command fails if the setting is as before.

    \b
    Examples:
      rucola admin updateBrokerConfig -b localhost:10911 -k maxMessageSize -v 1048576
    """
    addresses = await target.masters(client)
    before = {one: (await client.brokers.config(one)).get(key) for one in addresses}
    for one, now in before.items() if expected is not None else ():
        if now != expected:
            raise ConfigError(f"{key} is {now} at {one}, and not {expected}: nothing was changed", subject=key)
    for one in addresses:
        await client.brokers.update_config(one, {key: value})
    after = {one: (await client.brokers.config(one)).get(key) for one in addresses}
    # Brokers accept other forms of the value that they have: TRUE.
    wished = value.strip().lower()
    ignored = [one for one, now in after.items() if now == before[one] and (now or "").lower() != wished]
    done = report([one for one in addresses if one not in ignored], "update broker config success, {}", **{key: value})
    notes = [
        f"{one} ignored the change: " + (f"it has no setting {key}" if now is None else f"{key} is {now}, as before")
        for one in ignored
        for now in (after[one],)
    ]
    return replace(done, notes=notes, is_failure=bool(ignored))


@command("getNamesrvConfig")
async def get_namesrv_config(client: AdminClient) -> Result:
    """Show the settings of every name server.

    \b
    Examples:
      rucola admin getNamesrvConfig -n localhost:9876
    """
    return _settings(await client.name_servers.configs())


@command("updateNamesrvConfig", writes=True)
async def update_namesrv_config(
    client: AdminClient,
    key: Annotated[str, Option("-k --key", "Key of the setting in namesrv.conf.")],
    value: NewValue,
) -> Result:
    """Change a setting of every name server given by -n.

    \b
    Examples:
      rucola admin updateNamesrvConfig -k orderMessageEnable -v true
    """
    for address, settings in (await client.name_servers.configs()).items():
        if key not in settings:  # the name server would accept and ignore it
            raise ConfigError(f"name server {address} has no setting {key}; getNamesrvConfig lists all")
    await client.name_servers.update_config({key: value})
    return Result({key: value}, [f"update name server config success!{client.namesrv}", f"{key} : {value}"])


@command("updateKvConfig", writes=True)
async def update_kv_config(
    client: AdminClient, namespace: Namespace, key: Key, value: Annotated[str, Option("-v --value", "Value.")]
) -> Result:
    """Set a value in the key-value table of every name server.

    \b
    Examples:
      rucola admin updateKvConfig -s ORDER_TOPIC_CONFIG -k Orders -v "broker-a:4"
    """
    await client.name_servers.put_kv(namespace, key, value)
    done = {"namespace": namespace, "key": key, "value": value}
    return Result(done, ["create or update kv config to namespace success."])


async def _kv_deletion(client: AdminClient, namespace: str, key: str) -> str:
    if await client.name_servers.get_kv(namespace, key) is None:
        raise ConfigError(f"namespace {namespace} has no key {key}")
    return f"delete {key} from namespace {namespace}"


@command("deleteKvConfig", confirm=_kv_deletion)
async def delete_kv_config(client: AdminClient, namespace: Namespace, key: Key) -> Result:
    """Delete a value from the key-value table of every name server.

    \b
    Examples:
      rucola admin deleteKvConfig -s ORDER_TOPIC_CONFIG -k Orders --yes
    """
    await client.name_servers.delete_kv(namespace, key)
    return Result({"namespace": namespace, "key": key}, ["delete kv config from namespace success."])


# Permissions.


async def _stop_of_sends(client: AdminClient, broker_name: str) -> str:
    await client.cluster.master_address(broker_name)
    return f"stop all sends to broker {broker_name}"


@command("wipeWritePerm", confirm=_stop_of_sends)
async def wipe_write_perm(client: AdminClient, broker_name: BrokerName) -> Result:
    """Stop all sends to a broker, by removing the write permission from its routes.

    Consumers continue. Undo it with addWritePerm.

    \b
    Examples:
      rucola admin wipeWritePerm -b broker-a --yes
    """
    return _changed_routes("wipe", broker_name, await client.name_servers.wipe_write_permission(broker_name))


@command("addWritePerm", writes=True)
async def add_write_perm(client: AdminClient, broker_name: BrokerName) -> Result:
    """Permit sends to a broker again, after wipeWritePerm.

    \b
    Examples:
      rucola admin addWritePerm -b broker-a
    """
    await client.cluster.master_address(broker_name)
    return _changed_routes("add", broker_name, await client.name_servers.add_write_permission(broker_name))


def _changed_routes(change: str, broker_name: str, counts: dict[str, int]) -> Result:
    text = f"{change} write perm of broker[{broker_name}] in name server"
    return Result(counts, [f"{text}[{address}] OK, {count}" for address, count in counts.items()])


# Clean-up.

SomeMasters = Annotated[Target, Option("-c --cluster", "Name of a cluster, for all its masters.")]


async def _clean(client: AdminClient, target: Target, clean: Callable[[str], Awaitable[None]]) -> Result:
    addresses = await target.masters(client)
    for one in addresses:
        await clean(one)
    return report(addresses, "{} success")


@command("cleanExpiredCQ", writes=True)
async def clean_expired_cq(client: AdminClient, target: SomeMasters = ALL_MASTERS) -> Result:
    """Delete ConsumeQueue files whose messages are no longer in the log.

    Applies to a broker (-b), to the masters of a cluster (-c), or to all masters.

    \b
    Examples:
      rucola admin cleanExpiredCQ -b localhost:10911
    """
    return await _clean(client, target, client.brokers.clean_expired_consume_queues)


@command("cleanUnusedTopic", writes=True)
async def clean_unused_topic(client: AdminClient, target: SomeMasters = ALL_MASTERS) -> Result:
    """Delete the ConsumeQueues of deleted topics.

    Applies to a broker (-b), to the masters of a cluster (-c), or to all masters.

    \b
    Examples:
      rucola admin cleanUnusedTopic -c DefaultCluster
    """
    return await _clean(client, target, client.brokers.clean_unused_topics)


@command("deleteExpiredCommitLog", confirm="delete expired CommitLog files of {target}")
async def delete_expired_commit_log(client: AdminClient, target: SomeMasters = ALL_MASTERS) -> Result:
    """Delete expired CommitLog files at once, at any hour of the day.

    Applies to a broker (-b), to the masters of a cluster (-c), or to all masters.

    \b
    Examples:
      rucola admin deleteExpiredCommitLog -b localhost:10911 --yes
    """
    return await _clean(client, target, client.brokers.delete_expired_commit_log)
