"""docs/from-rocketmq.md: its names exist, and what it says of files and rules is so in the code."""

from __future__ import annotations

import re
import struct
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rucola.client import ConsumeFromWhere, MessageExt, sync
from rucola.message.hashing import index_hash, string_hash
from rucola.message.properties import UNIQ_KEY
from rucola.protocol.query import QueryMessageRequestHeader
from rucola.store.config import StoreConfig
from rucola.store.index import ENTRY, HEADER_SIZE, IndexFile, index_key
from rucola.testing.rocketmq import RocketMQ
from support.documents import Document, check_command
from support.installation import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs" / "extensions"))

import apache

PAGE = Document.read("docs/from-rocketmq.md")
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.sections()["Names"].text.splitlines()
    if line.startswith("| `")
]


@cache
def classes() -> dict[str, list[str]]:
    """The modules of each class, by reading all of them."""
    return apache.classes()


def resolve(name: str) -> Any:
    """Return the module, class or method with a dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        parent = import_module(module)
    except ModuleNotFoundError:
        parent = resolve(module)
    return getattr(parent, attribute)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_names_of_a_row_exist(row: list[str]) -> None:
    _, name, command, _, _ = row
    assert resolve(name.strip("`")) is not None
    for line in re.findall(r"`([^`]+)`", command):
        check_command(line)


def test_the_names_that_articles_use_are_on_the_page() -> None:
    listed = " ".join(row[0] for row in ROWS)
    for name in (
        "getOffsetInQueueByTime", "rollNextFile", "putKey", "selectPhyOffset", "resetRetryTopic",
        "DefaultMQPushConsumer", "AllocateMessageQueueConsistentHash",
    ):  # fmt: skip
        assert name in listed


def test_the_modules_of_every_class_exist() -> None:
    found = classes()
    assert len(found) > 150
    assert found["IndexFile"] == ["rucola.message.hashing.index_hash", "rucola.store.index"]
    assert "rucola.broker.interceptors.SlaveRefusal" in found["AdminBrokerProcessor"]
    for name in {name for names in found.values() for name in names}:
        try:
            import_module(name)
        except ModuleNotFoundError:
            resolve(name)


def test_a_class_of_the_first_table_that_a_docstring_names_is_in_the_second_with_the_same_package() -> None:
    """So that the table by hand cannot drift from the docstrings."""
    found = classes()
    for row in ROWS:
        one = re.match(r"`(\w+)", row[0])[1]  # type: ignore[index]
        if one in found and row[1].split(".")[2].islower():  # not a public name, such as rucola.client.PushConsumer
            assert any(row[1].strip("`").startswith(name) for name in found[one]), (row[1], found[one])


def test_every_difference_that_docstrings_name_is_a_sentence_with_its_details() -> None:
    found = apache.differences()
    assert found["rucola.namesrv.kv"].startswith("The name server does not start if the\nfile cannot be read.")
    assert found["rucola.broker.delivery.due_delivery"].startswith("maxMessageSize does not apply"), "a name stays"
    assert found["rucola.broker.services.publish"].count("\n- ") == 5
    marked = [
        path
        for path in (REPOSITORY / "src" / "rucola").rglob("*.py")
        if re.search(r"Deliberate\s+difference", path.read_text(encoding="utf-8"))
    ]
    assert len(found) == len(marked) - 1, "all but election.py, which differs from Patroni"


def test_the_index_file_of_the_page(tmp_path: Path) -> None:
    assert [ENTRY[name].itemsize for name in ENTRY.names or ()] == [4, 8, 4, 4]
    assert StoreConfig(tmp_path).max_index_num == 20_000_000
    file = IndexFile.create(tmp_path / "20261127000000000", 3, max_count=4)
    while not file.is_full:
        file.put(file.count * 3, physical_offset=file.count * 100, store_timestamp=1_000_000 * file.count)
    header = struct.unpack(">qqqqii", file.file.map[:HEADER_SIZE])
    entries, slots = file.entries(), file.slots()
    file.file.close()
    assert header == (1_000_000, 3_000_000, 100, 300, 1, 4), "six fields; the next entry has number 4"
    assert [int(one) for one in entries["physical_offset"]] == [100, 200, 300], "one fewer than there is room for"
    assert [int(one) for one in entries["previous"]] == [0, 1, 2]
    assert [int(one) for one in entries["seconds"]] == [0, 1000, 2000]
    assert int(slots[0]) == 3, "the last entry of the slot"


def test_keys_and_hashes_of_the_page() -> None:
    assert index_key("Orders", "order-1") == "Orders#order-1"
    assert index_hash("polygenelubricants") == 0, "Math.abs of the smallest int is negative, and becomes 0"
    assert string_hash("polygenelubricants") == -(1 << 31)
    assert UNIQ_KEY == "UNIQ_KEY"
    assert "_UNIQUE_KEY_QUERY" in QueryMessageRequestHeader.__struct_encode_fields__


def test_a_new_topic_has_four_queues_and_the_first_retry_waits_for_level_3(rocketmq: RocketMQ) -> None:
    with sync.Producer("p", rocketmq.namesrv) as producer:
        assert producer.send(sync.Message("Orders", b"x")).is_ok
        assert len(producer.queues("Orders")) == 4
    with sync.PushConsumer("g", rocketmq.namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET) as consumer:
        consumer.subscribe("Orders")
        consumer.listen(fail)
        (retry,) = rocketmq.wait_for_messages("SCHEDULE_TOPIC_XXXX")
    assert (retry.queue_id, retry.properties["DELAY"]) == (2, "3")
    assert StoreConfig(Path()).message_delay_level.split()[2] == "10s"


def fail(message: MessageExt) -> None:
    raise ValueError
