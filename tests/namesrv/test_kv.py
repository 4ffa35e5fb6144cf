"""The key-value table and its file."""

from __future__ import annotations

from pathlib import Path

from rucola.access import Refused
from rucola.errors import ConfigError
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.kv import KVConfig
from support.errors import raises


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
    with raises(ConfigError, subject=str(path)):
        KVConfig(path).load()
    assert path.read_text() == '{"configTable":{"ns":'


def test_an_unwritable_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    table = KVConfig(tmp_path / "file" / "kvConfig.json")
    with raises(ConfigError, subject=str(tmp_path / "file" / "kvConfig.json")):
        table.put("n", "k", "v")


def test_the_table_is_bounded(tmp_path: Path) -> None:
    """Sizes count in UTF-8; a refused put changes nothing, also not the file."""
    path = tmp_path / "kv.json"
    kv = KVConfig(path, lambda: NamesrvConfig(max_kv_size=20, max_kv_entries=5))
    kv.put("n", "key", "é" * 4)
    written = path.read_bytes()
    with raises(Refused, key="maxKvSize", found=21, limit=20):
        kv.put("n", "other", "1234")
    with raises(Refused, key="maxKvSize", found=21):
        kv.put("n", "key", "1" * 17)
    assert (kv.namespace("n"), path.read_bytes()) == ({"key": "é" * 4}, written)
    kv.put("n", "key", "1")
    for number in range(3):
        kv.put("n", str(number), "1")
    with raises(Refused, key="maxKvEntries", found=6, limit=5):
        kv.put("n", "3", "1")
    kv.put("n", "2", "2")
    kv.delete("n", "2")
    kv.put("n", "3", "1")


def test_empty_namespaces_make_room() -> None:
    """A deletion leaves its namespace, so invented ones would fill the table for ever."""
    kv = KVConfig(limits=lambda: NamesrvConfig(max_kv_entries=4))
    for number in range(10):
        kv.put(f"n{number}", "k", "v")
        assert kv.namespace(f"n{number}") == {"k": "v"}
        kv.delete(f"n{number}", "k")
    assert kv.namespace("n9") == {}


def test_a_file_above_the_limits_is_kept_and_can_shrink(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    before = KVConfig(path)
    for number in range(4):
        before.put("n", str(number), "value")
    kv = KVConfig(path, lambda: NamesrvConfig(max_kv_size=10, max_kv_entries=2))
    kv.load()
    assert len(kv.namespace("n") or {}) == 4
    kv.put("n", "0", "v")
    with raises(Refused, key="maxKvSize", found=22):
        kv.put("n", "0", "va")
    for number in range(3):
        kv.delete("n", str(number))
    kv.put("n", "3", "VALUE")
    again = KVConfig(path)
    again.load()
    assert again.namespace("n") == {"3": "VALUE"}
