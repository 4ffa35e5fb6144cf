"""Access control for operators: accounts of ACL 1.0, users and policies of ACL 2.0.

Requests about a version that is not enabled are refused. Changes run in a thread, one at a time.

Corresponds to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8 and 5.3. Deliberate difference: no response
contains a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rucola import refusals
from rucola.access import Caller, Reason, Refused
from rucola.acl.plain_acl_files import PlainAclFiles
from rucola.acl.principal import Principal
from rucola.acl.user_store import UserStore
from rucola.domain.user import AclInfo, UserInfo
from rucola.errors import ConfigError

NO_VERSION: Mapping[str, int] = {"counter": 0, "timestamp": 0}


class AccessService:
    """Accounts (`files`), users and policies (`store`), each None if not enabled. All methods raise Refused."""

    def __init__(self, files: PlainAclFiles | None = None, store: UserStore | None = None) -> None:
        self._files = files
        self._store = store
        self._changing = asyncio.Lock()

    # ACL 1.0.

    def versions(self) -> tuple[Mapping[str, int], dict[str, Mapping[str, int]]]:
        """Return the DataVersion of plain_acl.yml, and of each file."""
        files = self._plain(Reason.FAILED)
        return files.versions.get(str(files.default_file), NO_VERSION), files.versions

    async def update_account(self, entry: Mapping[str, Any]) -> None:
        """Create or change an account, see `PlainAclFiles.update_account`."""
        await self._change_files(Reason.ACCOUNT_NOT_CHANGED, lambda files: files.update_account(entry))

    async def delete_account(self, access_key: str) -> None:
        await self._change_files(Reason.ACCOUNT_NOT_DELETED, lambda files: files.delete_account(access_key))

    async def update_white_addresses(self, patterns: list[str], file: str | None) -> None:
        """Replace the global white addresses of a file."""
        reason = Reason.WHITE_ADDRESSES_NOT_CHANGED
        await self._change_files(reason, lambda files: files.update_white_addresses(patterns, file))

    # ACL 2.0.

    async def create_user(self, caller: Caller, name: str, user: UserInfo) -> None:
        by, by_super = _changer(caller)
        await self._change(partial(self._users.create_user, name, user, by, by_super=by_super))

    async def update_user(self, caller: Caller, name: str, user: UserInfo) -> None:
        by, by_super = _changer(caller)
        await self._change(partial(self._users.update_user, name, user, by, by_super=by_super))

    async def delete_user(self, caller: Caller, name: str) -> None:
        by, by_super = _changer(caller)
        await self._change(partial(self._users.delete_user, name, by, by_super=by_super))

    def user(self, name: str) -> UserInfo | None:
        return self._users.user(name)

    def users(self, text: str) -> list[UserInfo]:
        return self._users.users(text)

    async def set_policies(self, subject: str, acl: AclInfo) -> None:
        await self._change(partial(self._users.set_policies, subject, acl))

    async def delete_policies(self, subject: str, policy_type: str | None, resource: str | None) -> None:
        """Delete an entry, or all policies of a subject."""
        await self._change(partial(self._users.delete_policies, subject, policy_type, resource))

    def policies(self, subject: str) -> AclInfo | None:
        return self._users.policies(subject)

    def all_policies(self, subject: str, resource: str) -> list[AclInfo]:
        """Return the policies of all subjects, filtered by texts."""
        return self._users.all_policies(subject, resource)

    def _plain(self, reason: Reason) -> PlainAclFiles:
        if self._files is None:
            raise Refused(reason, refusals.NO_PLAIN_ACCOUNTS)
        return self._files

    @property
    def _users(self) -> UserStore:
        if self._store is None:
            raise Refused(refusals.NO_USERS)
        return self._store

    async def _change_files(self, reason: Reason, change: Callable[[PlainAclFiles], None]) -> None:
        await self._change(partial(change, self._plain(reason)), reason)

    async def _change(self, change: Callable[[], None], reason: Reason = Reason.FAILED) -> None:
        async with self._changing:
            try:
                await asyncio.to_thread(change)
            except ConfigError as error:
                raise Refused(reason, str(error)) from None


def _changer(caller: Caller) -> tuple[str, bool]:
    user = caller.user
    return (user.name, user.is_admin) if isinstance(user, Principal) else (caller.address, False)
