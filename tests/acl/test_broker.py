"""A broker and a name server with access control, and real clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rucola.acl.credentials import Credentials
from rucola.acl.signature import CREDENTIAL_FIELDS
from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.broker.replication.ha_authentication import HELLO, prove
from rucola.client import BrokerError, Message, Producer, PullConsumer, PushConsumer, SendFailed, TransactionProducer
from rucola.client.producer.transaction import LocalTransactionState
from rucola.domain.topic import TopicConfig
from rucola.errors import ConfigError, MQError
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import GetConsumerRunningInfoRequestHeader
from rucola.protocol.pull import SUBSCRIPTION, SUSPEND
from rucola.protocol.query import QueryMessageRequestHeader, ViewMessageRequestHeader
from rucola.protocol.replication import encode_report
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.remoting.byte_stream import open_stream
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Connection
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.store.config import BrokerRole
from rucola.store.tools.check import check
from rucola.store.tools.dump import dump
from support.access import ADMIN, READER, STRANGER, WRITER, GuardedCluster, guarded_cluster, signed
from support.compatibility import rows
from support.errors import raises
from support.interceptors import requests_of_every_field
from support.metrics import sample_value, scrape
from support.peer import pull_header, send_header
from support.remoting_peers import RawPeer
from support.waiting import until

NOBODY = Credentials("nobody1", "secret of nobody")
WITH_NOBODY = """
accounts:
  - accessKey: operator
    secretKey: secret of the operator
    admin: true
  - accessKey: nobody1
    secretKey: secret of nobody
"""
AUTHENTICATION_SUFFICES = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.END_TRANSACTION,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.GET_CHALLENGE,
}
"""Requests that name nothing to check, or a route. The topic of the last two is checked when the message is read."""
TESTED_ELSEWHERE = {
    RequestCode.PULL_MESSAGE,
    RequestCode.END_TRANSACTION,
    RequestCode.PROMOTE_BROKER,
    RequestCode.DEMOTE_BROKER,
    RequestCode.SWITCH_OVER,
}
"""Requests that the broker answers later or not at all, or after which it closes its connections for another role."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[GuardedCluster]:
    async with guarded_cluster(tmp_path) as cluster:
        yield cluster


async def started(cluster: GuardedCluster, *topics: str) -> Broker:
    broker = await cluster.start_broker()
    async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:
        for topic in topics or ("Orders",):
            await admin.topics.create_or_update(broker.address, TopicConfig(topic_name=topic))
    return broker


async def test_a_message_goes_from_a_writer_to_a_reader(cluster: GuardedCluster) -> None:
    await started(cluster)
    async with Producer("writers", cluster.namesrv, credentials=WRITER) as producer:
        await producer.send(Message("Orders", b"one", keys="k"))
        await producer.send_batch([Message("Orders", b"two"), Message("Orders", b"three")])
    consumer = PushConsumer("readers", cluster.namesrv, credentials=READER)
    consumer.subscribe("Orders")
    found = []
    async with consumer:
        async for message in consumer:
            found.append(message.body)
            if len(found) == 3:
                break
    assert sorted(found) == [b"one", b"three", b"two"]


async def test_a_reader_cannot_send_and_a_writer_cannot_read(cluster: GuardedCluster) -> None:
    await started(cluster)
    async with Producer("writers", cluster.namesrv, credentials=READER, retry_times=0) as producer:
        with raises(SendFailed, subject="Orders"):
            await producer.send(Message("Orders", b"forged"))
    async with PullConsumer("readers", cluster.namesrv, credentials=WRITER) as consumer:
        queue = (await consumer.queues("Orders"))[0]
        with raises(BrokerError, code=ResponseCode.NO_PERMISSION):
            await consumer.pull(queue, 0)


