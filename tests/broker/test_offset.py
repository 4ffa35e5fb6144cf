"""Where a group stands, and where one begins that the broker has never seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rucola import fastjson, slices
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.message.record import decode_many
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.topic import TopicRequestHeader
from rucola.store.config_files import config_path, read_config, write_config
from support.broker_peer import broker_peer


async def test_a_new_group_starts_a_young_queue_at_its_beginning(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        assert await peer.committed("new") == 0
        for _ in range(3):
            await peer.send()
        assert await peer.committed("new") == 0


async def test_a_new_group_has_no_offset_in_an_old_queue_until_it_commits(tmp_path: Path) -> None:
    """So that its clients decide, by CONSUME_FROM_LAST_OFFSET and its like. Nothing is in memory here."""

    async with broker_peer(tmp_path, store={"access_message_in_memory_max_ratio": 0}) as peer:
        assert await peer.committed("new") == 0, "an empty queue is young"
        await peer.send()
        assert await peer.committed("new") is None
        assert await peer.committed("new", queue_id=1) == 0
        await peer.commit(1, "new")
        assert await peer.committed("new") == 1


async def test_an_offset_beyond_the_end_of_its_queue_is_lowered_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a power cut, which took messages that a group had consumed, and not what it had committed."""

    async with broker_peer(tmp_path) as peer:
        for number in range(3):
            await peer.send(b"%d" % number)
    path = config_path(tmp_path, "consumerOffset")
    write_config(path, {"offsetTable": {"T@new": {0: 5, 1: 7}, "T@old": {0: 2, 1: -1}}})
    async with broker_peer(tmp_path) as peer:
        assert await peer.committed("new") == 3
        assert await peer.committed("new", queue_id=1) == 0
        await peer.send(b"in the place of one that was lost")
        (message,) = decode_many((await peer.pull(queue_offset=3)).body)
        assert message.body == b"in the place of one that was lost"
    assert "group new: offset of T:0 reset from 5 to 3, the end of the queue" in caplog.messages
    written = read_config(path)["offsetTable"]
    assert (written["T@new"], written["T@old"]) == ({0: 3, 1: 0}, {0: 2, 1: -1})


async def test_an_offset_belongs_to_the_topic_and_group_that_its_commit_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Names are joined by `@` in the file: a group of other names than any client's must not come out of it."""
    async with broker_peer(tmp_path) as peer:
        for _ in range(3):
            await peer.send()
    path = config_path(tmp_path, "consumerOffset")
    # As Apache's broker writes it: a group whose name contains the separator, and entries of nobody.
    write_config(path, {"offsetTable": {"T@team@shop": {0: 2}, "T@": {0: 1}, "@g": {0: 1}, "T": {0: 1}}})

    async with broker_peer(tmp_path) as peer:

        async def commit(topic: str, group: str, queue_id: int = 0) -> tuple[int, int]:
            by_pull = await peer.pull(consumer_group=group, topic=topic, queue_id=queue_id, sys_flag=5, commit_offset=1)
            return by_pull.code, (await peer.commit(1, group, topic, queue_id)).code

        async def table() -> Any:
            return fastjson.loads((await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)["offsetTable"]

        for topic, group in (("T@a", "g"), ("T@team", "shop"), ("", "g"), ("T", "g@h"), ("T", ""), ("T", "@")):
            assert ResponseCode.SUCCESS not in await commit(topic, group), (topic, group)
        assert await table() == {"T@team@shop": {0: 2}}
        assert (await commit("T", "g"))[1] == (await commit("T", "team@shop", 1))[1] == ResponseCode.SUCCESS
        groups = await peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequestHeader(topic="T"))
        assert sorted(fastjson.loads(groups.body)["groupList"]) == ["g", "team@shop"]
        assert await table() == {"T@team@shop": {0: 2, 1: 1}, "T@g": {0: 1}}
    assert {key for key in ("T@", "@g", "T") for line in caplog.messages if f"{key!r} are ignored" in line} == {
        "T@", "@g", "T"
    }  # fmt: skip


def test_offsets_that_change_during_a_copy_are_in_it_or_in_the_next(tmp_path: Path) -> None:
    """Copies are made in slices; one may be abandoned, and one that began earlier is never written over a newer."""
    table = ConsumerOffsetTable(tmp_path / "consumerOffset.json")
    for number in range(100):
        table.commit(f"g{number}", "T", 0, 1)
    abandoned, older = table.snapshot_steps(), table.snapshot_steps()
    for steps in (abandoned, older):
        for _ in range(50):
            next(steps)
    abandoned.close()
    table.commit("g0", "T", 0, 7)
    table.remove_group("g99")
    slices.run(table.snapshot_steps())()
    slices.run(older)()
    again = ConsumerOffsetTable(tmp_path / "consumerOffset.json")
    again.load(None)
    assert again.table() == table.table()
    table.commit("g0", "T", 0, 8)
    slices.run(table.snapshot_steps())()
    again.load(None)
    assert again.get("g0", "T", 0) == 8


async def test_a_write_of_offsets_that_failed_is_repeated(tmp_path: Path) -> None:
    table = ConsumerOffsetTable(tmp_path / "config" / "consumerOffset.json")
    table.commit("g", "T", 0, 1)
    (tmp_path / "config").touch()
    with pytest.raises(OSError, match="config"):
        slices.run(table.snapshot_steps())()
    (tmp_path / "config").unlink()
    slices.run(table.snapshot_steps())()
    assert "T@g" in (tmp_path / "config" / "consumerOffset.json").read_text()


def test_the_file_lists_queues_by_id_as_apaches_does(tmp_path: Path) -> None:
    table = ConsumerOffsetTable(tmp_path / "consumerOffset.json")
    for queue_id in (3, 0, 10, 2):
        table.commit("g", "T", queue_id, 1)
    slices.run(table.snapshot_steps())()
    assert list(read_config(tmp_path / "consumerOffset.json")["offsetTable"]["T@g"]) == [0, 2, 3, 10]
