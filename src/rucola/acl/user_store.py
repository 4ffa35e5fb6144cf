"""The file of users and policies (ACL 2.0), `config/auth.json` in the store directory.

    {"users": [{"username": ..., "password": ..., "userType": ..., "userStatus": ...}, ...],
     "acls":  [{"subject": "User:...", "policies": [{"policyType": ..., "entries": [...]}, ...]}, ...]}

Passwords are plain, since HMAC needs them; the file has mode 0600. A change is on disk before its response, and applies
at once. Changes that would leave no enabled super user are refused.

The first super user is from `initAuthenticationUser` of broker.conf or the environment variable
ROCKETMQ_INIT_AUTHENTICATION_USER, {"username": "...", "password": "..."}, if no user of that name exists.

Corresponds to `AuthenticationMetadataManagerImpl` and `AuthorizationMetadataManagerImpl` of Apache RocketMQ 5.3.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from rucola import refusals
from rucola.access import Reason, Refused
from rucola.acl.policies import (
    CUSTOM,
    DEFAULT,
    USER_SUBJECT,
    PolicyEntry,
    PolicyUser,
    UserStatus,
    UserType,
    parse_entry,
    parse_pattern,
)
from rucola.domain.user import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rucola.errors import ConfigError, MQError, RemoteProtocolError
from rucola.files import replace_file
from rucola.protocol.body import Body, decode_body, encode_body

INIT_USER_VARIABLE: Final = "ROCKETMQ_INIT_AUTHENTICATION_USER"
MAX_USERS: Final = 10_000
MAX_ENTRIES: Final = 1000

Policies = dict[str, list[PolicyEntry]]


class AuthFile(Body, kw_only=True):
    users: list[UserInfo] = msgspec.field(default_factory=list)
    acls: list[AclInfo] = msgspec.field(default_factory=list)


class UserStore:
    """Users and their policies. Changes replace `current` and block on the disk. ConfigError without super user."""

    def __init__(self, path: Path, cluster: str, first_user: str = "") -> None:
        self._path = path
        self._cluster = cluster
        self._users: dict[str, UserInfo] = {}
        self._policies: dict[str, Policies] = {}
        self.current: Mapping[str, PolicyUser] = {}
        self._load()
        self._create_first(first_user or os.environ.get(INIT_USER_VARIABLE, ""))
        if not _has_super(self._users):
            raise ConfigError(
                "authenticationEnabled=true: there is no super user; name the first one by initAuthenticationUser or "
                f'the environment variable {INIT_USER_VARIABLE}: {{"username":"admin","password":"..."}}',
                subject="initAuthenticationUser",
            )

    # Users.

    def users(self, text: str = "") -> list[UserInfo]:
        """Return the users whose names contain a text, without passwords."""
        return [_without_password(user) for name, user in self._users.items() if text in name]

    def user(self, name: str) -> UserInfo | None:
        found = self._users.get(name)
        return None if found is None else _without_password(found)

    def create_user(self, name: str, given: UserInfo, by: str, *, by_super: bool) -> None:
        """Create a user. Raises Refused; only super users create super users."""
        if name in self._users:
            raise Refused(refusals.USER_EXISTS, user=name)
        if len(self._users) >= MAX_USERS:
            raise Refused(refusals.TOO_MANY_USERS, limit=MAX_USERS)
        if not name or not given.password:
            raise Refused(refusals.INCOMPLETE_USER)
        type_, status = _type(given) or UserType.NORMAL, _status(given) or UserStatus.ENABLE
        self._check_super(type_ is UserType.SUPER, by, by_super)
        user = UserInfo(username=name, password=given.password, user_type=type_.value, user_status=status.value)
        self._save(self._users | {name: user}, self._policies)

    def update_user(self, name: str, given: UserInfo, by: str, *, by_super: bool) -> None:
        before = self._existing(name)
        type_ = _type(given) or _type(before) or UserType.NORMAL
        status = _status(given) or _status(before) or UserStatus.ENABLE
        self._check_super(UserType.SUPER in (type_, _type(before)), by, by_super)
        user = UserInfo(
            username=name,
            password=given.password or before.password,
            user_type=type_.value,
            user_status=status.value,
        )
        self._save(self._users | {name: user}, self._policies)

    def delete_user(self, name: str, by: str, *, by_super: bool) -> None:
        before = self._users.get(name)
        if before is None:
            return
        self._check_super(_type(before) is UserType.SUPER, by, by_super)
        users, policies = dict(self._users), dict(self._policies)
        del users[name]
        policies.pop(name, None)
        self._save(users, policies)

    # Policies.

    def set_policies(self, subject: str, acl: AclInfo) -> None:
        """Add entries to a user's policies, replacing those for the same resource. Raises Refused."""
        name = self._user_of(subject)
        if not acl.policies:
            raise Refused(refusals.NO_POLICIES_GIVEN)
        policies = {kind: list(entries) for kind, entries in self._policies.get(name, {}).items()}
        try:
            for policy in acl.policies:
                kind = _policy_type(policy.policy_type)
                for entry in _entries(policy):
                    kept = [one for one in policies.get(kind, ()) if one.pattern != entry.pattern]
                    policies[kind] = [*kept, entry]
        except ConfigError as error:
            raise Refused(Reason.INVALID, str(error)) from None
        if sum(map(len, policies.values())) > MAX_ENTRIES:
            raise Refused(refusals.TOO_MANY_POLICIES, limit=MAX_ENTRIES)
        self._save(self._users, self._policies | {name: policies})

    def delete_policies(self, subject: str, policy_type: str | None, resource: str | None) -> None:
        """Delete the entry of one resource, or all of a user. Raises Refused."""
        name = self._user_of(subject)
        before = self._policies.get(name)
        if not before:
            raise Refused(refusals.NO_POLICIES, subject=subject)
        after: Policies = {}
        if resource:
            try:
                pattern, kind = parse_pattern(resource), _policy_type(policy_type)
            except ConfigError as error:
                raise Refused(Reason.INVALID, str(error)) from None
            for one, entries in before.items():
                kept = [entry for entry in entries if one != kind or entry.pattern != pattern]
                if kept:
                    after[one] = kept
        self._save(self._users, self._policies | {name: after})

    def policies(self, subject: str) -> AclInfo | None:
        """Return the policies of a user, or None. Raises Refused."""
        name = self._user_of(subject)
        return _acl_info(name, self._policies[name]) if self._policies.get(name) else None

    def all_policies(self, subject: str = "", resource: str = "") -> list[AclInfo]:
        """Return the policies of all users whose subjects and resources contain a text."""
        found = []
        for name, policies in self._policies.items():
            chosen = {
                kind: [entry for entry in entries if resource in str(entry.pattern)]
                for kind, entries in policies.items()
            }
            if subject in USER_SUBJECT + name and any(chosen.values()):
                found.append(_acl_info(name, {kind: entries for kind, entries in chosen.items() if entries}))
        return found

    def _existing(self, name: str) -> UserInfo:
        user = self._users.get(name)
        if user is None:
            raise Refused(refusals.NO_USER, user=name)
        return user

    def _user_of(self, subject: str) -> str:
        if not subject.startswith(USER_SUBJECT):
            raise Refused(refusals.NO_SUBJECT, subject=subject)
        name = subject[len(USER_SUBJECT) :]
        self._existing(name)
        return name

    def _check_super(self, concerns_super: bool, by: str, by_super: bool) -> None:
        if concerns_super and not by_super:
            raise Refused(refusals.NO_SUPER_USER, user=by)

    # The file.

    def _load(self) -> None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            content = b"{}"
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from None
        try:
            document = decode_body(AuthFile, content)
            self._users = {user.username: user for user in document.users if user.username}
            for name, user in self._users.items():
                _type(user), _status(user)
                if not user.password:
                    raise ConfigError(f"user {name} has no password")
            self._policies = {
                str(acl.subject)[len(USER_SUBJECT) :]: {
                    _policy_type(policy.policy_type): _entries(policy) for policy in acl.policies
                }
                for acl in document.acls
            }
        except (RemoteProtocolError, ConfigError, Refused) as error:
            raise ConfigError(f"{self._path}: {error}", subject=self._path) from None
        self._apply()

    def _create_first(self, text: str) -> None:
        if not text:
            return
        try:
            given = decode_body(UserInfo, text.encode("utf-8"))
            if not given.username or not given.password:
                raise ConfigError("username or password is missing")
        except MQError:
            # The text contains a password, and so may the error.
            raise ConfigError(
                'initAuthenticationUser: expected {"username":"...","password":"..."}', subject="initAuthenticationUser"
            ) from None
        if given.username not in self._users:
            super_user = UserInfo(password=given.password, user_type=UserType.SUPER.value)
            self.create_user(given.username, super_user, "broker.conf", by_super=True)

    def _save(self, users: dict[str, UserInfo], policies: dict[str, Policies]) -> None:
        if _has_super(self._users) and not _has_super(users):
            raise Refused(refusals.LAST_SUPER_USER)
        content = encode_body(
            AuthFile(
                users=list(users.values()),
                acls=[_acl_info(name, of_user) for name, of_user in policies.items() if of_user],
            )
        )
        try:
            replace_file(self._path, content)
        except OSError as error:
            raise Refused(refusals.USERS_NOT_WRITTEN, path=self._path, why=error.strerror) from None
        self._users, self._policies = users, policies
        self._apply()

    def _apply(self) -> None:
        self.current = {
            name: PolicyUser(
                name,
                user.password or "",
                _type(user) or UserType.NORMAL,
                _status(user) or UserStatus.ENABLE,
                self._policies.get(name, {}),
                self._cluster,
            )
            for name, user in self._users.items()
        }


