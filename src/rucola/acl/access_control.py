"""Authentication and authorization of requests, an interceptor.

    1. a global white address needs no signature and may do everything
    2. otherwise the request names an account (`AccessKey`) that exists and is enabled
    3. from its own white address, the account needs no signature and may do everything (ACL 1.0)
    4. otherwise the signature of the request must be right
    5. each check asks the principal whether it may carry out the action on the resource

Other requests are refused with NO_PERMISSION. An unknown access key costs the same work and gets the same response as a
wrong signature, so that keys cannot be probed; Apache's responses differ.

Corresponds to `PlainAccessValidator` and `PlainPermissionManager.validate` of Apache RocketMQ 4.9.8, and to
`AuthenticationPipeline` and `AuthorizationPipeline` of 5.3. Deliberate difference: 4.9.8 responds with SYSTEM_ERROR.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hmac import compare_digest
from typing import Any, Final, NoReturn, Protocol

from rucola import refusals
from rucola.access import Action, Caller, Check, Refused, Resource
from rucola.acl.challenge import Challenge
from rucola.acl.plain_acl import PlainAccount
from rucola.acl.plain_acl_files import PlainAclFiles
from rucola.acl.policies import PolicyUser
from rucola.acl.principal import WHITE, Principal
from rucola.acl.signature import SIGNATURE_NUMBER, Signer, other_signed_text
from rucola.acl.signed_content import SignedContent, remember, signed_content
from rucola.acl.user_store import UserStore
from rucola.protocol.command import RemotingCommand
from rucola.speed import Credentials


class Accounts(Protocol):
    def principal(self, content: SignedContent, host: str, challenge: Challenge) -> Principal:
        """Return the authenticated user of a request, or raise Refused."""
        ...

    def is_white(self, host: str) -> bool: ...

    def account(self, access_key: str) -> PlainAccount | PolicyUser | None:
        """Return an enabled account, or None."""
        ...


class PlainAccounts:
    def __init__(self, files: PlainAclFiles) -> None:
        self._files = files

    def principal(self, content: SignedContent, host: str, challenge: Challenge) -> Principal:
        account = self._files.current.accounts.get(content.access_key)
        if account is None:
            _refuse_unknown(content, challenge)
        if not account.white_addresses.is_empty and account.white_addresses.admit(host):
            return account.when_white
        _verify(account.signer, content, challenge)
        return account

    def is_white(self, host: str) -> bool:
        addresses = self._files.current.white_addresses
        return not addresses.is_empty and addresses.admit(host)

    def account(self, access_key: str) -> PlainAccount | None:
        return self._files.current.accounts.get(access_key)


class PolicyAccounts:
    def __init__(self, store: UserStore) -> None:
        self._store = store

    def principal(self, content: SignedContent, host: str, challenge: Challenge) -> Principal:
        user = self._store.current.get(content.access_key)
        if user is None:
            _refuse_unknown(content, challenge)
        _verify(user.signer, content, challenge)
        if not user.is_enabled:
            raise Refused(refusals.USER_DISABLED, user=user.name)
        return user

    def is_white(self, host: str) -> bool:
        return False

    def account(self, access_key: str) -> PolicyUser | None:
        user = self._store.current.get(access_key)
        return user if user is not None and user.is_enabled else None


class AccessControl:
    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def authenticate(self, caller: Caller, command: RemotingCommand, challenge: Challenge) -> Caller:
        """Return the caller with the user of a request, or raise Refused."""
        if self._accounts.is_white(caller.host):
            return _with_user(caller, WHITE)
        content = signed_content(command)
        user = self._accounts.principal(content, caller.host, challenge)
        if content.fields is not None and user.is_authenticated:
            remember(command, content.fields)
        return _with_user(caller, user)

    def authenticate_content(self, caller: Caller, content: SignedContent) -> Caller:
        """Return the caller with the user that signed a content, which is valid on any connection, or raise Refused."""
        if self._accounts.is_white(caller.host):
            return _with_user(caller, WHITE)
        return _with_user(caller, self._accounts.principal(content, caller.host, Challenge()))

    def authenticate_first(
        self,
        caller: Caller,
        data: memoryview,
        credentials: Sequence[Credentials | None],
        ends: Sequence[int],
        challenge: Challenge,
    ) -> tuple[Caller, int]:
        """Return the caller with the user of the first requests in `data`, and their number.

        These end before a request that has another user, or that `authenticate` might refuse.
        """
        if self._accounts.is_white(caller.host):
            return _with_user(caller, WHITE), len(ends)
        count = 0
        for found, end in zip(credentials, ends, strict=True):
            if found is None:
                break
            access_key, signature, text, body_at = found
            content = SignedContent(access_key, signature, text, data[body_at:end])
            try:
                user = self._accounts.principal(content, caller.host, challenge)
            except Refused:
                break
            if count and user is not caller.user:
                break
            caller = _with_user(caller, user)
            count += 1
        return caller, count

    def renew(self, caller: Caller) -> Caller:
        """Return an earlier request's caller with current permissions; Refused if none are left."""
        user = caller.user
        if user is WHITE and self._accounts.is_white(caller.host):
            return caller
        account = self._accounts.account(user.name) if user is not None else None
        if account is None or not isinstance(user, Principal):
            raise Refused(refusals.NO_ACCOUNT_ANY_MORE)
        if user.is_authenticated:
            return caller if account is user else caller.as_user(account)
        if isinstance(account, PlainAccount) and account.white_addresses.admit(caller.host):
            return caller
        raise Refused(refusals.NO_WHITE_ADDRESS_ANY_MORE, host=caller.host, user=user.name)

    def is_white(self, host: str) -> bool:
        return self._accounts.is_white(host)

    def authenticate_peer(self, access_key: str, challenge: bytes, proof: bytes) -> Principal:
        """Return the user of a replication peer that responded to a challenge, or raise Refused."""
        account = self._accounts.account(access_key)
        signer = account.signer if account is not None else _NOBODY
        if not compare_digest(signer.proof(challenge, access_key), proof) or account is None:
            raise Refused(refusals.WRONG_KEYS, access_key=access_key[:64])
        return account

    def check_for(self, action: Action) -> Check:
        number = action.value  # reading it costs 0.1 µs

        def check(caller: Caller, resource: Resource) -> None:
            user: Any = caller.user
            if user is None:
                raise Refused(refusals.NOT_AUTHENTICATED)
            if (number, resource, caller.host) not in user.allowed:
                user.check(action, resource, caller.host)

        return check


_NOBODY: Final = Signer(secrets.token_hex())
"""Verifies the signatures of unknown access keys, for equal work."""


def _with_user(caller: Caller, user: Principal) -> Caller:
    return caller if caller.user is user else caller.as_user(user)


def _verify(signer: Signer, content: SignedContent, challenge: Challenge) -> None:
    fields = content.fields
    if fields is not None and SIGNATURE_NUMBER in fields:
        if not challenge.admits(signer, content.code, fields, content.body):
            raise _refused(content)
    elif not signer.verifies(content.text, content.body, content.signature):
        other = other_signed_text(fields) if fields is not None else None
        if other is None or not signer.verifies(other, content.body, content.signature):
            raise _refused(content)


def _refuse_unknown(content: SignedContent, challenge: Challenge) -> NoReturn:
    """Raise what a wrong signature raises, after the same work."""
    if content.access_key:
        _verify(_NOBODY, content, challenge)
    raise _refused(content)


def _refused(content: SignedContent) -> Refused:
    if not content.access_key:
        return Refused(refusals.NO_ACCESS_KEY)
    refusal = refusals.WRONG_KEYS if content.signature else refusals.NO_SIGNATURE
    return Refused(refusal, access_key=content.access_key[:64])
