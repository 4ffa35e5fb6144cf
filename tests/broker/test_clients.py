"""Who is connected: members that fall silent are gone, and those that stay are told, where that is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola import slices
from rucola.access import Caller
from rucola.acl.principal import Principal
from rucola.broker.client_registry import EXPIRY_MS, ClientChannel, ClientRegistry
from rucola.broker.remoting.outgoing_calls import RemotingClientCalls
from rucola.domain.client import ConsumerData, HeartbeatData, ProducerData
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Connection
from rucola.remoting.server import RemotingServer
from support.broker_peer import broker_peer, heartbeat
from support.cluster import Tally
from support.waiting import until


class Scene:
    """A server that keeps a list of clients, and the time."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.gone: Tally[str] = Tally()
        self.clients = ClientRegistry(
            should_notify=lambda group: True,
            notify=RemotingClientCalls().notify_consumer_ids_changed,
            on_group_left=self.gone.add,
            call_later=lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s, call),
        )
        self.server = RemotingServer("127.0.0.1", 0, {RequestCode.HEART_BEAT: self._beat}, on_close=self.clients.closed)

    def _beat(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self.clients.heartbeat(
            connection, connection.caller, decode_body(HeartbeatData, command.body), "JAVA", 409, self.now_ms
        )
        return command.response(ResponseCode.SUCCESS)


class Client:
    """A client with groups, and the groups of which it was told that they changed."""

    def __init__(self, scene: Scene, client_id: str, consumers: list[str], producers: list[str]) -> None:
        self.told: Tally[str] = Tally()
        self._address = f"127.0.0.1:{scene.server.port}"
        self._remoting = RemotingClient({RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._note})
        self._body = encode_body(
            HeartbeatData(
                client_id=client_id,
                consumer_data_set=[ConsumerData(group_name=group) for group in consumers],
                producer_data_set=[ProducerData(group_name=group) for group in producers],
            )
        )

    def _note(self, connection: Connection, command: RemotingCommand) -> None:
        self.told.add(command.ext_fields["consumerGroup"])

    async def beat(self) -> None:
        command = RemotingCommand.request(RequestCode.HEART_BEAT, body=self._body)
        assert (await self._remoting.invoke(self._address, command)).code == ResponseCode.SUCCESS

    async def close(self) -> None:
        await self._remoting.close()


@asynccontextmanager
async def running_scene() -> AsyncIterator[Scene]:
    scene = Scene()
    await scene.server.start()
    try:
        yield scene
    finally:
        await scene.server.stop()


async def test_clients_without_heartbeats_expire_after_two_minutes() -> None:
    async with running_scene() as scene:
        silent, alive = Client(scene, "silent", ["g", "own"], ["p"]), Client(scene, "alive", ["g"], [])
        await silent.beat()
        scene.now_ms = 60_000
        await alive.beat()
        await alive.told.reach(1)
        slices.run(scene.clients.expire_steps(EXPIRY_MS))
        await alive.beat()
        assert scene.clients.consumers["g"].client_ids == ["silent", "alive"]
        assert scene.clients.producer("silent") is not None
        slices.run(scene.clients.expire_steps(EXPIRY_MS + 1))
        assert await alive.told.reach(2) == ["g", "g"]
        assert scene.clients.consumers["g"].client_ids == ["alive"]
        assert (scene.clients.producers, scene.clients.producer("silent")) == ({}, None)
        assert scene.gone.items == ["own"]
        await alive.close()
        await scene.gone.reach(2)
        assert scene.clients.consumers == {}
        await silent.close()


async def test_a_client_that_reconnected_is_listed_once_while_its_old_connection_is_still_open() -> None:
    async with running_scene() as scene:
        old, new = Client(scene, "same", ["g"], []), Client(scene, "same", ["g"], [])
        await old.beat()
        await new.beat()
        assert len(scene.clients.consumers["g"].members) == 2
        assert scene.clients.consumers["g"].client_ids == ["same"]
        await old.close()
        await new.told.reach(2)
        assert scene.clients.consumers["g"].client_ids == ["same"]
        await new.close()


async def test_two_clients_with_one_id_are_logged_and_one_that_reconnected_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_scene() as scene:
        first, second = Client(scene, "same", ["g"], []), Client(scene, "same", ["g"], [])
        for scene.now_ms, client in enumerate((first, second, second, second)):
            await client.beat()
        assert scene.clients.consumers["g"].shared_ids == set()
        assert caplog.messages == []
        for scene.now_ms, client in enumerate((first, second, first), 10):
            await client.beat()
        assert scene.clients.consumers["g"].shared_ids == {"same"}
        (line,) = caplog.messages
        assert all(channel.peer in line for channel in scene.clients.consumers["g"].members)
        await first.close()
        await second.told.reach(2)
        assert scene.clients.consumers["g"].shared_ids == set()
        await second.close()
        await scene.gone.reach(1)


async def test_a_client_is_removed_with_its_dead_connection() -> None:
    async with running_scene() as scene:
        old, new = Client(scene, "same", ["g"], ["p"]), Client(scene, "same", ["g"], ["p"])
        other = Client(scene, "other", ["g"], ["p"])
        for client in (old, new, other):
            await client.beat()
        scene.clients.unregister([*scene.clients.consumers["g"].members][1], "p", "g")
        assert scene.clients.consumers["g"].client_ids == ["other"]
        assert len(scene.clients.producers["p"]) == 1
        for client in (old, new, other):
            await client.close()


class Channel:
    """A connection without a socket, for hundreds of members."""

    peer = "127.0.0.1:1"
    is_open = True
    is_congested = False

    def close(self) -> None:
        raise AssertionError("no member expires")


def registry(
    notify: Callable[[ClientChannel, str], None] = lambda channel, group: None,
    call_later: Callable[[float, Callable[[], None]], object] = lambda delay_s, call: None,
) -> ClientRegistry:
    return ClientRegistry(lambda group: True, notify, lambda group: None, call_later)


def announce(
    clients: ClientRegistry,
    channel: ClientChannel,
    client_id: str,
    consumers: Iterable[str] = (),
    producers: Iterable[str] = (),
    *,
    user: Principal | None = None,
    now_ms: int = 0,
) -> None:
    """Register a heartbeat with these groups."""
    beat = HeartbeatData(
        client_id=client_id,
        consumer_data_set=[ConsumerData(group_name=group) for group in consumers],
        producer_data_set=[ProducerData(group_name=group) for group in producers],
    )
    clients.heartbeat(channel, Caller("10.0.0.1:1", user=user), beat, "JAVA", 409, now_ms)


def test_members_that_join_together_are_notified_together() -> None:
    notified: list[ClientChannel] = []
    pending: list[tuple[float, Callable[[], None]]] = []
    clients = registry(
        lambda channel, group: notified.append(channel), lambda delay_s, call: pending.append((delay_s, call))
    )
    channels = [Channel() for _ in range(1500)]
    for number, channel in enumerate(channels):
        announce(clients, channel, f"c{number}", ["g"])
    assert len(notified) <= 32, "all of them join in one iteration of the event loop"
    delays_s = []
    while pending:
        delay_s, call = pending.pop(0)
        delays_s.append(delay_s)
        call()
    # The changes since the first slice are one notification of all; 1.1 million would be notified one by one.
    assert notified[-1500:] == channels
    assert len(notified) < 1600
    assert max(delays_s) >= 0.3, "a pause is as long as twenty-five notifications take"
    # A client that leaves concerns its own groups only.
    clients.closed(channels[0])
    assert len(clients.consumers["g"].members) == 1499


def test_a_client_that_leaves_hundreds_of_groups_notifies_their_members_in_slices() -> None:
    notified: list[str] = []
    pending: list[tuple[float, Callable[[], None]]] = []
    clients = registry(
        lambda channel, group: notified.append(group), lambda delay_s, call: pending.append((delay_s, call))
    )

    def run() -> list[int]:
        """Run all slices, and return how many members each notified."""
        counts = [len(notified)]
        while pending:
            before = len(notified)
            pending.pop(0)[1]()
            counts.append(len(notified) - before)
        notified.clear()
        return counts

    groups = [f"g{number}" for number in range(100)]
    channels = [Channel() for _ in range(20)]
    for number, channel in enumerate(channels):
        announce(clients, channel, f"c{number}", groups)
        assert max(run()) <= 32
    clients.closed(channels[0])
    assert len(notified) == 32
    counts = run()
    assert sum(counts) == 19 * 100
    assert max(counts) <= 32


@pytest.mark.parametrize("by_broker", [True, False])
async def test_notification_can_be_switched_off_for_broker_or_group(tmp_path: Path, by_broker: bool) -> None:
    told: Tally[str] = Tally()

    def note(connection: Connection, command: RemotingCommand) -> None:
        told.add(command.ext_fields["consumerGroup"])

    async with broker_peer(tmp_path, notify_consumer_ids_changed_enable=not by_broker) as peer:
        await peer.alter_group(notify_consumer_ids_changed_enable=by_broker)
        client = RemotingClient({RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: note})
        for _ in range(2):  # a notification would come before the second answer
            command = RemotingCommand.request(RequestCode.HEART_BEAT, body=heartbeat("c"))
            assert (await client.invoke(peer.broker.address, command)).code == ResponseCode.SUCCESS
        assert told.items == []
        await client.close()


@pytest.mark.slow
async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, server_channel_max_idle_time_seconds=1) as peer:
        silent, talking = RemotingClient(), await peer.client.connect(peer.broker.address)
        connection = await silent.connect(peer.broker.address)
        while connection.is_open:
            assert (await peer.send()).code == ResponseCode.SUCCESS
        assert talking.is_open
        await silent.close()


