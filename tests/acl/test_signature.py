"""Signatures as Apache's clients compute them, and credentials."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.acl.credentials import Credentials, credentials_of_file, default_credentials
from rucola.acl.signature import Signer, other_signed_text, signed_text
from rucola.errors import ConfigError
from rucola.protocol.command import decode_command
from support.errors import raises

GOLDEN = Path(__file__).parents[1] / "golden" / "signed.jsonl"
FIELDS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6)


def expected(content: bytes, secret: str) -> str:
    return b64encode(hmac.digest(secret.encode(), content, "sha1")).decode()


def is_authentic(secret: str, fields: dict[str, str], body: bytes) -> bool:
    """Whether one of the two texts that clients sign has the signature among the fields."""
    texts = [signed_text(fields), other_signed_text(fields)]
    return any(Signer(secret).verifies(text, body, fields["Signature"]) for text in texts if text is not None)


def test_the_content_is_the_values_in_the_order_of_the_names_and_the_body() -> None:
    fields = {"topic": "Orders", "AccessKey": "RocketMQ", "queueId": "0", "Signature": "ignored"}
    assert Signer("12345678").sign(fields, b"hello") == expected(b"RocketMQ0Ordershello", "12345678")


def test_the_signature_of_apaches_test() -> None:
    """AclSignerTest of Apache RocketMQ 4.9.8: the same text and key."""
    text = b"Hello RocketMQ"
    assert Signer("SecretKey").sign({}, text) == expected(text, "SecretKey")


@given(fields=FIELDS, body=st.binary(max_size=50), secret=st.text(min_size=1, max_size=100))
def test_what_is_signed_verifies_and_nothing_else(fields: dict[str, str], body: bytes, secret: str) -> None:
    signed = fields | {"Signature": Signer(secret).sign(fields, body)}
    assert is_authentic(secret, signed, body)
    assert not is_authentic(secret, signed, body + b"x")
    assert not is_authentic(secret, signed | {"zzz": "x"}, body)
    assert not is_authentic(secret + "x", signed, body)
    assert not is_authentic(secret, fields | {"Signature": "größer"}, body)


def test_names_are_ordered_as_java_orders_them() -> None:
    """By UTF-16 units: U+10000 is D800 DC00 there, and comes before U+FF5E."""
    fields = {"\uff5e": "second", "\U00010000": "first"}
    assert Signer("12345678").sign(fields, b"") == expected(b"firstsecond", "12345678")


@pytest.mark.parametrize("is_signed", [True, False])
def test_the_mark_of_a_query_by_unique_key_may_be_signed_or_not(is_signed: bool) -> None:
    content = b"AkeyValue" + (b"true" if is_signed else b"")
    fields = {"AccessKey": "AkeyValue", "_UNIQUE_KEY_QUERY": "true", "Signature": expected(content, "12345678")}
    assert is_authentic("12345678", fields, b"")


def test_credentials_sign_with_their_token_and_show_no_secret() -> None:
    credentials = Credentials("RocketMQ", "12345678", "a token")
    fields = {"topic": "Orders"}
    credentials.sign(fields, b"")
    assert fields["SecurityToken"] == "a token"
    assert is_authentic("12345678", fields, b"")
    assert "12345678" not in repr(credentials) + repr(credentials.__dict__ if hasattr(credentials, "__dict__") else "")
    assert "token" not in repr(credentials)
    assert pickle.loads(pickle.dumps(credentials)) == credentials


def test_signing_again_replaces_the_signature() -> None:
    """A request that is sent again carries one signature."""
    credentials = Credentials("RocketMQ", "12345678")
    fields = {"topic": "Orders"}
    credentials.sign(fields, b"")
    first = dict(fields)
    credentials.sign(fields, b"")
    assert fields == first


def test_a_file_has_the_format_of_tools_yml(tmp_path: Path) -> None:
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: rocketmq2\nsecretKey: 00123456\n")
    assert credentials_of_file(path) == Credentials("rocketmq2", "00123456")
    path.write_text("accessKey: rocketmq2\n")
    with raises(ConfigError, subject=str(path)):
        credentials_of_file(path)
    path.write_text("accessKey: x\nsecretKey: 'the secret\n")
    with raises(ConfigError, subject=str(path)) as raised:
        credentials_of_file(path)
    assert "the secret" not in str(raised.value)


def test_the_environment_has_credentials(tmp_path: Path) -> None:
    assert default_credentials({}) is None
    both = {"ROCKETMQ_ACCESS_KEY": "a", "ROCKETMQ_SECRET_KEY": "s", "ROCKETMQ_SECURITY_TOKEN": "t"}
    assert default_credentials(both) == Credentials("a", "s", "t")
    with raises(ConfigError, subject="ROCKETMQ_ACCESS_KEY"):
        default_credentials({"ROCKETMQ_SECRET_KEY": "hidden"})
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: a\nsecretKey: s\n")
    assert default_credentials({"ROCKETMQ_CREDENTIALS_FILE": str(path)}) == Credentials("a", "s")


def test_a_long_key_is_hashed_as_hmac_prescribes() -> None:
    secret = "k" * 100
    assert Signer(secret).sign({}, b"x") == b64encode(hmac.new(secret.encode(), b"x", hashlib.sha1).digest()).decode()


@pytest.mark.parametrize("line", GOLDEN.read_text(encoding="utf-8").splitlines())
def test_requests_that_apaches_client_signed_verify(line: str) -> None:
    """Recorded from mqadmin of 4.9.8, with the keys of its tools.yml."""
    recorded = json.loads(line)
    body = b64decode(recorded["body"])
    command = decode_command(recorded["header"].encode(), body, 0)
    fields = command.signed_fields
    assert fields["AccessKey"] == "operator"
    assert fields == command.ext_fields
    secret = "secret of the operator"
    assert is_authentic(secret, fields, body)
    assert not is_authentic(secret, fields, body + b"x")
    for name in fields.keys() - {"Signature"}:
        assert not is_authentic(secret, fields | {name: fields[name] + "x"}, body) or name == "_UNIQUE_KEY_QUERY"
