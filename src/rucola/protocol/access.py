"""Requests about access control.

ACL 1.0 of Apache RocketMQ 4.9.8: codes 50 to 53. Lists in headers are joined by commas.

ACL 2.0 of 5.3: codes 3001 to 3010. Users and policies are JSON bodies; a response without a body means none. Subjects
have the form `User:name`. Rucola's own: GET_CHALLENGE (20100), see `rucola.acl.challenge`.
"""

from __future__ import annotations

from rucola.protocol.command import Header


class CreateAccessConfigRequestHeader(Header, kw_only=True):
    """An account of plain_acl.yml. Missing members keep their value, except `admin`."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | str = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAccessConfigRequestHeader(Header, kw_only=True):
    access_key: str


class UpdateGlobalWhiteAddrsConfigRequestHeader(Header, kw_only=True):
    """The new global white addresses, of plain_acl.yml unless a file is named."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class GetBrokerAclConfigResponseHeader(Header, kw_only=True):
    """DataVersions as JSON: of plain_acl.yml, and in `all_acl_file_version` by path."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


class GetChallengeResponseHeader(Header, kw_only=True):
    challenge: str


class UserRequestHeader(Header, kw_only=True):
    username: str


class ListUsersRequestHeader(Header, kw_only=True):
    """AUTH_LIST_USER: users whose names contain `filter`; all without it."""

    filter: str | None = None


class AclRequestHeader(Header, kw_only=True):
    subject: str


class DeleteAclRequestHeader(Header, kw_only=True):
    """Entries of one resource and policy, or all of the subject."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequestHeader(Header, kw_only=True):
    """Policies whose subject, and entries whose resource, contain these texts."""

    subject_filter: str | None = None
    resource_filter: str | None = None
