"""Users and policies: commands of the access control of RocketMQ 5.3 (ACL 2.0)."""

from __future__ import annotations

from collections.abc import Iterable

import click

from rucola.admin import AdminClient
from rucola.cli.admin.command import (
    broker_option,
    call_admin,
    cluster_option,
    command,
    confirm,
    every_broker,
    one_of,
    report_brokers,
    secret,
    targets,
    yes_option,
)
from rucola.cli.output import print_json, print_table, whole
from rucola.protocol.access import AclInfo, PolicyEntryInfo, UserInfo

user_option = click.option("-u", "--username", "name", required=True, help="Name of the user.")
type_option = click.option("-t", "--userType", "user_type", help="Normal or Super; by default Normal.")
subject_option = click.option("-s", "--subject", required=True, help="User:NAME.")
resources_option = click.option(
    "-r", "--resources", required=True, help="Resources: Topic:orders-*,Group:billing,Cluster:*; * for everything."
)
actions_option = click.option(
    "-a", "--actions", required=True, help="Actions: Pub,Sub,Create,Update,Delete,Get,List, or All."
)
sources_option = click.option("-i", "--sourceIp", "sources", help="Addresses and networks: 10.0.0.7,10.1.0.0/16.")
decision_option = click.option("-d", "--decision", required=True, help="Allow or Deny.")


@command("createUser")
@broker_option
@cluster_option
@user_option
@click.option("-p", "--password", required=True, help="Password; - asks for it.")
@type_option
def create_user(
    namesrv_addr: str,
    as_json: bool,
    address: str | None,
    cluster: str | None,
    name: str,
    password: str,
    user_type: str | None,
) -> None:
    """Create a user on one broker (-b), or on all masters and slaves of a cluster (-c).

    \b
    Examples:
      rucola admin createUser -c DefaultCluster -u billing -p -
    """
    one_of(address, cluster)
    given = secret(password, "Password")
    addresses = every_broker(
        namesrv_addr, address, cluster, lambda client, one: client.access.create_user(one, name, given, user_type)
    )
    report_brokers(addresses, as_json, "create user to {} success.", username=name)


@command("updateUser")
@broker_option
@cluster_option
@user_option
@click.option("-p", "--password", help="New password; - asks for it.")
@type_option
@click.option("-s", "--userStatus", "user_status", help="enable or disable.")
def update_user(
    namesrv_addr: str,
    as_json: bool,
    address: str | None,
    cluster: str | None,
    name: str,
    password: str | None,
    user_type: str | None,
    user_status: str | None,
) -> None:
    """Change the password, type or status of a user.

    \b
    Examples:
      rucola admin updateUser -b localhost:10911 -u billing -s disable
    """
    one_of(address, cluster)
    if password is None and user_type is None and user_status is None:
        raise click.UsageError("name a change: -p, -t or -s")
    given = None if password is None else secret(password, "Password")
    changes = UserInfo(username=name, password=given, user_type=user_type, user_status=user_status)
    addresses = every_broker(
        namesrv_addr, address, cluster, lambda client, one: client.access.update_user(one, name, changes)
    )
    report_brokers(addresses, as_json, "update user to {} success.", username=name)


@command("deleteUser")
@broker_option
@cluster_option
@user_option
@yes_option
def delete_user(
    namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None, name: str, yes: bool
) -> None:
    """Delete a user and its policies.

    \b
    Examples:
      rucola admin deleteUser -c DefaultCluster -u billing --yes
    """
    one_of(address, cluster)
    confirm(yes, f"Delete user {name}")
    addresses = every_broker(namesrv_addr, address, cluster, lambda client, one: client.access.delete_user(one, name))
    report_brokers(addresses, as_json, "delete user to {} success.", username=name)


@command("getUser")
@broker_option
@cluster_option
@user_option
def get_user(namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None, name: str) -> None:
    """Show a user. Passwords are never shown.

    \b
    Examples:
      rucola admin getUser -b localhost:10911 -u billing
    """
    one_of(address, cluster)

    async def request(client: AdminClient) -> list[UserInfo]:
        found = [await client.access.user(one, name) for one in await targets(client, address, cluster)]
        return [user for user in found if user is not None]

    _print_users(call_admin(namesrv_addr, request), as_json)


@command("listUser")
@broker_option
@cluster_option
@click.option("-f", "--filter", "text", help="Only users whose name contains this.")
def list_user(namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None, text: str | None) -> None:
    """List users. Passwords are never shown.

    \b
    Examples:
      rucola admin listUser -b localhost:10911
    """
    one_of(address, cluster)

    async def request(client: AdminClient) -> list[UserInfo]:
        return [
            user for one in await targets(client, address, cluster) for user in await client.access.users(one, text)
        ]

    _print_users(call_admin(namesrv_addr, request), as_json)


