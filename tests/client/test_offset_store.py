"""Broadcasting: every member gets everything, and keeps its own progress in a file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from rucola import fastjson
from rucola.client import ClientInstance, MessageExt, MessageModel, PullLimits
from rucola.client.consumer.assigned_queue import AssignedQueue
from rucola.client.consumer.offset_store import LocalOffsetStore
from rucola.client.consumer.process_queue import ReadAhead
from rucola.domain.queue import MessageQueue
from rucola.errors import ConfigError
from support.cluster import Tally
from support.consumers import cluster_with_topic, consumer_of, send, take

BROADCASTING = MessageModel.BROADCASTING
QUEUE = MessageQueue("T", "broker-a", 0)
AS_APACHE_WRITES = (
    b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"T"\n\t\t}:5\n\t}\n}'
)


def own_at(offset: int, queue_id: int = 0) -> AssignedQueue:
    return AssignedQueue(MessageQueue("T", "broker-a", queue_id), offset, PullLimits(), ReadAhead())


async def test_a_member_resumes_at_the_offsets_of_its_file(tmp_path: Path) -> None:
    options: dict[str, Any] = {"message_model": BROADCASTING, "offsets_root": tmp_path / "offsets"}
    async with (
        cluster_with_topic(tmp_path, range(20)) as (running, _),
        ClientInstance(running.namesrv, client_id="one") as instance,
    ):
        async with consumer_of(running, instance=instance, **options) as consumer:
            assert len(consumer.operations.process_queues()) == 4  # and no retry topic
            assert sorted(await take(consumer, 20)) == list(range(20))
        content = (tmp_path / "offsets" / "one" / "c" / "offsets.json").read_bytes()
        table = fastjson.loads(content)["offsetTable"]
        assert sum(table.values()) == 20
        assert {tuple(sorted(key.as_dict())) for key in table} == {("brokerName", "queueId", "topic")}
        await send(running, range(20, 23))
        async with consumer_of(running, instance=instance, **options) as consumer:
            assert sorted(await take(consumer, 3)) == [20, 21, 22]


async def test_two_broadcasting_members_both_get_every_message(tmp_path: Path) -> None:
    async with (
        cluster_with_topic(tmp_path, range(10)) as (running, _),
        ClientInstance(running.namesrv, client_id="one") as first,
        ClientInstance(running.namesrv, client_id="two") as second,
    ):
        options: dict[str, Any] = {"message_model": BROADCASTING, "offsets_root": tmp_path / "offsets"}
        async with (
            consumer_of(running, instance=first, **options) as one,
            consumer_of(running, instance=second, **options) as two,
        ):
            assert sorted(await take(one, 10)) == sorted(await take(two, 10)) == list(range(10))


async def test_a_failure_in_broadcasting_is_logged_and_not_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: Tally[bytes] = Tally()

    async def listen(message: MessageExt) -> None:
        seen.add(message.body)
        if message.body == b"1":
            raise ValueError("not today")

    async with cluster_with_topic(tmp_path, range(3), queues=1) as (running, _):
        options: dict[str, Any] = {"message_model": BROADCASTING, "offsets_root": tmp_path / "offsets"}
        consumer = consumer_of(running, **options)
        assert consumer.instance.client_id.endswith("@DEFAULT")
        assert consumer.operations.settings()["messageModel"] == "BROADCASTING"
        consumer.listen(listen)
        async with consumer:
            await seen.reach(3)
        async with consumer_of(running, **options) as again:
            assert [message async for message in again.messages(idle_timeout_ms=50)] == []
        assert sorted(seen.items) == [b"0", b"1", b"2"]
    assert "broadcasting consumers do not retry" in caplog.text


async def test_a_file_of_apaches_client_is_read(tmp_path: Path) -> None:
    offsets = LocalOffsetStore(tmp_path, "10.0.0.1@DEFAULT", "g")
    offsets.path.parent.mkdir(parents=True)
    offsets.path.write_bytes(AS_APACHE_WRITES)
    assert await offsets.read(QUEUE) == 5
    assert await offsets.read(MessageQueue("T", "broker-a", 1)) is None


async def test_unassigned_queues_stay_in_the_file(tmp_path: Path) -> None:
    offsets = LocalOffsetStore(tmp_path, "me", "g")
    await offsets.commit(own_at(3, 0), own_at(4, 1))
    await offsets.commit(own_at(7, 1))
    again = LocalOffsetStore(tmp_path, "me", "g")
    assert await again.read(QUEUE) == 3
    assert await again.read(MessageQueue("T", "broker-a", 1)) == 7


async def test_a_damaged_file_falls_back_to_its_backup(tmp_path: Path) -> None:
    offsets = LocalOffsetStore(tmp_path, "me", "g")
    await offsets.commit(own_at(3))
    await offsets.commit(own_at(4))
    offsets.path.write_bytes(b'{"offsetTable":')
    assert await LocalOffsetStore(tmp_path, "me", "g").read(QUEUE) == 3
    offsets.path.with_name("offsets.json.bak").write_bytes(b"?")
    with pytest.raises(ConfigError):
        await LocalOffsetStore(tmp_path, "me", "g").read(QUEUE)


async def test_damaged_offsets_are_set_aside_if_the_application_allows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = LocalOffsetStore(tmp_path, "me", "g")
    await offsets.commit(own_at(3))
    offsets.path.write_bytes(b'{"offsetTable":')
    begun = LocalOffsetStore(tmp_path, "me", "g", discard_damaged=True)
    assert await begun.read(QUEUE) is None
    assert offsets.path.with_name("offsets.json.damaged").read_bytes() == b'{"offsetTable":'
    assert str(offsets.path) in caplog.text
    await begun.commit(own_at(1))
    assert await LocalOffsetStore(tmp_path, "me", "g").read(QUEUE) == 1


async def test_an_unwritable_directory_is_logged_and_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "me").write_text("a file where a directory should be")
    offsets = LocalOffsetStore(tmp_path, "me", "g")
    offsets._offsets = {}
    own = own_at(3)
    await offsets.commit(own)
    assert own.committed is None
    (tmp_path / "me").unlink()
    await offsets.commit(own)
    assert own.committed == 3
    assert "offsets.json failed, retrying" in caplog.text
    assert "works again" in caplog.text
