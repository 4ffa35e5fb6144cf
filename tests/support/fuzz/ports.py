"""Targets that are ports: raw bytes on connections of their own, and a server that answers a client.

`tls-port` serves TLS and plain text, `ha-port` slaves that must authenticate, `metrics-port` HTTP. An input is written,
the sending side is closed, and the server must close as well. `client` is a client whose server answers with the input:
its first byte chooses what the client asks for, and the connection ends behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig, MetricsExporterType
from rucola.broker.replication.ha_authentication import HELLO
from rucola.client import MessageQueue, PullConsumer
from rucola.domain.route import BrokerData, QueueData, TopicRouteData
from rucola.errors import MQError
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.protocol.replication import encode_report
from rucola.remoting.tls_config import TlsMode
from rucola.store.config import StoreConfig
from rucola.store.tools.check import check
from support.access import make_home
from support.certificates import Certificates
from support.cluster import HOST, SMALL_FILES
from support.fuzz.loop import Target
from support.fuzz.servers import LoggedErrors, requests_of
from support.recorded_frames import decode, exchanges

CLOSE_TIMEOUT_S = 20.0
OPAQUE = 7
"""That of every request of the fuzzed client, and of the recorded answers."""
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(32)) + b"\x00" + b"\x00\x02\x13\x01\x01\x00"


@contextmanager
def port_targets(golden: Path, directory: Path) -> Iterator[list[Target]]:
    """Yield the targets of ports; the store of the broker is checked at the end."""
    loop = asyncio.new_event_loop()
    errors = LoggedErrors(loop)
    try:
        with errors.collected():
            stack = loop.run_until_complete(_started(directory))
            namesrv, broker = stack.namesrv, stack.broker
            reports = [encode_report(0), encode_report(9), encode_report(HELLO) + b"\0\0\0\x08operator" + bytes(40)]
            gets = [b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", b"POST / HTTP/1.0\r\n\r\n"]
            hello = [CLIENT_HELLO, *requests_of(golden, to_namesrv=True)]
            yield [
                _of_port("tls-port", namesrv.port, hello, loop, errors),
                _of_port("ha-port", broker.config.ha_listen_port, reports, loop, errors),
                _of_port("metrics-port", broker.config.metrics_prom_exporter_port, gets, loop, errors),
            ]
            loop.run_until_complete(stack.aclose())
        assert check(directory / "store") == []
    finally:
        loop.close()


class _Servers(AsyncExitStack):
    namesrv: Namesrv
    broker: Broker


async def _started(directory: Path) -> _Servers:
    stack = _Servers()
    certificates = Certificates(directory / "certificates")
    config = NamesrvConfig(tls=certificates.config(TlsMode.permissive))
    stack.namesrv = await stack.enter_async_context(Namesrv(HOST, 0, config=config))
    guarded = BrokerConfig(
        bind_address=HOST, broker_ip1=HOST, listen_port=0, ha_listen_port=0, acl_enable=True,
        rocketmq_home=make_home(directory / "home"), metrics_exporter_type=MetricsExporterType.PROM,
        metrics_prom_exporter_port=0, max_slaves=4,
    )  # fmt: skip
    store = StoreConfig(store_path_root_dir=directory / "store", **SMALL_FILES)
    stack.broker = await stack.enter_async_context(Broker(guarded, store))
    return stack


def _of_port(name: str, port: int, seeds: list[bytes], loop: asyncio.AbstractEventLoop, errors: LoggedErrors) -> Target:
    async def exchange(data: bytes) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        with suppress(ConnectionError):
            writer.write(data)
            writer.write_eof()
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while await reader.read(1 << 20):
                    pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    return Target(name, seeds, lambda data: errors.run(exchange(data)))


@contextmanager
def client_target(golden: Path) -> Iterator[Target]:
    """Yield the target of a client, whose name server and broker is one hostile server."""
    loop = asyncio.new_event_loop()
    errors = LoggedErrors(loop)
    try:
        with errors.collected():
            client = loop.run_until_complete(_HostileServer().open())
            yield Target("client", client.seeds(golden), lambda data: errors.run(client.run(data)))
            loop.run_until_complete(client.close())
    finally:
        loop.close()


class _HostileServer:
    """A server that answers one request with the input, and what a client does with it."""

    def __init__(self) -> None:
        self._data = b""
        self._hostile_code = 0

    async def open(self) -> _HostileServer:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self._address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"
        self._consumer = PullConsumer("g", self._address)
        await self._consumer.__aenter__()
        return self

    async def close(self) -> None:
        await self._consumer.__aexit__(None, None, None)
        self._server.close()

    def seeds(self, golden: Path) -> list[bytes]:
        """Return recorded answers to each kind of request, and recorded requests of brokers to clients."""
        found = []
        for number, (code, _) in enumerate(self._operations()):
            for exchange in exchanges(golden):
                if exchange.code == code and exchange.answer:
                    answer = decode(exchange.answer)
                    answer.opaque = OPAQUE
                    found.append(bytes([number]) + answer.encode())
                    break
        for code in (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.GET_CONSUMER_RUNNING_INFO):
            request = RemotingCommand.request(code)
            request.ext = {"consumerGroup": "g", "clientId": "c"}
            found.append(bytes([2]) + request.encode())
        return found

    def _operations(self) -> list[tuple[int, Callable[[], Awaitable[Any]]]]:
        consumer, queue = self._consumer, MessageQueue("T", "broker-a", 0)
        return [
            (RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda: consumer.instance.routes.refresh("T")),
            (RequestCode.PULL_MESSAGE, lambda: consumer.pull(queue, 0)),
            (RequestCode.GET_MAX_OFFSET, lambda: consumer.max_offset(queue)),
            (RequestCode.QUERY_CONSUMER_OFFSET, lambda: consumer.committed(queue)),
            (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, consumer.topics),
            (RequestCode.GET_BROKER_CLUSTER_INFO, consumer.registered_masters),
        ]

    async def run(self, data: bytes) -> None:
        operations = self._operations()
        await self._consumer.instance.routes.refresh("T")  # honest: whatever the last input left behind is replaced
        self._hostile_code, operation = operations[(data[0] if data else 0) % len(operations)]
        self._data = data[1:]
        try:
            await operation()
        finally:
            self._hostile_code = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        try:
            while received := await reader.read(1 << 16):
                for command in decoder.receive_data(received):
                    if command.code == self._hostile_code:
                        self._hostile_code = 0
                        opaque = b'"opaque":%d,' % command.opaque
                        writer.write(self._data.replace(b'"opaque":%d,' % OPAQUE, opaque))
                        await writer.drain()
                        return
                    writer.write(self._honest(command))
                await writer.drain()
        except (ConnectionError, MQError):
            pass
        finally:
            writer.close()

    def _honest(self, command: RemotingCommand) -> bytes:
        route = TopicRouteData(
            broker_datas=[BrokerData(broker_name="broker-a", cluster="c", broker_addrs={0: self._address})],
            queue_datas=[QueueData(broker_name="broker-a", perm=6, read_queue_nums=1, write_queue_nums=1)],
        )
        return command.response(ResponseCode.SUCCESS, body=encode_body(route)).encode()
