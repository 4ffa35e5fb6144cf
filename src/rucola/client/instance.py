"""ClientInstance: one client as brokers see it, with its connections, routes and heartbeats.

Producers and consumers stand on an instance. Each makes one of its own unless it is given one to share; a shared
instance has one connection to each broker, one heartbeat for all its groups, and one client id:

    clientId   address@instance name                 192.168.1.7@4711#1732149000123456789

The instance name is process id#nanoseconds, new each time, unless one that stays is given. A client that was made
before `os.fork` and not opened gets a new one in each process that opens it, since two members of a group with one
client id own the same queues; one whose name or id was chosen cannot be opened there.

Brokers learn of an instance by heartbeats: every `HEARTBEAT_INTERVAL_MS` to every broker in the routes at hand (only
to masters while there is no consumer), and at once when a broker appears, a group joins or a connection breaks, so a
broker that was started again has its consumers back within a moment. Routes are renewed every
`ROUTE_INTERVAL_MS`.

A held pull may wait long for its answer, and so would a consumer for messages on a half-open connection. Therefore a
connection on which nothing was received for `PROBE_AFTER_MS`, though requests wait on it, is probed with an empty
heartbeat; if that times out as well, the connection is closed (see `rucola.remoting.connection`), the pulls on it fail
and are repeated on a new one. So a half-open connection costs a consumer some ten seconds.

Answers to `MQClientInstance` and `MQClientManager` of Apache RocketMQ 4.9.8. Deliberate difference: Apache shares an
instance among all clients of a process with the same settings; here sharing is said aloud.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import time
from contextlib import suppress
from typing import Protocol, TypeVar, runtime_checkable

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.lifecycle import Lifecycle, run_close_steps
from rucola.client.operator_requests import OperableConsumer, OperatorRequests
from rucola.client.request_reply import PendingReplies
from rucola.client.route import NAMESRV_TIMEOUT_MS, NameServers, TopicRoute, TopicRoutes
from rucola.errors import ConfigError, MQError, RemoteProtocolError, RemotingConnectError
from rucola.message import MessageExt, properties
from rucola.message.record import decode
from rucola.message.topics import check_group
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import (
    HeartbeatData,
    NotifyConsumerIdsChangedRequestHeader,
    ProducerData,
    UnregisterClientRequestHeader,
)
from rucola.protocol.queue import MessageQueue
from rucola.protocol.route import MASTER_ID
from rucola.protocol.transaction import CheckTransactionStateRequestHeader
from rucola.remoting.client import REQUEST_TIMEOUT_MS, RemotingClient
from rucola.remoting.connection import Connection, Processor
from rucola.remoting.deadline import Deadline

T = TypeVar("T")

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_MS = 30_000
ROUTE_INTERVAL_MS = 30_000
REACTION_PAUSE_MS = 100
"""Least time between two heartbeats that events call for."""
ABSENCE_INTERVAL_MS = 1000
"""How often a broker that did not answer is tried again."""
UNREGISTER_TIMEOUT_MS = 1000
"""How long a client that closes waits for brokers to take note."""
PROBE_INTERVAL_MS = 2000
"""How often connections are checked for silence."""
PROBE_AFTER_MS = 5000
"""How long a connection may be silent, while requests wait on it, before it is probed."""
PROBE_TIMEOUT_MS = 3000

NAMESRV_VARIABLE = "NAMESRV_ADDR"


class GroupMember(OperableConsumer, Protocol):
    """What an instance asks of a consumer that takes part in its group."""

    group: str

    def members_changed(self) -> None:
        """The broker says that a member came or went."""

    def route_changed(self, route: TopicRoute) -> None:
        """A topic has other queues or brokers than before."""


@runtime_checkable
class TransactionChecker(Protocol):
    """What an instance asks of a producer that sends transactional messages."""

    def check_transaction(
        self, connection: Connection, header: CheckTransactionStateRequestHeader, message: MessageExt
    ) -> None:
        """A broker asks how the transaction of this message went; answer it on this connection."""


class ClientInstance(Lifecycle):
    """One client. `async with` opens and closes it; it belongs to one event loop and one process, see `lifecycle`.

    `namesrv` reads "host:port;host:port" and comes from the environment variable NAMESRV_ADDR where it is not given.
    `client_id` takes the place of address and instance name.
    """

    def __init__(
        self, namesrv: str | None = None, *, client_id: str | None = None, instance_name: str | None = None
    ) -> None:
        super().__init__()
        processors: dict[int, Processor] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction,
        }
        processors |= OperatorRequests(lambda: self.client_id, lambda group: self._consumers.get(group)).table()
        self.replies = PendingReplies()
        processors |= self.replies.table()
        self.remoting = RemotingClient(processors, on_close=self._connection_closed)
        self.name_servers = NameServers(namesrv or os.environ.get(NAMESRV_VARIABLE, ""), self.remoting)
        self.routes = TopicRoutes(self.name_servers, self._route_changed)
        self._made_in = os.getpid()
        self._is_id_chosen = bool(client_id or instance_name)
        self.client_id = client_id or _new_client_id(self.name_servers.addresses[0], instance_name)
        self._producers: dict[str, object] = {}
        self._consumers: dict[str, GroupMember] = {}
        self._background = BackgroundTasks()
        self._heartbeat_due = asyncio.Event()

    @property
    def _title(self) -> str:
        return f"client {self.client_id}"

    async def _start(self) -> None:
        """Begin heartbeats, probes and the renewal of routes. Sends nothing yet."""
        self._keep_id_unique()
        self.remoting.open()
        self._background.start(self._keep_beating(), f"heartbeats of {self.client_id}")
        self._background.start(self._keep_probing(), f"probes of {self.client_id}")
        self._background.start(self._keep_routes(), f"route renewal of {self.client_id}")

    async def _stop(self) -> None:
        """End all background work and close every connection. Groups must have left before."""
        self.routes.close()
        await run_close_steps(self._background.close, self.remoting.close)

    def _keep_id_unique(self) -> None:
        """Make a new client id in a fork of the process in which this client was made; its siblings do the same."""
        if os.getpid() == self._made_in:
            return
        if self._is_id_chosen:
            raise ConfigError(
                f"client id {self.client_id} was chosen in process {self._made_in}, of which this one is a fork: other "
                "forks would share it, and members of a group with one id share queues; make the client after the fork"
            )
        self._made_in = os.getpid()
        self.client_id = _new_client_id(self.name_servers.addresses[0])

    # Groups.

    def add_producer(self, group: str, producer: object) -> None:
        """Name the producer's group in heartbeats from now on. ConfigError when it has a producer here already."""
        self._claim(self._producers, group, producer, "producer")

    async def remove_producer(self, group: str, producer: object) -> None:
        """Take the producer out, and tell the brokers."""
        if self._producers.get(group) is producer:
            del self._producers[group]
            await self._unregister(UnregisterClientRequestHeader(client_id=self.client_id, producer_group=group))

    def add_consumer(self, consumer: GroupMember) -> None:
        """Name the consumer in heartbeats from now on. ConfigError when its group has a consumer here already."""
        self._claim(self._consumers, consumer.group, consumer, "consumer")

    async def remove_consumer(self, consumer: GroupMember) -> None:
        """Take the consumer out, and tell the brokers, which tell the rest of the group."""
        if self._consumers.get(consumer.group) is consumer:
            del self._consumers[consumer.group]
            await self._unregister(
                UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=consumer.group)
            )

    def _claim(self, table: dict[str, T], group: str, member: T, kind: str) -> None:
        if table.setdefault(group, member) is not member:
            raise ConfigError(f"group {group} has a {kind} on this instance already: give the other its own instance")
        self._heartbeat_due.set()

    # Requests.

    async def master_address(
        self, queue: MessageQueue, timeout_ms: float = NAMESRV_TIMEOUT_MS, *, or_slave: bool = False
    ) -> str:
        """Return the address of the master that has `queue`; if it is not known, the topic's route is looked up.

        With `or_slave` that of a slave if there is no master now. RemotingError.
        """
        address = self.routes.address(queue.broker_name)
        if address is None:
            await self.routes.refresh(queue.topic, timeout_ms)
            address = self.routes.address(queue.broker_name)
        if address is None and or_slave:
            address = next(iter(self.routes.brokers.get(queue.broker_name, {}).values()), None)
        if address is None:
            raise RemotingConnectError(
                f"broker {queue.broker_name} of topic {queue.topic} has no master in the route now"
            )
        return address

    async def invoke_master(
        self,
        queue: MessageQueue,
        command: RemotingCommand,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        *,
        or_slave: bool = False,
    ) -> RemotingCommand:
        """Send a request to the master that has `queue`; return the answer, whatever its code. `or_slave` as above."""
        deadline = Deadline(timeout_ms)
        try:
            address = await self.master_address(queue, timeout_ms, or_slave=or_slave)
            return await self.remoting.invoke(address, command, deadline.left_ms)
        except RemotingConnectError:
            self.renew_route(queue.topic)
            raise

    def renew_route(self, topic: str) -> None:
        """Ask for a route in the background, because what it said last has led nowhere."""

        async def renew() -> None:
            with suppress(MQError):
                await self.routes.refresh(topic)

        if self.is_open:
            self._background.start(renew(), f"route of {topic}")

    # Heartbeats.

    async def beat(self, timeout_ms: float = REQUEST_TIMEOUT_MS) -> bool:
        """Send a heartbeat to every broker now; return whether all of them answered in time."""
        heartbeat = HeartbeatData(
            client_id=self.client_id,
            consumer_data_set=[consumer.consumer_data() for consumer in self._consumers.values()],
            producer_data_set=[ProducerData(group_name=group) for group in self._producers],
        )
        if not heartbeat.consumer_data_set and not heartbeat.producer_data_set:
            return True
        body = encode_body(heartbeat)
        addresses = {
            address
            for addresses in self.routes.brokers.values()
            for broker_id, address in addresses.items()
            if broker_id == MASTER_ID or heartbeat.consumer_data_set
        }
        return all(await asyncio.gather(*(self._beat_at(address, body, timeout_ms) for address in addresses)))

    async def _beat_at(self, address: str, body: bytes, timeout_ms: float = REQUEST_TIMEOUT_MS) -> bool:
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=body)
        try:
            await self.remoting.invoke_ok(address, request, timeout_ms)
        except MQError as error:
            logger.info("no heartbeat to broker %s: %s", address, error)
            return False
        return True

    async def _keep_beating(self) -> None:
        wait_ms = HEARTBEAT_INTERVAL_MS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._heartbeat_due.wait()
            await asyncio.sleep(REACTION_PAUSE_MS / 1000)
            self._heartbeat_due.clear()
            wait_ms = HEARTBEAT_INTERVAL_MS if await self.beat() else ABSENCE_INTERVAL_MS

    async def _keep_probing(self) -> None:
        probe = encode_body(HeartbeatData(client_id=self.client_id))
        while True:
            await asyncio.sleep(PROBE_INTERVAL_MS / 1000)
            silent = self.remoting.silent_addresses(PROBE_AFTER_MS)
            await asyncio.gather(*(self._beat_at(address, probe, PROBE_TIMEOUT_MS) for address in silent))

    async def _keep_routes(self) -> None:
        while True:
            await asyncio.sleep(ROUTE_INTERVAL_MS / 1000)
            await self.routes.refresh_all()

    async def _unregister(self, header: UnregisterClientRequestHeader) -> None:
        """Tell every broker. The requests leave, also if the caller is cancelled while it waits for the answers."""
        posted: dict[asyncio.Future[RemotingCommand], tuple[Connection, RemotingCommand]] = {}
        for address in {address for addresses in self.routes.brokers.values() for address in addresses.values()}:
            if (connection := self.remoting.open_connection(address)) is not None:
                request = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header)
                posted[connection.post(request)] = connection, request
        try:
            if posted:
                await asyncio.wait(posted, timeout=UNREGISTER_TIMEOUT_MS / 1000)
        finally:
            for answer, (connection, request) in posted.items():
                connection.forget(request)
                if answer.cancelled() or answer.exception() or answer.result().code != ResponseCode.SUCCESS:
                    logger.info("broker %s has not answered that %s leaves", connection.peer, self.client_id)

    # What others tell us.

    def _route_changed(self, route: TopicRoute) -> None:
        self._heartbeat_due.set()
        for consumer in self._consumers.values():
            consumer.route_changed(route)

    def _connection_closed(self, connection: Connection) -> None:
        self._heartbeat_due.set()

    def _members_changed(self, connection: Connection, command: RemotingCommand) -> None:
        try:
            group = command.decode_header(NotifyConsumerIdsChangedRequestHeader).consumer_group
        except RemoteProtocolError as error:
            logger.warning("%s: %s", connection.peer, error)
            return
        if consumer := self._consumers.get(group):
            consumer.members_changed()

    def _check_transaction(self, connection: Connection, command: RemotingCommand) -> None:
        try:
            header = command.decode_header(CheckTransactionStateRequestHeader)
            message = decode(command.body)
        except MQError as error:
            logger.warning("%s asks about a transaction that cannot be read: %s", connection.peer, error)
            return
        group = message.properties.get(properties.PGROUP, "")
        producer = self._producers.get(group)
        if isinstance(producer, TransactionChecker):
            producer.check_transaction(connection, header, message)
        else:
            logger.warning(
                "%s asks about transaction %s of group %r, which has no TransactionProducer here",
                connection.peer, message.msg_id, group,
            )  # fmt: skip


