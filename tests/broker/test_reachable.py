"""Whatever a send says of sysFlag, transaction, delay, retry and batch: what is acknowledged reaches its queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rucola.message import Message, MessageExt, properties, sysflag
from rucola.message.batch import encode_batch
from rucola.message.ids import parse_offset_msg_id
from rucola.message.record import decode_many
from rucola.message.topics import TRANS_HALF_TOPIC
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.offset import QueueRequestHeader
from rucola.protocol.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rucola.store.directory_reader import StoreReader
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support import stores
from support.broker_peer import broker_peer, broker_with_delays, next_messages, send_back
from support.examples import examples
from support.peer import Peer, send_header
from support.requester import REPLY_TOPIC, requester, send_reply
from support.transaction_store import COMMIT

QUEUES = 4
PLACES = [*((topic, number) for topic in ("T", "%RETRY%g") for number in range(QUEUES)), ("%DLQ%g", 0)]


@dataclass
class Send:
    """What one request says besides its body."""

    code: int
    topic: str
    queue_id: int
    sys_flag: int
    reconsume_times: int
    batch: str
    marks: dict[str, str]
    inner_marks: dict[str, str]


def marks() -> st.SearchStrategy[dict[str, str]]:
    values = {
        "TRAN_MSG": ["true", "TRUE", "false", "1"],
        "PGROUP": ["p"],
        "DELAY": ["0", "1", "3", "99", "-1", "soon"],
        "TIMER_DELAY_MS": ["0", "1", "-5", "soon"],
        "TIMER_DELIVER_MS": ["1"],
        "TIMER_OUT_MS": ["1", "9223372036854775807"],
        "REAL_TOPIC": ["Elsewhere", TRANS_HALF_TOPIC],
        "REAL_QID": ["7", "x"],
        "RETRY_TOPIC": ["Elsewhere"],
        "WAIT": ["true", "false"],
    }
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(some) for name, some in values.items()})


sends = st.builds(
    Send,
    code=st.sampled_from([10, 310, 320]),
    topic=st.sampled_from(["T", "%RETRY%g"]),
    queue_id=st.sampled_from([0, 0, -1, 3, 9]),
    sys_flag=st.sampled_from([0, 0, 2, 4, 8, 12, 16, 32, 48, 64, 128, -2]),
    reconsume_times=st.sampled_from([0, 0, 1, 16, 17, -1, (1 << 31) - 1]),
    batch=st.sampled_from(["false", "false", "true", "1"]),
    marks=marks(),
    inner_marks=st.just({}) | marks(),
)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(st.lists(sends, min_size=1, max_size=25))
def test_an_acknowledged_message_reaches_its_queue(script: list[Send]) -> None:
    """At once, after its commit, or when it is due; and once more after it was given back."""
    with TemporaryDirectory() as directory:
        asyncio.run(_play(Path(directory), script))
        assert check(directory) == []


async def _play(path: Path, script: list[Send]) -> None:
    async with broker_peer(path, store={"message_delay_level": "0s " * 20}) as peer:
        for topic in ("T", "%RETRY%g"):
            header = send_header(topic=topic, default_topic_queue_nums=QUEUES, reconsume_times=0)
            assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, header, b"first")).code == ResponseCode.SUCCESS
        acknowledged: set[bytes] = set()
        physical_offsets: set[int] = set()
        for number, send in enumerate(script):
            bodies = [b"%d-%d" % (number, part) for part in range(2)]
            answer = await _send(peer, send, bodies)
            if answer.code == ResponseCode.SUCCESS:
                ids = answer.ext_fields["msgId"].split(",")
                acknowledged.update(bodies[: len(ids)])
                physical_offsets.update(parse_offset_msg_id(each)[1] for each in ids)
        await _commit_all(peer)
        found = await _find(peer, acknowledged)
        for message in found.values():
            assert sysflag.is_dispatched(message.sys_flag)
            given = await send_back(peer, message.physical_offset, delay_level=-1)
            assert given.code == ResponseCode.SUCCESS, given.remark
        dead = {message.body async for message in _all(peer, [("%DLQ%g", 0)])}
        assert dead >= acknowledged
    with StoreReader(path) as reader:
        dispatched = {
            int(physical_offset)
            for name in reader.queues()
            for physical_offset in reader.units(*name)["physical_offset"]
        }
    assert dispatched >= physical_offsets


async def _send(peer: Peer, send: Send, bodies: list[bytes]) -> RemotingCommand:
    is_batch = send.code == RequestCode.SEND_BATCH_MESSAGE or send.batch in ("true", "1")
    body = encode_batch([Message("T", each, properties=send.inner_marks) for each in bodies]) if is_batch else bodies[0]
    header_type = SendMessageRequestHeader if send.code == RequestCode.SEND_MESSAGE else SendMessageRequestHeaderV2
    header = header_type(
        producer_group="p",
        topic=send.topic,
        queue_id=send.queue_id,
        sys_flag=send.sys_flag,
        born_timestamp=1,
        flag=0,
        properties=properties.join(send.marks).decode(),
        reconsume_times=send.reconsume_times,
        batch=send.batch,
    )
    return await peer.ask(send.code, header, body)


async def _commit_all(peer: Peer) -> None:
    async for half in _all(peer, [(TRANS_HALF_TOPIC, 0)]):
        await peer.end_transaction(half.queue_offset, half.physical_offset, COMMIT)


async def _find(peer: Peer, bodies: set[bytes]) -> dict[bytes, MessageExt]:
    """The messages with these bodies, wherever consumers would find them. What waits is due and soon there."""
    async with asyncio.timeout(20):
        while True:
            found = {message.body: message async for message in _all(peer, PLACES)}
            if found.keys() >= bodies:
                return {body: found[body] for body in bodies}


async def _all(peer: Peer, places: list[tuple[str, int]]) -> AsyncIterator[MessageExt]:
    for topic, queue_id in places:
        answer = await peer.ask(RequestCode.GET_MAX_OFFSET, QueueRequestHeader(topic=topic, queue_id=queue_id))
        begin, end = 0, int(answer.ext_fields.get("offset", 0))
        while begin < end:
            messages = decode_many((await peer.pull(topic=topic, queue_id=queue_id, queue_offset=begin)).body)
            for message in messages:
                yield message
            begin += len(messages)


# What Apache does, or loses.


@pytest.mark.parametrize("sys_flag", [0, 4])
@pytest.mark.parametrize("topic", ["T", "%RETRY%g"])
async def test_a_half_message_with_reconsume_times_is_a_half_message(tmp_path: Path, sys_flag: int, topic: str) -> None:
    """TRAN_MSG with reconsumeTimes, as Apache's `asyncSendMessage` takes it."""

    async with broker_peer(tmp_path) as peer:
        marks = "TRAN_MSG\x01true\x02PGROUP\x01p\x02"
        sent = await peer.send(b"half", topic=topic, sys_flag=sys_flag, reconsume_times=1, properties=marks)
        assert sent.code == ResponseCode.SUCCESS
        (half,) = decode_many((await peer.pull(topic=TRANS_HALF_TOPIC)).body)
        assert (half.offset_msg_id, half.sys_flag, half.reconsume_times) == (sent.ext_fields["msgId"], 0, 1)
        await _commit_all(peer)
        (message,) = await next_messages(peer, topic=topic)
        assert (message.body, message.sys_flag) == (b"half", COMMIT)


