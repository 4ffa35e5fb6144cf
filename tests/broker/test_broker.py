"""What a broker does beyond the recorded answers: waiting pulls, durability, restarts, and requests that are wrong."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest

from rucola.domain.topic import PERM_WRITE
from rucola.errors import RemotingError
from rucola.message import Message
from rucola.message.batch import encode_batch
from rucola.message.record import decode_many
from rucola.protocol import pull
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand, SerializeType
from rucola.protocol.query import QueryMessageRequestHeader
from rucola.protocol.send import SendMessageRequestHeader
from rucola.protocol.topic import TopicRequestHeader
from rucola.store import mapped_file
from rucola.store.config import FlushDiskType
from rucola.store.kernel_flush import KernelFlush
from support.broker_peer import broker_peer, heartbeat
from support.errors import raises
from support.faults import flush_in_threads, patch_sync_pages
from support.peer import send_header

# Waiting pulls.


async def test_held_pull_is_answered_at_its_deadline(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        answer = await peer.pull(queue_offset=1, sys_flag=pull.SUBSCRIPTION | pull.SUSPEND, suspend_timeout_millis=1)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.ext_fields == {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "1",
            "minOffset": "0",
            "maxOffset": "1",
        }


async def test_held_pulls_are_answered_when_the_broker_stops(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        held = asyncio.ensure_future(
            peer.pull(queue_offset=1, sys_flag=pull.SUBSCRIPTION | pull.SUSPEND, suspend_timeout_millis=60_000)
        )
        await peer.pull()
        await peer.broker.stop()
        assert (await asyncio.wait_for(held, 10)).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize("change", ["delete", "close"])
async def test_held_pull_is_refused_after_its_topic_was_deleted_or_made_unreadable(tmp_path: Path, change: str) -> None:
    """At its deadline as when a message comes; as Apache's broker does, which processes the request once more."""

    async with broker_peer(tmp_path) as peer:
        await peer.send()
        waits_ms = 60_000 if change == "close" else 2000
        suspend = {"sys_flag": pull.SUBSCRIPTION | pull.SUSPEND, "suspend_timeout_millis": waits_ms}
        held = asyncio.ensure_future(peer.pull(queue_offset=1, **suspend))
        await peer.pull()  # answered after the pull before it has been taken in, being on one connection
        if change == "delete":
            header = TopicRequestHeader(topic="T")
            assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == ResponseCode.SUCCESS
        else:
            assert (await peer.alter_topic(perm=PERM_WRITE)).code == ResponseCode.SUCCESS
            assert (await peer.send()).code == ResponseCode.SUCCESS
        answer = await asyncio.wait_for(held, 10)
        expected = {"delete": ResponseCode.TOPIC_NOT_EXIST, "close": ResponseCode.NO_PERMISSION}
        assert (answer.code, answer.body) == (expected[change], b"")


async def test_pull_commits_the_offset_that_it_carries(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        await peer.pull(sys_flag=pull.SUBSCRIPTION | pull.COMMIT_OFFSET, commit_offset=1)
        assert await peer.committed() == 1


# Durability.


@pytest.mark.parametrize("flushing", ["kernel", "thread"])
async def test_sync_flush_answers_after_the_record_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushing: str
) -> None:
    synced: list[object] = []
    sync_pages, result = mapped_file.sync_pages, KernelFlush.result

    def note(mapped: mmap, begin: int, end: int) -> None:
        sync_pages(mapped, begin, end)
        if flushing == "thread":
            synced.append(end)

    def note_result(kernel: KernelFlush) -> OSError | None:
        error = result(kernel)
        assert error is None
        synced.append(kernel)
        return error

    monkeypatch.setattr(mapped_file, "sync_pages", note)
    monkeypatch.setattr(KernelFlush, "result", note_result)
    if flushing == "thread":
        flush_in_threads(monkeypatch)
    # No flush by the clock, so that only the send can have asked for one.
    slow_clock = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "flush_interval_commit_log": 3_600_000}
    async with broker_peer(tmp_path, store=slow_clock) as peer:
        await peer.send()
        before = len(synced)
        assert (await peer.send()).code == ResponseCode.SUCCESS
        assert len(synced) > before


@pytest.mark.parametrize("flushing", ["kernel", "thread"])
async def test_send_fails_after_a_failed_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushing: str) -> None:
    is_broken = False
    sync_pages, result = mapped_file.sync_pages, KernelFlush.result

    def break_down(mapped: mmap, begin: int, end: int) -> None:
        if is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync_pages(mapped, begin, end)

    def break_down_in_kernel(kernel: KernelFlush) -> OSError | None:
        error = result(kernel)
        return OSError(errno.EIO, os.strerror(errno.EIO)) if is_broken else error

    if flushing == "thread":
        flush_in_threads(monkeypatch)
        patch_sync_pages(monkeypatch, break_down)
    monkeypatch.setattr(KernelFlush, "result", break_down_in_kernel)
    sync_flush = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with broker_peer(tmp_path, sync_flush, check_store=False) as peer:
        assert (await peer.send(b"safe")).code == ResponseCode.SUCCESS
        is_broken = True
        lost = await peer.send(b"not safe")
        assert lost.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert "Input/output error" in (lost.remark or "")
        is_broken = False  # the disk says yes again, but nobody knows what it has
        refused = await peer.send()
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "Input/output error" in (refused.remark or "")
        assert [m.body for m in decode_many((await peer.pull()).body)][:1] == [b"safe"]
    assert (tmp_path / "abort").exists()  # the next start looks at everything anew
    async with broker_peer(tmp_path) as peer:
        await peer.send()


