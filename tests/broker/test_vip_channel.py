"""The VIP channel: a broker serves the same requests two ports below listenPort."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from rucola.broker.assembly.listeners import Listeners
from rucola.broker.config import BrokerConfig
from rucola.domain.topic import TopicConfigSerializeWrapper
from rucola.errors import RemotingError
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.budget import ConnectionLimits
from rucola.remoting.connection import ReadHooks
from support.broker_peer import broker_peer, heartbeat
from support.errors import raises
from support.peer import pull_header, send_header
from support.ports import HOST, free_port


async def test_topics_are_answered_there_as_a_slave_of_apache_asks_for_them(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        vip = f"{HOST}:{peer.broker.config.listen_port - 2}"
        await peer.send(topic="Orders")
        request = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG)
        response = await peer.client.invoke_ok(vip, request)
        assert "Orders" in decode_body(TopicConfigSerializeWrapper, response.body).topic_config_table


async def test_one_client_sends_there_and_another_is_notified_and_pulls_on_the_usual_port(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        vip = f"{HOST}:{peer.broker.config.listen_port - 2}"
        await peer.send()
        waiting = asyncio.create_task(peer.pull(queue_offset=1, sys_flag=6, suspend_timeout_millis=60_000))
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("usual"))
        joined = RemotingCommand.request(RequestCode.HEART_BEAT, body=heartbeat("vip"))
        await peer.client.invoke_ok(vip, joined)
        sent = await peer.client.invoke_ok(
            vip, RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_header(), b"v")
        )
        assert sent.ext_fields["queueOffset"] == "1"
        assert (await asyncio.wait_for(waiting, 20)).code == ResponseCode.SUCCESS
        pulled = await peer.client.invoke(vip, RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header()))
        assert pulled.body == (await peer.pull()).body


@pytest.mark.slow
async def test_idle_connections_there_are_closed_and_a_stop_closes_all(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, server_channel_max_idle_time_seconds=1) as peer:
        port = peer.broker.config.listen_port - 2
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        reader, writer = await asyncio.open_connection(HOST, port)
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HOST, port)


async def test_it_can_be_turned_off(tmp_path: Path) -> None:
    port = free_port()
    async with broker_peer(tmp_path, vip_channel_enabled=False, listen_port=port, ha_listen_port=0) as peer:
        with socket.create_server((HOST, port - 2)):
            assert (await peer.send()).code == ResponseCode.SUCCESS


async def test_a_taken_port_is_named_with_the_way_out_and_the_other_one_is_released(tmp_path: Path) -> None:
    port = free_port()
    with (
        socket.create_server((HOST, port - 2)),
        raises(RemotingError, subject="vipChannelEnabled"),
    ):
        async with broker_peer(tmp_path, listen_port=port, ha_listen_port=0):
            pytest.fail("the broker must not start")
    async with broker_peer(tmp_path, listen_port=port, ha_listen_port=0) as peer:
        assert (await peer.send()).code == ResponseCode.SUCCESS


def test_a_port_without_one_two_below_it_is_refused() -> None:
    config = BrokerConfig(bind_address=HOST, listen_port=2)
    with pytest.raises(RemotingError):
        Listeners(config, {}, lambda connection: None).bind()


async def test_port_0_picks_a_pair_among_many_taken_ports() -> None:
    async with AsyncExitStack() as taken:
        for _ in range(400):
            taken.enter_context(socket.create_server((HOST, 0)))
        for _ in range(100):
            config = BrokerConfig(bind_address=HOST, listen_port=0)
            listeners = Listeners(config, {}, lambda connection: None)
            listeners.bind()
            taken.push_async_callback(listeners.stop)
            await listeners.start(ReadHooks())
            for port in (config.listen_port, config.listen_port - 2):
                socket.create_connection((HOST, port)).close()


async def test_the_limit_of_connections_counts_those_of_both_ports(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, connection_limits=ConnectionLimits(max_connections=3)) as peer:
        await peer.send()  # by the peer's own connection
        listen_port = peer.broker.config.listen_port
        admitted = [await asyncio.open_connection(HOST, port) for port in (listen_port - 2, listen_port)]
        request = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG).encode()
        for reader, writer in admitted:
            writer.write(request)
            assert await asyncio.wait_for(reader.read(4), 20) != b""
        for port in (listen_port - 2, listen_port):
            reader, writer = await asyncio.open_connection(HOST, port)
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
        # The place of a closed connection is free again, once the broker has noticed.
        admitted.pop()[1].close()
        answer = b""
        async with asyncio.timeout(20):
            while not answer:
                reader, writer = await asyncio.open_connection(HOST, listen_port)
                with suppress(ConnectionError):
                    writer.write(request)
                    answer = await reader.read(4)
                writer.close()
        for _, each in admitted:
            each.close()
