"""Properties files and the dataclasses they fill."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola import settings
from rucola.broker.config import BrokerConfig
from rucola.errors import ConfigError
from rucola.namesrv.config import NamesrvConfig
from rucola.proxy.config import ProxyConfig
from rucola.remoting.budget import ConnectionLimits
from rucola.remoting.tls_config import TlsConfig
from rucola.settings import Bytes, Port, Range
from rucola.store.config import StoreConfig
from support.errors import raises


class Flush(enum.Enum):
    ASYNC_FLUSH = 0
    SYNC_FLUSH = 1


@dataclass
class Config:
    broker_name: str = "a"
    listen_port: int = 10911
    auto_create_topic_enable: bool = True
    flush_disk_type: Flush = Flush.ASYNC_FLUSH
    broker_ip1: str = field(default="", metadata={"key": "brokerIP1"})


def test_a_properties_file_is_parsed_as_by_java() -> None:
    text = (
        "# comment\n! comment too\n\n"
        "plain=value\n"
        "  spaced  =  value with spaces  \n"
        "colon:value\n"
        "blank value\n"
        "alone\n"
        "empty=\n"
        "equals=a=b=c\n"
        "long=127.0.0.1:9876;\\\n    127.0.0.1:9877\n"
        "even\\\\=backslash\\\\\n"
        "key\\ with\\=signs=v\n"
        "escapes=\\t\\u00e4\\q\n"
        "twice=1\ntwice=2\n"
    )
    assert settings.parse(text) == {
        "plain": "value",
        "spaced": "value with spaces  ",
        "colon": "value",
        "blank": "value",
        "alone": "",
        "empty": "",
        "equals": "a=b=c",
        "long": "127.0.0.1:9876;127.0.0.1:9877",
        "even\\": "backslash\\",
        "key with=signs": "v",
        "escapes": "\täq",
        "twice": "2",
    }


def test_windows_line_ends_and_a_final_continuation_are_parsed() -> None:
    assert settings.parse("a=1\r\nb=2\\") == {"a": "1", "b": "2"}


@given(st.text())
def test_any_text_can_be_parsed(text: str) -> None:
    settings.parse(text)


PLAIN = st.dictionaries(
    st.text("abcXYZ.-_09", min_size=1), st.text("abcXYZ:;=/.,_- 09äß\U0001f600").map(str.strip), max_size=5
)


@given(PLAIN)
def test_rendered_settings_are_parsed(properties: dict[str, str]) -> None:
    assert settings.parse(settings.render(properties)) == properties


def test_values_are_replaced_in_place() -> None:
    text = "# ours\nbrokerName = broker-a\n\n  maxMessageSize: 1\\\n   00\n! note\nlast=\\\\x\n"
    changed = settings.replaced(text, {"maxMessageSize": "200", "deleteWhen": "04;16"})
    assert changed == "# ours\nbrokerName = broker-a\n\nmaxMessageSize=200\n! note\nlast=\\\\x\ndeleteWhen=04;16\n"
    assert settings.replaced("a=1\nb=2\na=3\n", {"a": "4"}) == "\nb=2\na=4\n"
    assert settings.replaced("", {"a": "1"}) == "a=1\n"


@pytest.mark.parametrize("text", ["a=b # c", "a = b\t#c", "a b \\\n   # c"])
def test_a_comment_after_a_value_is_refused_in_a_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"# first\n{text}\n")
    with raises(ConfigError, subject="a") as caught:
        settings.read(path)
    assert f"{path}, line 2" in str(caught.value)


def test_a_sign_of_a_comment_that_belongs_to_a_value_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(settings.replaced("a=b\nc=1\n", {"a": "number #1"}) + "color=#fff\nurl=http://host/#top\n")
    assert settings.read(path) == {"a": "number #1", "c": "1", "color": "#fff", "url": "http://host/#top"}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("# one\nlistenPort=1\n\nlistenPort=x\n", ", line 4"),
        ("brokerName=a\\\n  b\nlistenPort=x", ", line 3"),
        ("brokerName=a", ""),
    ],
)
def test_an_error_names_file_and_line(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    with raises(ConfigError, subject="listenPort") as caught, settings.located(path):
        settings.fill(Config, {"listenPort": "x"})
    assert str(caught.value).startswith(f"{path}{where}: listenPort=x")


@given(PLAIN, PLAIN)
def test_replaced_values_are_parsed(before: dict[str, str], changes: dict[str, str]) -> None:
    changed = settings.replaced(settings.render(before), changes)
    assert settings.parse(changed) == before | changes


def test_keys_fill_fields_of_every_type() -> None:
    properties = {
        "brokerName": "b",
        "listenPort": " 1 ",
        "autoCreateTopicEnable": "False",
        "flushDiskType": "SYNC_FLUSH",
        "brokerIP1": "10.0.0.1",
        "someKeyOfApache": "7",
    }
    config = settings.fill(Config, properties)
    assert config == Config("b", 1, False, Flush.SYNC_FLUSH, "10.0.0.1")
    assert settings.unknown([Config], properties) == ["someKeyOfApache"]
    assert settings.to_properties(config) == {
        "brokerName": "b",
        "listenPort": "1",
        "autoCreateTopicEnable": "false",
        "flushDiskType": "SYNC_FLUSH",
        "brokerIP1": "10.0.0.1",
    }


def test_a_former_spelling_is_read_but_the_current_one_wins() -> None:
    @dataclass
    class Sizes:
        mapped_size: int = field(default=1, metadata={"former": ("mapedSize",)})

    assert settings.fill(Sizes, {"mapedSize": "2"}) == Sizes(2)
    assert settings.fill(Sizes, {"mapedSize": "2", "mappedSize": "3"}) == Sizes(3)
    assert settings.unknown([Sizes], {"mapedSize": "2"}) == []
    assert settings.to_properties(Sizes(4)) == {"mappedSize": "4"}


def test_an_unknown_key_names_the_nearest() -> None:
    assert settings.without_effect([Config], {"theirKey"}, {"brokerName": "a", "theirKey": "1"}) == ["theirKey"]
    for key, near in (("brokerNam", "brokerName"), ("LISTENPORT", "listenPort"), ("theirKeys", "theirKey")):
        with pytest.raises(ConfigError, match=f"^{key}: there is no such setting; did you mean {near}\\?$"):
            settings.without_effect([Config], {"theirKey"}, {key: "1"})
    with raises(ConfigError, subject="zzz"):
        settings.without_effect([Config], (), {"zzz": "1"})


def test_the_file_overrides_defaults() -> None:
    assert settings.fill(Config, {"brokerName": "b"}, broker_name="x", listen_port=0) == Config("b", 0)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("listenPort", "many", "an integer"),
        ("autoCreateTopicEnable", "1", "true or false"),
        ("flushDiskType", "NEVER", "one of ASYNC_FLUSH, SYNC_FLUSH"),
    ],
)
def test_an_unreadable_value_names_its_key(key: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}={value}: expected {expected}$"):
        settings.fill(Config, {key: value})


@dataclass
class Bounded:
    size: Annotated[Bytes, Range(10, 20)] = 10
    port: Port = 0
    bits: Annotated[int, Range(2, 6, step=2)] = 6

    def __post_init__(self) -> None:
        settings.check(self)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("size", 9, "size=9: expected 10 to 20 bytes"),
        ("size", 2**40, f"size={2**40}: expected 10 to 20 bytes"),
        ("port", -1, "port=-1: expected 0 to 65535"),
        ("bits", 0, "bits=0: expected 2, 4 or 6"),
        ("bits", 3, "bits=3: expected 2, 4 or 6"),
    ],
)
def test_a_number_out_of_range_is_an_error_that_names_the_range(key: str, value: int, why: str) -> None:
    for fails in (lambda: settings.changes(Bounded, {key: str(value)}), lambda: Bounded(**{key: value})):
        with pytest.raises(ConfigError) as caught:
            fails()
        assert str(caught.value) == why
    assert settings.changes(Bounded, {"size": "20", "bits": "4"}) == {"size": 20, "bits": 4}


@dataclass(frozen=True)
class Limits:
    max_connections: Port = 0
    reserved: Port = 256


@dataclass
class ServerOfLimits:
    name: str = "a"
    limits: Limits = Limits(reserved=64)


def test_a_group_keeps_the_defaults_of_the_class_that_declares_it() -> None:
    assert settings.fill(ServerOfLimits, {"maxConnections": "7"}).limits == Limits(7, reserved=64)
    assert settings.changes(ServerOfLimits, {"maxConnections": "7"}) == {"limits": Limits(7, reserved=64)}
    assert settings.changes(ServerOfLimits, {"name": "b"}) == {"name": "b"}


def test_a_changed_group_keeps_its_other_values() -> None:
    running = ServerOfLimits(limits=Limits(7, reserved=8))
    assert settings.changes(running, {"reserved": "9"}) == {"limits": Limits(7, reserved=9)}
    assert settings.fill(ServerOfLimits, {"reserved": "9"}, limits=Limits(7)).limits == Limits(7, reserved=9)


def test_a_name_server_reserves_fewer_descriptors_than_a_broker() -> None:
    given = {"maxConnections": "7"}
    assert settings.fill(NamesrvConfig, given).connection_limits == ConnectionLimits(7, reserved_descriptors=64)
    assert settings.fill(BrokerConfig, given).connection_limits == ConnectionLimits(7, reserved_descriptors=256)
    with raises(ConfigError, subject="maxUnsentBytes"):
        ConnectionLimits(max_unsent_bytes=0)


@pytest.mark.parametrize("kind", [BrokerConfig, StoreConfig, NamesrvConfig, ProxyConfig, ConnectionLimits, TlsConfig])
def test_every_number_of_a_configuration_has_a_range(kind: type) -> None:
    hints = get_type_hints(kind, include_extras=True)
    plain = get_type_hints(kind)
    numbers = [field.name for field in dataclasses.fields(kind) if plain[field.name] is int]
    assert numbers
    assert [name for name in numbers if settings.range_of(hints[name]) is None] == []