@pytest.mark.parametrize(
    ("credentials", "reason"),
    [
        (None, "has no access key"),
        (STRANGER, "unknown access key or wrong secret key, accessKey=stranger"),
        (Credentials("operator", "not the secret"), "unknown access key or wrong secret key, accessKey=operator"),
    ],
)
async def test_every_request_code_needs_an_account(
    cluster: GuardedCluster, credentials: Credentials | None, reason: str
) -> None:
    broker = await cluster.start_broker()
    client = RemotingClient(credentials=credentials)
    for row in rows():
        for server, address in (("broker", broker.address), ("name server", cluster.namesrv)):
            if row.is_answered_by(server):
                for request in (requests_of_every_field(row.code), RemotingCommand.request(row.code)):
                    answer = await client.invoke(address, request)
                    assert (answer.code, reason in str(answer.remark)) == (ResponseCode.NO_PERMISSION, True), row
    await client.close()


async def test_every_request_code_needs_a_permission(tmp_path: Path) -> None:
    """An account without any permission is denied, except for the requests listed here."""
    async with guarded_cluster(tmp_path, WITH_NOBODY) as cluster:
        broker = await cluster.start_broker()
        client = RemotingClient(credentials=NOBODY)
        for row in rows():
            for server, address in (("broker", broker.address), ("name server", cluster.namesrv)):
                if row.is_answered_by(server) and row.code not in AUTHENTICATION_SUFFICES:
                    answer = await client.invoke(address, requests_of_every_field(row.code))
                    assert answer.code == ResponseCode.NO_PERMISSION, (row, answer)
                    assert "nobody1" in str(answer.remark), row
        await client.close()


async def test_an_admin_may_send_every_request(cluster: GuardedCluster) -> None:
    broker = await cluster.start_broker()
    client = RemotingClient(credentials=ADMIN)
    for row in rows():
        if row.is_answered_by("broker") and row.code not in TESTED_ELSEWHERE:
            answer = await client.invoke(broker.address, requests_of_every_field(row.code))
            assert answer.code != ResponseCode.NO_PERMISSION, (row, answer)
    await client.close()


async def test_a_changed_request_is_denied(cluster: GuardedCluster) -> None:
    """The signature covers ext fields and body."""
    broker = await started(cluster)
    client = RemotingClient()
    for change in ("body", "field", "nothing"):
        request = requests_of_every_field(RequestCode.SEND_MESSAGE_V2)
        request.ext = {"a": "writers", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        request.body = b"body"
        WRITER.sign(request.ext, request.body)
        if change == "body":
            request.body = b"Body"
        elif change == "field":
            request.ext["e"] = "1"
        answer = await client.invoke(broker.address, request)
        expected = ResponseCode.SUCCESS if change == "nothing" else ResponseCode.NO_PERMISSION
        assert answer.code == expected, (change, answer)
    await client.close()


@pytest.mark.parametrize("count", [1, 3])
async def test_each_send_of_a_read_is_admitted_by_its_own_signature(cluster: GuardedCluster, count: int) -> None:
    """Whether they are decoded together or one by one."""
    broker = await started(cluster, "Orders", "Salaries")
    keys: list[tuple[Credentials | None, str, bool]] = [
        (WRITER, "Orders", True), (WRITER, "Orders", True), (ADMIN, "Salaries", True), (ADMIN, "Orders", True),
        (None, "Orders", False), (WRITER, "Salaries", False), (STRANGER, "Orders", False), (WRITER, "Orders", True),
        (READER, "Orders", False), (Credentials("writer1", "not its secret"), "Orders", False),
    ]  # fmt: skip
    sends = []
    for number, (credentials, topic, _) in enumerate(keys * count):
        header, body = send_header(topic=topic, properties='KEYS\x01a "ä"\x02'), b"%d" % number
        request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body)
        if credentials is not None:
            request = signed(credentials, RequestCode.SEND_MESSAGE_V2, header, body)
        request.opaque = number
        sends.append(request.encode())
    peer = await RawPeer.at(broker.config.listen_port)
    await peer.send(b"".join(sends))
    codes = {answer.opaque: answer.code for answer in await peer.commands(len(sends))}
    expected = [ResponseCode.SUCCESS if is_admitted else ResponseCode.NO_PERMISSION for *_, is_admitted in keys * count]
    assert [codes[number] for number in range(len(sends))] == expected
    await peer.close()
    await broker.stop()
    stored = [int(row["number"]) for row in dump(cluster.path / "store", body_fields=lambda body: {"number": body})]
    assert stored == [number for number, code in enumerate(expected) if code == ResponseCode.SUCCESS]
    assert check(cluster.path / "store") == []
    lines = [json.loads(line) for line in (cluster.path / "store" / "audit" / "audit.jsonl").read_text().splitlines()]
    assert sum(line["outcome"] == "denied" for line in lines) == expected.count(ResponseCode.NO_PERMISSION)


