"""Access control: accounts of RocketMQ 4 (ACL 1.0), users and policies of RocketMQ 5.3 (ACL 2.0)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from itertools import chain
from typing import Annotated

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import (
    AllBrokers,
    InvalidArguments,
    Masters,
    Option,
    Result,
    Row,
    Target,
    command,
    report,
    split,
)
from rucola.domain.user import AclInfo, PolicyEntryInfo, UserInfo
from rucola.presentation import Column, time_text, whole
from rucola.protocol.access import CreateAccessConfigRequestHeader

AccessKey = Annotated[str, Option("-a --accessKey", "Name of the account.")]
UserName = Annotated[str, Option("-u --username", "Name of the user.")]
Subject = Annotated[str, Option("-s --subject", "User:NAME.")]
Resources = Annotated[
    str, Option("-r --resources", "Resources: Topic:orders-*,Group:billing,Cluster:*; * for everything.")
]
Actions = Annotated[str, Option("-a --actions", "Actions: Pub,Sub,Create,Update,Delete,Get,List, or All.")]
Sources = Annotated[
    str | None, Option("-i --sourceIp", "Only from these addresses and networks: 10.0.0.7,10.1.0.0/16.")
]
Decision = Annotated[str, Option("-d --decision", "Allow or Deny.")]


async def _everywhere(client: AdminClient, target: Target, change: Callable[[str], Awaitable[None]]) -> list[str]:
    """Change a broker, or a cluster's masters and slaves in turn; return their addresses."""
    addresses = await target.brokers(client)
    for one in addresses:
        await change(one)
    return addresses


# ACL 1.0.


@command("updateAclConfig", writes=True)
async def update_acl_config(
    client: AdminClient,
    target: AllBrokers,
    access_key: AccessKey,
    secret_key: Annotated[str, Option("-s --secretKey", "Secret key; - asks for it.", prompt="Secret key")],
    white_address: Annotated[
        str | None, Option("-w --whiteRemoteAddress", "Addresses that need no signature, 10.0.0.*.")
    ] = None,
    default_topic_perm: Annotated[str | None, Option("-i --defaultTopicPerm", "DENY, PUB, SUB or PUB|SUB.")] = None,
    default_group_perm: Annotated[str | None, Option("-u --defaultGroupPerm", "DENY, PUB, SUB or PUB|SUB.")] = None,
    topic_perms: Annotated[
        str | None, Option("-t --topicPerms", "Permissions of topics: topicA=PUB,topicB=SUB.")
    ] = None,
    group_perms: Annotated[str | None, Option("-g --groupPerms", "Permissions of groups: groupA=SUB.")] = None,
    admin: Annotated[bool, Option("-m --admin", "Whether the account may do everything.")] = False,
) -> Result:
    """Create or change an account on one broker (-b) or a whole cluster (-c).

    A cluster is changed on all its masters and slaves. Options that are not given keep their value, except --admin,
    which is false then. Name servers have separate files.

    \b
    Examples:
      rucola admin updateAclConfig -b localhost:10911 -a billing1 -s - -t Orders=SUB -g billing=SUB
    """
    account = CreateAccessConfigRequestHeader(
        access_key=access_key, secret_key=secret_key, white_remote_address=white_address, admin=admin,
        default_topic_perm=default_topic_perm, default_group_perm=default_group_perm, topic_perms=topic_perms,
        group_perms=group_perms,
    )  # fmt: skip
    addresses = await _everywhere(client, target, lambda one: client.access.update_account(one, account))
    return report(addresses, "create or update plain access config to {} success.", accessKey=access_key)


@command("deleteAclConfig", confirm="Delete account {access_key}")
async def delete_acl_config(client: AdminClient, target: AllBrokers, access_key: AccessKey) -> Result:
    """Delete an account on one broker (-b) or a cluster's masters and slaves (-c).

    \b
    Examples:
      rucola admin deleteAclConfig -c DefaultCluster -a billing1 --yes
    """
    addresses = await _everywhere(client, target, lambda one: client.access.delete_account(one, access_key))
    return report(addresses, "delete plain access config account from {} success.", accessKey=access_key)


async def _opening(client: AdminClient, target: Target, patterns: str, file: str | None) -> str:
    return f"Let {', '.join(split(patterns)) or 'no address'} do everything without a signature"