def no_flush(patch: pytest.MonkeyPatch) -> None:
    """Have every flush fail."""

    def fail(mapped: mmap, begin: int, end: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    patch_sync_pages(patch, fail)
    patch.setattr(KernelFlush, "submit", lambda *_: False)


async def test_message_without_wait_is_answered_before_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_peer(tmp_path, {"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as peer:
        assert (await peer.send()).code == ResponseCode.SUCCESS
        with monkeypatch.context() as broken:
            no_flush(broken)
            answers = await asyncio.gather(*(peer.send(properties="WAIT\x01false\x02") for _ in range(3)))
            assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}


async def test_a_batch_of_one_waits_for_the_flush_whatever_its_message_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_flush = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with broker_peer(tmp_path, sync_flush, check_store=False) as peer:
        assert (await peer.send()).code == ResponseCode.SUCCESS
        no_flush(monkeypatch)
        body = encode_batch([Message("T", b"one", properties={"WAIT": "false"})])
        answer = await peer.send_batch(body, properties="")
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT


# Restarts.


async def test_messages_offsets_and_topics_survive_a_restart(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        for body in (b"one", b"two"):
            assert (await peer.send(body, queue_id=2)).code == ResponseCode.SUCCESS
        await peer.commit(1, queue_id=2)
    async with broker_peer(tmp_path, auto_create_topic_enable=False) as peer:
        assert await peer.committed(queue_id=2) == 1
        pulled = decode_many((await peer.pull(queue_id=2)).body)
        assert [(message.queue_offset, message.body) for message in pulled] == [(0, b"one"), (1, b"two")]
        assert (await peer.send(queue_id=2)).ext_fields["queueOffset"] == "2"


async def test_start_on_a_taken_port_names_the_port(tmp_path: Path) -> None:
    async with broker_peer(tmp_path / "one") as peer:
        port = peer.broker.config.listen_port
        with raises(RemotingError, subject=f"127.0.0.1:{port}"):
            async with broker_peer(tmp_path / "other", listen_port=port):
                pytest.fail("the second broker must not start")


# Groups.


async def test_pull_by_the_group_subscription(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        nobody = await peer.pull(sys_flag=0)
        assert nobody.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("c", "Other"))
        assert (await peer.pull(sys_flag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("c"))
        assert (await peer.pull(sys_flag=0)).code == ResponseCode.SUCCESS
        assert (await peer.pull(sys_flag=0, sub_version=2)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST


# Requests that are wrong.


@pytest.mark.parametrize(
    ("fields", "code", "why"),
    [
        ({"queue_id": 99}, ResponseCode.SYSTEM_ERROR, r"queueId\[99\] is illegal"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "SCHEDULE_TOPIC_XXXX.* is forbidden"),
        ({"topic": "No Such"}, ResponseCode.SYSTEM_ERROR, "'No Such' contains other characters"),
        ({"topic": "x" * 128}, ResponseCode.SYSTEM_ERROR, "has 128 characters; 127 are allowed"),
        ({"topic": "New", "default_topic": "None"}, ResponseCode.TOPIC_NOT_EXIST, r"topic\[New\] not exist"),
        ({"properties": "DELAY\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL, "DELAY"),
        ({"properties": "TIMER_DELAY_SEC\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL, "TIMER_DELAY_SEC is 'soon'"),
        ({"topic": "rmq_sys_wheel_timer"}, ResponseCode.NO_PERMISSION, "rmq_sys_wheel_timer.* is forbidden"),
        ({"properties": "a\x01" + "x" * 32_767}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
        ({"flag": 2**31}, ResponseCode.MESSAGE_ILLEGAL, ""),
    ],
)
async def test_illegal_send_is_refused_with_a_reason(
    tmp_path: Path, fields: dict[str, Any], code: ResponseCode, why: str
) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        refused = await peer.send(**fields)
        assert refused.code == code
        assert re.search(why, refused.remark or "")
        assert (await peer.send()).ext_fields["queueOffset"] == "1"


@pytest.mark.parametrize("serialize_type", SerializeType)
async def test_missing_and_malformed_fields_are_named(tmp_path: Path, serialize_type: SerializeType) -> None:
    async with broker_peer(tmp_path) as peer:
        for ext_fields, name in (({"topic": "T"}, "queueId"), ({"topic": "T", "queueId": "zero"}, "queueId")):
            command = RemotingCommand.request(RequestCode.GET_MAX_OFFSET)
            command.ext_fields.update(ext_fields)
            command.serialize_type = serialize_type
            answer = await peer.client.invoke(peer.broker.address, command)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert name in (answer.remark or "")
            assert "GET_MAX_OFFSET" in (answer.remark or "")
        unknown = await peer.ask(9999)
        assert (unknown.code, unknown.remark) == (3, " request type 9999 not supported")


@pytest.mark.parametrize("says", ["true", "TRUE", "1"])
async def test_batch_that_only_its_header_declares_is_split(tmp_path: Path, says: str) -> None:
    async with broker_peer(tmp_path) as peer:
        body = encode_batch([Message("T", b"one"), Message("T", b"two")])
        for number, code in enumerate((RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE)):
            header = send_header(batch=says)
            if code == RequestCode.SEND_MESSAGE:
                header = SendMessageRequestHeader(**{name: getattr(header, name) for name in header.__struct_fields__})
            answer = await peer.ask(code, header, body)
            assert (answer.code, answer.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, str(2 * number))
        assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header(batch="0"), b"three")).code == 0
        assert [m.body for m in decode_many((await peer.pull()).body)] == [b"one", b"two", b"one", b"two", b"three"]


@pytest.mark.parametrize("cut", [1, 5, 20, 24])
async def test_damaged_batch_is_refused_whole(tmp_path: Path, cut: int) -> None:
    async with broker_peer(tmp_path) as peer:
        body = encode_batch([Message("T", b"one"), Message("T", b"two")])
        refused = await peer.send_batch(body[:-cut])
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await peer.send_batch(body)).code == 0
        assert len(decode_many((await peer.pull()).body)) == 2


@pytest.mark.parametrize("pairs", [{"DELAY": "1"}, {"TRAN_MSG": "true"}, {"TIMER_DELIVER_MS": "1795217265087"}])
async def test_batch_with_a_delay_or_transaction_is_refused_whole(tmp_path: Path, pairs: dict[str, str]) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        body = encode_batch([Message("T", b"one"), Message("T", b"two", properties=pairs)])
        refused = await peer.send_batch(body)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert next(iter(pairs)) in (refused.remark or "")
        assert len(decode_many((await peer.pull()).body)) == 1


@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_properties_of_a_batch_apply_to_its_messages(tmp_path: Path, code: int) -> None:
    """As Apache appends them: those of the header come last and win, and WAIT is a matter of the request."""

    async with broker_peer(tmp_path) as peer:
        messages = [Message("T", b"x", properties={"UNIQ_KEY": "u1", "a": "1"}), Message("T", b"y", keys="own")]
        header = send_header(batch="true", properties="TAGS\x01out\x02KEYS\x01ok\x02WAIT\x01true\x02UNIQ_KEY\x01u9\x02")
        assert (await peer.ask(code, header, encode_batch(messages))).code == ResponseCode.SUCCESS
        shared = {"TAGS": "out", "KEYS": "ok", "UNIQ_KEY": "u9", "CLUSTER": "DefaultCluster"}
        tagged = await peer.pull(subscription="out")
        assert [m.properties for m in decode_many(tagged.body)] == [{"a": "1"} | shared, shared]
        assert (await peer.pull(subscription="other")).code == ResponseCode.PULL_RETRY_IMMEDIATELY
        for key, count in (("ok", 2), ("u9", 2), ("u1", 0), ("own", 0)):
            asked = QueryMessageRequestHeader(topic="T", key=key, max_num=32, begin_timestamp=0, end_timestamp=1 << 62)
            answer = await peer.ask(RequestCode.QUERY_MESSAGE, asked)
            assert len(decode_many(answer.body)) == count, key


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("DELAY\x011\x02", "DELAY"),
        ("DELAY\x01soon\x02", "DELAY is 'soon'"),
        ("TRAN_MSG\x01true\x02", "TRAN_MSG"),
        ("TIMER_DELAY_SEC\x015\x02", "TIMER_DELAY_SEC"),
        ("a\x01" + "v" * 32_740, "32767 bytes"),
    ],
)
async def test_batch_whose_header_has_a_delay_or_transaction_is_refused(tmp_path: Path, text: str, why: str) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        body = encode_batch([Message("T", b"one"), Message("T", b"two", tags="A")])
        for code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2):
            refused = await peer.ask(code, send_header(batch="true", properties=text), body)
            assert (refused.code, why in (refused.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True), refused.remark
        for text_taken in ("DELAY\x010\x02", "DELAY\x01-1\x02", "TRAN_MSG\x01false"):
            taken = await peer.ask(code, send_header(batch="true", properties=text_taken), body)
            assert taken.code == ResponseCode.SUCCESS, taken.remark
        assert len(decode_many((await peer.pull()).body)) == 7


async def test_send_to_a_read_only_topic_is_refused(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        assert (await peer.alter_topic(perm=4)).code == ResponseCode.SUCCESS
        assert (await peer.send()).code == ResponseCode.NO_PERMISSION
        assert (await peer.alter_topic(write_queue_nums=0)).code == ResponseCode.SUCCESS
        refused = await peer.send(queue_id=-1)
        assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "the topic[T] has no queue to write to")
        refused = await peer.alter_topic("TBW102", perm=4)
        assert (refused.code, "system topic" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