async def test_an_idle_time_of_zero_closes_no_connection(tmp_path: Path) -> None:
    """As it is with Netty, where it switches the looking off."""

    async with broker_peer(tmp_path, server_channel_max_idle_time_seconds=0):
        assert "close idle connections" not in {task.get_name() for task in asyncio.all_tasks()}
    async with broker_peer(tmp_path):
        assert "close idle connections" in {task.get_name() for task in asyncio.all_tasks()}


def test_an_id_is_known_while_its_client_is_in_a_producer_group() -> None:
    """The id that a client announced last, in any of its groups, and no other."""
    clients = registry()
    channel = Channel()
    announce(clients, channel, "one", (), "pq")
    clients.unregister(channel, "p", None)
    assert clients.producer("one") is not None
    announce(clients, channel, "two", (), "q")
    assert (clients.producer("one"), clients.producer("two") is None) == (None, False)
    announce(clients, channel, "three", (), "p")
    clients.closed(channel)
    assert [clients.producer(one) for one in ("one", "two", "three")] == [None] * 3
    assert clients.producers == {}


def test_an_id_that_two_users_announced_is_free_when_all_but_one_have_expired() -> None:
    clients = registry()
    channels = [Channel() for _ in range(3)]

    def beat(channel: Channel, user: str, now_ms: int) -> None:
        announce(clients, channel, "id", (), "p", user=Principal(user), now_ms=now_ms)

    def holder() -> ClientChannel | None:
        return (clients.producer("id") or (None,))[0]

    alice, eve, again = channels
    beat(alice, "alice", 0)
    clients.closed(alice)
    beat(eve, "eve", 100_000)
    assert holder() is None, "replies to requests of alice may still come"
    slices.run(clients.expire_steps(EXPIRY_MS))
    assert holder() is None
    slices.run(clients.expire_steps(EXPIRY_MS + 1))
    assert holder() is eve
    beat(again, "alice", EXPIRY_MS + 2)
    assert holder() is None
    clients.unregister(eve, "p", None)
    assert holder() is again
    for channel in (again, eve):
        clients.closed(channel)
    slices.run(clients.expire_steps(2 * EXPIRY_MS + 3))
    assert (clients.producers, clients._producers_by_id) == ({}, {})