def _has_super(users: Mapping[str, UserInfo]) -> bool:
    return any(_type(user) is UserType.SUPER and _status(user) is UserStatus.ENABLE for user in users.values())


def _type(user: UserInfo) -> UserType | None:
    if not user.user_type:
        return None
    for one in UserType:
        if one.value.lower() == user.user_type.lower():
            return one
    raise Refused(refusals.NO_USER_TYPE, user_type=user.user_type)


def _status(user: UserInfo) -> UserStatus | None:
    if not user.user_status:
        return None
    for one in UserStatus:
        if one.value.lower() == user.user_status.lower():
            return one
    raise Refused(refusals.NO_USER_STATUS, user_status=user.user_status)


def _policy_type(text: str | None) -> str:
    for kind in (CUSTOM, DEFAULT):
        if (text or CUSTOM).lower() == kind.lower():
            return kind
    raise ConfigError(f"policy type {text!r}: expected {CUSTOM} or {DEFAULT}")


def _entries(policy: PolicyInfo) -> list[PolicyEntry]:
    return [
        parse_entry(entry.resource or "", entry.actions, entry.source_ips or [], entry.decision or "")
        for entry in policy.entries
    ]


def _acl_info(name: str, policies: Policies) -> AclInfo:
    return AclInfo(
        subject=USER_SUBJECT + name,
        policies=[
            PolicyInfo(
                policy_type=kind,
                entries=[
                    PolicyEntryInfo(
                        resource=str(entry.pattern),
                        actions=list(entry.actions),
                        source_ips=list(entry.source_ips) or None,
                        decision="Allow" if entry.allows else "Deny",
                    )
                    for entry in entries
                ],
            )
            for kind, entries in policies.items()
        ],
    )


def _without_password(user: UserInfo) -> UserInfo:
    return UserInfo(username=user.username, user_type=user.user_type, user_status=user.user_status)