@command("updateGlobalWhiteAddr", confirm=_opening)
async def update_global_white_addr(
    client: AdminClient,
    target: AllBrokers,
    patterns: Annotated[str, Option("-g --globalWhiteRemoteAddresses", "Patterns: 10.10.103.*,192.168.0.*.")],
    file: Annotated[
        str | None, Option("-p --aclFileFullPath", "File on the broker; by default conf/plain_acl.yml.")
    ] = None,
) -> Result:
    """Replace the addresses that need no signature and may do everything.

    \b
    Examples:
      rucola admin updateGlobalWhiteAddr -b localhost:10911 -g 10.10.103.7 --yes
    """
    wanted = split(patterns)
    addresses = await _everywhere(client, target, lambda one: client.access.update_white_addresses(one, wanted, file))
    return report(addresses, "update global white remote addresses to {} success.", globalWhiteAddrs=wanted)


@command("clusterAclConfigVersion", columns=(
    Column("#Cluster Name", "clusterName"), Column("#Broker Name", "brokerName"), whole("#Addr", "brokerAddr"),
    Column("#AclFilePath", "aclFilePath"), Column("#Version", "version"), Column("#LastUpdate", "updatedMs", time_text),
))  # fmt: skip
async def cluster_acl_config_version(client: AdminClient, target: Masters) -> list[Row]:
    """Show the versions of account files of one broker (-b) or a cluster's masters (-c).

    \b
    Examples:
      rucola admin clusterAclConfigVersion -c DefaultCluster
    """
    return [
        {
            "clusterName": broker.cluster, "brokerName": broker.broker_name, "brokerAddr": broker.address,
            "aclFilePath": path, "version": counter, "updatedMs": timestamp,
        }
        for broker in (await target.ask(client, client.access.versions)).values()
        for path, (counter, timestamp) in sorted(broker.files.items())
    ]  # fmt: skip


# ACL 2.0.


@command("createUser", writes=True)
async def create_user(
    client: AdminClient,
    target: AllBrokers,
    name: UserName,
    password: Annotated[str, Option("-p --password", "Password; - asks for it.", prompt="Password")],
    user_type: Annotated[str | None, Option("-t --userType", "Normal or Super; by default Normal.")] = None,
) -> Result:
    """Create a user on one broker (-b) or a cluster's masters and slaves (-c).

    \b
    Examples:
      rucola admin createUser -c DefaultCluster -u billing -p -
    """
    addresses = await _everywhere(client, target, lambda one: client.access.create_user(one, name, password, user_type))
    return report(addresses, "create user to {} success.", username=name)


@command("updateUser", writes=True)
async def update_user(
    client: AdminClient,
    target: AllBrokers,
    name: UserName,
    password: Annotated[str | None, Option("-p --password", "New password; - asks for it.", prompt="Password")] = None,
    user_type: Annotated[str | None, Option("-t --userType", "Normal or Super; by default unchanged.")] = None,
    user_status: Annotated[str | None, Option("-s --userStatus", "enable or disable; by default unchanged.")] = None,
) -> Result:
    """Change the password, type or status of a user.

    \b
    Examples:
      rucola admin updateUser -b localhost:10911 -u billing -s disable
    """
    if password is None and user_type is None and user_status is None:
        raise InvalidArguments("name a change: -p, -t or -s")
    changes = UserInfo(username=name, password=password, user_type=user_type, user_status=user_status)
    addresses = await _everywhere(client, target, lambda one: client.access.update_user(one, name, changes))
    return report(addresses, "update user to {} success.", username=name)


@command("deleteUser", confirm="Delete user {name}")
async def delete_user(client: AdminClient, target: AllBrokers, name: UserName) -> Result:
    """Delete a user and its policies.

    \b
    Examples:
      rucola admin deleteUser -c DefaultCluster -u billing --yes
    """
    addresses = await _everywhere(client, target, lambda one: client.access.delete_user(one, name))
    return report(addresses, "delete user to {} success.", username=name)


_USER = Column("#UserName", "username"), Column("#UserType", "userType"), Column("#UserStatus", "userStatus")


@command("getUser", columns=_USER)
async def get_user(client: AdminClient, target: Masters, name: UserName) -> list[Row]:
    """Show a user. Passwords are never shown.

    \b
    Examples:
      rucola admin getUser -b localhost:10911 -u billing
    """
    found = await target.ask(client, lambda one: client.access.user(one, name))
    return _users(filter(None, found.values()))


@command("listUser", columns=_USER)
async def list_user(
    client: AdminClient,
    target: Masters,
    text: Annotated[str | None, Option("-f --filter", "Only users whose name contains this.")] = None,
) -> list[Row]:
    """List users. Passwords are never shown.

    \b
    Examples:
      rucola admin listUser -b localhost:10911
    """
    found = await target.ask(client, lambda one: client.access.users(one, text))
    return _users(chain.from_iterable(found.values()))


