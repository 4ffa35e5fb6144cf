"""Many requests in one read: their messages are written together, before anything reads or acknowledges them."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest

from rucola import speed
from rucola.access import Action, Caller, Check, Reason, Refused, Resource
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.message import Message
from rucola.message.batch import encode_batch
from rucola.message.record import decode_many
from rucola.protocol import pull
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.protocol.kv import KVTable
from rucola.protocol.offset import QueueRequestHeader
from rucola.protocol.pop import PopMessageRequestHeader
from rucola.store.config import BrokerRole, FlushDiskType, PutMessageStatus, PutResult, StoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.broker_peer import broker_peer
from support.cluster import SMALL_FILES
from support.peer import pull_header, send_header


def _usual(number: int) -> RemotingCommand:
    header = send_header(properties=f"UNIQ_KEY\x01u{number}")
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"message %d;" % number)


def _send(number: int) -> bytes:
    return _usual(number).encode()


async def _answers(broker: Broker, *groups: list[bytes]) -> list[RemotingCommand]:
    """The answers to requests on one connection; a group is sent together, when those before it are answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.config.listen_port)
    decoder, found = FrameDecoder(), list[RemotingCommand]()
    for number, group in enumerate(groups, 1):
        writer.write(b"".join(group))
        while len(found) < sum(map(len, groups[:number])):
            found += decoder.receive_data(await reader.read(1 << 20))
    writer.close()
    await writer.wait_closed()
    return found


def _log_bytes(root: Path) -> bytes:
    """The files of the log, as another process reads them."""
    return b"".join(path.read_bytes() for path in sorted(root.glob("commitlog/*")))


@pytest.mark.parametrize("flush_disk_type", FlushDiskType)
async def test_what_is_acknowledged_is_in_the_log(tmp_path: Path, flush_disk_type: FlushDiskType) -> None:
    async with broker_peer(tmp_path, {"flush_disk_type": flush_disk_type}) as peer:
        await peer.send(b"creates the topic")
        answers = await _answers(peer.broker, [_send(number) for number in range(100)])
        log = _log_bytes(tmp_path)
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        assert all(b"message %d;" % number in log for number in range(100))


async def test_a_pull_among_sends_finds_those_before_it(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send(b"creates the topic and the group")
        await peer.pull()
        pulled = RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header(queue_offset=1)).encode()
        answers = await _answers(peer.broker, [_send(0), _send(1), pulled, _send(2), _send(3), pulled])
        assert [len(decode_many(answer.body)) for answer in answers if answer.body] == [2, 4]


def _receive(**fields: Any) -> RemotingCommand:
    header = {"consumer_group": "g", "topic": "T", "queue_id": -1, "max_msg_nums": 4, "invisible_time": 60_000}
    return RemotingCommand.request(
        RequestCode.POP_MESSAGE, PopMessageRequestHeader(**header | {"poll_time": 0} | fields)
    )


async def test_receives_of_one_read_take_each_message_once(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send(b"creates the topic")
        await _answers(peer.broker, [_send(number) for number in range(1, 50)])
        pull_all = RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header())
        requests = [_receive() for _ in range(20)]
        requests[3:3] = [_receive(topic="unknown"), pull_all]
        answers = await _answers(peer.broker, [request.encode() for request in requests])
        by_opaque = {answer.opaque: answer for answer in answers}
        found = [by_opaque[request.opaque] for request in requests]
        assert [found[3].code, len(decode_many(found[4].body))] == [ResponseCode.TOPIC_NOT_EXIST, 32]
        taken = [one.queue_offset for answer in found[:3] + found[5:] for one in decode_many(answer.body)]
        assert taken == list(range(50))
        assert [answer.code for answer in found[-7:]] == [ResponseCode.POLLING_TIMEOUT] * 7


async def test_receives_of_one_read_that_are_not_recorded_are_not_answered_with_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(*arguments: object, **more: object) -> PutResult:
        return PutResult(PutMessageStatus.CREATE_MAPEDFILE_FAILED)

    async with broker_peer(tmp_path) as peer:
        await peer.send(b"creates the topic")
        await _answers(peer.broker, [_receive(max_msg_nums=1).encode()], [_send(number) for number in range(9)])
        receives = [_receive(attempt_id=attempt_id).encode() for attempt_id in "abc"]
        with monkeypatch.context() as patch:
            patch.setattr(MessageStore, "put", put)
            answers = await _answers(peer.broker, receives, receives)
        assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 6
        again = await _answers(peer.broker, receives)
        assert sorted(one.queue_offset for answer in again for one in decode_many(answer.body)) == list(range(1, 10))


