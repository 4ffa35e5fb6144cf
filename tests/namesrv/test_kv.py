"""The key-value table and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.errors import ConfigError
from rucola.namesrv.kv import KVConfig


def test_values_live_under_namespace_and_key() -> None:
    table = KVConfig()
    assert table.get("n", "k") is None
    assert table.namespace("n") is None
    table.put("n", "k", "v1")
    table.put("n", "k", "v2")
    table.put("m", "k", "other")
    assert table.get("n", "k") == "v2"
    assert table.namespace("n") == {"k": "v2"}
    table.delete("n", "k")
    table.delete("n", "k")
    table.delete("nobody", "k")
    assert table.get("n", "k") is None
    assert table.namespace("n") == {}, "an emptied namespace is still there, as at Apache's"


def test_the_file_has_apaches_format_and_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    table = KVConfig(path)
    table.load()
    table.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4")
    table.put("ns", "Schlüssel", "Wert")
    assert path.read_bytes().decode() == (
        '{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"},"ns":{"Schlüssel":"Wert"}}}'
    )
    table.delete("ns", "Schlüssel")
    again = KVConfig(path)
    again.load()
    assert again.namespace("ORDER_TOPIC_CONFIG") == {"T": "broker-a:4;broker-b:4"}
    assert again.namespace("ns") == {}
    assert not path.with_name("kvConfig.json.tmp").exists()


def test_a_file_written_by_fastjson_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{"ns":{1:"one","two":"2"}},\n}')
    table = KVConfig(path)
    table.load()
    assert table.namespace("ns") == {"1": "one", "two": "2"}


def test_an_invalid_file_stops_the_start_and_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"ns":')
    with pytest.raises(ConfigError, match=r"kvConfig\.json is no key-value table"):
        KVConfig(path).load()
    assert path.read_text() == '{"configTable":{"ns":'


def test_an_unwritable_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    table = KVConfig(tmp_path / "file" / "kvConfig.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        table.put("n", "k", "v")
