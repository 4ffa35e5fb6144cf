"""`client.doctor`: each state in which messages wait and nobody gets them is named with its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.admin import AdminClient, SubscriptionGroupConfig, TopicConfig
from rucola.message.ids import parse_offset_msg_id
from rucola.message.record import decode_many
from rucola.message.topics import TRANS_CHECK_MAX_TIME_TOPIC
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.store.tools.check import check
from support.cluster import Cluster, cluster
from support.own_deliveries import Clock
from support.peer import pull_header, send_header
from support.waiting import until


async def send(running: Cluster, address: str, body: bytes, **fields: object) -> RemotingCommand:
    request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_header(**fields), body)
    return await running.remoting.invoke_ok(address, request)


async def found(admin: AdminClient) -> list[tuple[str, str, dict[str, str | int]]]:
    """Reason, subject and fields of all findings, without the name of the only broker."""
    findings = await admin.doctor.check()
    return [(one.reason, one.subject, {k: v for k, v in one.fields.items() if k != "brokerName"}) for one in findings]


async def test_messages_in_queues_that_no_route_shows_are_named_until_the_topic_has_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hidden = {"topic": "T", "readQueueNums": 2}
    expected = [
        ("QUEUE_NOT_READ", "T:2", hidden | {"queueId": 2, "messages": 1}),
        ("QUEUE_NOT_READ", "T:3", hidden | {"queueId": 3, "messages": 2}),
    ]
    async with cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        broker = await running.start_broker()
        await running.create_topic(broker, "T", queues=4)
        for queue_id in (0, 1, 2, 3, 3):
            await send(running, broker.address, b"x", queue_id=queue_id)
        assert await found(admin) == []
        await running.create_topic(broker, "T", queues=2)
        assert await found(admin) == expected
        assert [one.subject for one in await admin.doctor.check_topic(broker.address, "T")] == ["T:2", "T:3"]
        assert await admin.doctor.check_topic(broker.address, "Other") == []
        await broker.stop()
        caplog.clear()
        broker = await running.start_broker()
        assert [record.args[:2] for record in caplog.records if "diagnosis" in record.name and record.args] == [
            ("QUEUE_NOT_READ", "T:2"),
            ("QUEUE_NOT_READ", "T:3"),
        ]
        await running.create_topic(broker, "T", queues=4)
        assert await found(admin) == []
        await admin.topics.delete_on_broker(broker.address, "T")
        assert await found(admin) == [("TOPIC_MISSING", "T", {"topic": "T", "messages": 5})]
    assert check(tmp_path / "broker-a") == []


async def test_settings_that_hide_messages_are_named(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        broker = await running.start_broker()
        narrow = TopicConfig(topic_name="Narrow", read_queue_nums=1, write_queue_nums=3)
        await admin.topics.create_or_update(broker.address, narrow)
        for group, queues in (("none", 0), ("four", 4)):
            settings = SubscriptionGroupConfig(group_name=group, retry_queue_nums=queues)
            await admin.groups.create_or_update(broker.address, settings)
        one_queue = TopicConfig(topic_name="%RETRY%four", read_queue_nums=1, write_queue_nums=1)
        await admin.topics.create_or_update(broker.address, one_queue)
        assert await found(admin) == [
            ("FEWER_READ_QUEUES", "Narrow", {"topic": "Narrow", "readQueueNums": 1, "writeQueueNums": 3}),
            ("FEWER_RETRY_QUEUES", "four", {"group": "four", "retryQueueNums": 4, "readQueueNums": 1}),
            ("NO_RETRY_QUEUE", "none", {"group": "none"}),
        ]
    assert check(tmp_path / "broker-a") == []


async def test_discarded_transactions_are_counted_and_resumed(tmp_path: Path) -> None:
    clock = Clock()
    settings = {"transaction_check_interval": 20, "transaction_check_max": 0, "transaction_time_out": 0}
    async with cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        broker = await running.start_broker(clock=clock, **settings)
        half = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01H\x02"
        await send(running, broker.address, b"half", properties=half, sys_flag=4)

        async def is_discarded(count: int = 1) -> bool:
            expected = [("TRANSACTIONS_DISCARDED", TRANS_CHECK_MAX_TIME_TOPIC, {"messages": count})]
            return await found(admin) == expected

        await until(is_discarded)
        request = RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header(topic=TRANS_CHECK_MAX_TIME_TOPIC))
        (message,) = decode_many((await running.remoting.invoke_ok(broker.address, request)).body)
        assert message.offset_msg_id is not None
        assert parse_offset_msg_id(message.offset_msg_id)[0] == broker.address
        await admin.messages.resume_check_half_message(message.offset_msg_id)
        await until(lambda: is_discarded(2))  # no check is allowed to this one either
    assert check(tmp_path / "broker-a") == []
