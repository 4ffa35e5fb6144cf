"""Cleaning: let brokers drop what leads nowhere any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from rucola.admin import AdminClient
from rucola.admin.brokers import BrokerAdmin
from rucola.cli.admin.command import ask, broker_option, command, confirm, targets, yes_option
from rucola.cli.output import print_json

cluster_option = click.option("-c", "--cluster", help="Every master of this cluster.")


async def _masters(client: AdminClient, address: str | None, cluster: str | None) -> list[str]:
    """The broker or the cluster that was named; every master where none was."""
    if address is not None or cluster is not None:
        return await targets(client, address, cluster)
    clusters = (await client.cluster.info()).cluster_addr_table
    return [one for name in sorted(clusters) for one in (await client.cluster.masters(name)).values()]


def _everywhere(
    namesrv_addr: str,
    as_json: bool,
    address: str | None,
    cluster: str | None,
    clean: Callable[[BrokerAdmin, str], Awaitable[None]],
) -> None:
    """Put a request to one broker after the other, and print which did it."""

    async def question(client: AdminClient) -> list[str]:
        addresses = await _masters(client, address, cluster)
        for one in addresses:
            await clean(client.brokers, one)
        return addresses

    addresses = ask(namesrv_addr, question)
    if as_json:
        print_json({"brokerAddrs": addresses})
        return
    for one in addresses:
        click.echo(f"{one} success")


@command("cleanExpiredCQ")
@broker_option
@cluster_option
def clean_expired_cq(namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None) -> None:
    """Let a broker (-b), a cluster (-c) or all brokers drop ConsumeQueue files that lead to nothing any more.

    \b
    Examples:
      rucola admin cleanExpiredCQ -b localhost:10911
    """
    _everywhere(namesrv_addr, as_json, address, cluster, BrokerAdmin.clean_expired_consume_queues)


@command("cleanUnusedTopic")
@broker_option
@cluster_option
def clean_unused_topic(namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None) -> None:
    """Let a broker (-b), a cluster (-c) or all brokers drop the ConsumeQueues of topics that were deleted.

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
    """Let a broker (-b), a cluster (-c) or all brokers delete CommitLog files that are old enough, whatever the hour.

    \b
    Examples:
      rucola admin deleteExpiredCommitLog -b localhost:10911 --yes
    """
    confirm(yes, f"delete expired CommitLog files of {address or cluster or 'every broker'}")
    _everywhere(namesrv_addr, as_json, address, cluster, BrokerAdmin.delete_expired_commit_log)
