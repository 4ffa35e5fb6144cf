"""Messages that consumers fail on: given back to the broker, delivered again, and in the end laid aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rucola.client import ConsumeFromWhere, Message, Producer, PushConsumer
from rucola.domain.topic import TopicConfigSerializeWrapper
from rucola.message import MessageExt
from rucola.message.record import decode_many
from rucola.message.topics import SCHEDULE_TOPIC
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.store.config_files import config_path, read_config, write_config
from support.broker_peer import broker_peer, broker_with_delays, heartbeat, max_offset, next_messages, send_back
from support.cluster import Tally
from support.peer import Peer, send_header
from support.replication import lone_master
from support.waiting import until

TWENTY_LEVELS = "0s " * 20


async def sent_message(peer: Peer, **fields: Any) -> MessageExt:
    await peer.send(**{"properties": "TAGS\x01A\x02KEYS\x01k\x02UNIQ_KEY\x01U\x02"} | fields)
    return decode_many((await peer.pull()).body)[-1]


async def test_a_message_sent_back_is_delivered_through_the_retry_topic(tmp_path: Path) -> None:
    async with broker_with_delays(tmp_path, TWENTY_LEVELS) as peer:
        message = await sent_message(peer)
        assert (await send_back(peer, message.physical_offset)).code == ResponseCode.SUCCESS
        (again,) = await next_messages(peer, topic="%RETRY%g")
        assert (again.body, again.tags, again.reconsume_times) == (b"body", "A", 1)
        assert again.born_timestamp == message.born_timestamp
        noted = {
            "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": message.offset_msg_id, "DELAY": "3", "WAIT": "false",
            "REAL_TOPIC": "%RETRY%g", "REAL_QID": "0",
        }  # fmt: skip
        assert again.properties == message.properties | noted

        assert (await send_back(peer, again.physical_offset)).code == ResponseCode.SUCCESS
        (third,) = await next_messages(peer, topic="%RETRY%g", queue_offset=1)
        assert third.reconsume_times == 2
        assert third.properties == again.properties | {"DELAY": "4"}


async def test_a_consumer_may_choose_the_delay_level_of_a_retry(tmp_path: Path) -> None:
    async with broker_with_delays(tmp_path, "1h 1h 1h") as peer:
        message = await sent_message(peer)
        assert (await send_back(peer, message.physical_offset, delay_level=2)).code == ResponseCode.SUCCESS
        assert (await send_back(peer, message.physical_offset, delay_level=7)).code == ResponseCode.SUCCESS
        waiting = [decode_many((await peer.pull(topic=SCHEDULE_TOPIC, queue_id=level - 1)).body) for level in (2, 3)]
        assert [[message.properties["DELAY"] for message in level] for level in waiting] == [["2"], ["3"]]


@pytest.mark.parametrize(
    ("fields", "reconsume_times", "is_dead"),
    [
        ({"delay_level": -1}, 0, True),
        ({"max_reconsume_times": 2}, 1, False),
        ({"max_reconsume_times": 2}, 2, True),
        ({"max_reconsume_times": 2, "version": 63}, 2, False),  # C++ 1.x: the group's own limit holds
        ({}, 15, False),
        ({}, 16, True),
    ],
)
async def test_a_message_with_too_many_retries_becomes_a_dead_letter(
    tmp_path: Path, fields: dict[str, Any], reconsume_times: int, is_dead: bool
) -> None:
    async with broker_with_delays(tmp_path, TWENTY_LEVELS) as peer:
        message = await sent_message(peer, reconsume_times=reconsume_times)
        assert (await send_back(peer, message.physical_offset, **fields)).code == ResponseCode.SUCCESS
        if is_dead:
            (dead,) = await next_messages(peer, topic="%DLQ%g")
            assert (dead.body, dead.reconsume_times) == (b"body", reconsume_times + 1)
            assert dead.properties["DELAY"] == "0"
            assert dead.properties["RETRY_TOPIC"] == "T"
            assert (await peer.pull(topic="%DLQ%g", queue_id=1)).code == ResponseCode.SYSTEM_ERROR, "it has one queue"
        else:
            assert len(await next_messages(peer, topic="%RETRY%g")) == 1
            assert (await peer.pull(topic="%DLQ%g")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_sending_back_an_unknown_message_is_refused(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        message = await sent_message(peer)
        nothing = await send_back(peer, message.physical_offset + 1)
        assert (nothing.code, "look message by offset failed" in (nothing.remark or "")) == (1, True)
        assert (await send_back(peer, 1 << 40)).code == ResponseCode.SYSTEM_ERROR
        assert (await send_back(peer, -1)).code == ResponseCode.SYSTEM_ERROR
        illegal = await send_back(peer, message.physical_offset, group="no group")
        assert (illegal.code, "no group" in (illegal.remark or "")) == (1, True)
        assert (await peer.pull(topic="%RETRY%g")).code == ResponseCode.PULL_NOT_FOUND


async def test_sending_back_a_message_that_is_no_longer_there_is_refused(tmp_path: Path) -> None:
    """After a crash, another message can begin at the same physical offset."""
    async with broker_peer(tmp_path) as peer:
        message = await sent_message(peer)
        other = await send_back(peer, message.physical_offset, origin_msg_id="0" * 32)
        assert (other.code, message.msg_id in (other.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        assert (await peer.pull(topic="%RETRY%g")).code == ResponseCode.PULL_NOT_FOUND
        for msg_id in (message.msg_id, message.offset_msg_id, ""):
            done = await send_back(peer, message.physical_offset, origin_msg_id=msg_id)
            assert done.code == ResponseCode.SUCCESS, done.remark


async def test_sending_back_for_an_unknown_group_is_refused(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, auto_create_subscription_group=False) as peer:
        await peer.send()
        refused = await send_back(peer, 0, group="stranger")
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        refused = await peer.send(topic="%RETRY%stranger")
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def queues_of(peer: Peer, topic: str) -> int:
    answer = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    return decode_body(TopicConfigSerializeWrapper, answer.body).topic_config_table[topic].read_queue_nums


@pytest.mark.parametrize(("before", "after", "queues"), [(1, 4, 4), (1, 0, 1), (0, 0, 1), (4, 1, 4)])
async def test_every_retry_is_in_a_queue_that_consumers_read(
    tmp_path: Path, before: int, after: int, queues: int
) -> None:
    async with broker_with_delays(tmp_path, "0s") as peer:
        message = await sent_message(peer)
        assert (await peer.alter_group(retry_queue_nums=before)).code == ResponseCode.SUCCESS
        assert (await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("c"))).code == ResponseCode.SUCCESS
        assert await queues_of(peer, "%RETRY%g") == max(1, before)
        assert (await peer.alter_group(retry_queue_nums=after)).code == ResponseCode.SUCCESS
        assert await queues_of(peer, "%RETRY%g") == queues, "consumers know the queues before the first retry"
        for _ in range(20):
            assert (await send_back(peer, message.physical_offset)).code == ResponseCode.SUCCESS

        async def all_in_read_queues() -> bool:
            return sum([await max_offset(peer, "%RETRY%g", queue_id) for queue_id in range(queues)]) == 20

        await until(all_in_read_queues)


async def test_the_retry_topic_of_another_broker_grows_with_the_first_retry(tmp_path: Path) -> None:
    """A broker that was a slave, or has Apache's store, may have a group of 4 queues and a topic of one."""
    async with broker_with_delays(tmp_path, "0s") as peer:
        message = await sent_message(peer)
        assert (await peer.alter_group(retry_queue_nums=1)).code == ResponseCode.SUCCESS
        assert (await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("c"))).code == ResponseCode.SUCCESS
    file = config_path(tmp_path, "subscriptionGroup")
    table = read_config(file)
    table["subscriptionGroupTable"]["g"]["retryQueueNums"] = 4
    write_config(file, table)
    async with broker_with_delays(tmp_path, "0s") as peer:
        assert await queues_of(peer, "%RETRY%g") == 1
        assert (await send_back(peer, message.physical_offset)).code == ResponseCode.SUCCESS
        assert await queues_of(peer, "%RETRY%g") == 4