STEPS = st.tuples(
    st.sampled_from(["beat", "unregister", "close", "expire"]),
    st.integers(0, 3),  # which channel
    st.sampled_from([None, Principal("alice"), Principal("eve")]),
    st.sampled_from(["one", "two"]),
    st.sampled_from([["p"], ["q"], ["p", "q"]]),
)


@given(st.lists(STEPS, max_size=25))
def test_an_id_is_that_of_its_connected_clients_user_or_nobodys(
    steps: list[tuple[str, int, Principal | None, str, list[str]]],
) -> None:
    clients = registry()
    channels = [Channel() for _ in range(4)]
    for now_ms, (step, number, user, client_id, groups) in enumerate(steps):
        channel = channels[number]
        if step == "beat":
            announce(clients, channel, client_id, (), groups, user=user, now_ms=now_ms)
            assert (clients.producer(client_id) or (channel,))[0] is channel, "the latest of a user"
        elif step == "unregister":
            clients.unregister(channel, groups[0], None)
        elif step == "close":
            clients.closed(channel)
        else:
            slices.run(clients.expire_steps(now_ms))  # too early
        for one in ("one", "two"):
            if (found := clients.producer(one)) is not None:
                members = [group[found[0]] for group in clients.producers.values() if found[0] in group]
                assert (one, found[1]) in [(member.client_id, member.caller) for member in members]
    for channel in channels:
        clients.closed(channel)
    slices.run(clients.expire_steps(len(steps) + EXPIRY_MS + 1))
    assert (clients.producers, clients._turns, clients._producers_by_id) == ({}, {}, {})