async def test_messages_of_other_topics_cannot_be_read_by_id_or_sent_back(cluster: GuardedCluster) -> None:
    """Requests that name an offset of the log, and no topic."""
    broker = await started(cluster, "Orders", "Salaries")
    async with Producer("p", cluster.namesrv, credentials=ADMIN) as producer:
        sent = await producer.send(Message("Salaries", b"1,000,000"))
    offset = int(sent.offset_msg_id[16:], 16)
    client = RemotingClient(credentials=READER)
    view = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))
    answer = await client.invoke(broker.address, view)
    assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
    header = ConsumerSendMsgBackRequestHeader(offset=offset, group="readers", delay_level=1)
    back = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    answer = await client.invoke(broker.address, back)
    assert answer.code == ResponseCode.NO_PERMISSION
    await client.close()


async def test_a_query_finds_no_messages_of_other_topics_with_the_same_hash(cluster: GuardedCluster) -> None:
    """The index has hashes of topic#key, and a key for any given hash of Java's is found by a division."""
    broker = await started(cluster, "Orders", "Salaries")
    async with Producer("p", cluster.namesrv, credentials=ADMIN) as producer:
        await producer.send(Message("Salaries", b"secret", keys="k"))
    header = QueryMessageRequestHeader(
        topic="Orders", key=colliding_key("Orders", "Salaries#k"), max_num=10, begin_timestamp=0, end_timestamp=1 << 60
    )
    request = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)
    for credentials, expected in ((ADMIN, ResponseCode.SUCCESS), (READER, ResponseCode.QUERY_NOT_FOUND)):
        client = RemotingClient(credentials=credentials)
        answer = await client.invoke(broker.address, request)
        assert (answer.code, b"secret" in answer.body) == (expected, credentials is ADMIN)
        await client.close()


def colliding_key(topic: str, wanted: str) -> str:
    """A key for which topic#key has the hash of `wanted`, found digit by digit in base 31."""
    prefix = 0
    for character in topic + "#":
        prefix = (prefix * 31 + ord(character)) & 0xFFFFFFFF
    length = 12
    begin = (prefix * pow(31, length, 1 << 32)) & 0xFFFFFFFF
    missing = (java_hash(wanted) - begin - sum(48 * 31**place for place in range(length))) & 0xFFFFFFFF
    digits = []
    for _ in range(length):
        missing, digit = divmod(missing, 31)
        digits.append(chr(48 + digit))
    return "".join(reversed(digits))


def java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (value * 31 + ord(character)) & 0xFFFFFFFF
    return value