def _odd(number: int) -> list[RemotingCommand]:
    """Requests that are no send of the usual form, or are refused."""
    fields: list[dict[str, Any]] = [
        {"properties": "DELAY\x011\x02KEYS\x01k"},
        {"properties": ""},
        {"properties": "UNIQ_KEY\x01u\x02long\x01" + "v" * 40_000},
        {"properties": "KEYS\x01" + "k " * 200},
        {"queue_id": -1, "topic": "one"},
        {"queue_id": 99},
        {"topic": "unknown"},
        {"topic": "read-only"},
        {"topic": "SCHEDULE_TOPIC_XXXX"},
        {"topic": "\u00e4"},
        {"sys_flag": 4},
        {"flag": 1 << 40},
        {"batch": "true"},
    ]
    headers = [send_header(**{"properties": f"UNIQ_KEY\x01odd{number}"} | field) for field in fields]
    odd = [RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"odd %d" % number) for header in headers]
    usual = send_header(properties="UNIQ_KEY\x01u")
    odd += _pulls(number) + _batches(number)
    odd += [
        RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, usual, bytes(5000)),
        RemotingCommand.request(RequestCode.SEND_BATCH_MESSAGE, usual, b"no batch"),
        RemotingCommand.request(RequestCode.GET_MAX_OFFSET, QueueRequestHeader(topic="T", queue_id=0)),
        RemotingCommand.request(12345),
    ]
    return odd


def _batches(number: int) -> list[RemotingCommand]:
    """Batches that are stored, and batches that are refused."""
    messages = [Message("T", b"batch %d;" % number, tags="A", keys=f"k{each}") for each in range(3)]
    fields: list[dict[str, Any]] = [
        {},
        {},
        {"properties": "WAIT\x01true\x02"},
        {"properties": "TAGS\x01B"},
        {"topic": "one", "queue_id": 7},
        {"topic": "read-only"},
        {"topic": "unknown"},
        {"sys_flag": 4},
        {"batch": "false"},
    ]
    bodies = [messages] * len(fields) + [
        messages * 4,
        [Message("T", bytes(5000))],
        [Message("T", b"x", keys="k " * 200)],
    ]
    fields += [{}, {}, {}]
    return [
        RemotingCommand.request(
            RequestCode.SEND_BATCH_MESSAGE,
            send_header(**{"properties": "", "batch": "true"} | field),
            encode_batch(body),
        )
        for field, body in zip(fields, bodies, strict=True)
    ]


def _pulls(number: int) -> list[RemotingCommand]:
    """Pulls that find messages, find none, are refused, or commit an offset."""
    fields: list[dict[str, Any]] = [
        {},
        {},
        {"queue_offset": number},
        {"max_msg_nums": 3},
        {"subscription": "other"},
        {"sys_flag": pull.SUBSCRIPTION | pull.COMMIT_OFFSET, "commit_offset": number},
        {"sys_flag": 0},
        {"queue_id": 99},
        {"queue_offset": 1 << 40},
        {"queue_offset": -1},
        {"consumer_group": f"group-{number % 3}"},
        {"consumer_group": "\u00e4"},
        {"topic": "unknown"},
        {"topic": "write-only"},
    ]
    return [RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header(**field)) for field in fields]