@pytest.mark.parametrize("properties", ["DELAY\x011\x02", "TIMER_DELAY_MS\x011000\x02"])
async def test_a_message_that_waited_goes_into_a_queue_that_its_topic_still_has(
    tmp_path: Path, properties: str
) -> None:
    async with broker_with_delays(tmp_path, "1s") as peer:
        assert (await peer.alter_topic(queues=4)).code == ResponseCode.SUCCESS
        await peer.send(b"waits", queue_id=3, properties=properties)
        assert (await peer.alter_topic(queues=2)).code == ResponseCode.SUCCESS
        (message,) = await next_messages(peer, queue_id=1)
        assert (message.body, message.properties["REAL_QID"]) == (b"waits", "3")


async def test_a_direct_send_to_the_retry_topic_ends_in_the_dead_letter_topic(tmp_path: Path) -> None:
    """As clients do when the broker could not take the message back."""

    async with broker_with_delays(tmp_path, "0s") as peer:
        for reconsume_times in (2, 3):
            header = send_header(
                topic="%RETRY%g",
                reconsume_times=reconsume_times,
                max_reconsume_times=3,
                properties="DELAY\x011\x02RETRY_TOPIC\x01T\x02",
            )
            answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, header, b"%d" % reconsume_times)
            assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "0")
        assert [message.body for message in await next_messages(peer, topic="%RETRY%g")] == [b"2"]
        (dead,) = await next_messages(peer, topic="%DLQ%g")
        assert (dead.body, dead.reconsume_times) == (b"3", 3)
        assert dead.properties["RETRY_TOPIC"] == "T"


async def test_a_failing_listener_receives_a_message_until_it_is_a_dead_letter(tmp_path: Path) -> None:
    async with lone_master(tmp_path, {"message_delay_level": "0s"}) as (running, _):
        tries: Tally[tuple[str, bytes, int]] = Tally()

        async def fail(message: MessageExt) -> None:
            tries.add((message.topic, message.body, message.reconsume_times))
            raise ValueError("never")

        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        consumer = PushConsumer("g", running.namesrv, consume_from=first, max_reconsume_times=2)
        consumer.subscribe("T")
        consumer.listen(fail)
        dead: Tally[MessageExt] = Tally()
        async with Producer("p", running.namesrv) as producer, consumer:
            sent = await producer.send(Message("T", b"bad", keys="k"))
            assert await tries.reach(3) == [("T", b"bad", 0), ("T", b"bad", 1), ("T", b"bad", 2)]
            undertaker = PushConsumer("u", running.namesrv, consume_from=first)
            undertaker.subscribe("%DLQ%g")
            undertaker.listen(dead.add)
            async with undertaker:
                (message,) = await dead.reach(1)
        assert (message.body, message.msg_id, message.reconsume_times) == (b"bad", sent.msg_id, 3)
        assert message.properties["ORIGIN_MESSAGE_ID"] == sent.offset_msg_id
        assert len(tries.items) == 3
