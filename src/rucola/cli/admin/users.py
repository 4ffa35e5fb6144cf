"""Users and policies: commands of the access control of RocketMQ 5.3 (ACL 2.0)."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import click

from rucola.admin import AdminClient
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
from rucola.cli.output import print_json, print_table, whole
from rucola.protocol.access import AclInfo, PolicyEntryInfo, UserInfo

T = TypeVar("T")

user_option = click.option("-u", "--username", "name", required=True, help="Name of the user.")
subject_option = click.option("-s", "--subject", required=True, help="User:NAME.")
resources_option = click.option(
    "-r", "--resources", required=True, help="Resources: Topic:orders-*,Group:billing,Cluster:*; * for everything."
)
actions_option = click.option(
    "-a", "--actions", required=True, help="Actions: Pub,Sub,Create,Update,Delete,Get,List, or All."
)
sources_option = click.option(
    "-i", "--sourceIp", "sources", help="Only from these addresses and networks: 10.0.0.7,10.1.0.0/16."
)
decision_option = click.option("-d", "--decision", required=True, help="Allow or Deny.")


@command("createUser")
@all_brokers_options
@user_option
@click.option("-p", "--password", required=True, help="Password; - asks for it.")
@click.option("-t", "--userType", "user_type", help="Normal or Super; by default Normal.")
def create_user(
    namesrv_addr: str,
    as_json: bool,
    target: Target,
    name: str,
    password: str,
    user_type: str | None,
) -> None:
    """Create a user on one broker (-b) or a cluster's masters and slaves (-c).

    \b
    Examples:
      rucola admin createUser -c DefaultCluster -u billing -p -
    """
    given = secret(password, "Password")
    addresses = every_broker(
        namesrv_addr, target, lambda client, one: client.access.create_user(one, name, given, user_type)
    )
    report_brokers(addresses, as_json, "create user to {} success.", username=name)


@command("updateUser")
@all_brokers_options
@user_option
@click.option("-p", "--password", help="New password; - asks for it.")
@click.option("-t", "--userType", "user_type", help="Normal or Super; by default unchanged.")
@click.option("-s", "--userStatus", "user_status", help="enable or disable; by default unchanged.")
def update_user(
    namesrv_addr: str,
    as_json: bool,
    target: Target,
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
    if password is None and user_type is None and user_status is None:
        raise click.UsageError("name a change: -p, -t or -s")
    given = None if password is None else secret(password, "Password")
    changes = UserInfo(username=name, password=given, user_type=user_type, user_status=user_status)
    addresses = every_broker(namesrv_addr, target, lambda client, one: client.access.update_user(one, name, changes))
    report_brokers(addresses, as_json, "update user to {} success.", username=name)


@command("deleteUser")
@all_brokers_options
@user_option
@yes_option
def delete_user(namesrv_addr: str, as_json: bool, target: Target, name: str, yes: bool) -> None:
    """Delete a user and its policies.

    \b
    Examples:
      rucola admin deleteUser -c DefaultCluster -u billing --yes
    """
    confirm(yes, f"Delete user {name}")
    addresses = every_broker(namesrv_addr, target, lambda client, one: client.access.delete_user(one, name))
    report_brokers(addresses, as_json, "delete user to {} success.", username=name)


@command("getUser")
@target_options
@user_option
def get_user(namesrv_addr: str, as_json: bool, target: Target, name: str) -> None:
    """Show a user. Passwords are never shown.

    \b
    Examples:
      rucola admin getUser -b localhost:10911 -u billing
    """

    _print_users(_of_masters(namesrv_addr, target, lambda client, one: client.access.user(one, name)), as_json)


@command("listUser")
@target_options
@click.option("-f", "--filter", "text", help="Only users whose name contains this.")
def list_user(namesrv_addr: str, as_json: bool, target: Target, text: str | None) -> None:
    """List users. Passwords are never shown.

    \b
    Examples:
      rucola admin listUser -b localhost:10911
    """

    found = _of_masters(namesrv_addr, target, lambda client, one: client.access.users(one, text))
    _print_users(itertools.chain.from_iterable(found), as_json)


@command("createAcl")
@all_brokers_options
@subject_option
@resources_option
@actions_option
@sources_option
@decision_option
def create_acl(namesrv_addr: str, as_json: bool, target: Target, **policy: str) -> None:
    """Add policies of a user, one for each resource, replacing any for the same resource.

    \b
    Examples:
      rucola admin createAcl -b localhost:10911 -s User:billing -r Topic:Orders,Group:billing -a Sub -d Allow
    """
    _set_policies(namesrv_addr, as_json, target, policy, update=False)


@command("updateAcl")
@all_brokers_options
@subject_option
@resources_option
@actions_option
@sources_option
@decision_option
def update_acl(namesrv_addr: str, as_json: bool, target: Target, **policy: str) -> None:
    """Change policies of a user, one for each resource.

    \b
    Examples:
      rucola admin updateAcl -b localhost:10911 -s User:billing -r Topic:Orders -a Sub -i 10.0.0.0/8 -d Allow
    """
    _set_policies(namesrv_addr, as_json, target, policy, update=True)


@command("deleteAcl")
@all_brokers_options
@subject_option
@click.option("-r", "--resources", "resource", help="Only the policy of this resource; by default all.")
@yes_option
def delete_acl(
    namesrv_addr: str,
    as_json: bool,
    target: Target,
    subject: str,
    resource: str | None,
    yes: bool,
) -> None:
    """Delete the policies of a user.

    \b
    Examples:
      rucola admin deleteAcl -b localhost:10911 -s User:billing -r Topic:Orders --yes
    """
    confirm(yes, f"Delete {f'the policy for {resource}' if resource else 'all policies'} of {subject}")
    addresses = every_broker(
        namesrv_addr, target, lambda client, one: client.access.delete_policies(one, subject, resource)
    )
    report_brokers(addresses, as_json, "delete acl to {} success.", subject=subject)


@command("getAcl")
@target_options
@subject_option
def get_acl(namesrv_addr: str, as_json: bool, target: Target, subject: str) -> None:
    """Show the policies of a user.

    \b
    Examples:
      rucola admin getAcl -b localhost:10911 -s User:billing
    """

    found = _of_masters(namesrv_addr, target, lambda client, one: client.access.policies(one, subject))
    _print_policies(found, as_json)


@command("listAcl")
@target_options
@click.option("-s", "--subject", help="Only subjects that contain this.")
@click.option("-r", "--resource", help="Only policies whose resource contains this.")
def list_acl(
    namesrv_addr: str,
    as_json: bool,
    target: Target,
    subject: str | None,
    resource: str | None,
) -> None:
    """List the policies of all users.

    \b
    Examples:
      rucola admin listAcl -b localhost:10911 -r Topic:Orders
    """

    found = _of_masters(namesrv_addr, target, lambda client, one: client.access.all_policies(one, subject, resource))
    _print_policies(itertools.chain.from_iterable(found), as_json)


def _of_masters(namesrv_addr: str, target: Target, query: Callable[[AdminClient, str], Awaitable[T | None]]) -> list[T]:
    """What each broker, or each master of the cluster, returns and is not None."""

    async def request(client: AdminClient) -> list[T]:
        found = [await query(client, one) for one in await target.masters(client)]
        return [one for one in found if one is not None]

    return call_admin(namesrv_addr, request)


def _set_policies(namesrv_addr: str, as_json: bool, target: Target, policy: dict[str, str], *, update: bool) -> None:
    subject, resources = policy["subject"], _split(policy["resources"])
    entry = PolicyEntryInfo(
        actions=_split(policy["actions"]),
        source_ips=_split(policy.get("sources") or "") or None,
        decision=policy["decision"],
    )
    addresses = every_broker(
        namesrv_addr,
        target,
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
