"""Routes: which queues follow from a name server's answer, and which server answers."""

from __future__ import annotations

import asyncio
import random

import pytest

from rucola import name_server_addresses
from rucola.admin import AdminClient
from rucola.client import ClientInstance, Message, Producer
from rucola.client import route as route_module
from rucola.client.route import NameServers, TopicRoute, TopicRoutes, default_topic_route, topic_route
from rucola.domain.queue import MessageQueue
from rucola.domain.route import BrokerData, QueueData, TopicRouteData
from rucola.errors import ConfigError, RemoteProtocolError, RemotingConnectError, RemotingTimeout
from rucola.namesrv.server import Namesrv
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.route import GetRouteInfoRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.remoting.server import RemotingServer
from support.cluster import Tally


def broker(name: str, *ids: int) -> BrokerData:
    return BrokerData(broker_name=name, cluster="c", broker_addrs={i: f"10.0.0.{i + 1}:10911" for i in ids})


def queue_data(name: str, perm: int, read: int, write: int) -> QueueData:
    return QueueData(broker_name=name, perm=perm, read_queue_nums=read, write_queue_nums=write)


def ids(queues: tuple[MessageQueue, ...]) -> list[tuple[str, int]]:
    assert all(queue.topic == "T" for queue in queues)
    return [(queue.broker_name, queue.queue_id) for queue in queues]


def test_queues_follow_permissions_counts_and_masters() -> None:
    route = topic_route(
        "T",
        TopicRouteData(
            broker_datas=[broker("d", 0), broker("a", 0, 1), broker("b", 0), broker("c", 1)],
            queue_datas=[
                queue_data("d", 2, 1, 1),  # may only be written to
                queue_data("c", 6, 1, 1),  # has lost its master
                queue_data("b", 4, 2, 2),  # may only be read
                queue_data("a", 6, 1, 2),
            ],
        ),
    )
    assert ids(route.write_queues) == [("a", 0), ("a", 1), ("d", 0)]
    assert ids(route.read_queues) == [("a", 0), ("b", 0), ("b", 1), ("c", 0)]
    assert route.brokers["a"] == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


def test_an_order_configuration_defines_the_write_queues(caplog: pytest.LogCaptureFixture) -> None:
    data = TopicRouteData(
        broker_datas=[broker("a", 0), broker("b", 0)],
        queue_datas=[queue_data("a", 6, 8, 8), queue_data("b", 6, 8, 8)],
        order_topic_conf="b:1;a:2;nonsense",
    )
    route = topic_route("T", data)
    assert ids(route.write_queues) == [("b", 0), ("a", 0), ("a", 1)]
    assert len(route.read_queues) == 16
    assert "nonsense" in caplog.text


def test_a_default_topics_route_has_four_write_queues_per_broker_and_no_read_queues() -> None:
    default = topic_route(
        "TBW102",
        TopicRouteData(
            broker_datas=[broker("a", 0), broker("b", 0)],
            queue_datas=[queue_data("a", 7, 8, 8), queue_data("b", 7, 2, 2)],
        ),
    )
    route = default_topic_route("T", default)
    assert route.is_default
    assert ids(route.write_queues) == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("b", 1)]
    assert route.read_queues == ()


@pytest.mark.parametrize("addresses", ["", " ; ", ";,"])
def test_a_missing_name_server_address_raises_at_once(addresses: str) -> None:
    with pytest.raises(ConfigError):
        NameServers(addresses, RemotingClient())


def question() -> RemotingCommand:
    return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic="T"))


@pytest.mark.parametrize(
    ("environment", "addresses"),
    [
        ({}, ["localhost:9876"]),
        ({"NAMESRV_ADDR": "a:1;b:2"}, ["a:1", "b:2"]),
        ({"ROCKETMQ_NAMESRV": "c:3", "NAMESRV_ADDR": "a:1;b:2"}, ["c:3"]),
        ({"ROCKETMQ_NAMESRV": "", "NAMESRV_ADDR": "a:1"}, ["a:1"]),
    ],
)
def test_default_name_servers_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], addresses: list[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert NameServers(None, RemotingClient()).addresses == addresses
    assert NameServers("d:4", RemotingClient()).addresses == ["d:4"]
    assert ClientInstance().name_servers.addresses == addresses
    assert AdminClient().namesrv == ";".join(addresses)


@pytest.mark.parametrize("variable", ["ROCKETMQ_NAMESRV", "NAMESRV_ADDR"])
async def test_an_unreachable_name_server_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    address = await free_address()
    monkeypatch.setenv(variable, address)
    async with Producer("g") as producer:
        with pytest.raises(RemotingConnectError, match=f"{address}.* the environment variable {variable}"):
            await producer.send(Message("T", b"body"))


async def test_an_unreachable_default_address_is_named_with_the_ways_to_change_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(name_server_addresses, "DEFAULT_NAMESRV", await free_address())
    async with Producer("g") as producer:
        with pytest.raises(RemotingConnectError, match="the default address; give another one by namesrv=, -n or ROCK"):
            await producer.send(Message("T", b"body"))


async def free_address() -> str:
    """An address of this machine where nobody listens any more."""
    async with Namesrv("127.0.0.1", 0) as gone:
        return f"127.0.0.1:{gone.port}"


async def test_the_next_name_server_is_asked_if_one_is_down() -> None:
    away = await free_address()
    async with Namesrv("127.0.0.1", 0) as namesrv:
        here = f"127.0.0.1:{namesrv.port}"
        remoting = RemotingClient()
        for addresses in (f"{away};{here}", f"{here}, {away}"):
            answer = await NameServers(addresses, remoting).invoke(question())
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        await remoting.close()


class SilentNameServer:
    """A name server that takes requests and answers none."""

    def __init__(self) -> None:
        self.asked: Tally[int] = Tally()
        processor = {RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda _, command: self.asked.add(command.opaque)}
        self.server = RemotingServer("127.0.0.1", 0, processor)  # type: ignore[arg-type]

    async def __aenter__(self) -> SilentNameServer:
        await self.server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.server.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


async def test_a_hung_name_server_delays_one_request_and_is_asked_last_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "randrange", lambda count: 0)

    async with Namesrv("127.0.0.1", 0) as namesrv, SilentNameServer() as hung:
        remoting = RemotingClient()
        servers = NameServers(f"{hung.address};127.0.0.1:{namesrv.port}", remoting)
        for _ in range(5):
            answer = await servers.invoke(question(), timeout_ms=3_600_000)
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert len(hung.asked.items) == 1
        await remoting.close()


