"""Credentials of a client: access key, secret key, and an optional security token.

The default is from the environment:

    ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY, ROCKETMQ_SECURITY_TOKEN    the keys themselves
    ROCKETMQ_SIGNATURE_VERSION                                           1 or 2, see below
    ROCKETMQ_CREDENTIALS_FILE                                            a file with them

A file has the format of Apache's `conf/tools.yml`; the last two lines are optional:

    accessKey: RocketMQ
    secretKey: 12345678
    securityToken: token
    signatureVersion: 1

Secret key and token must not occur in any `repr`, log line or error.

Corresponds to `SessionCredentials` and `AclClientRPCHook` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from rucola.acl.challenge import Challenge
from rucola.acl.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, Signer
from rucola.acl.yaml_file import read_yaml
from rucola.errors import ConfigError

ACCESS_KEY_VARIABLE: Final = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "ROCKETMQ_SECRET_KEY"  # noqa: S105 - its name
SECURITY_TOKEN_VARIABLE: Final = "ROCKETMQ_SECURITY_TOKEN"  # noqa: S105 - its name
SIGNATURE_VERSION_VARIABLE: Final = "ROCKETMQ_SIGNATURE_VERSION"
CREDENTIALS_FILE_VARIABLE: Final = "ROCKETMQ_CREDENTIALS_FILE"


class Credentials:
    """The keys of one user. Signature version 2 prevents replay and needs Rucola's servers. ConfigError if invalid."""

    __slots__ = ("_secret_key", "_security_token", "_signer", "access_key", "signature_version")

    def __init__(
        self, access_key: str, secret_key: str, security_token: str | None = None, signature_version: int = 1
    ) -> None:
        if not access_key or not secret_key:
            raise ConfigError("credentials need an access key and a secret key")
        if signature_version not in (1, 2):
            raise ConfigError(
                f"signatureVersion is {signature_version}; expected 1 (Apache's) or 2", subject="signatureVersion"
            )
        self.signature_version = signature_version
        self.access_key = access_key
        self._secret_key = secret_key
        self._security_token = security_token or None
        self._signer = Signer(secret_key)

    def sign(
        self, fields: MutableMapping[str, str], body: bytes, code: int = 0, challenge: Challenge | None = None
    ) -> None:
        """Add key, token and signature to the ext fields: version 2, with the request code, if there is a challenge."""
        fields[ACCESS_KEY] = self.access_key
        if self._security_token is not None:
            fields[SECURITY_TOKEN] = self._security_token
        if challenge is None:
            fields[SIGNATURE] = self._signer.sign(fields, body)
        else:
            challenge.sign(self._signer, code, fields, body)

    def authorization(self, date_time: str) -> str:
        """Return the field `authorization` of a gRPC call with this x-mq-date-time."""
        signature = self._signer.sign_call(date_time).hex().upper()
        return f"MQv2-HMAC-SHA1 Credential={self.access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"

    def proof(self, challenge: bytes) -> bytes:
        """Return the proof for a peer's challenge that this user has the secret key."""
        return self._signer.proof(challenge, self.access_key)

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"

    def __reduce__(self) -> tuple[type[Credentials], tuple[str, str, str | None, int]]:
        return Credentials, (self.access_key, self._secret_key, self._security_token, self.signature_version)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Credentials) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__()[1])


def credentials_of_file(path: Path) -> Credentials:
    """Return the credentials in a file like tools.yml. ConfigError if it cannot be read or lacks a key."""
    document = read_yaml(path)
    keys = document if isinstance(document, Mapping) else {}
    access_key, secret_key, token = (_text(keys.get(name)) for name in ("accessKey", "secretKey", "securityToken"))
    if not access_key or not secret_key:
        raise ConfigError(f"{path}: expected the lines `accessKey: ...` and `secretKey: ...`", subject=path)
    return Credentials(access_key, secret_key, token, _version(_text(keys.get("signatureVersion"))))


def default_credentials(environment: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return the credentials of the environment, or None. ConfigError if incomplete, or if the file cannot be read."""
    access_key, secret_key = environment.get(ACCESS_KEY_VARIABLE), environment.get(SECRET_KEY_VARIABLE)
    if access_key and secret_key:
        version = _version(environment.get(SIGNATURE_VERSION_VARIABLE, ""))
        return Credentials(access_key, secret_key, environment.get(SECURITY_TOKEN_VARIABLE), version)
    if access_key or secret_key:
        present, missing = ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
        if secret_key:
            present, missing = missing, present
        raise ConfigError(f"the environment has {present} but not {missing}: set both, or neither", subject=missing)
    path = environment.get(CREDENTIALS_FILE_VARIABLE)
    return credentials_of_file(Path(path)) if path else None


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit()) and text:
        raise ConfigError(f"signatureVersion is {text[:20]!r}; expected 1 (Apache's) or 2", subject="signatureVersion")
    return int(text or 1)


def _text(value: object) -> str:
    """Return a YAML scalar as text: `secretKey: 12345678` is a number in YAML."""
    return "" if value is None else str(value).strip()