class GroupClient(Lifecycle):
    """What producers and consumers have in common: a group, and the instance on which they stand.

    The instance is their own, made from `namesrv`, unless one to share is given; a shared one is opened with them, and
    closed by its owner. What can go wrong only shows with the first request, except for a consumer's first heartbeat.
    """

    def __init__(
        self, group: str, namesrv: str | None, instance: ClientInstance | None, instance_name: str | None = None
    ) -> None:
        super().__init__()
        check_group(group)
        self.group = group
        self.instance = instance or ClientInstance(namesrv, instance_name=instance_name)
        self._owns_instance = instance is None

    @property
    def _title(self) -> str:
        return f"{type(self).__name__} of group {self.group}"

    async def _start(self) -> None:
        await self.instance.open()
        await self._join()

    async def _stop(self) -> None:
        try:
            await self._leave()
        finally:
            if self._owns_instance:
                await self.instance.close()

    async def _join(self) -> None:
        """Enter the group."""

    async def _leave(self) -> None:
        """Leave the group. A first cancellation hurries this, see `lifecycle.run_close_steps`."""


def _new_client_id(name_server: str, instance_name: str | None = None) -> str:
    """A client id on this machine, one that no other has unless an instance name is given."""
    return f"{_own_address(name_server)}@{instance_name or f'{os.getpid()}#{time.time_ns()}'}"


def _own_address(name_server: str) -> str:
    """This machine's address on the way to a name server, or to the world where that is a host's name.

    Nothing is sent: the route of an unsent datagram names the address.
    """
    host = name_server.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = ipaddress.ip_address("192.0.2.1")
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