async def test_a_transaction_is_ended_by_users_with_the_permission_to_send(cluster: GuardedCluster) -> None:
    await started(cluster)
    ended: list[str] = []

    async def check(message: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    async def execute(message: Message) -> LocalTransactionState:
        ended.append(message.topic)
        return LocalTransactionState.COMMIT_MESSAGE

    async with TransactionProducer("t", cluster.namesrv, check=check, credentials=WRITER) as producer:
        await producer.send_in_transaction(Message("Orders", b"paid"), execute)
    async with PullConsumer("readers", cluster.namesrv, credentials=READER) as consumer:
        bodies = []
        for queue in await consumer.queues("Orders"):
            bodies += [message.body for message in (await consumer.pull(queue, 0)).messages]
    assert (bodies, ended) == ([b"paid"], ["Orders"])


async def test_a_held_pull_ends_if_its_account_loses_the_permission(cluster: GuardedCluster) -> None:
    broker = await started(cluster)
    async with (
        PullConsumer("readers", cluster.namesrv, credentials=READER) as consumer,
        Producer("p", cluster.namesrv, credentials=ADMIN) as producer,
        AdminClient(cluster.namesrv, credentials=ADMIN) as admin,
    ):
        queue = (await consumer.queues("Orders"))[0]
        pull = asyncio.create_task(consumer.pull(queue, 0, suspend_ms=15_000))
        await consumer.max_offset(queue)  # on the same connection: the pull is held when this is answered
        await admin.access.delete_account(broker.address, "reader1")
        await producer.send(Message("Orders", b"secret"), queue)
        with raises(BrokerError, code=ResponseCode.NO_PERMISSION):
            await pull


async def test_a_held_pull_keeps_its_user_when_another_one_uses_the_connection(cluster: GuardedCluster) -> None:
    broker = await started(cluster)
    header = pull_header(
        topic="Orders", consumer_group="readers", sys_flag=SUSPEND | SUBSCRIPTION, suspend_timeout_millis=15_000
    )
    peer = await RawPeer.at(broker.config.listen_port)
    captured = signed(ADMIN, RequestCode.GET_BROKER_CONFIG).encode()
    await peer.send(signed(READER, RequestCode.PULL_MESSAGE, header).encode() + captured)
    assert [answer.code for answer in await peer.commands(1)] == [ResponseCode.SUCCESS]  # the pull is held
    async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:
        await admin.access.delete_account(broker.address, "reader1")
    async with Producer("p", cluster.namesrv, credentials=ADMIN) as producer:
        await producer.send(Message("Orders", b"secret"), (await producer.queues("Orders"))[0])
    (answer,) = await peer.commands(1)
    assert (answer.code, bytes(answer.body)) == (ResponseCode.NO_PERMISSION, b"")
    await peer.close()


async def test_no_secret_is_in_the_configuration_or_in_a_repr(cluster: GuardedCluster) -> None:
    broker = await cluster.start_broker()
    async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:
        config = await admin.brokers.config(broker.address)
    assert "secret of" not in json.dumps(config)
    assert repr(ADMIN) == "Credentials('operator')"
    with pytest.raises(MQError) as raised:
        Credentials("", "hidden-secret")
    assert "hidden-secret" not in str(raised.value)


async def test_the_name_server_registers_only_brokers_with_an_admin_account(cluster: GuardedCluster) -> None:
    tools = cluster.path / "writer.yml"
    tools.write_text("accessKey: writer1\nsecretKey: secret of the writer\n")
    await cluster.start_broker("intruder", name="broker-x", credentials_file=tools)
    await cluster.start_broker()
    async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:
        assert [*(await admin.cluster.info()).broker_addr_table] == ["broker-a"]


async def test_a_second_master_of_a_name_is_refused_until_it_is_promoted(cluster: GuardedCluster) -> None:
    first = await cluster.start_broker("one")
    second = await cluster.start_broker("two", register_name_server_period=50)
    async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:

        async def registered() -> dict[int, str]:
            table = (await admin.cluster.info()).broker_addr_table
            return table["broker-a"].broker_addrs if "broker-a" in table else {}

        assert await registered() == {0: first.address}
        await first.stop()
        assert await registered() == {}
        await admin.roles.promote(second.address)

        async def is_second_registered() -> bool:
            return await registered() == {0: second.address}

        await until(is_second_registered)


async def test_an_audit_log_has_administrative_and_denied_requests(cluster: GuardedCluster) -> None:
    broker = await started(cluster)
    async with Producer("writers", cluster.namesrv, credentials=WRITER, retry_times=0) as producer:
        await producer.send(Message("Orders", b"one"))
        with pytest.raises(SendFailed):
            await producer.send(Message("Salaries", b"two"))
    async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:
        with pytest.raises(BrokerError):
            await admin.access.delete_account(broker.address, "operator")
    await broker.stop()
    text = (cluster.path / "store" / "audit" / "audit.jsonl").read_text()
    assert "secret of" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["user"], line["action"], line["topics"], line["outcome"]) for line in lines] == [
        ("operator", "ALTER_TOPIC", ["Orders"], "done"),
        ("writer1", "PUBLISH", ["Salaries"], "denied"),
        ("operator", "ALTER_ACCESS", [], "failed"),
    ]
    assert lines[1]["reason"] == "account writer1 has no permission PUB for topic Salaries"
    assert lines[1]["address"].startswith("127.0.0.1:")
    assert lines[1]["request"] == "SEND_MESSAGE_V2 310"
    assert "no admin account" in lines[2]["reason"]