def test_the_producers_of_one_user_that_do_not_read_do_not_hide_those_of_others() -> None:
    clients = registry()
    channels = {}
    for user in ("denied", "first", "first", "second", "denied too", "third"):
        channel = Channel()
        channels.setdefault(user, []).append(channel)
        announce(clients, channel, user, (), "p", user=Principal(user))

    def chosen() -> object:
        return clients.next_producer("p", lambda caller: caller.user is not None and "denied" not in caller.user.name)

    assert {chosen() for _ in range(2)} == {*channels["first"]}
    channels["first"][0].is_congested = True
    assert {chosen() for _ in range(2)} == {channels["first"][1]}
    channels["first"][1].is_open = False
    assert [chosen(), chosen()] == channels["second"] * 2
    channels["second"][0].is_congested = True
    assert [chosen()] == channels["third"]
    channels["third"][0].is_congested = True
    assert chosen() is None


async def test_a_client_is_answered_before_it_is_notified_that_it_joined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On the socket: Apache's client rebalances at a notification, also while its first heartbeat is in flight."""
    received: list[RemotingCommand] = []
    decoder = FrameDecoder()

    async def receive(count: int) -> list[tuple[int, int]]:
        """The code and opaque of so many frames."""
        while len(received) < count:
            received.extend(decoder.receive_data(await asyncio.wait_for(reader.read(65536), 20)))
        return [(command.code, command.opaque) for command in received[:count]]

    async with broker_peer(tmp_path) as peer:
        # Nor does the answer wait for the files of the new group, which cannot even be written.
        file = tmp_path / "config" / "subscriptionGroup.json"
        file.unlink(missing_ok=True)
        file.mkdir()
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.broker.config.listen_port)
        first, second = (RemotingCommand.request(RequestCode.HEART_BEAT, body=heartbeat("c")) for _ in range(2))
        writer.write(first.encode() + second.encode())
        (_, first_answer), notified, (_, second_answer) = await receive(3)
        assert (first_answer, second_answer) == (first.opaque, second.opaque)
        assert [command.code for command in received if command.flag & FLAG_RESPONSE] == [ResponseCode.SUCCESS] * 2
        assert (notified[0], received[1].is_oneway) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, True)
        assert (await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("other"))).code == ResponseCode.SUCCESS
        assert (await receive(4))[3][0] == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        writer.close()
        # The attempt to write it has failed: one that was still running at the stop would be the stop's failure.
        await until(lambda: "rucola.broker.tables.persistence" in {record.name for record in caplog.records})
        file.rmdir()