def _users(users: Iterable[UserInfo]) -> list[Row]:
    return [{"username": one.username, "userType": one.user_type, "userStatus": one.user_status} for one in users]


@command("createAcl", writes=True)
async def create_acl(
    client: AdminClient,
    *,
    target: AllBrokers,
    subject: Subject,
    resources: Resources,
    actions: Actions,
    sources: Sources = None,
    decision: Decision,
) -> Result:
    """Add policies of a user, one for each resource, replacing any for the same resource.

    \b
    Examples:
      rucola admin createAcl -b localhost:10911 -s User:billing -r Topic:Orders,Group:billing -a Sub -d Allow
    """
    entry = _entry(actions, sources, decision)
    addresses = await _everywhere(
        client, target, lambda one: client.access.set_policies(one, subject, split(resources), entry)
    )
    return report(addresses, "create acl to {} success.", subject=subject)


@command("updateAcl", writes=True)
async def update_acl(
    client: AdminClient,
    *,
    target: AllBrokers,
    subject: Subject,
    resources: Resources,
    actions: Actions,
    sources: Sources = None,
    decision: Decision,
) -> Result:
    """Change policies of a user, one for each resource.

    \b
    Examples:
      rucola admin updateAcl -b localhost:10911 -s User:billing -r Topic:Orders -a Sub -i 10.0.0.0/8 -d Allow
    """
    entry = _entry(actions, sources, decision)
    addresses = await _everywhere(
        client, target, lambda one: client.access.set_policies(one, subject, split(resources), entry, update=True)
    )
    return report(addresses, "update acl to {} success.", subject=subject)


def _entry(actions: str, sources: str | None, decision: str) -> PolicyEntryInfo:
    return PolicyEntryInfo(actions=split(actions), source_ips=split(sources or "") or None, decision=decision)


async def _policy_deletion(client: AdminClient, target: Target, subject: str, resource: str | None) -> str:
    return f"Delete {f'the policy for {resource}' if resource else 'all policies'} of {subject}"


@command("deleteAcl", confirm=_policy_deletion)
async def delete_acl(
    client: AdminClient,
    target: AllBrokers,
    subject: Subject,
    resource: Annotated[
        str | None, Option("-r --resources", "Only the policy of this resource; by default all.")
    ] = None,
) -> Result:
    """Delete the policies of a user.

    \b
    Examples:
      rucola admin deleteAcl -b localhost:10911 -s User:billing -r Topic:Orders --yes
    """
    addresses = await _everywhere(client, target, lambda one: client.access.delete_policies(one, subject, resource))
    return report(addresses, "delete acl to {} success.", subject=subject)


_POLICY = (
    Column("#Subject", "subject"), Column("#PolicyType", "policyType"), Column("#Resource", "resource"),
    Column("#Actions", "actions", ",".join), whole("#SourceIp", "sourceIps", ",".join),
    Column("#Decision", "decision"),
)  # fmt: skip


@command("getAcl", columns=_POLICY)
async def get_acl(client: AdminClient, target: Masters, subject: Subject) -> list[Row]:
    """Show the policies of a user.

    \b
    Examples:
      rucola admin getAcl -b localhost:10911 -s User:billing
    """
    found = await target.ask(client, lambda one: client.access.policies(one, subject))
    return _policies(filter(None, found.values()))


@command("listAcl", columns=_POLICY)
async def list_acl(
    client: AdminClient,
    target: Masters,
    subject: Annotated[str | None, Option("-s --subject", "Only subjects that contain this.")] = None,
    resource: Annotated[str | None, Option("-r --resource", "Only policies whose resource contains this.")] = None,
) -> list[Row]:
    """List the policies of all users.

    \b
    Examples:
      rucola admin listAcl -b localhost:10911 -r Topic:Orders
    """
    found = await target.ask(client, lambda one: client.access.all_policies(one, subject, resource))
    return _policies(chain.from_iterable(found.values()))


def _policies(found: Iterable[AclInfo]) -> list[Row]:
    return [
        {
            "subject": acl.subject, "policyType": policy.policy_type, "resource": entry.resource,
            "actions": entry.actions, "sourceIps": entry.source_ips or [], "decision": entry.decision,
        }
        for acl in found
        for policy in acl.policies
        for entry in policy.entries
    ]  # fmt: skip