async def test_a_client_called_by_an_operator_does_not_see_the_signature(cluster: GuardedCluster) -> None:
    """With it, the client could send the operator's request again."""
    broker = await started(cluster)
    seen: list[dict[str, str]] = []

    def answer(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        seen.append(command.ext_fields)
        return command.response(ResponseCode.SUCCESS, body=b"{}")

    client = RemotingClient({RequestCode.GET_CONSUMER_RUNNING_INFO: answer}, credentials=READER)
    heartbeat = {
        "clientID": "c",
        "producerDataSet": [],
        "consumerDataSet": [
            {
                "groupName": "readers",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [],
            }
        ],
    }
    await client.invoke_ok(
        broker.address, RemotingCommand.request(RequestCode.HEART_BEAT, body=json.dumps(heartbeat).encode())
    )
    header = GetConsumerRunningInfoRequestHeader(consumer_group="readers", client_id="c", jstack_enable=False)
    operator = RemotingClient(credentials=ADMIN)
    await operator.invoke_ok(broker.address, RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
    await operator.close()
    assert seen
    assert not CREDENTIAL_FIELDS & seen[0].keys()
    await client.close()


async def test_a_slave_authenticates_and_copies_log_and_tables(cluster: GuardedCluster) -> None:
    await started(cluster)
    slave = await cluster.start_broker("slave", broker_id=1, store={"broker_role": BrokerRole.SLAVE})
    async with Producer("writers", cluster.namesrv, credentials=WRITER) as producer:
        sent = await producer.send(Message("Orders", b"one"))
    offset = int(sent.offset_msg_id[16:], 16)
    client = RemotingClient(credentials=ADMIN)
    view = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))

    async def is_copied() -> bool:
        return b"one" in (await client.invoke(slave.address, view)).body

    await until(is_copied)
    await client.close()


@pytest.mark.parametrize("attempt", ["a report at once", "a wrong proof", "no admin"])
async def test_a_peer_without_credentials_gets_nothing_of_the_log(cluster: GuardedCluster, attempt: str) -> None:
    broker = await started(cluster)
    async with Producer("writers", cluster.namesrv, credentials=WRITER) as producer:
        await producer.send(Message("Orders", b"secret of the log"))
    stream = await open_stream(f"127.0.0.1:{broker.config.ha_listen_port}")
    if attempt == "a report at once":
        await stream.write(encode_report(0))
    else:
        keys = Credentials("operator", "a wrong secret") if attempt == "a wrong proof" else READER
        await prove(stream, keys, 5000)
    assert await stream.read(1 << 16) == b""
    stream.close()
    await broker.stop()
    audit = (cluster.path / "store" / "audit" / "audit.jsonl").read_text()
    assert '"action":"REPLICATE"' in audit


async def test_peers_without_credentials_keep_no_slave_out(cluster: GuardedCluster) -> None:
    broker = await cluster.start_broker(max_slaves=1)
    silent = [await open_stream(f"127.0.0.1:{broker.config.ha_listen_port}") for _ in range(2)]
    await silent[0].write(encode_report(HELLO))  # it begins to authenticate
    await cluster.start_broker("slave", broker_id=1, store={"broker_role": BrokerRole.SLAVE})
    await until(lambda: 1 in broker.role.in_sync())
    for stream in silent:
        stream.close()


