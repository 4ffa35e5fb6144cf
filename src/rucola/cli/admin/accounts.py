"""Accounts: commands about plain_acl.yml, the access control of RocketMQ 4 (ACL 1.0)."""

from __future__ import annotations

import click

from rucola.admin import AdminClient
from rucola.admin.access import AclVersions
from rucola.cli.admin.command import (
    Target,
    all_brokers_options,
    call_admin,
    command,
    confirm,
    every_broker,
    report_brokers,
    secret,
    target_options,
    yes_option,
)
from rucola.cli.output import print_json, print_table, time_text, whole
from rucola.protocol.access import CreateAccessConfigRequestHeader

access_key_option = click.option("-a", "--accessKey", "access_key", required=True, help="Name of the account.")


@command("updateAclConfig")
@all_brokers_options
@access_key_option
@click.option("-s", "--secretKey", "secret_key", required=True, help="Secret key; - asks for it.")
@click.option("-w", "--whiteRemoteAddress", "white_address", help="Addresses that need no signature, 10.0.0.*.")
@click.option("-i", "--defaultTopicPerm", "default_topic_perm", help="DENY, PUB, SUB or PUB|SUB.")
@click.option("-u", "--defaultGroupPerm", "default_group_perm", help="DENY, PUB, SUB or PUB|SUB.")
@click.option("-t", "--topicPerms", "topic_perms", help="Permissions of topics: topicA=PUB,topicB=SUB.")
@click.option("-g", "--groupPerms", "group_perms", help="Permissions of groups: groupA=SUB.")
@click.option("-m", "--admin", "is_admin", type=bool, default=False, help="Whether the account may do everything.")
def update_acl_config(
    namesrv_addr: str,
    as_json: bool,
    target: Target,
    access_key: str,
    secret_key: str,
    white_address: str | None,
    default_topic_perm: str | None,
    default_group_perm: str | None,
    topic_perms: str | None,
    group_perms: str | None,
    is_admin: bool,
) -> None:
    """Create or change an account on one broker (-b) or a whole cluster (-c).

    A cluster is changed on all its masters and slaves. Options that are not given keep their value, except --admin,
    which is false then. Name servers have files of their own.

    \b
    Examples:
      rucola admin updateAclConfig -b localhost:10911 -a billing1 -s - -t Orders=SUB -g billing=SUB
    """
    account = CreateAccessConfigRequestHeader(
        access_key=access_key,
        secret_key=secret(secret_key, "Secret key"),
        white_remote_address=white_address,
        admin=is_admin,
        default_topic_perm=default_topic_perm,
        default_group_perm=default_group_perm,
        topic_perms=topic_perms,
        group_perms=group_perms,
    )
    addresses = every_broker(namesrv_addr, target, lambda client, one: client.access.update_account(one, account))
    report_brokers(addresses, as_json, "create or update plain access config to {} success.", accessKey=access_key)


@command("deleteAclConfig")
@all_brokers_options
@access_key_option
@yes_option
def delete_acl_config(namesrv_addr: str, as_json: bool, target: Target, access_key: str, yes: bool) -> None:
    """Delete an account on one broker (-b) or a cluster's masters and slaves (-c).

    \b
    Examples:
      rucola admin deleteAclConfig -c DefaultCluster -a billing1 --yes
    """
    confirm(yes, f"Delete account {access_key}")
    addresses = every_broker(namesrv_addr, target, lambda client, one: client.access.delete_account(one, access_key))
    report_brokers(addresses, as_json, "delete plain access config account from {} success.", accessKey=access_key)


@command("updateGlobalWhiteAddr")
@all_brokers_options
@click.option(
    "-g", "--globalWhiteRemoteAddresses", "patterns", required=True, help="Patterns: 10.10.103.*,192.168.0.*."
)
@click.option("-p", "--aclFileFullPath", "file", help="File on the broker; by default conf/plain_acl.yml.")
@yes_option
def update_global_white_addr(
    namesrv_addr: str,
    as_json: bool,
    target: Target,
    patterns: str,
    file: str | None,
    yes: bool,
) -> None:
    """Replace the addresses that need no signature and may do everything.

    \b
    Examples:
      rucola admin updateGlobalWhiteAddr -b localhost:10911 -g 10.10.103.7 --yes
    """
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    confirm(yes, f"Let {', '.join(wanted) or 'no address'} do everything without a signature")
    addresses = every_broker(
        namesrv_addr, target, lambda client, one: client.access.update_white_addresses(one, wanted, file)
    )
    report_brokers(addresses, as_json, "update global white remote addresses to {} success.", globalWhiteAddrs=wanted)


@command("clusterAclConfigVersion")
@target_options
def cluster_acl_config_version(namesrv_addr: str, as_json: bool, target: Target) -> None:
    """Show the versions of account files of one broker (-b) or a cluster's masters (-c).

    \b
    Examples:
      rucola admin clusterAclConfigVersion -c DefaultCluster
    """

    async def request(client: AdminClient) -> list[AclVersions]:
        return [await client.access.versions(one) for one in await target.masters(client)]

    found = call_admin(namesrv_addr, request)
    rows = [(broker, path, *version) for broker in found for path, version in sorted(broker.files.items())]
    if as_json:
        print_json(
            [
                {
                    "clusterName": broker.cluster,
                    "brokerName": broker.broker_name,
                    "brokerAddr": broker.address,
                    "aclFilePath": path,
                    "version": counter,
                    "updatedMs": timestamp,
                }
                for broker, path, counter, timestamp in rows
            ]
        )
        return
    print_table(
        ("#Cluster Name", "#Broker Name", whole("#Addr"), "#AclFilePath", "#Version", "#LastUpdate"),
        [
            (broker.cluster, broker.broker_name, broker.address, path, counter, time_text(timestamp))
            for broker, path, counter, timestamp in rows
        ],
    )
