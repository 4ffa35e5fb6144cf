"""Credentials of gRPC calls: the field `authorization`, which clients of RocketMQ 5 send with each call.

    MQv2-HMAC-SHA1 Credential=ACCESS_KEY, SignedHeaders=x-mq-date-time, Signature=HEX

The signature is HMAC-SHA1 with the secret key over the field x-mq-date-time alone. Neither method nor content are
signed, and clients write local times, which are not compared: who can read a call can send others in its name. TLS
prevents that.

Corresponds to `DefaultAuthenticationContextBuilder` of Apache RocketMQ 5.3.
"""

from __future__ import annotations

from binascii import Error, b2a_base64, unhexlify
from typing import Final

from rucola.acl.signed_content import SignedContent

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"


def call_content(authorization: str, date_time: str) -> SignedContent:
    """Return what the client signed, with an empty access key or signature if it is missing or malformed."""
    _, _, pairs = authorization.partition(" ")
    fields = dict(pair.strip().partition("=")[::2] for pair in pairs.split(","))
    try:
        signature = b2a_base64(unhexlify(fields.get("Signature", "")), newline=False).decode()
    except (Error, ValueError):
        signature = ""
    access_key = fields.get("Credential", "").partition("/")[0]
    return SignedContent(access_key, signature, date_time.encode("utf-8", "replace"), b"")