async def test_the_metrics_count_denied_requests_and_broken_files(cluster: GuardedCluster) -> None:
    broker = await cluster.start_broker(metrics_exporter_type=MetricsExporterType.PROM, metrics_prom_exporter_port=0)
    client = RemotingClient()
    await client.invoke(broker.address, RemotingCommand.request(RequestCode.GET_BROKER_CONFIG))
    await client.close()
    samples = await scrape(broker)
    labels = {"cluster": "DefaultCluster", "broker": "broker-a"}
    assert sample_value(samples, "rocketmq_access_denied_total", **labels) == 1
    assert sample_value(samples, "rocketmq_acl_broken_files", **labels) == 0
    assert sample_value(samples, "rocketmq_audit_dropped_total", **labels) == 0


WHITE = """
globalWhiteRemoteAddresses:
  - 127.0.0.1
accounts: []
"""
ACCOUNT_WHITE = """
accounts:
  - accessKey: operator
    secretKey: secret of the operator
    admin: true
  - accessKey: gateway
    secretKey: secret of the gateway
    whiteRemoteAddress: 127.0.0.*
"""


async def test_a_global_white_address_needs_no_signature_for_requests_and_replication(tmp_path: Path) -> None:
    """As a slave of Apache, which cannot authenticate."""
    async with guarded_cluster(tmp_path, WHITE) as cluster:
        broker = await cluster.start_broker()
        async with Producer("p", cluster.namesrv) as producer:
            await producer.send(Message("Orders", b"of the log"))
        stream = await open_stream(f"127.0.0.1:{broker.config.ha_listen_port}")
        await stream.write(encode_report(0))
        found = b""
        while b"of the log" not in found:
            found += await stream.read(1 << 16)
        stream.close()


async def test_from_its_white_addresses_an_account_needs_no_signature(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path, ACCOUNT_WHITE) as cluster:
        broker = await cluster.start_broker()
        client = RemotingClient()
        request = RemotingCommand.request(RequestCode.GET_BROKER_CONFIG)
        request.ext = {"AccessKey": "gateway"}
        assert (await client.invoke(broker.address, request)).code == ResponseCode.SUCCESS
        request.ext = {"AccessKey": "operator"}
        assert (await client.invoke(broker.address, request)).code == ResponseCode.NO_PERMISSION
        await client.close()


async def test_users_that_share_a_connection_keep_their_own_permissions(cluster: GuardedCluster) -> None:
    """The caller of a connection follows each request."""
    broker = await started(cluster)
    client = RemotingClient()
    for credentials, code in ((ADMIN, ResponseCode.SUCCESS), (WRITER, ResponseCode.NO_PERMISSION)) * 2:
        request = signed(credentials, RequestCode.GET_BROKER_CONFIG)
        assert (await client.invoke(broker.address, request)).code == code
    assert (await client.invoke(broker.address, signed(ADMIN, RequestCode.GET_BROKER_CONFIG))).code == 0
    unsigned = RemotingCommand.request(RequestCode.GET_BROKER_CONFIG)
    assert (await client.invoke(broker.address, unsigned)).code == ResponseCode.NO_PERMISSION
    await client.close()
    await broker.stop()
    lines = [json.loads(line) for line in (cluster.path / "store" / "audit" / "audit.jsonl").read_text().splitlines()]
    assert [line["user"] for line in lines if line["outcome"] == "denied"] == ["writer1", "writer1", None]


async def test_a_broker_does_not_start_with_broken_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded_cluster(tmp_path) as cluster:
        with raises(ConfigError, subject=str(tmp_path / "nowhere" / "conf" / "plain_acl.yml")):
            await cluster.start_broker("a", rocketmq_home=tmp_path / "nowhere")
        monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
        with raises(ConfigError, subject="ROCKETMQ_HOME"):
            await cluster.start_broker("b", rocketmq_home=None)
        with raises(ConfigError, subject=str(tmp_path / "nowhere.yml")):
            await cluster.start_broker("c", credentials_file=tmp_path / "nowhere.yml")
        assert check(tmp_path / "a") == []
