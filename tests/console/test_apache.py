"""Brokers of Apache's 4.9.8, which lack some requests: pages say what is missing, and no action is half done.

The answers are those that a real one gave.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from rucola.domain.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rucola.domain.topic import TopicConfig, TopicConfigSerializeWrapper
from rucola.message.host import encode_host
from rucola.message.ids import offset_msg_id
from rucola.message.message import MessageInner
from rucola.message.record import encode
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection
from support.cluster import Cluster, cluster
from support.console import Visitor, field, text_of, visitor

HOST = encode_host("127.0.0.1:10911")
ORDERS = TopicConfig(topic_name="Orders", read_queue_nums=4, write_queue_nums=4)
BODIES = {
    RequestCode.GET_BROKER_RUNTIME_INFO: msgspec.json.encode(
        {"table": {"putTps": "1.0 1.0 1.0", "brokerVersionDesc": "V4_9_8"}}
    ),
    RequestCode.GET_ALL_TOPIC_CONFIG: msgspec.json.encode(
        TopicConfigSerializeWrapper(topic_config_table={"Orders": ORDERS})
    ),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: msgspec.json.encode(
        SubscriptionGroupWrapper(subscription_group_table={"billing": SubscriptionGroupConfig(group_name="billing")})
    ),
    RequestCode.GET_BROKER_CONFIG: b"aclEnable=false\nmaxMessageSize=4194304\n",
    RequestCode.UPDATE_BROKER_CONFIG: b"",
    RequestCode.UPDATE_AND_CREATE_TOPIC: b"",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: b"",
    RequestCode.GET_CONSUME_STATS: b'{"consumeTps":0.0,"offsetTable":{}}',
    RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{}}',
    RequestCode.VIEW_MESSAGE_BY_ID: encode(MessageInner("Orders", 0, b"pizza", b"", 0, 0, 1, HOST), 0, 0, 1, HOST),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: b"",
    RequestCode.GET_CONSUMER_CONNECTION_LIST: msgspec.json.encode({"connectionSet": [], "subscriptionTable": {}}),
}
NULL = 'Cannot invoke "org.apache.rocketmq.acl.AccessValidator.deleteAccessConfig(String)" because "<local6>" is null'


@asynccontextmanager
async def apache(path: Path) -> AsyncIterator[tuple[Cluster, Visitor, Counter[RequestCode]]]:
    """A console of two such brokers, and what they were asked."""
    asked: Counter[RequestCode] = Counter()

    def answer(_: Connection, command: RemotingCommand) -> RemotingCommand | None:
        code = RequestCode(command.code)
        asked[code] += 1
        if code == RequestCode.GET_BROKER_CLUSTER_ACL_INFO:
            return None
        if code == RequestCode.DELETE_ACL_CONFIG:
            return command.response(ResponseCode.DELETE_ACL_CONFIG_FAILED, remark=NULL)
        return command.response(ResponseCode.SUCCESS, body=BODIES[code])

    known = dict.fromkeys([*BODIES, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, RequestCode.DELETE_ACL_CONFIG], answer)
    async with cluster(path) as running:
        for name in ("apache-1", "apache-2"):
            await running.scripted_broker(name, "Orders", known, queues=4)
        async with visitor(running.namesrv) as console:
            await console.console.collector.wait_first()
            yield running, console, asked


async def run(console: Visitor, command: str, **fields: str) -> str:
    """The page with the result of a command that asks first."""
    path = f"/run/{command}"
    question = await console.post(path, fields)
    assert question.status_code == 200, question.text
    return text_of(await console.post(path, fields | {"seen": field(question, "seen")}))


async def test_pages_say_what_such_a_broker_does_not_have(tmp_path: Path) -> None:
    async with apache(tmp_path) as (_, console, asked):
        address = console.console.collector.snapshot.brokers[0].address
        assert "apache-1 master" in await console.text("/")
        assert "/run/haStatus" not in (await console.get(f"/broker?address={address}")).text
        assert "/run/popStatus" not in (await console.get("/group?name=billing")).text
        access = await console.get("/access")
        assert "apache-1, apache-2: access control has neither users nor files" in text_of(access)
        assert "/run/createUser" not in access.text
        assert asked[RequestCode.GET_BROKER_CLUSTER_ACL_INFO] == 0, "which it would leave unanswered"
        for path, code in (
            (f"haStatus?address={address}", "GET_HA_STATUS"),
            ("popStatus?group=billing&topic=Orders", "GET_POP_STATUS"),
            (f"listUser?address={address}", "AUTH_LIST_USER"),
        ):
            refused = await console.get(f"/run/{path}")
            assert (refused.status_code, code in refused.text, "version" in refused.text) == (400, True, True), path
        shown = await console.get("/run/capacity?cluster=c")
        assert (shown.status_code, shown.text.count("GET_DIAGNOSIS")) == (200, 2), "both brokers"
        assert "NOT_DIAGNOSED" in await console.text("/run/health")


async def test_a_change_that_such_a_broker_ignores_has_failed(tmp_path: Path) -> None:
    async with apache(tmp_path) as (_, console, asked):
        for key, value, why in (
            ("maxMessageSize", "many", "maxMessageSize is 4194304, as before"),
            ("noSuchKey", "1", "it has no setting noSuchKey"),
        ):
            text = await run(console, "updateBrokerConfig", cluster="c", key=key, value=value)
            assert text.count(f"ignored the change: {why}") == 2
            assert "The command failed." in text
        assert "Done." in await run(console, "updateBrokerConfig", cluster="c", key="aclEnable", value="false")
        assert asked[RequestCode.UPDATE_BROKER_CONFIG] == 3 * 2
        text = await run(console, "deleteAclConfig", cluster="c", access_key="rocketmq")
        assert "aclEnable is false" in text
        assert "Cannot invoke" not in text


async def test_no_half_message_is_made_of_another_one(tmp_path: Path) -> None:
    """Such a broker copies any message to the topic of half messages."""
    async with apache(tmp_path) as (_, console, asked):
        host = encode_host(console.console.collector.snapshot.brokers[0].address)
        text = await run(console, "resumeCheckHalfMessage", msg_ids=offset_msg_id(host, 0))
        assert "topic Orders is no discarded transaction" in text
        assert asked[RequestCode.RESUME_CHECK_HALF_MESSAGE] == 0


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("drain", {"broker_name": "apache-1"}),
        ("moveTopic", {"topic": "Orders", "from_broker": "apache-1", "to_broker": "apache-2"}),
        ("moveGroup", {"group": "billing", "from_broker": "apache-1", "to_broker": "apache-2"}),
    ],
)
async def test_a_broker_that_does_not_count_what_waits_is_left_as_it_is(
    tmp_path: Path, command: str, fields: dict[str, str]
) -> None:
    """Before, its writes had been stopped, or the topic closed, when the refusal came."""
    async with apache(tmp_path) as (_, console, asked):
        assert "GET_PENDING_MESSAGES" in await run(console, command, **fields)
        changes = RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert [asked[code] for code in changes] == [0, 0]
        routes = await console.console.client.topics.route("Orders")
        assert {queue.perm for queue in routes.queue_datas} == {6}


async def test_a_reset_says_that_its_undo_needs_the_clients_to_be_stopped(tmp_path: Path) -> None:
    async with apache(tmp_path) as (_, console, _):
        for command, fields in (
            ("resetOffsetByTime", {"timestamp_ms": "0"}),
            ("skipAccumulatedMessage", {}),
            ("resetOffsets", {"offsets": "apache-1:0:0"}),
        ):
            asked = await console.post(f"/run/{command}", {"group": "billing", "topic": "Orders"} | fields)
            assert re.search("all clients .* RocketMQ 4 .* apache-1, apache-2", text_of(asked)), command


async def test_a_refusal_is_not_shown_as_no_answer(tmp_path: Path) -> None:
    def refuse(_: Connection, command: RemotingCommand) -> RemotingCommand | None:
        return command.response(ResponseCode.SYSTEM_ERROR, remark="AclException: No accessKey is configured")

    async with cluster(tmp_path) as running:
        server = await running.scripted_broker("apache-1", "Orders", dict.fromkeys(BODIES, refuse))
        async with visitor(running.namesrv) as console:
            await console.console.collector.wait_first()
            (alarm,) = console.console.collector.snapshot.alarms()
            assert ("refuses" in alarm.text, "AclException" in alarm.fields["why"]) == (True, True)
            for path in ("/", f"/broker?address=127.0.0.1:{server.port}"):
                text = await console.text(path)
                assert ("refused:" in text, "unreachable" in text) == (True, False), path
            assert "apache-1 could not be read" in await console.text("/topics")
