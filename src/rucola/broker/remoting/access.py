"""Adapter of requests about access control.

UPDATE_AND_CREATE_ACL_CONFIG (50), DELETE_ACL_CONFIG (51), GET_BROKER_CLUSTER_ACL_INFO (52),
UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53), and AUTH_CREATE_USER (3001) to AUTH_LIST_ACL (3010).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rucola import fastjson
from rucola.access import Action
from rucola.broker.config import BrokerConfig
from rucola.broker.services.access import AccessService
from rucola.domain.user import AclInfo, UserInfo
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
from rucola.remoting.connection import Answer, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


class AccessAdapter:
    def __init__(self, service: AccessService, config: BrokerConfig) -> None:
        self._service = service
        self._config = config

    def endpoints(self) -> Endpoints:
        alter, query, code = Action.ALTER_ACCESS, Action.QUERY_ACCESS, RequestCode
        account, removed = CreateAccessConfigRequestHeader, DeleteAccessConfigRequestHeader
        white, user, acl = UpdateGlobalWhiteAddrsConfigRequestHeader, UserRequestHeader, AclRequestHeader
        return (
            Endpoint(code.UPDATE_AND_CREATE_ACL_CONFIG, alter, self.update_account, account),
            Endpoint(code.DELETE_ACL_CONFIG, alter, self.delete_account, removed),
            Endpoint(code.GET_BROKER_CLUSTER_ACL_INFO, query, self.versions),
            Endpoint(code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, alter, self.update_white_addresses, white),
            Endpoint(code.AUTH_CREATE_USER, alter, self.create_user, user),
            Endpoint(code.AUTH_UPDATE_USER, alter, self.update_user, user),
            Endpoint(code.AUTH_DELETE_USER, alter, self.delete_user, user),
            Endpoint(code.AUTH_GET_USER, query, self.user, user),
            Endpoint(code.AUTH_LIST_USER, query, self.users, ListUsersRequestHeader),
            Endpoint(code.AUTH_CREATE_ACL, alter, self.set_policies, acl),
            Endpoint(code.AUTH_UPDATE_ACL, alter, self.set_policies, acl),
            Endpoint(code.AUTH_DELETE_ACL, alter, self.delete_policies, DeleteAclRequestHeader),
            Endpoint(code.AUTH_GET_ACL, query, self.policies, acl),
            Endpoint(code.AUTH_LIST_ACL, query, self.all_policies, ListAclsRequestHeader),
        )

    async def update_account(self, request: Request[CreateAccessConfigRequestHeader]) -> Answer:
        header = request.content
        entry = {
            "accessKey": header.access_key,
            "secretKey": header.secret_key or None,
            "whiteRemoteAddress": header.white_remote_address,
            "admin": str(header.admin).lower(),
            "defaultTopicPerm": header.default_topic_perm or None,
            "defaultGroupPerm": header.default_group_perm or None,
            "topicPerms": None if header.topic_perms is None else _split(header.topic_perms),
            "groupPerms": None if header.group_perms is None else _split(header.group_perms),
        }
        await self._service.update_account(entry)
        return request.success()

    async def delete_account(self, request: Request[DeleteAccessConfigRequestHeader]) -> Answer:
        await self._service.delete_account(request.content.access_key)
        return request.success()

    def versions(self, request: Request[None]) -> Reply:
        version, versions = self._service.versions()
        config = self._config
        header = GetBrokerAclConfigResponseHeader(
            version=fastjson.dumps(dict(version)).decode(),
            all_acl_file_version=fastjson.dumps({path: dict(one) for path, one in versions.items()}).decode(),
            broker_name=config.broker_name,
            broker_addr=f"{config.broker_ip1}:{config.listen_port}",
            cluster_name=config.broker_cluster_name,
        )
        return request.success(header)

    async def update_white_addresses(self, request: Request[UpdateGlobalWhiteAddrsConfigRequestHeader]) -> Answer:
        header = request.content
        await self._service.update_white_addresses(_split(header.global_white_addrs), header.acl_file_full_path)
        return request.success()

    async def create_user(self, request: Request[UserRequestHeader]) -> Answer:
        info = decode_body(UserInfo, request.command.body)
        await self._service.create_user(request.caller, request.content.username, info)
        return request.success()

    async def update_user(self, request: Request[UserRequestHeader]) -> Answer:
        info = decode_body(UserInfo, request.command.body)
        await self._service.update_user(request.caller, request.content.username, info)
        return request.success()

    async def delete_user(self, request: Request[UserRequestHeader]) -> Answer:
        await self._service.delete_user(request.caller, request.content.username)
        return request.success()

    def user(self, request: Request[UserRequestHeader]) -> Reply:
        user = self._service.user(request.content.username)
        return request.success(body=b"" if user is None else user)

    def users(self, request: Request[ListUsersRequestHeader]) -> Reply:
        return request.success(body=_encode_list(self._service.users(request.content.filter or "")))

    async def set_policies(self, request: Request[AclRequestHeader]) -> Answer:
        await self._service.set_policies(request.content.subject, decode_body(AclInfo, request.command.body))
        return request.success()

    async def delete_policies(self, request: Request[DeleteAclRequestHeader]) -> Answer:
        header = request.content
        await self._service.delete_policies(header.subject, header.policy_type, header.resource)
        return request.success()

    def policies(self, request: Request[AclRequestHeader]) -> Reply:
        acl = self._service.policies(request.content.subject)
        return request.success(body=b"" if acl is None else acl)

    def all_policies(self, request: Request[ListAclsRequestHeader]) -> Reply:
        found = self._service.all_policies(request.content.subject_filter or "", request.content.resource_filter or "")
        return request.success(body=_encode_list(found))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _encode_list(bodies: Sequence[msgspec.Struct]) -> bytes:
    return fastjson.dumps([msgspec.json.decode(encode_body(body)) for body in bodies]) if bodies else b""
