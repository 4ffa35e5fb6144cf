"""Limits of a broker: what exceeds one is refused by an error that names its key, and holds nothing else up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rucola import fastjson
from rucola.broker.services import client_inspection
from rucola.domain.client import ConsumerData, HeartbeatData, ProducerData
from rucola.domain.group import SubscriptionGroupWrapper
from rucola.domain.queue import LockedQueues, MessageQueue
from rucola.domain.subscription import SubscriptionData
from rucola.message.batch import encode_batch
from rucola.message.message import Message
from rucola.message.record import decode_many
from rucola.protocol import pull
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.group import (
    CloneGroupOffsetRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from rucola.protocol.lock import LockBatchResponseBody
from rucola.protocol.query import QueryMessageRequestHeader
from rucola.protocol.topic import GetConsumeStatsRequestHeader, TopicRequestHeader
from rucola.remoting.metrics_config import MetricsExporterType
from support.broker_peer import broker_peer, send_back
from support.metrics import sample_value, scrape


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("maxMessageSize=-1", "maxMessageSize=-1: expected 1 to 16777216 bytes"),
        ("brokerPermission=0", "brokerPermission=0: expected 2, 4 or 6"),
        (
            f"maxTransferBytesOnMessageInMemory={2**40}",
            f"maxTransferBytesOnMessageInMemory={2**40}: expected 1 to 8388608 bytes",
        ),
    ],
)
async def test_a_setting_out_of_range_is_refused_and_not_written(tmp_path: Path, change: str, why: str) -> None:
    async with broker_peer(tmp_path) as peer:
        before = (await peer.ask(RequestCode.GET_BROKER_CONFIG)).body
        answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"fileReservedTime=9\n{change}\n".encode())
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, why)
        assert (await peer.ask(RequestCode.GET_BROKER_CONFIG)).body == before


def announced(
    client_id: str, groups: list[str], subscriptions: int = 1, expression: str = "*", kind: str = "TAG"
) -> bytes:
    """A heartbeat of consumers, each with so many subscriptions."""
    wanted = [
        SubscriptionData(topic=f"T{number}", sub_string=expression, expression_type=kind)
        for number in range(subscriptions)
    ]
    consumers = [ConsumerData(group_name=group, subscription_data_set=wanted) for group in groups]
    return encode_body(HeartbeatData(client_id=client_id, consumer_data_set=consumers))


def names(count: int) -> list[str]:
    return [f"g{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (announced("c", names(21)), "client c with 21 groups; the limit is 20 (maxGroupsPerClient)"),
        (
            announced("c", names(2), subscriptions=16),
            "a heartbeat of client c with 32 subscriptions; the limit is 30 (maxSubscriptionsPerHeartbeat)",
        ),
        (
            announced("c", ["g"], expression="ü" * 600),
            "the subscription of topic T0 has 1200 bytes; the limit is 1000 (maxSubscriptionExpressionSize)",
        ),
        (
            announced("c", ["g"], subscriptions=20, expression="a = 1 or " * 6 + "a = 1", kind="SQL92"),
            "a heartbeat of client c with 1180 characters of SQL92 expressions; the limit is 1000 "
            "(maxSubscriptionExpressionSize)",
        ),
        (
            announced("c", ["g" * 100_000]),
            "body HeartbeatData: 100342 bytes; the limit is 65536 (maxJsonBodySize)",
        ),
        (
            b'{clientID:"c",consumerDataSet:[' + b" " * 40_000 + b"]}",
            "JSON of 40033 bytes that is not plain JSON (names in double quotes); the limit for other forms is "
            "32768 bytes",
        ),
    ],
)
async def test_a_heartbeat_beyond_a_limit_changes_nothing(tmp_path: Path, body: bytes, why: str) -> None:
    limits = {
        "max_groups_per_client": 20,
        "max_subscriptions_per_heartbeat": 30,
        "max_subscription_expression_size": 1000,
        "max_json_body_size": 65536,
    }
    async with broker_peer(tmp_path, **limits) as peer:
        before = (await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
        answer = await peer.ask(RequestCode.HEART_BEAT, body=body)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, why)
        assert (await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body == before
        assert (await peer.ask(RequestCode.HEART_BEAT, body=announced("c", names(20)))).code == ResponseCode.SUCCESS
        again = await peer.ask(RequestCode.HEART_BEAT, body=announced("c", ["another"]))
        assert again.remark == "client c with 21 groups; the limit is 20 (maxGroupsPerClient)"


async def test_groups_and_topics_beyond_their_limits_are_not_created(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metered = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": 0}
    async with broker_peer(tmp_path, max_subscription_group_nums=10, max_topic_nums=20, **metered) as peer:
        # 1. Groups: seven belong to the system. The heartbeat is answered, so that the client's other groups live on.
        assert (await peer.ask(RequestCode.HEART_BEAT, body=announced("c", names(5)))).code == ResponseCode.SUCCESS
        known = decode_body(
            SubscriptionGroupWrapper, (await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
        ).subscription_group_table
        assert {"g0", "g1", "g2"} <= known.keys()
        assert len(known) == 10
        answer = await peer.pull(consumer_group="g4")
        assert answer.remark == ("group g4 is not created beside 10 others; the limit is 10 (maxSubscriptionGroupNums)")
        # 2. Topics.
        remarks = [(await peer.send(topic=f"T{number}")).remark for number in range(20)]
        assert remarks[0] is None
        assert remarks[-1] == "topic T19 is not created beside 20 others; the limit is 20 (maxTopicNums)"
        # 3. Operators may create more, and a group that exists gets its retry topic and dead letter queue.
        assert (await peer.alter_topic("mine")).code == ResponseCode.SUCCESS
        assert (await peer.alter_group("late")).code == ResponseCode.SUCCESS
        assert (await peer.send(topic="mine")).code == ResponseCode.SUCCESS
        (message,) = decode_many((await peer.pull(topic="mine", consumer_group="late")).body)
        for delay_level in (1, -1):
            sent = await send_back(peer, message.physical_offset, group="late", delay_level=delay_level)
            assert sent.code == ResponseCode.SUCCESS
        assert (await peer.send(topic="%RETRY%late")).code == ResponseCode.SUCCESS
        assert "maxTopicNums" in str((await peer.send(topic="%RETRY%unknown")).remark)
        # 4. Operators notice.
        samples = await scrape(peer.broker)
        labels = {"cluster": "DefaultCluster", "broker": "broker-a"}
        refused = sample_value(samples, "rocketmq_limit_refusals_total", **labels, limit="maxTopicNums")
        assert refused == sum(remark is not None for remark in remarks) + 1
    logged = [line for line in caplog.messages if "maxTopicNums" in line]
    assert len(logged) == 1, "one line a minute, however many requests are refused"


async def test_a_pull_with_a_long_expression_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        answer = await peer.pull(subscription=" || ".join(names(4000)))
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "the subscription of topic T has 34886 bytes; the limit is 16384 (maxSubscriptionExpressionSize)",
        )


async def test_a_list_of_too_many_producers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_peer(tmp_path) as peer:
        producers = [ProducerData(group_name=name) for name in ("p", "q", "r")]
        body = encode_body(HeartbeatData(client_id="c", producer_data_set=producers))
        assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
        assert (await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)).code == ResponseCode.SUCCESS
        monkeypatch.setattr(client_inspection, "MAX_PRODUCERS", 2)
        refused = await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "3 members, and a response 2 at most" in (refused.remark or "")


async def test_a_topic_has_a_limited_number_of_queues(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        answer = await peer.alter_topic(write_queue_nums=8193)
        assert answer.remark == "writeQueueNums is 8193; the limit is 8192 (maxQueueNumsPerTopic)"


async def test_requests_are_served_while_a_large_topic_is_listed(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        assert (await peer.alter_topic(queues=8192)).code == ResponseCode.SUCCESS
        connection = await peer.client.connect(peer.broker.address)
        for code, asked in (
            (RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic="T")),
            (RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="g", topic="T")),
            (RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequestHeader(group="g", topic="T")),
        ):
            listed = connection.post(RemotingCommand.request(code, asked))
            served = 0
            while not listed.done():
                await connection.post(RemotingCommand.request(RequestCode.GET_BROKER_CONFIG))
                served += 1
            assert (await listed).body.count(b'"queueId":') == 8192
            assert served > 3, code


async def test_a_batch_of_too_many_messages_is_refused_as_a_whole(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, max_messages_per_batch=1500) as peer:
        for count in (1501, 5000):
            body = encode_batch([Message("", b"")]) * count
            answer = await peer.send_batch(body)
            assert (answer.code, answer.remark) == (
                ResponseCode.MESSAGE_ILLEGAL,
                "a batch of more than 1500 messages for topic T; the limit is 1500 (maxMessagesPerBatch)",
            )
        assert (await peer.pull()).code == ResponseCode.PULL_NOT_FOUND
        body = encode_batch([Message("", b"")]) * 1500
        assert (await peer.send_batch(body)).code == ResponseCode.SUCCESS


async def test_a_large_batch_is_stored_in_order_and_without_gaps(tmp_path: Path) -> None:
    """Although its messages are decoded in slices, while others are stored."""
    async with broker_peer(tmp_path) as peer:
        await peer.send(b"first")
        messages = [Message("", b"%d" % number, tags="ab"[number % 2], keys=f"k{number}") for number in range(3000)]
        large = peer.send_batch(encode_batch(messages))
        answer, *others = await asyncio.gather(large, *(peer.send(b"other") for _ in range(20)))
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext_fields["msgId"].count(",") == 2999
        found = []
        while len(found) < 3021:
            found += decode_many((await peer.pull(queue_offset=len(found))).body)
        bodies = [message.body for message in found]
        begin = int(answer.ext_fields["queueOffset"])
        assert bodies[begin : begin + 3000] == [message.body for message in messages]
        assert bodies.count(b"other") == len(others)
        assert [message.tags for message in found[begin : begin + 4]] == ["a", "b", "a", "b"]


async def test_a_damaged_large_batch_stores_nothing(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        body = encode_batch([Message("", b"x")]) * 3000 + b"damage"
        answer = await peer.send_batch(body)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "at byte 69000: 6 bytes are left" in (answer.remark or "")
        assert (await peer.pull()).code == ResponseCode.PULL_NOT_FOUND


async def test_settings_beyond_the_size_of_a_body_are_refused(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"x=1\n" * 100_000)
        assert answer.remark == "settings of 400000 bytes; the limit is 262144 (maxJsonBodySize)"


async def test_a_query_returns_no_more_than_a_frame_holds(tmp_path: Path) -> None:
    """The rest is found by its offsets, as every further page is."""
    async with broker_peer(tmp_path, {"mapped_file_size_commit_log": 64 << 20}) as peer:
        for number in range(6):
            await peer.send(bytes([number]) * 3_000_000, properties="KEYS\x01k\x02")
        wanted: dict[str, Any] = {"topic": "T", "key": "k", "max_num": 64, "begin_timestamp": 0}
        found: list[int] = []
        before = None
        while len(found) < 6:
            header = QueryMessageRequestHeader(**wanted, end_timestamp=1 << 62, before_physical_offset=before)
            records = decode_many((await peer.ask(RequestCode.QUERY_MESSAGE, header)).body)
            assert len(records) == 2
            found += [record.body[0] for record in reversed(records)]
            before = records[0].physical_offset
        assert found == [5, 4, 3, 2, 1, 0]


async def test_a_pull_for_very_many_messages_looks_at_as_few_units_as_any(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        body = encode_batch([Message("", b"x", tags="other")]) * 1000
        assert (await peer.send_batch(body)).code == ResponseCode.SUCCESS
        answer = await peer.pull(subscription="wanted", max_msg_nums=1 << 30)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.ext_fields["nextBeginOffset"] == "800"


@pytest.mark.parametrize("pairs", [{}, {"DELAY": "1"}], ids=["plain", "delayed"])
async def test_a_message_with_too_many_keys_is_refused(tmp_path: Path, pairs: dict[str, str]) -> None:
    async with broker_peer(tmp_path, max_keys_per_message=20) as peer:
        for count, code in ((20, ResponseCode.SUCCESS), (21, ResponseCode.MESSAGE_ILLEGAL)):
            all_pairs = pairs | {"KEYS": "k " * (count - 1) + " k"}  # blanks between words count once
            text = "".join(f"{name}\x01{value}\x02" for name, value in all_pairs.items())
            answer = await peer.send(properties=text)
            assert answer.code == code
        assert answer.remark == "a message for topic T with 21 keys; the limit is 20 (maxKeysPerMessage)"
        batch = encode_batch([Message("", b"x", keys="a"), Message("", b"y", keys="k" + " k" * 20)])
        answer = await peer.send_batch(batch)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await peer.send(properties=f"KEYS\x01{'long' * 20}\x02")).code == ResponseCode.SUCCESS


async def test_offsets_are_bounded(tmp_path: Path) -> None:
    """A group goes on with the offsets that it has; those of a deleted group make room."""
    limits = {"max_consumer_offsets": 4, "max_subscription_group_nums": 2}
    async with broker_peer(tmp_path, **limits) as peer:

        async def remark(group: str, queue_id: int, offset: int = 1) -> str | None:
            return (await peer.commit(offset, group, "TBW102", queue_id)).remark

        async def offsets() -> Any:
            return fastjson.loads((await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)["offsetTable"]

        assert await remark("g" * 513, 0) == ("the name of a consumer group has 513 characters; the limit is 512")
        assert await offsets() == {}
        for group, queue_id in ("g", 0), ("g", 1), ("h", 0):
            assert await remark(group, queue_id) is None
        assert await remark("i", 0) == (
            "group i commits no offset beside 2 others; the limit is 2 (maxSubscriptionGroupNums)"
        )
        assert await remark("h", 1) is None
        full = "the offset of group g on TBW102:2 is not added to 4 others; the limit is 4 (maxConsumerOffsets)"
        assert await remark("g", 2) == full
        assert await remark("g", 1, 2) is None
        clone = CloneGroupOffsetRequestHeader(src_group="g", dest_group="h", topic="TBW102", offline="true")
        assert (await peer.ask(RequestCode.CLONE_GROUP_OFFSET, clone)).code == ResponseCode.SUCCESS
        clone.dest_group = "i"
        answer = await peer.ask(RequestCode.CLONE_GROUP_OFFSET, clone)
        assert answer.remark is not None
        assert answer.remark.endswith("(maxConsumerOffsets)")
        pulled = {
            "topic": "TBW102",
            "queue_id": 3,
            "sys_flag": pull.SUBSCRIPTION | pull.COMMIT_OFFSET,
            "commit_offset": 1,
        }
        assert (await peer.alter_group()).code == ResponseCode.SUCCESS
        answer = await peer.pull(**pulled)
        assert answer.remark is not None
        assert answer.remark.endswith("the limit is 4 (maxConsumerOffsets)")
        deleted = DeleteSubscriptionGroupRequestHeader(group_name="h", remove_offset="true")
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, deleted)).code == ResponseCode.SUCCESS
        assert await remark("g", 2) is None
        assert await offsets() == {"TBW102@g": {0: 1, 1: 2, 2: 1}}


def locks_of(group: str, client_id: str, queue_ids: range, topic: str = "T") -> bytes:
    queues = [MessageQueue(topic, "broker-a", queue_id) for queue_id in queue_ids]
    return encode_body(LockedQueues(client_id=client_id, consumer_group=group, mq_set=queues))


async def test_locks_are_bounded(tmp_path: Path) -> None:
    """Locks are renewed while there is room for no other; released ones make room."""
    async with broker_peer(tmp_path, max_queue_locks=4) as peer:

        async def lock(body: bytes) -> str | int:
            answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=body)
            return answer.remark or len(decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set)

        assert await lock(locks_of("g", "a", range(3))) == 3
        assert await lock(locks_of("h", "b", range(2))) == (
            "2 queues of group h are not locked beside 3 others; the limit is 4 (maxQueueLocks)"
        )
        assert await lock(locks_of("g", "a", range(8))) == 3, "renewed, and no further one"
        assert await lock(locks_of("h", "b", range(1))) == 1
        assert await lock(locks_of("g", "b", range(3))) == 0, "of another client"
        assert await lock(locks_of("g", "a", range(3))) == 3
        assert (await peer.ask(RequestCode.UNLOCK_BATCH_MQ, body=locks_of("g", "a", range(2)))).code == 0
        assert await lock(locks_of("i", "c", range(2))) == 2
        for body, what in (
            (locks_of("g" * 513, "a", range(1)), "a consumer group"),
            (locks_of("g", "a" * 513, range(1)), "a client"),
            (locks_of("g", "a", range(1), "T" * 513), "a topic"),
        ):
            assert await lock(body) == f"the name of {what} has 513 characters; the limit is 512"
