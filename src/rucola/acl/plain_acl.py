"""Accounts of ACL 1.0: the content of plain_acl.yml.

    globalWhiteRemoteAddresses: [10.10.103.*]      # addresses that need no signature and may do everything
    accounts:
      - accessKey: RocketMQ            # more than 6 characters, as the secret key
        secretKey: 12345678
        whiteRemoteAddress:            # from these addresses, this account needs no signature and may do everything
        admin: false                   # may do everything
        defaultTopicPerm: DENY         # of topics that topicPerms does not name: DENY, PUB, SUB, PUB|SUB
        defaultGroupPerm: SUB
        topicPerms: [topicA=DENY, topicB=PUB|SUB]
        groupPerms: [groupA=SUB]
    dataVersion: [{counter: 3, timestamp: 1732149000123}]      # written by changes over the network

Missing permissions mean DENY. Rights other than PUB and SUB (create, change, delete, operate) belong to admin accounts.

Corresponds to `PlainAccessConfig`, `PlainAccessResource` and `Permission` of Apache RocketMQ 4.9.8. Deliberate
differences: an unknown permission, key or a value of the wrong kind is an error, where Apache reads DENY or ignores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rucola.acl.principal import Principal, WhiteAddressPrincipal
from rucola.acl.requirements import Requirement, ResourceType, Right
from rucola.acl.signature import Signer
from rucola.acl.white_addresses import WhiteAddresses
from rucola.errors import ConfigError
from rucola.message.topics import TRACE_TOPIC

MIN_KEY_LENGTH: Final = 7

PERMISSIONS: Final = {
    "DENY": Right(0),
    "PUB": Right.PUB,
    "SUB": Right.SUB,
    "PUB|SUB": Right.PUB | Right.SUB,
    "SUB|PUB": Right.PUB | Right.SUB,
}
_ACCOUNT_KEYS: Final = {
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms",
    "groupPerms",
}  # fmt: skip
_FILE_KEYS: Final = {"globalWhiteRemoteAddresses", "accounts", "dataVersion"}


class PlainAccount(Principal):
    def __init__(self, name: str, secret_key: str, *, admin: bool, white_address: str) -> None:
        super().__init__(name)
        self.is_admin = admin
        self.signer = Signer(secret_key)
        self.white_addresses = WhiteAddresses([white_address])
        self.when_white = WhiteAddressPrincipal(name)
        self.default_topic = self.default_group = Right(0)
        self.topics: dict[str, Right] = {}
        self.groups: dict[str, Right] = {}

    def denial(self, requirement: Requirement, host: str) -> str:
        if requirement.type is ResourceType.CLUSTER or not requirement.rights & (Right.PUB | Right.SUB):
            return f"account {self.name} is no admin"
        if requirement.type is ResourceType.GROUP:
            owned = self.groups.get(requirement.name, self.default_group)
        elif requirement.name == TRACE_TOPIC and requirement.rights is Right.PUB:
            return ""  # every account may send message traces, as in Apache RocketMQ
        else:
            default = Right(0) if requirement.is_internal else self.default_topic
            owned = self.topics.get(requirement.name, default)
        if owned & requirement.rights:
            return ""
        wanted = " or ".join(right.name or "" for right in requirement.rights & (Right.PUB | Right.SUB))
        return f"account {self.name} has no permission {wanted} for {requirement}"


@dataclass(frozen=True)
class PlainAcl:
    white_addresses: WhiteAddresses
    accounts: Mapping[str, PlainAccount]

    @property
    def has_admin(self) -> bool:
        return any(account.is_admin for account in self.accounts.values())


@dataclass(frozen=True)
class PlainAclFile:
    white_patterns: tuple[str, ...] = ()
    accounts: Mapping[str, PlainAccount] = field(default_factory=dict)
    version: Mapping[str, int] = field(default_factory=lambda: {"counter": 0, "timestamp": 0})


def parse_file(document: Any, path: Path) -> PlainAclFile:
    """Parse a YAML document. ConfigError with the place."""
    if document is None:
        return PlainAclFile()
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected the keys {', '.join(sorted(_FILE_KEYS))}")
    _check_keys(document, _FILE_KEYS, str(path))
    patterns = tuple(_texts(document.get("globalWhiteRemoteAddresses"), f"{path}: globalWhiteRemoteAddresses"))
    accounts: dict[str, PlainAccount] = {}
    try:
        WhiteAddresses(patterns)
        for number, entry in enumerate(_list(document.get("accounts"), f"{path}: accounts"), 1):
            account = parse_account(entry, f"account {number}")
            if account.name in accounts:
                raise ConfigError(f"accessKey {account.name} occurs twice")
            accounts[account.name] = account
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return PlainAclFile(patterns, accounts, parse_version(document))


def parse_account(entry: Any, where: str) -> PlainAccount:
    """Return the account of one entry. ConfigError, never containing a secret key."""
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: expected accessKey, secretKey and permissions")
    access_key, secret_key = _text(entry.get("accessKey")), _text(entry.get("secretKey"))
    if len(access_key) < MIN_KEY_LENGTH:
        raise ConfigError(f"{where}: accessKey {access_key!r} needs more than {MIN_KEY_LENGTH - 1} characters")
    where = f"account {access_key}"
    _check_keys(entry, _ACCOUNT_KEYS, where)
    if len(secret_key) < MIN_KEY_LENGTH:
        raise ConfigError(f"{where}: secretKey needs more than {MIN_KEY_LENGTH - 1} characters")
    admin = _text(entry.get("admin")).lower() or "false"
    if admin not in ("true", "false"):
        raise ConfigError(f"{where}: admin is {admin!r}; expected true or false")
    try:
        account = PlainAccount(
            access_key, secret_key, admin=admin == "true", white_address=_text(entry.get("whiteRemoteAddress"))
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: whiteRemoteAddress: {error}") from None
    account.default_topic = _permission(entry.get("defaultTopicPerm"), f"{where}: defaultTopicPerm")
    account.default_group = _permission(entry.get("defaultGroupPerm"), f"{where}: defaultGroupPerm")
    account.topics = _permissions(entry.get("topicPerms"), f"{where}: topicPerms")
    account.groups = _permissions(entry.get("groupPerms"), f"{where}: groupPerms")
    return account


def parse_version(document: Mapping[str, Any]) -> dict[str, int]:
    version = document.get("dataVersion")
    first = version[0] if isinstance(version, list) and version and isinstance(version[0], dict) else {}

    def number(name: str) -> int:
        text = _text(first.get(name))
        return int(text) if text.isascii() and text.isdigit() else 0

    return {"counter": number("counter"), "timestamp": number("timestamp")}


def _permissions(value: Any, where: str) -> dict[str, Right]:
    found: dict[str, Right] = {}
    for text in _texts(value, where):
        name, equals, permission = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{where}: {text!r}; expected name=permission, for example Orders=PUB|SUB")
        found[name.strip()] = _permission(permission, f"{where}: {name.strip()}")
    return found


def _permission(value: Any, where: str) -> Right:
    text = _text(value) or "DENY"
    if text not in PERMISSIONS:
        raise ConfigError(f"{where}: permission {text!r}; expected DENY, PUB, SUB or PUB|SUB")
    return PERMISSIONS[text]


def _check_keys(entry: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(str(key) for key in entry.keys() - known)
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; known keys are {', '.join(sorted(known))}")


def _texts(value: Any, where: str) -> list[str]:
    return [_text(one) for one in _list(value, where)]


def _list(value: Any, where: str) -> Iterable[Any]:
    if value is None or value == "":
        return ()
    if not isinstance(value, list):
        raise ConfigError(f"{where}: expected a list, one `- ` per line")
    return value


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()
