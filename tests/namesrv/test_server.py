"""The name server over real sockets: recorded requests, registrations of every form, and brokers that go."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rucola import settings
from rucola.domain.route import ClusterInfo, RegisterBrokerBody, TopicRouteData
from rucola.domain.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rucola.errors import BrokerError, ConfigError, RemotingError
from rucola.message.record import body_crc
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand, SerializeType
from rucola.protocol.kv import (
    GetKVListByNamespaceRequestHeader,
    KVConfigRequestHeader,
    KVTable,
    PutKVConfigRequestHeader,
)
from rucola.protocol.route import (
    BrokerRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    TopicList,
    encode_registration,
)
from rucola.remoting.client import RemotingClient
from rucola.remoting.deadline import Deadline
from support.errors import raises
from support.recorded_frames import Exchange, decode, exchanges, shape

RECORDED_PORT = 9877


@dataclass
class Talk:
    """A name server and a client of it; `ask` invokes."""

    namesrv: Namesrv
    client: RemotingClient

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.namesrv.port}"

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        return await self.client.invoke(self.address, RemotingCommand.request(code, header, body))

    async def route(self, topic: str) -> RemotingCommand:
        return await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))


@asynccontextmanager
async def running_namesrv(
    config: NamesrvConfig | None = None,
    clock_ms: Callable[[], int] = lambda: 0,
) -> AsyncIterator[Talk]:
    """Run a scenario against a name server of its own."""

    async with Namesrv("127.0.0.1", 0, config=config, clock_ms=clock_ms) as namesrv:
        client = RemotingClient()
        try:
            yield Talk(namesrv, client)
        finally:
            await client.close()


def registration(
    *topics: str, address: str = "127.0.0.1:10911", broker_id: int = 0, compress: bool = False, counter: int = 1
) -> tuple[RegisterBrokerRequestHeader, bytes]:
    body = encode_registration(
        RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
                data_version=DataVersion(counter=counter, timestamp=1_700_000_000_000),
                topic_config_table={name: TopicConfig(topic_name=name) for name in topics},
            )
        ),
        compress=compress,
    )
    header = RegisterBrokerRequestHeader(
        broker_name="broker-a",
        broker_addr=address,
        cluster_name="DefaultCluster",
        ha_server_addr=address.replace("10911", "10912"),
        broker_id=broker_id,
        compressed="true" if compress else "false",
        body_crc32=body_crc(body),
    )
    return header, body


# Recorded traffic.


@pytest.mark.parametrize("serializer", ["JSON", "ROCKETMQ"])
async def test_recorded_requests_get_equal_answers(golden: Path, serializer: str) -> None:
    recorded = [e for e in exchanges(golden) if e.port == RECORDED_PORT and e.serializer == serializer]
    # Not every registration is in the recording: before a route that only a missing one explains, register its topic.
    missing = RegisterBrokerRequestHeader(
        broker_name="broker-a", broker_addr="127.0.0.1:10921", cluster_name="DefaultCluster", broker_id=0
    )
    wsql = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
            data_version=DataVersion(counter=99),
            topic_config_table={"WSql": TopicConfig(topic_name="WSql", read_queue_nums=1, write_queue_nums=1)},
        )
    )

    def compare(exchange: Exchange, answer: RemotingCommand, expected: RemotingCommand) -> None:
        assert answer.code == expected.code, exchange
        assert answer.opaque == expected.opaque, exchange
        assert answer.serialize_type == expected.serialize_type, exchange
        assert answer.ext_fields.keys() == expected.ext_fields.keys(), exchange
        assert shape(answer.body) == shape(expected.body), exchange
        if exchange.code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
            assert answer.body == expected.body, exchange

    async with running_namesrv() as t:
        for exchange in recorded:
            request = decode(exchange.request)
            if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and request.ext_fields["topic"] == "WSql":
                await t.ask(RequestCode.REGISTER_BROKER, missing, encode_registration(wsql))
            if exchange.answer is None:
                (await t.client.connect(t.address)).send(request)
                continue
            answer = await t.client.invoke(t.address, request)
            compare(exchange, answer, decode(exchange.answer))
    assert {e.code for e in recorded} == {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 304, 319, 327}


# Brokers.


@pytest.mark.parametrize("compress", [False, True])
async def test_a_registration_is_accepted_plain_or_compressed(compress: bool) -> None:
    async with running_namesrv() as t:
        answer = await t.ask(RequestCode.REGISTER_BROKER, *registration("T", "U", compress=compress))
        assert (answer.code, answer.ext_fields, answer.body) == (ResponseCode.SUCCESS, {}, b"")
        listed = await t.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert decode_body(TopicList, listed.body).topic_list == ["T", "U"]


async def test_a_registration_with_a_wrong_crc_is_refused() -> None:
    async with running_namesrv() as t:
        header, body = registration("T")
        answer = await t.ask(RequestCode.REGISTER_BROKER, header, body.replace(b'"T"', b'"X"'))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
        assert (await t.route("T")).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("damage", [lambda body: body[:-3], lambda body: b"\x00" + body[1:], lambda body: b"{"])
async def test_a_damaged_compressed_registration_is_refused(damage: Callable[[bytes], bytes]) -> None:
    async with running_namesrv() as t:
        header, body = registration("T", compress=True)
        header.body_crc32 = 0
        answer = await t.ask(RequestCode.REGISTER_BROKER, header, damage(body))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "compressed registration" in (answer.remark or "")


async def test_a_slave_gets_its_masters_address() -> None:
    async with running_namesrv() as t:
        await t.ask(RequestCode.REGISTER_BROKER, *registration("T"))
        answer = await t.ask(RequestCode.REGISTER_BROKER, *registration(address="127.0.0.2:10911", broker_id=1))
        told = answer.decode_header(RegisterBrokerResponseHeader)
        assert (told.ha_server_addr, told.master_addr) == ("127.0.0.1:10912", "127.0.0.1:10911")


async def test_a_broker_can_query_its_data_version() -> None:
    async with running_namesrv() as t:
        header = BrokerRequestHeader(
            broker_name="broker-a", broker_addr="127.0.0.1:10911", cluster_name="DefaultCluster", broker_id=0
        )
        version = DataVersion(counter=1, timestamp=1_700_000_000_000)

        async def changed(asked: DataVersion) -> tuple[bool, bytes]:
            answer = await t.ask(RequestCode.QUERY_DATA_VERSION, header, encode_body(asked))
            assert answer.code == ResponseCode.SUCCESS
            return answer.decode_header(QueryDataVersionResponseHeader).changed, answer.body

        assert await changed(version) == (True, b"")
        await t.ask(RequestCode.REGISTER_BROKER, *registration("T", counter=1))
        assert await changed(version) == (False, encode_body(version))
        assert await changed(version.next(1_700_000_000_001)) == (True, encode_body(version))


async def test_a_registration_with_equal_topics_is_refreshed_until_one_of_them_is_deleted() -> None:
    now_ms = [0]
    async with running_namesrv(clock_ms=lambda: now_ms[0]) as t:
        broker = BrokerRequestHeader(
            broker_name="broker-a", broker_addr="127.0.0.1:10911", cluster_name="DefaultCluster", broker_id=0
        )
        version = encode_body(DataVersion(counter=1, timestamp=1_700_000_000_000))

        async def has_all() -> bool:
            answer = await t.ask(RequestCode.QUERY_DATA_VERSION, broker, version)
            return not answer.decode_header(QueryDataVersionResponseHeader).changed

        async def register(address: str = "127.0.0.1:10911") -> None:
            answer = await t.ask(RequestCode.REGISTER_BROKER, *registration("T", "U", address=address))
            assert answer.code == ResponseCode.SUCCESS

        for _ in range(3):
            await register()
            now_ms[0] += 100_000
            t.namesrv.routes.remove_expired(now_ms[0])
            assert await has_all()
        await t.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader(topic="T"))
        assert t.namesrv.routes.route("T") is None
        assert not await has_all()
        await register()
        assert t.namesrv.routes.route("T") is not None
        assert await has_all()
        await register("127.0.0.2:10911")
        assert not await has_all(), "another address has its place"
        await register()
        assert await has_all()


async def test_a_broker_is_unregistered_with_its_connection() -> None:
    async with running_namesrv() as t:
        broker = RemotingClient()
        await broker.invoke_ok(t.address, RemotingCommand.request(RequestCode.REGISTER_BROKER, *registration("T")))
        (connection,) = t.namesrv.connections
        assert (await t.route("T")).code == ResponseCode.SUCCESS
        await broker.close()
        await connection.closed.wait()
        assert (await t.route("T")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_silent_broker_is_unregistered_and_disconnected() -> None:
    now_ms = 0

    async with running_namesrv(clock_ms=lambda: now_ms) as t:
        broker = RemotingClient()
        connection = await broker.connect(t.address)
        await connection.request(
            RemotingCommand.request(RequestCode.REGISTER_BROKER, *registration("T")), Deadline(3000)
        )
        now_ms = 120_000
        t.namesrv.drop_silent_brokers()
        assert (await t.route("T")).code == ResponseCode.SUCCESS
        now_ms = 120_001
        t.namesrv.drop_silent_brokers()
        await connection.closed.wait()
        assert (await t.route("T")).code == ResponseCode.TOPIC_NOT_EXIST
        await broker.close()


@pytest.mark.slow
async def test_an_idle_connection_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async with running_namesrv(NamesrvConfig(server_channel_max_idle_time_seconds=1)) as t:
        silent = await t.client.connect(t.address)
        await silent.closed.wait()
        assert any("closing the connection, idle for 1 s" in message for message in caplog.messages)


# What clients and administrators ask.


async def test_newer_clients_get_quoted_broker_ids() -> None:
    async with running_namesrv() as t:
        await t.ask(RequestCode.REGISTER_BROKER, *registration("T"))

        async def body(version: int, **ext: str) -> bytes:
            request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            request = RemotingCommand(request.code, {"topic": "T", **ext}, opaque=request.opaque, version=version)
            return (await t.client.invoke(t.address, request)).body

        assert b'{0:"127.0.0.1:10911"}' in await body(333)
        assert b'{"0":"127.0.0.1:10911"}' in await body(401)
        assert b'{"0":"127.0.0.1:10911"}' in await body(333, acceptStandardJsonOnly="true")
        assert decode_body(TopicRouteData, await body(333)) == decode_body(TopicRouteData, await body(409))


async def test_an_order_configuration_reaches_brokers_and_clients() -> None:
    async with running_namesrv() as t:
        await t.ask(
            RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="T", value="a:4")
        )
        answer = await t.ask(RequestCode.REGISTER_BROKER, *registration("T"))
        assert decode_body(KVTable, answer.body).table == {"T": "a:4"}
        assert decode_body(TopicRouteData, (await t.route("T")).body).order_topic_conf is None
        await t.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n")
        assert decode_body(TopicRouteData, (await t.route("T")).body).order_topic_conf == "a:4"


async def test_unit_topics_are_listed() -> None:
    async with running_namesrv() as t:
        header, _ = registration()
        header.body_crc32 = 0
        table = {str(flag): TopicConfig(topic_name=str(flag), topic_sys_flag=flag) for flag in range(4)}
        wrapper = TopicConfigSerializeWrapper(data_version=DataVersion(), topic_config_table=table)
        body = encode_registration(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
        await t.ask(RequestCode.REGISTER_BROKER, header, body)

        async def listed(code: RequestCode) -> list[str]:
            return decode_body(TopicList, (await t.ask(code)).body).topic_list

        assert await listed(RequestCode.GET_UNIT_TOPIC_LIST) == ["1", "3"]
        assert await listed(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["2", "3"]
        assert await listed(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["2"]


async def test_missing_entries_are_answered_with_their_codes() -> None:
    async with running_namesrv() as t:
        assert (await t.route("T")).code == ResponseCode.TOPIC_NOT_EXIST
        value = await t.ask(RequestCode.GET_KV_CONFIG, KVConfigRequestHeader(namespace="n", key="k"))
        assert (value.code, value.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: n Key: k")
        table = await t.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, GetKVListByNamespaceRequestHeader(namespace="n"))
        assert (table.code, table.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: n")
        topics = await t.ask(RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader(cluster="C"))
        assert (topics.code, topics.body) == (ResponseCode.SUCCESS, b'{"topicList":[]}')
        info = await t.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert decode_body(ClusterInfo, info.body) == ClusterInfo()


async def test_an_unknown_code_and_a_missing_field_are_answered() -> None:
    async with running_namesrv() as t:
        assert (await t.ask(9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        answer = await t.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "topic" in (answer.remark or "")
        binary = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, serialize_type=SerializeType.ROCKETMQ, opaque=-7)
        assert (await t.client.invoke(t.address, binary)).serialize_type is SerializeType.ROCKETMQ


# Configuration.


def test_defaults_equal_apaches(golden: Path) -> None:
    """Except the files, which Apache's name server keeps in a home directory."""
    ours = settings.to_properties(NamesrvConfig())
    asked = [exchange for exchange in exchanges(golden) if exchange.code == RequestCode.GET_NAMESRV_CONFIG]
    assert asked
    for exchange in asked:
        assert exchange.answer is not None
        theirs = settings.parse(decode(exchange.answer).body.decode()) | {"listenPort": "9876"}
        differing = {name for name in ours if name in theirs and ours[name] != theirs[name]}
        assert not differing
        assert {"kvConfigPath", "configStorePath"} <= theirs.keys() - ours.keys()


