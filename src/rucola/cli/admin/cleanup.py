"""Cleanup: requests to brokers to delete obsolete files and queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from rucola.admin import AdminClient
from rucola.admin.brokers import BrokerAdmin
from rucola.cli.admin.command import Target, broker_option, call_admin, command, confirm, yes_option
from rucola.cli.output import print_json

cluster_option = click.option("-c", "--cluster", help="Name of a cluster, for all its masters.")


async def _masters(client: AdminClient, address: str | None, cluster: str | None) -> list[str]:
    if address is not None or cluster is not None:
        return await Target(address, cluster).masters(client)
    # Without -b and -c, mqadmin cleans every cluster of the name servers.
    clusters = (await client.cluster.info()).cluster_addr_table
    return [one for name in sorted(clusters) for one in (await client.cluster.masters(name)).values()]


def _everywhere(
    namesrv_addr: str,
    as_json: bool,
    address: str | None,
    cluster: str | None,
    clean: Callable[[BrokerAdmin, str], Awaitable[None]],
) -> None:
    """Send a request to each broker in turn, and print the brokers."""

    async def request(client: AdminClient) -> list[str]:
        addresses = await _masters(client, address, cluster)
        for one in addresses:
            await clean(client.brokers, one)
        return addresses

    addresses = call_admin(namesrv_addr, request)
    if as_json:
        print_json({"brokerAddrs": addresses})
        return
    for one in addresses:
        click.echo(f"{one} success")


@command("cleanExpiredCQ")
@broker_option
@cluster_option
def clean_expired_cq(namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None) -> None:
    """Delete ConsumeQueue files whose messages are no longer in the log.

    Applies to a broker (-b), to the masters of a cluster (-c), or to all masters.

    \b
    Examples:
      rucola admin cleanExpiredCQ -b localhost:10911
    """
    _everywhere(namesrv_addr, as_json, address, cluster, BrokerAdmin.clean_expired_consume_queues)


@command("cleanUnusedTopic")
@broker_option
@cluster_option
def clean_unused_topic(namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None) -> None:
    """Delete the ConsumeQueues of deleted topics.

    Applies to a broker (-b), to the masters of a cluster (-c), or to all masters.

    \b
    Examples:
      rucola admin cleanUnusedTopic -c DefaultCluster
    """
    _everywhere(namesrv_addr, as_json, address, cluster, BrokerAdmin.clean_unused_topics)


@command("deleteExpiredCommitLog")
@broker_option
@cluster_option
@yes_option
def delete_expired_commit_log(
    namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None, yes: bool
) -> None:
    """Delete expired CommitLog files at once, at any hour of the day.

    Applies to a broker (-b), to the masters of a cluster (-c), or to all masters.

    \b
    Examples:
      rucola admin deleteExpiredCommitLog -b localhost:10911 --yes
    """
    confirm(yes, f"delete expired CommitLog files of {address or cluster or 'every broker'}")
    _everywhere(namesrv_addr, as_json, address, cluster, BrokerAdmin.delete_expired_commit_log)
