"""What a broker tells its name servers, as one of them hears it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.broker.background.registration import Registration
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.broker.limits import Limits
from rucola.broker.tables.settings_table import MAX_CHANGES
from rucola.broker.tables.topics import TopicConfigTable
from rucola.domain.route import RegisterBrokerBody
from rucola.domain.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rucola.message.record import body_crc
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE
from rucola.protocol.route import (
    BrokerRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    encode_registration,
    registration_steps,
)
from rucola.protocol.topic import CreateTopicRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Connection
from rucola.remoting.server import RemotingServer
from rucola.slices import run
from rucola.store.config import StoreConfig
from support.cluster import HOST, SMALL_FILES, Tally, cluster


async def test_registrations_carry_the_fields_that_apaches_name_server_checks(tmp_path: Path) -> None:
    heard: Tally[RemotingCommand] = Tally()
    left: Tally[RemotingCommand] = Tally()

    def register(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        heard.add(command)
        return command.response(ResponseCode.SUCCESS)

    def unregister(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        left.add(command)
        return command.response(ResponseCode.SUCCESS)

    namesrv = RemotingServer(
        HOST, 0, {RequestCode.REGISTER_BROKER: register, RequestCode.UNREGISTER_BROKER: unregister}
    )
    await namesrv.start()
    async with cluster(tmp_path) as running:
        config = BrokerConfig(
            broker_name="broker-a", broker_ip1=HOST, bind_address=HOST, listen_port=0,
            namesrv_addr=f"{HOST}:{namesrv.port}",
        )  # fmt: skip
        async with Broker(config, StoreConfig(store_path_root_dir=str(tmp_path / "s"), **SMALL_FILES)) as broker:
            for count in range(12):
                await running.create_topic(broker, f"T{count}")
            await heard.reach(13)
            address = broker.address
    await namesrv.stop()

    for command in heard.items:
        header = command.decode_header(RegisterBrokerRequestHeader)
        assert 0 <= header.body_crc32 < 2**31, "Java reads it as an int"
        assert header.body_crc32 == body_crc(command.body)
        assert header.broker_addr == address
        assert (
            "TBW102" in run(registration_steps(header, command.body)).topic_config_serialize_wrapper.topic_config_table
        )
    newest = heard.items[-1]
    table = run(registration_steps(newest.decode_header(RegisterBrokerRequestHeader), newest.body))
    assert "T11" in table.topic_config_serialize_wrapper.topic_config_table
    (goodbye,) = left.items
    assert goodbye.decode_header(BrokerRequestHeader).broker_addr == address


async def test_a_name_server_that_has_the_other_topics_gets_only_those_that_changed(tmp_path: Path) -> None:
    heard: list[set[str] | None] = []
    is_whole: list[bool] = []
    has: list[DataVersion] = []

    def register(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = command.decode_header(RegisterBrokerRequestHeader)
        topics = run(registration_steps(header, command.body)).topic_config_serialize_wrapper
        heard.append(topics.topic_config_table.keys() - {topic.topic_name for topic in system})
        is_whole.append(system[0].topic_name in topics.topic_config_table)
        has[:] = [topics.data_version]
        return command.response(ResponseCode.SUCCESS)

    def query(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        heard.append(None)
        is_same = has == [decode_body(DataVersion, command.body)]
        return command.response(ResponseCode.SUCCESS, QueryDataVersionResponseHeader(changed=not is_same))

    codes = {RequestCode.REGISTER_BROKER: register, RequestCode.QUERY_DATA_VERSION: query}
    namesrv, client = RemotingServer(HOST, 0, codes), RemotingClient()
    await namesrv.start()
    config = BrokerConfig(namesrv_addr=f"{HOST}:{namesrv.port}")
    topics = TopicConfigTable(tmp_path / "topics.json", config, lambda: None, Limits(config))
    topics.load(1)
    system = list(topics)
    registration = Registration(config, topics, client)

    async def after(*changes: str) -> list[set[str] | None]:
        """What the name server hears after these topics were created, or deleted."""
        heard.clear()
        for name in changes:
            topics.remove(name[1:], 2) if name.startswith("-") else topics.put(TopicConfig(topic_name=name), 2)
        await registration.register()
        return heard

    assert await after("A") == [{"A"}], "the first is whole"
    assert await after() == [None]
    assert await after("B", "C", "B", "A") == [None, {"A", "B", "C"}]
    assert await after("-B", "D") == [None, {"D"}]
    has.clear()  # the name server has started again
    assert await after("E") == [None, {"A", "C", "D", "E"}]
    has.clear()
    assert await after() == [None, {"A", "C", "D", "E"}]
    topics.bump_data_version(3)
    assert await after() == [None, {"A", "C", "D", "E"}], "what clients may do with them has changed for all"
    many = [f"T{number}" for number in range(MAX_CHANGES + 1)]
    assert await after(*many) == [None, {"A", "C", "D", "E", *many}]
    assert is_whole == [True, False, False, True, True, True, True]
    await client.close()
    await namesrv.stop()


@pytest.mark.slow
async def test_a_store_with_too_many_topics_still_registers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"%RETRY%a-consumer-group-with-a-name-of-usual-length-{number}" for number in range(60_000)]
    table = {name: TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1) for name in names}
    stored = TopicConfigSerializeWrapper(data_version=DataVersion(counter=1, timestamp=1), topic_config_table=table)
    file = tmp_path / "broker-a" / "config" / "topics.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(encode_body(stored))
    assert file.stat().st_size > MAX_FRAME_SIZE * 3 // 4

    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        known = set(running.first_namesrv.routes.topics())
        assert known.issuperset(names)
        header = CreateTopicRequestHeader(topic="one-more", read_queue_nums=1, write_queue_nums=1, perm=6)
        request = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await running.remoting.invoke_ok(broker.address, request, 60_000)  # the whole table is written
        assert "one-more" in running.first_namesrv.routes.topics()
    assert any("compressed from now on" in line for line in caplog.messages)


async def test_registrations_can_always_be_compressed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.start_broker(compressed_register=True)
        assert "TBW102" in running.first_namesrv.routes.topics()


async def test_a_registration_with_too_many_topics_is_refused(tmp_path: Path) -> None:
    table = {name: TopicConfig(topic_name=name) for name in "abc"}
    wrapper = TopicConfigSerializeWrapper(topic_config_table=table)
    async with Namesrv(HOST, 0, config=NamesrvConfig(max_topics_per_broker=2)) as namesrv:
        client = RemotingClient()
        for compressed in (False, True):
            body = encode_registration(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper), compress=compressed)
            header = RegisterBrokerRequestHeader(
                broker_name="a", broker_addr="127.0.0.1:1", cluster_name="c", broker_id=0, compressed=compressed
            )
            request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)
            answer = await client.invoke(f"{HOST}:{namesrv.port}", request)
            assert answer.remark == "a registration with 3 topics; the limit is 2 (maxTopicsPerBroker)"
        await client.close()