async def test_configuration_is_returned_and_changed(tmp_path: Path) -> None:
    stored = tmp_path / "namesrv.conf"

    async with running_namesrv(NamesrvConfig(config_store_path=stored)) as t:
        shown = (await t.ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
        assert f"listenPort={t.namesrv.port}\n" in shown
        assert "orderMessageEnable=false\n" in shown
        changed = await t.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n")
        assert changed.code == ResponseCode.SUCCESS
        assert (await t.ask(RequestCode.GET_NAMESRV_CONFIG)).body == stored.read_bytes()
        assert b"orderMessageEnable=true\n" in stored.read_bytes()

        for key in (b"kvConfigPath=/elsewhere", b"listenPort=1", b"configBlackList="):
            refused = await t.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=key)
            assert refused.code == ResponseCode.NO_PERMISSION
        unread = await t.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=perhaps")
        assert (unread.code, unread.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "orderMessageEnable=perhaps: expected true or false",
        )
        assert (await t.ask(RequestCode.UPDATE_NAMESRV_CONFIG)).code == ResponseCode.SUCCESS


async def test_an_unknown_configuration_key_is_refused_by_name_and_nothing_changes(tmp_path: Path) -> None:
    stored = tmp_path / "namesrv.conf"

    async with running_namesrv(NamesrvConfig(config_store_path=stored)) as t:
        before = (await t.ask(RequestCode.GET_NAMESRV_CONFIG)).body
        refused = await t.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"maxKvEntries=5\norderMesageEnable=true\n")
        assert (refused.code, refused.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "orderMesageEnable: there is no such setting; did you mean orderMessageEnable?",
        )
        assert (await t.ask(RequestCode.GET_NAMESRV_CONFIG)).body == before
        assert not stored.exists()