@command("createAcl")
@broker_option
@cluster_option
@subject_option
@resources_option
@actions_option
@sources_option
@decision_option
def create_acl(namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None, **policy: str) -> None:
    """Add policies of a user, one for each resource; a policy for the same resource is replaced.

    \b
    Examples:
      rucola admin createAcl -b localhost:10911 -s User:billing -r Topic:Orders,Group:billing -a Sub -d Allow
    """
    _set_policies(namesrv_addr, as_json, address, cluster, policy, update=False)


@command("updateAcl")
@broker_option
@cluster_option
@subject_option
@resources_option
@actions_option
@sources_option
@decision_option
def update_acl(namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None, **policy: str) -> None:
    """Change policies of a user, one for each resource.

    \b
    Examples:
      rucola admin updateAcl -b localhost:10911 -s User:billing -r Topic:Orders -a Sub -i 10.0.0.0/8 -d Allow
    """
    _set_policies(namesrv_addr, as_json, address, cluster, policy, update=True)


@command("deleteAcl")
@broker_option
@cluster_option
@subject_option
@click.option("-r", "--resources", "resource", help="Only the policy of this resource; by default all.")
@yes_option
def delete_acl(
    namesrv_addr: str,
    as_json: bool,
    address: str | None,
    cluster: str | None,
    subject: str,
    resource: str | None,
    yes: bool,
) -> None:
    """Delete the policies of a user.

    \b
    Examples:
      rucola admin deleteAcl -b localhost:10911 -s User:billing -r Topic:Orders --yes
    """
    one_of(address, cluster)
    confirm(yes, f"Delete {f'the policy for {resource}' if resource else 'all policies'} of {subject}")
    addresses = every_broker(
        namesrv_addr, address, cluster, lambda client, one: client.access.delete_policies(one, subject, resource)
    )
    report_brokers(addresses, as_json, "delete acl to {} success.", subject=subject)


@command("getAcl")
@broker_option
@cluster_option
@subject_option
def get_acl(namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None, subject: str) -> None:
    """Show the policies of a user.

    \b
    Examples:
      rucola admin getAcl -b localhost:10911 -s User:billing
    """
    one_of(address, cluster)

    async def request(client: AdminClient) -> list[AclInfo]:
        found = [await client.access.policies(one, subject) for one in await targets(client, address, cluster)]
        return [acl for acl in found if acl is not None]

    _print_policies(call_admin(namesrv_addr, request), as_json)


@command("listAcl")
@broker_option
@cluster_option
@click.option("-s", "--subject", help="Only subjects that contain this.")
@click.option("-r", "--resource", help="Only policies whose resource contains this.")
def list_acl(
    namesrv_addr: str,
    as_json: bool,
    address: str | None,
    cluster: str | None,
    subject: str | None,
    resource: str | None,
) -> None:
    """List the policies of all users.

    \b
    Examples:
      rucola admin listAcl -b localhost:10911 -r Topic:Orders
    """
    one_of(address, cluster)

    async def request(client: AdminClient) -> list[AclInfo]:
        return [
            acl
            for one in await targets(client, address, cluster)
            for acl in await client.access.all_policies(one, subject, resource)
        ]

    _print_policies(call_admin(namesrv_addr, request), as_json)


def _set_policies(
    namesrv_addr: str, as_json: bool, address: str | None, cluster: str | None, policy: dict[str, str], *, update: bool
) -> None:
    one_of(address, cluster)
    subject, resources = policy["subject"], _split(policy["resources"])
    entry = PolicyEntryInfo(
        actions=_split(policy["actions"]),
        source_ips=_split(policy.get("sources") or "") or None,
        decision=policy["decision"],
    )
    addresses = every_broker(
        namesrv_addr,
        address,
        cluster,
        lambda client, one: client.access.set_policies(one, subject, resources, entry, update=update),
    )
    done = "update" if update else "create"
    report_brokers(addresses, as_json, f"{done} acl to {{}} success.", subject=subject)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _print_users(users: Iterable[UserInfo], as_json: bool) -> None:
    if as_json:
        print_json(
            [{"username": one.username, "userType": one.user_type, "userStatus": one.user_status} for one in users]
        )
        return
    print_table(
        ("#UserName", "#UserType", "#UserStatus"), [(one.username, one.user_type, one.user_status) for one in users]
    )


def _print_policies(acls: Iterable[AclInfo], as_json: bool) -> None:
    rows = [
        (acl.subject, policy.policy_type, entry) for acl in acls for policy in acl.policies for entry in policy.entries
    ]
    if as_json:
        print_json([{"subject": subject, "policyType": kind, **_members(entry)} for subject, kind, entry in rows])
        return
    print_table(
        ("#Subject", "#PolicyType", "#Resource", "#Actions", whole("#SourceIp"), "#Decision"),
        [
            (subject, kind, entry.resource, ",".join(entry.actions), ",".join(entry.source_ips or ()), entry.decision)
            for subject, kind, entry in rows
        ],
    )


def _members(entry: PolicyEntryInfo) -> dict[str, object]:
    return {
        "resource": entry.resource,
        "actions": entry.actions,
        "sourceIps": entry.source_ips or [],
        "decision": entry.decision,
    }