async def test_a_slow_name_server_is_still_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first server answers after the second was asked, and the second never does."""
    monkeypatch.setattr(random, "randrange", lambda count: 0)
    monkeypatch.setattr(route_module, "HEDGE_MS", 10)

    async with SilentNameServer() as hung:

        async def answer_late(command: RemotingCommand) -> RemotingCommand:
            await hung.asked.reach(1)
            return command.response(ResponseCode.TOPIC_NOT_EXIST)

        processors = {RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda _, command: answer_late(command)}
        slow = RemotingServer("127.0.0.1", 0, processors)
        await slow.start()
        remoting = RemotingClient()
        servers = NameServers(f"127.0.0.1:{slow.port};{hung.address}", remoting)
        answer = await servers.invoke(question(), timeout_ms=3_600_000)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        await remoting.close()
        await slow.stop()


@pytest.mark.slow
async def test_all_name_servers_together_take_at_most_the_timeout() -> None:
    async with SilentNameServer() as one, SilentNameServer() as two, SilentNameServer() as three:
        remoting = RemotingClient()
        servers = NameServers(";".join([one.address, two.address, three.address]), remoting)
        async with asyncio.timeout(10):  # and not three times the timeout
            with pytest.raises(RemotingConnectError) as caught:
                await servers.invoke(question(), timeout_ms=4000)
        assert all(server.address in str(caught.value) for server in (one, two, three))
        await remoting.close()


async def test_concurrent_callers_share_a_lookup_with_their_own_timeouts() -> None:
    async with SilentNameServer() as hung:
        remoting = RemotingClient()
        routes = TopicRoutes(NameServers(hung.address, remoting), lambda route: None)
        short = [asyncio.ensure_future(routes.find_for_sending("T", timeout_ms=50)) for _ in range(20)]
        long = asyncio.ensure_future(routes.refresh("T", timeout_ms=3_600_000))
        for failure in await asyncio.gather(*short, return_exceptions=True):
            assert isinstance(failure, RemotingTimeout)
            assert "cannot look up the route of topic T: no name server answered within 50 ms" in str(failure)
        assert not long.done()
        assert len(await hung.asked.reach(1)) == 1
        routes.close()
        with pytest.raises(RemotingConnectError):
            await long
        await remoting.close()


async def test_a_lookup_that_outlasts_its_callers_is_kept() -> None:
    may_answer = asyncio.Event()

    async def answer_late(command: RemotingCommand) -> RemotingCommand:
        await may_answer.wait()
        body = encode_body(TopicRouteData(broker_datas=[broker("a", 0)], queue_datas=[queue_data("a", 6, 1, 1)]))
        return command.response(ResponseCode.SUCCESS, body=body)

    slow = RemotingServer("127.0.0.1", 0, {RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda _, command: answer_late(command)})
    await slow.start()
    remoting = RemotingClient()
    kept: Tally[TopicRoute] = Tally()
    routes = TopicRoutes(NameServers(f"127.0.0.1:{slow.port}", remoting), kept.add)
    with pytest.raises(RemotingTimeout):
        await routes.find("T", timeout_ms=20)
    may_answer.set()
    await kept.reach(1)
    assert ids((await routes.find("T", timeout_ms=0)).write_queues) == [("a", 0)]
    await remoting.close()
    await slow.stop()


async def test_every_failure_is_named_when_no_name_server_answers() -> None:
    first, second = await free_address(), await free_address()
    remoting = RemotingClient()
    with pytest.raises(RemotingConnectError) as caught:
        await NameServers(f"{first};{second}", remoting).invoke(question())
    assert first in str(caught.value)
    assert second in str(caught.value)
    await remoting.close()


@pytest.mark.parametrize(
    "counts",
    [
        [20_000_000],
        [65_536] * 17,
    ],
)
def test_a_route_with_too_many_queues_is_refused(counts: list[int]) -> None:
    names = [f"a{number}" for number in range(len(counts))]
    data = TopicRouteData(
        broker_datas=[broker(name, 0) for name in names],
        queue_datas=[queue_data(name, 6, count, count) for name, count in zip(names, counts, strict=True)],
    )
    with pytest.raises(RemoteProtocolError):
        topic_route("T", data)
    ordered = TopicRouteData(broker_datas=[broker("a0", 0)], order_topic_conf="a0:20000000")
    with pytest.raises(RemoteProtocolError):
        topic_route("T", ordered)