async def test_a_configuration_key_of_apache_without_effect_is_accepted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "rucola.namesrv")
    async with running_namesrv() as t:
        body = b"orderMessageEnable=true\nproductEnvName=center\nserverWorkerThreads=9\n"
        assert (await t.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)).code == ResponseCode.SUCCESS
        assert b"orderMessageEnable=true\n" in (await t.ask(RequestCode.GET_NAMESRV_CONFIG)).body
    assert "{'orderMessageEnable': 'true'}; without effect: productEnvName, serverWorkerThreads" in caplog.text


async def test_the_kv_table_survives_a_restart(tmp_path: Path) -> None:
    config = NamesrvConfig(kv_config_path=tmp_path / "kvConfig.json")
    put = PutKVConfigRequestHeader(namespace="n", key="k", value="v")

    async with running_namesrv(config) as t:
        assert (await t.ask(RequestCode.PUT_KV_CONFIG, put)).code == ResponseCode.SUCCESS
    async with running_namesrv(config) as t:
        answer = await t.ask(RequestCode.GET_KV_CONFIG, KVConfigRequestHeader(namespace="n", key="k"))
        assert answer.ext_fields == {"value": "v"}


# Start and stop.


async def test_a_taken_port_is_named_and_stop_is_idempotent() -> None:
    async with Namesrv("127.0.0.1", 0) as namesrv:
        with raises(RemotingError, subject=f"127.0.0.1:{namesrv.port}"):
            await Namesrv("127.0.0.1", namesrv.port).start()
    await namesrv.stop()


async def test_a_damaged_kv_table_leaves_no_port_open(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("{")

    namesrv = Namesrv("127.0.0.1", 0, config=NamesrvConfig(kv_config_path=path))
    with pytest.raises(ConfigError):
        await namesrv.start()
    assert namesrv.port == 0


async def test_registrations_and_losses_of_brokers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with running_namesrv() as t:
        with caplog.at_level(logging.INFO, "rucola.namesrv"):
            header, body = registration("T")
            await t.ask(RequestCode.REGISTER_BROKER, header, body)
            goodbye = BrokerRequestHeader(
                broker_name="broker-a", broker_addr=header.broker_addr, cluster_name="DefaultCluster", broker_id=0
            )
            await t.client.invoke_ok(t.address, RemotingCommand.request(RequestCode.UNREGISTER_BROKER, goodbye))
            with raises(BrokerError, code=ResponseCode.TOPIC_NOT_EXIST):
                await t.client.invoke_ok(
                    t.address,
                    RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic="T")),
                )
    assert [record.message for record in caplog.records] == [
        "broker broker-a at 127.0.0.1:10911 registered in cluster DefaultCluster",
        "broker broker-a at 127.0.0.1:10911 unregistered",
    ]