async def _outcome(path: Path, seed: int) -> tuple[list[object], list[object], list[object]]:
    """What a broker answers and stores of 300 requests in reads of 1 to 30, and how it counts them."""
    drawn = random.Random(seed)
    settings: dict[str, Any] = {
        "max_keys_per_message": 100,
        "max_messages_per_batch": 10,
        "auto_create_topic_enable": False,
    }
    async with broker_peer(path, {"max_message_size": 4096}, clock=lambda: 1_000, **settings) as peer:
        for topic, perm in (("T", 6), ("one", 6), ("read-only", 4), ("write-only", 2)):
            assert (await peer.alter_topic(topic, perm=perm)).code == ResponseCode.SUCCESS
        requests = [drawn.choice([_usual(number)] * 20 + _odd(number)) for number in range(300)]
        for number, request in enumerate(requests):
            request.opaque = number
        frames, groups = [request.encode() for request in requests], []
        while frames:
            size = drawn.choice([1, 1, 2, 5, 30])
            groups.append(frames[:size])
            del frames[:size]
        answers = await _answers(peer.broker, *groups)
        counted = [
            (await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).body,
            decode_body(KVTable, (await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table[
                "putMessageFailedTimes"
            ],
        ]
        log = _log_bytes(path)
        stored = [
            (one.topic, one.queue_id, one.queue_offset, one.physical_offset, one.body, one.properties, one.sys_flag)
            for one in decode_many(log.rstrip(b"\0"))
        ]
    told = [
        (one.opaque, one.code, _without_address(str(one.remark)), one.ext_fields | {"msgId": ""}, _content(one))
        for one in answers
    ]
    return sorted(told, key=repr), list(stored), counted


def _content(answer: RemotingCommand) -> object:
    """The body of an answer; of records, what does not depend on the ports of broker and client."""
    if "nextBeginOffset" not in answer.ext_fields:
        return answer.body
    return [(one.queue_offset, one.physical_offset, one.body, one.properties) for one in decode_many(answer.body)]


def _without_address(remark: str) -> str:
    return re.sub(r"127.0.0.1:\d+", "ADDRESS", remark)


async def test_a_bug_is_logged_and_answered_and_no_send_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def put(*arguments: object) -> object:
        raise TypeError("a bug")

    async with broker_peer(tmp_path) as peer:
        await peer.send(b"creates the topic")
        with monkeypatch.context() as patch:
            patch.setattr(MessageStore, "put_batch", put)
            answers = await _answers(peer.broker, [_send(number) for number in range(3)])
        assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR] * 3
        assert any(record.exc_info and record.exc_info[0] is TypeError for record in caplog.records)
        answers = await _answers(peer.broker, [_send(number) for number in range(3)])
        assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reader", ["read_sends", "read_fetch"])
async def test_requests_are_read_in_c_without_a_difference(
    tmp_path: Path, reader: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_c = await _outcome(tmp_path / "c", seed)
    monkeypatch.setattr(speed, reader, None)
    in_python = await _outcome(tmp_path / "python", seed)
    for ours, theirs in zip(in_c, in_python, strict=True):
        assert [one for one in ours if one not in theirs] == [one for one in theirs if one not in ours]
    assert in_c == in_python
    assert len(in_c[1]) > 100
    assert in_c[2][1] != "0"


async def test_an_interceptor_refuses_the_sends_of_a_read_that_it_concerns(tmp_path: Path) -> None:
    class Refusing:
        def check_for(self, action: Action) -> Check | None:
            return self._check if action is Action.PUBLISH else None

        def _check(self, caller: Caller, resource: Resource) -> None:
            if resource.topic == "refused":
                raise Refused(Reason.BUSY, "this topic")

    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name="broker-a", broker_ip1="127.0.0.1")
    store_config = StoreConfig(store_path_root_dir=tmp_path, **SMALL_FILES)
    async with Broker(config, store_config, interceptors=[Refusing()]) as broker:
        topics = ["T", "refused", "T", "T", "refused"]
        sends = [
            RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_header(topic=topic), b"body") for topic in topics
        ]
        answers = {answer.opaque: answer.code for answer in await _answers(broker, [send.encode() for send in sends])}
    expected = [ResponseCode.SYSTEM_BUSY if topic == "refused" else ResponseCode.SUCCESS for topic in topics]
    assert [answers[send.opaque] for send in sends] == expected
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    ("store", "settings", "codes"),
    [
        ({}, {"broker_permission": 4}, (ResponseCode.NO_PERMISSION, ResponseCode.PULL_NOT_FOUND)),
        ({}, {"broker_permission": 2}, (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION)),
        (
            {"broker_role": BrokerRole.SLAVE},
            {"broker_id": 1},
            (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.PULL_NOT_FOUND),
        ),
    ],
)
async def test_every_interceptor_checks_the_requests_of_a_read(
    tmp_path: Path, store: dict[str, Any], settings: dict[str, Any], codes: tuple[int, int]
) -> None:
    async with broker_peer(tmp_path, store, **settings) as peer:
        pulled = RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header(topic="TBW102")).encode()
        header = send_header(topic="TBW102", properties="UNIQ_KEY\x01u")
        sent = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"body").encode()
        answers = [(await _answers(peer.broker, [frame]))[0].code for frame in (sent, pulled)]
        assert answers[0] == codes[0]
        assert answers[1] == codes[1]
