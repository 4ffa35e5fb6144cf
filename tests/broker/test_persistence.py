"""Table persistence: writes run in a thread, changes are coalesced, responses wait for the write."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rucola.broker.tables.persistence import TablePersistence
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.group import DeleteSubscriptionGroupRequestHeader
from rucola.protocol.offset import QueueRequestHeader
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.protocol.topic import TopicRequestHeader
from rucola.store.config_files import ConfigFile, config_path
from support.broker_peer import broker_peer
from support.errors import raises
from support.faults import refusing
from support.peer import Peer


class Table:
    """A number in a config file."""

    def __init__(self, path: Path) -> None:
        self.file = ConfigFile(path)
        self.number = 0
        self.asked: list[int] = []

    def snapshot_writer(self) -> Any:
        number = self.number
        self.asked.append(number)
        return self.file.prepare_write(lambda: {"number": number})


class SlowDisk:
    """Blocks every fsync until `may_go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_asked, self.may_go = threading.Event(), threading.Event()
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            self.is_asked.set()
            assert self.may_go.wait(20)
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


async def test_changes_during_a_write_share_the_next_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, disk, writing = Table(tmp_path / "t.json"), SlowDisk(monkeypatch), TablePersistence()
    writing.schedule(table.snapshot_writer)
    await asyncio.to_thread(disk.is_asked.wait, 20)
    for table.number in range(1, 100):
        writing.schedule(table.snapshot_writer)
    waiting = asyncio.ensure_future(writing.wait_persisted())
    await asyncio.sleep(0)
    assert (table.asked, waiting.done()) == ([0], False)
    disk.may_go.set()
    await waiting
    assert (table.asked, table.file.read()) == ([0, 99], {"number": 99})
    table.number = 100
    await writing.stop(table.snapshot_writer)
    assert table.file.read() == {"number": 100}


async def test_waiters_of_a_failed_table_write_get_the_error(tmp_path: Path) -> None:
    broken, sound, writing = Table(tmp_path / "broken.json"), Table(tmp_path / "sound.json"), TablePersistence()
    obstacle = tmp_path / "broken.json"
    obstacle.mkdir()
    await writing.wait_persisted()  # nothing to write yet
    writing.schedule(broken.snapshot_writer)
    with pytest.raises(IsADirectoryError):
        await writing.wait_persisted()
    writing.schedule(sound.snapshot_writer)
    writing.schedule(broken.snapshot_writer)
    with pytest.raises(IsADirectoryError):
        await writing.wait_persisted()
    assert sound.file.read() == {"number": 0}, "a failed write keeps no other table from its file"
    obstacle.rmdir()
    await writing.wait_persisted()
    assert broken.file.read() == {"number": 0}, "a failed write is retried"


async def test_a_response_after_a_failed_write_waits_for_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, writing = [Table(tmp_path / "1.json"), Table(tmp_path / "2.json")], TablePersistence()
    response = RemotingCommand.request(0).response(ResponseCode.SUCCESS)

    async def reply() -> RemotingCommand:
        replied = writing.when_persisted(lambda: response)
        return replied if isinstance(replied, RemotingCommand) else await replied

    with refusing(monkeypatch, "fsync", errno.ENOSPC):
        for table in tables:
            writing.schedule(table.snapshot_writer)
        for wait in (reply, writing.wait_persisted, reply):
            with raises(OSError, errno=errno.ENOSPC):
                await wait()
    assert await reply() is response
    assert [table.file.read() for table in tables] == [{"number": 0}] * 2
    assert writing.when_persisted(lambda: response) is response, "no task if nothing is left"


async def test_no_message_is_acknowledged_or_retried_before_its_new_topic_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_peer(tmp_path) as peer:
        sent = await peer.send(topic="TBW102")
        offset = int(sent.ext_fields["msgId"][16:], 16)

        async def send() -> int:
            return (await peer.send(topic="New", default_topic="TBW102", default_topic_queue_nums=1)).code

        async def send_back() -> int:
            header = ConsumerSendMsgBackRequestHeader(offset=offset, group="G", delay_level=3, origin_topic="TBW102")
            return (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code

        with refusing(monkeypatch, "fsync", errno.ENOSPC):
            for ask in (send, send, send_back, send_back):
                assert await ask() != ResponseCode.SUCCESS
        assert (await send(), await send_back()) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
        for topic, queue_id in (("New", 0), ("SCHEDULE_TOPIC_XXXX", 2)):
            end = await peer.ask(RequestCode.GET_MAX_OFFSET, QueueRequestHeader(topic=topic, queue_id=queue_id))
            assert end.ext_fields["offset"] == "1", "what was refused was not stored"
        written = json.loads(config_path(tmp_path, "topics").read_text())["topicConfigTable"]
        assert {"New", "%RETRY%G"} <= written.keys()


@pytest.mark.parametrize("what", ["a topic", "a topic goes", "a first message", "a group", "a group goes"])
async def test_a_response_waits_for_its_file_without_blocking_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def ask(peer: Peer) -> ResponseCode:
        if what == "a topic":
            answer = await peer.alter_topic("New")
        elif what == "a topic goes":
            answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic="New"))
        elif what == "a first message":
            answer = await peer.send(topic="New", default_topic="TBW102", default_topic_queue_nums=1)
        elif what == "a group":
            answer = await peer.alter_group("New")
        else:
            gone = DeleteSubscriptionGroupRequestHeader(group_name="New", remove_offset="false")
            answer = await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)
        return ResponseCode(answer.code)

    name, table = ("subscriptionGroup", "subscriptionGroupTable") if "group" in what else ("topics", "topicConfigTable")

    async with broker_peer(tmp_path) as peer:
        if "goes" in what:
            await peer.alter_topic("New")
            await peer.alter_group("New")
        disk = SlowDisk(monkeypatch)
        asking = asyncio.ensure_future(ask(peer))
        await asyncio.to_thread(disk.is_asked.wait, 20)
        assert (await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).code == ResponseCode.SUCCESS
        assert not asking.done()
        disk.may_go.set()
        assert await asking == ResponseCode.SUCCESS
        written = json.loads(config_path(tmp_path, name).read_text())[table]
        assert ("New" in written) == ("goes" not in what)
