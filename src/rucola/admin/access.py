"""AccessAdmin: one broker's accounts of ACL 1.0, or its users and policies of ACL 2.0.

A broker ("host:port") has one version of ACL or none, and refuses requests about the other (BrokerError).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rucola import fastjson
from rucola.admin.requests import AdminRequests
from rucola.domain.user import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rucola.errors import BrokerError, ConfigError, RemotingTimeout
from rucola.protocol.access import (
    AclRequestHeader,
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    DeleteAclRequestHeader,
    GetBrokerAclConfigResponseHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
    UserRequestHeader,
)
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import Header, RemotingCommand


class AclVersions(msgspec.Struct, frozen=True):
    """Versions of a broker's ACL 1.0 files: `files` has (number of changes, time of the last in ms) by path."""

    cluster: str
    broker_name: str
    address: str
    files: dict[str, tuple[int, int]]


class AccessAdmin:
    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    # ACL 1.0.

    async def update_account(self, address: str, account: CreateAccessConfigRequestHeader) -> None:
        """Create or change an account; members that are None keep their value, `admin` does not."""
        await self._invoke_acl_1(address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, account)

    async def delete_account(self, address: str, access_key: str) -> None:
        header = DeleteAccessConfigRequestHeader(access_key=access_key)
        await self._invoke_acl_1(address, RequestCode.DELETE_ACL_CONFIG, header)

    async def update_white_addresses(self, address: str, patterns: Sequence[str], file: str | None = None) -> None:
        """Replace the global white addresses of a file, by default of plain_acl.yml."""
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(
            global_white_addrs=",".join(patterns), acl_file_full_path=file
        )
        await self._invoke_acl_1(address, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    async def versions(self, address: str) -> AclVersions:
        response = await self._invoke_acl_1(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        header = response.decode_header(GetBrokerAclConfigResponseHeader)
        files = fastjson.loads(header.all_acl_file_version or "{}")
        return AclVersions(
            header.cluster_name,
            header.broker_name,
            header.broker_addr,
            {path: (int(one["counter"]), int(one["timestamp"])) for path, one in files.items()},
        )

    async def _invoke_acl_1(self, address: str, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        """Send a request about ACL 1.0, to which Apache's broker without access control has no proper response."""
        try:
            return await self._requests.invoke(address, code, header)
        except RemotingTimeout as error:
            if code != RequestCode.GET_BROKER_CLUSTER_ACL_INFO:
                raise
            raise RemotingTimeout(f"{error}: Apache's broker sends none if its aclEnable is false", address) from None
        except BrokerError as error:
            if "AccessValidator" not in (error.remark or ""):  # of Java's NullPointerException
                raise
            raise ConfigError(f"{address} has no access control: its aclEnable is false", address) from None

    # ACL 2.0.

    async def create_user(self, address: str, name: str, password: str, user_type: str | None = None) -> None:
        """Create a user; `user_type` is Normal or Super."""
        body = encode_body(UserInfo(username=name, password=password, user_type=user_type))
        await self._requests.invoke(address, RequestCode.AUTH_CREATE_USER, UserRequestHeader(username=name), body)

    async def update_user(self, address: str, name: str, changes: UserInfo) -> None:
        """Change password, type or status of a user; members that are None keep their value."""
        header = UserRequestHeader(username=name)
        await self._requests.invoke(address, RequestCode.AUTH_UPDATE_USER, header, encode_body(changes))

    async def delete_user(self, address: str, name: str) -> None:
        """Delete a user and its policies."""
        await self._requests.invoke(address, RequestCode.AUTH_DELETE_USER, UserRequestHeader(username=name))

    async def user(self, address: str, name: str) -> UserInfo | None:
        response = await self._requests.invoke(address, RequestCode.AUTH_GET_USER, UserRequestHeader(username=name))
        return decode_body(UserInfo, response.body) if response.body else None

    async def users(self, address: str, text: str | None = None) -> list[UserInfo]:
        """Return the users whose names contain a text."""
        header = ListUsersRequestHeader(filter=text)
        response = await self._requests.invoke(address, RequestCode.AUTH_LIST_USER, header)
        return [fastjson.to_struct(UserInfo, one) for one in _list(response.body)]

    async def set_policies(
        self, address: str, subject: str, resources: Sequence[str], entry: PolicyEntryInfo, *, update: bool = False
    ) -> None:
        """Add or replace `entry` for some resources of a subject; `update` only selects the request code."""
        entries = [msgspec.structs.replace(entry, resource=resource) for resource in resources]
        acl = AclInfo(subject=subject, policies=[PolicyInfo(entries=entries)])
        code = RequestCode.AUTH_UPDATE_ACL if update else RequestCode.AUTH_CREATE_ACL
        await self._requests.invoke(address, code, AclRequestHeader(subject=subject), encode_body(acl))

    async def delete_policies(self, address: str, subject: str, resource: str | None = None) -> None:
        """Delete the entry of a resource, or all policies of a subject."""
        header = DeleteAclRequestHeader(subject=subject, resource=resource)
        await self._requests.invoke(address, RequestCode.AUTH_DELETE_ACL, header)

    async def policies(self, address: str, subject: str) -> AclInfo | None:
        header = AclRequestHeader(subject=subject)
        response = await self._requests.invoke(address, RequestCode.AUTH_GET_ACL, header)
        return decode_body(AclInfo, response.body) if response.body else None

    async def all_policies(
        self, address: str, subject: str | None = None, resource: str | None = None
    ) -> list[AclInfo]:
        """Return the policies whose subject, and entries whose resource, contain these texts."""
        header = ListAclsRequestHeader(subject_filter=subject, resource_filter=resource)
        response = await self._requests.invoke(address, RequestCode.AUTH_LIST_ACL, header)
        return [fastjson.to_struct(AclInfo, one) for one in _list(response.body)]


def _list(body: bytes) -> list[Mapping[str, object]]:
    found = fastjson.loads(body) if body else []
    return found if isinstance(found, list) else []
