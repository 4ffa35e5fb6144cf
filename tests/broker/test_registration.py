"""What a broker tells its name servers, as one of them hears it."""

from __future__ import annotations

from pathlib import Path

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.message.record import body_crc
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.route import BrokerRequestHeader, RegisterBrokerRequestHeader, decode_registration
from rucola.remoting.connection import Connection
from rucola.remoting.server import RemotingServer
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
        assert "TBW102" in decode_registration(header, command.body).topic_config_serialize_wrapper.topic_config_table
    newest = heard.items[-1]
    table = decode_registration(newest.decode_header(RegisterBrokerRequestHeader), newest.body)
    assert "T11" in table.topic_config_serialize_wrapper.topic_config_table
    (goodbye,) = left.items
    assert goodbye.decode_header(BrokerRequestHeader).broker_addr == address