async def test_a_retry_by_an_old_client_starts_no_transaction(tmp_path: Path) -> None:
    """Before 4.6.1 TRAN_MSG stayed in what a consumer sent to its retry topic, and so did the bit in sysFlag."""

    async with broker_with_delays(tmp_path, "0s " * 20) as peer:
        marks = "TRAN_MSG\x01true\x02PGROUP\x01p\x02DELAY\x014\x02"
        sent = await peer.send(b"again", topic="%RETRY%g", sys_flag=4, reconsume_times=1, properties=marks)
        assert sent.code == ResponseCode.SUCCESS
        (message,) = await next_messages(peer, topic="%RETRY%g")
        assert (message.body, message.sys_flag) == (b"again", 0)
        assert (await peer.pull(topic=TRANS_HALF_TOPIC)).code != ResponseCode.SUCCESS


@pytest.mark.parametrize("sys_flag", [4, 5, 12, -1])
async def test_a_message_that_no_queue_would_receive_is_refused(tmp_path: Path, sys_flag: int) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        refused = await peer.send(sys_flag=sys_flag, properties="TRAN_MSG\x01false\x02")
        assert (refused.code, "TRAN_MSG is not true" in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        refused = await peer.send(sys_flag=sys_flag)
        assert (refused.code, f"its sysFlag is {sys_flag}" in str(refused.remark)) == (13, True)
        batch = encode_batch([Message("T", b"x")])
        refused = await peer.send_batch(batch, sys_flag=sys_flag)
        assert (refused.code, "a batch cannot be part of a transaction" in str(refused.remark)) == (13, True)
        assert (await peer.send()).ext_fields["queueOffset"] == "1"


@pytest.mark.parametrize("sys_flag", [4, 12])
async def test_a_reply_is_stored_whatever_its_sys_flag(tmp_path: Path, sys_flag: int) -> None:
    async with broker_peer(tmp_path) as peer:
        async with requester(peer):
            assert (await send_reply(peer, b"reply", sys_flag=sys_flag)).code == ResponseCode.SUCCESS
        (record,) = decode_many((await peer.pull(topic=REPLY_TOPIC)).body)
        assert (record.body, record.sys_flag) == (b"reply", 0)


@pytest.mark.parametrize("sys_flag", [4, 12])
async def test_a_record_outside_every_queue_can_be_sent_back(tmp_path: Path, sys_flag: int) -> None:
    """As in stores of Apache's, which takes them."""
    store = MessageStore(stores.config(tmp_path, mapped_file_size_commit_log=1 << 20))
    store.open(1)
    put = store.put(stores.inner(sys_flag=sys_flag), 1)
    store.close()

    async with broker_with_delays(tmp_path, "0s " * 20) as peer:
        assert (await send_back(peer, put.physical_offset)).code == ResponseCode.SUCCESS
        (again,) = await next_messages(peer, topic="%RETRY%g")
        assert (again.body, again.sys_flag) == (b"body", 0)
