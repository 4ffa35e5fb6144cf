"""The signed content of requests is the same in one pass of the header and through a dictionary."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.access import Caller, Reason, Refused
from rucola.acl import signature
from rucola.acl import signed_content as module
from rucola.acl.access_control import AccessControl, PolicyAccounts
from rucola.acl.challenge import Challenge
from rucola.acl.credentials import Credentials
from rucola.acl.signature import signed_text
from rucola.acl.signed_content import MAX_KINDS, remember, signed_content
from rucola.acl.user_store import UserStore
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand, SerializeType, decode_command
from rucola.protocol.send import SendMessageRequestHeaderV2
from support.access import ADMIN

NAMES = st.text(max_size=6) | st.sampled_from(["a", "b", "topic", "\uff5e", "\U00010000", "ext", "field0", "__class__"])
HASHING = {"copy", "update", "digest", "b2a_base64", "compare_digest", "_compare_digest"}
FIELDS = st.dictionaries(NAMES, st.text(max_size=6) | st.just('T\x01a\x02b\\"\n'), max_size=8)


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_kinds", {})
    monkeypatch.setattr(module, "_structs", {})


def header(fields: dict[str, str], code: int = 310, language: str = "JAVA") -> bytes:
    members = {"code": code, "extFields": fields, "flag": 0, "language": language, "opaque": 1, "version": 409}
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()


def received(content: bytes, body: bytes = b"") -> RemotingCommand:
    return decode_command(content, body, SerializeType.JSON)


@given(fields=FIELDS, other=FIELDS, order=st.randoms(use_true_random=False))
def test_both_ways_give_the_same(fields: dict[str, str], other: dict[str, str], order: object) -> None:
    """Whatever was remembered before, and in whatever order the fields come."""
    module._kinds.clear()
    module._structs.clear()
    own = {"AccessKey": "alice", "Signature": "s="}
    remember(received(header(other | own)), other | own)
    shuffled = [*(fields | own).items()]
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    content = signed_content(received(header(dict(shuffled))))
    assert content.text == signed_text(fields | own)
    assert (content.access_key, content.signature) == ("alice", "s=")
    if fields.keys() == other.keys() and all(name.isidentifier() and name.isascii() for name in fields):
        assert content.fields is None  # in one pass


@pytest.mark.parametrize(
    "content",
    [
        b'{"code":310,"extFields":{"AccessKey":"alice","a":"1","b":"2","Signature":"s"},"language":"JAVA"}',
        b'{"code":310,"extFields":{"AccessKey":"alice","Signature":"s"},"language":"JAVA"}',
        b'{"code":310,"extFields":{"AccessKey":"alice","a":1,"Signature":"s"},"language":"JAVA"}',
        b'{"code":310,"extFields":{"AccessKey":"alice","a":null,"Signature":"s"},"language":"JAVA"}',
        b'{"code":310,"extFields":{"AccessKey":"alice","a":"1"},"language":"JAVA"}',
        b'{"code":310,"extFields":{"a":"1"},"language":"JAVA"}',
        b'{"code":310,"extFields":null,"language":"JAVA"}',
        b'{"code":310,"language":"JAVA"}',
        b"{\"code\":310,'extFields':{'AccessKey':'alice',a:'1',\"Signature\":'s'},\"language\":\"JAVA\"}",
        b'{"code":310,"extFields":{"AccessKey":"alice","a":"\xff","Signature":"s"},"language":"JAVA"}',
        b'{"code":310,"extFields":{"AccessKey":"alice","a":"\\ud800","Signature":"s"},"language":"JAVA"}',
        b'{"code":310,"extFields":{"AccessKey":"alice","a":"0","a":"1","Signature":"s"},"language":"JAVA"}',
        b'{"code":310,"extFields":{"a":"0"},"extFields":{"AccessKey":"alice","a":"1","Signature":"s"},"language":"JAVA"}',
        b'{"code":310,"x":{"extFields":{"a":"0"}},"extFields":{"AccessKey":"alice","a":"1","Signature":"s"},"language":"JAVA"}',
    ],
)
def test_the_text_is_of_the_fields_that_the_handler_gets(content: bytes) -> None:
    """Also of headers that do not have exactly the expected names, or have them twice, or are no JSON."""
    command = received(content)
    expected = signed_text(command.ext_fields)
    kinds = {"AccessKey": "alice", "a": "1", "Signature": "s"}
    remember(received(header(kinds)), kinds)
    found = signed_content(received(content))
    assert found.text == expected
    assert found.access_key == command.ext_fields.get("AccessKey", "")


@pytest.fixture
def control(tmp_path: Path) -> AccessControl:
    first = json.dumps({"username": "operator", "password": "secret of the operator"})
    return AccessControl(PolicyAccounts(UserStore(tmp_path / "auth.json", "DefaultCluster", first)))


def signed(keys: Credentials, **fields: str) -> RemotingCommand:
    keys.sign(fields, b"body")
    return received(header(fields), b"body")


def test_only_authentic_requests_are_remembered(control: AccessControl) -> None:
    caller = Caller("10.0.0.1:1")
    for keys in (Credentials("operator", "a wrong secret"), Credentials("stranger", "secret")):
        with pytest.raises(Refused):
            control.authenticate(caller, signed(keys, topic="T"), Challenge())
    assert not module._kinds
    control.authenticate(caller, signed(ADMIN, topic="T"), Challenge())
    assert signed_content(signed(ADMIN, topic="U")).fields is None


@pytest.mark.parametrize("how", ["signed", "unsigned", "version 2"])
def test_an_unknown_access_key_is_refused_as_a_wrong_signature_is(control: AccessControl, how: str) -> None:
    """With the same answer, after the same hashing, which is nearly all of the work."""

    def answer(access_key: str) -> tuple[Reason, str, list[str]]:
        keys = Credentials(access_key, "a wrong secret")
        command = received(header({"topic": "T", **({"AccessKey": access_key} if how == "unsigned" else {})}))
        if how != "unsigned":
            fields = dict(command.ext_fields)
            keys.sign(fields, b"", command.code, Challenge() if how == "version 2" else None)
            command = received(header(fields))
        calls = list[str]()

        def note(frame: object, event: str, called: Any) -> None:
            if event == "c_call" and called.__name__ in HASHING:
                calls.append(called.__name__)

        sys.setprofile(note)
        try:
            with pytest.raises(Refused) as raised:
                control.authenticate(Caller("10.0.0.1:1"), command, Challenge())
        finally:
            sys.setprofile(None)
        return raised.value.reason, str(raised.value).replace(access_key, "KEY"), calls

    answer("operator")  # names of ext fields are remembered with the first request
    known = answer("operator")
    assert answer("stranger") == known
    assert known[0] is Reason.DENIED
    assert "compare_digest" in known[2]


def test_every_request_is_verified_also_in_one_pass(control: AccessControl) -> None:
    caller = control.authenticate(Caller("10.0.0.1:1"), signed(ADMIN, a="T", b="1"), Challenge())
    assert control.authenticate(caller, signed(ADMIN, a="U", b="1"), Challenge()) is caller
    good = json.loads(signed(ADMIN, a="U", b="1").json_header)["extFields"]
    for changed in (
        good | {"a": "V"},
        good | {"Signature": ""},
        good | {"Signature": good["Signature"][:-1]},
        good | {"c": ""},  # nothing to sign, but another field
        {name: value for name, value in good.items() if name != "Signature"},
        good | {"AccessKey": "stranger"},
    ):
        command = received(header(changed), b"body")
        if changed == good | {"c": ""}:  # an empty value changes no signed text: Apache accepts it, too
            assert control.authenticate(caller, command, Challenge()) is caller
            continue
        with pytest.raises(Refused):
            control.authenticate(caller, command, Challenge())
    with pytest.raises(Refused):
        control.authenticate(caller, received(header(good), b"another body"), Challenge())


def test_the_number_of_structs_is_bounded(control: AccessControl) -> None:
    for number in range(MAX_KINDS + 50):
        command = signed(ADMIN, **{f"name{number}": "x"})
        control.authenticate(Caller("10.0.0.1:1"), command, Challenge())
    assert len(module._structs) == MAX_KINDS
    assert signed_content(signed(ADMIN, name9="x")).text == signed_text({"AccessKey": "operator", "name9": "x"})


def test_long_names_and_languages_are_not_remembered(control: AccessControl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the account is known: 1,000 headers of 256 KiB would otherwise stay in memory."""
    monkeypatch.setattr(signature, "_orders", {})
    for number in range(20):
        stranger = signed(Credentials("stranger", "secret"), **{f"n{number}" + "x" * 50_000: ""})
        with pytest.raises(Refused):
            control.authenticate(Caller("10.0.0.1:1"), stranger, Challenge())
        control.authenticate(Caller("10.0.0.1:1"), signed(ADMIN, **{f"n{number}" + "x" * 50_000: ""}), Challenge())
    assert not signature._orders
    assert not module._structs
    fields = {"topic": "T"}
    ADMIN.sign(fields, b"")
    control.authenticate(Caller("10.0.0.1:1"), received(header(fields, language="x" * 50_000)), Challenge())
    assert not module._kinds


def test_the_typed_header_is_kept_for_the_handler() -> None:
    send = {
        "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "5", "h": "0", "i": "", "j": "0",
        "k": "false", "m": "false", "AccessKey": "alice", "Signature": "s",
    }  # fmt: skip
    received(header(send)).decode_header(SendMessageRequestHeaderV2)
    command = received(header(send))
    assert signed_content(command).fields is not None
    remember(command, send)
    assert signed_content(command).fields is None
    assert command.received_ext.__class__ is SendMessageRequestHeaderV2
    assert command.code == RequestCode.SEND_MESSAGE_V2
