"""ClientInstance: one client as brokers see it, with its connections, routes and heartbeats.

Producers and consumers that share an instance have one connection per broker (and further ones for thousands of held
pulls), one heartbeat and one client id, `address@instance name`. The default name, process id#nanoseconds, is unique,
since members of a group with one client id would be assigned the same queues. After `os.fork` an instance gets a new
id, unless the id was chosen: then it cannot be opened.

Heartbeats register an instance with brokers. They are sent

1. every `HEARTBEAT_INTERVAL_MS` to every broker in the cached routes (only to masters if there is no consumer);
2. at once when a broker appears, a group joins, or a connection breaks;
3. every `ABSENCE_INTERVAL_MS` to brokers that do not respond.

A connection with pending requests (held pulls) that received nothing for `PROBE_AFTER_MS` is probed by an empty
heartbeat, and closed if that times out: a half-open one costs about ten seconds.

Corresponds to `MQClientInstance` and `MQClientManager` of Apache RocketMQ 4.9.8. Deliberate difference: Apache shares
an instance among all clients of a process with the same settings; here sharing is explicit.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from typing import Protocol, TypeVar, runtime_checkable

from rucola.acl.credentials import Credentials
from rucola.client.background_tasks import BackgroundTasks
from rucola.client.broker_outages import BrokerOutages
from rucola.client.connection_options import ConnectionOptions
from rucola.client.held_pulls import HeldPulls
from rucola.client.lifecycle import Lifecycle, run_close_steps
from rucola.client.operator_requests import OperableConsumer, OperatorRequests
from rucola.client.request_reply import PendingReplies
from rucola.client.route import NAMESRV_TIMEOUT_MS, NameServers, TopicRoute, TopicRoutes
from rucola.domain.client import HeartbeatData, ProducerData
from rucola.domain.queue import MessageQueue
from rucola.domain.role import MASTER_ID
from rucola.errors import ConfigError, MQError, RemoteProtocolError, RemotingConnectError, RemotingTimeout
from rucola.message import MessageExt, properties
from rucola.message.record import decode
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import NotifyConsumerIdsChangedRequestHeader, UnregisterClientRequestHeader
from rucola.protocol.transaction import CheckTransactionStateRequestHeader
from rucola.remoting.client import REQUEST_TIMEOUT_MS, RemotingClient
from rucola.remoting.connection import Connection, Processor
from rucola.remoting.deadline import Deadline
from rucola.remoting.tls import ClientTls

T = TypeVar("T")

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_MS = 30_000
ROUTE_INTERVAL_MS = 30_000
UNREACHABLE = (RemotingConnectError, RemotingTimeout)
"""Errors of a broker that may no longer be the master: the route is refreshed."""
MOVED_LOOKUPS = 20
"""How often the route of a broker that does not respond is looked up, unless it changes."""
MOVED_INTERVAL_MS = 250
REACTION_PAUSE_MS = 100
"""The least time between two heartbeats that are triggered by events."""
ABSENCE_INTERVAL_MS = 1000
UNREGISTER_TIMEOUT_MS = 1000
PROBE_INTERVAL_MS = 2000
PROBE_AFTER_MS = 5000
"""Silence of a connection with pending requests before it is probed."""
PROBE_TIMEOUT_MS = 3000


class GroupMember(Protocol):
    group: str

    @property
    def operations(self) -> OperableConsumer:
        """The operations that operators can request, and the group's entry in heartbeats."""

    def members_changed(self) -> None:
        """Called when a member joined or left."""

    def route_changed(self, route: TopicRoute) -> None:
        """Called when the queues or brokers of a topic changed."""


@runtime_checkable
class TransactionChecker(Protocol):
    def check_transaction(
        self, connection: Connection, header: CheckTransactionStateRequestHeader, message: MessageExt
    ) -> None:
        """Check a transaction; the outcome is to be sent on this connection."""


class ClientInstance(Lifecycle):
    """One client; `async with` opens and closes it. Belongs to one event loop and process.

    `namesrv` is "host:port;host:port" or ConnectionOptions. `client_id` replaces the default.
    """

    def __init__(
        self,
        namesrv: str | ConnectionOptions | None = None,
        *,
        client_id: str | None = None,
        instance_name: str | None = None,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__()
        processors: dict[int, Processor] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction,
        }
        processors |= OperatorRequests(lambda: self.client_id, self._operations_of).table()
        self.replies = PendingReplies()
        processors |= self.replies.table()
        self.connection = ConnectionOptions.of(namesrv, tls, credentials).complete()
        """How this client connects, completed from the environment."""
        self.remoting = RemotingClient(
            processors,
            on_close=self._connection_closed,
            tls=self.connection.tls,
            credentials=self.connection.credentials,
        )
        self.held_pulls = HeldPulls(
            self.remoting, lambda: RemotingClient(tls=self.connection.tls, credentials=self.connection.credentials)
        )
        self.name_servers = NameServers(self.connection.namesrv, self.remoting)
        self.routes = TopicRoutes(self.name_servers, self._route_changed)
        self.outages = BrokerOutages()
        self._id_process = os.getpid()
        self._is_id_chosen = bool(client_id or instance_name)
        """Whether the caller chose the client id, so that it must not be replaced."""
        self.client_id = client_id or _new_client_id(self.name_servers.addresses[0], instance_name)
        self._producers: dict[str, object] = {}
        self._consumers: dict[str, GroupMember] = {}
        self._background = BackgroundTasks()
        self._refreshing: set[str] = set()
        self._heartbeat_due = asyncio.Event()
        """Set by events after which brokers need a heartbeat before the interval ends."""

    @property
    def _title(self) -> str:
        return f"client {self.client_id}"

    async def _start(self) -> None:
        """Start heartbeats, probes and the refresh of routes. Sends no request yet."""
        self._ensure_unique_id()
        self._heartbeat_due = asyncio.Event()
        self.remoting.open()
        self._background.start(self._heartbeat_loop(), f"heartbeats of {self.client_id}")
        self._background.start(self._probe_loop(), f"probes of {self.client_id}")
        self._background.start(self._route_loop(), f"route refresh of {self.client_id}")

    async def _stop(self) -> None:
        """Close every connection. Groups must have left before."""
        self.routes.close()
        await run_close_steps(self._background.close, self.held_pulls.close, self.remoting.close)

    def _ensure_unique_id(self) -> None:
        """Replace the client id in a fork, since sibling processes have the same one."""
        if os.getpid() == self._id_process:
            return
        if self._is_id_chosen:
            raise ConfigError(
                f"client id {self.client_id} was chosen in process {self._id_process}, of which this process is a "
                "fork: other forks would use the same id and get the same queues; make the client after the fork"
            )
        self.outages = BrokerOutages()
        self._id_process = os.getpid()
        self.client_id = _new_client_id(self.name_servers.addresses[0])

    # Groups.

    def add_producer(self, group: str, producer: object) -> None:
        """Add the group to heartbeats. ConfigError if it has another producer on this instance."""
        self._add(self._producers, group, producer, "producer")

    async def remove_producer(self, group: str, producer: object) -> None:
        if self._producers.get(group) is producer:
            del self._producers[group]
            await self._unregister(UnregisterClientRequestHeader(client_id=self.client_id, producer_group=group))

    def add_consumer(self, consumer: GroupMember) -> None:
        self._add(self._consumers, consumer.group, consumer, "consumer")

    async def remove_consumer(self, consumer: GroupMember) -> None:
        if self._consumers.get(consumer.group) is consumer:
            del self._consumers[consumer.group]
            await self._unregister(
                UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=consumer.group)
            )

    def _add(self, table: dict[str, T], group: str, client: T, kind: str) -> None:
        if table.setdefault(group, client) is not client:
            raise ConfigError(
                f"group {group} has a {kind} on this instance already: give the other its own instance", subject=group
            )
        self._heartbeat_due.set()

    def _operations_of(self, group: str) -> OperableConsumer | None:
        consumer = self._consumers.get(group)
        return None if consumer is None else consumer.operations

    # Requests.

    async def master_address(
        self, queue: MessageQueue, timeout_ms: float = NAMESRV_TIMEOUT_MS, *, or_slave: bool = False
    ) -> str:
        """Return the address of the queue's master or, if there is none and `or_slave`, of a slave. RemotingError."""
        address = self.routes.address(queue.broker_name)
        if address is None:
            await self.routes.refresh(queue.topic, timeout_ms)
            address = self.routes.address(queue.broker_name)
        if address is None and or_slave:
            address = next(iter(self.routes.brokers.get(queue.broker_name, {}).values()), None)
        if address is None:
            raise RemotingConnectError(
                f"broker {queue.broker_name} of topic {queue.topic} has no master in the current route"
            )
        return address

    async def master_connection(self, queue: MessageQueue) -> Connection:
        """Return the connection to the queue's master. RemotingError."""
        try:
            return await self.remoting.connect(await self.master_address(queue))
        except UNREACHABLE:
            self.refresh_route_soon(queue.topic)
            raise

    async def invoke_master(
        self,
        queue: MessageQueue,
        command: RemotingCommand,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        *,
        or_slave: bool = False,
    ) -> RemotingCommand:
        """Return the response of the queue's master, regardless of its code; for `or_slave` see `master_address`."""
        return (await self.invoke_master_all(queue, [command], timeout_ms, or_slave=or_slave))[0]

    async def invoke_master_all(
        self,
        queue: MessageQueue,
        commands: Sequence[RemotingCommand],
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        *,
        or_slave: bool = False,
    ) -> list[RemotingCommand]:
        """`invoke_master` for requests that are sent in one write, within one timeout."""
        deadline = Deadline(timeout_ms)
        try:
            address = await self.master_address(queue, timeout_ms, or_slave=or_slave)
            return await self.remoting.invoke_all(address, commands, deadline.left_ms)
        except UNREACHABLE:
            self.refresh_route_soon(queue.topic)
            raise

    def refresh_route_soon(self, topic: str) -> None:
        """Refresh a route in the background until it changes: an election takes some seconds."""

        async def refresh() -> None:
            before = self.routes.known(topic)
            for _ in range(MOVED_LOOKUPS):
                with suppress(MQError):
                    await self.routes.refresh(topic)
                if self.routes.known(topic) != before:
                    return
                await asyncio.sleep(MOVED_INTERVAL_MS / 1000)

        if self.is_open and topic not in self._refreshing:
            self._refreshing.add(topic)
            task = self._background.start(refresh(), f"route of {topic}")
            task.add_done_callback(lambda _: self._refreshing.discard(topic))

    # Heartbeats.

    async def send_heartbeats(
        self, timeout_ms: float = REQUEST_TIMEOUT_MS, *, only: Set[str] | None = None
    ) -> frozenset[str]:
        """Send a heartbeat to every broker, or to `only` these addresses; return those that did not confirm it."""
        heartbeat = HeartbeatData(
            client_id=self.client_id,
            consumer_data_set=[consumer.operations.consumer_data() for consumer in self._consumers.values()],
            producer_data_set=[ProducerData(group_name=group) for group in self._producers],
        )
        if not heartbeat.consumer_data_set and not heartbeat.producer_data_set:
            return frozenset()
        # Slaves need the heartbeats of consumers, which may pull from them; producers send to masters only.
        body = encode_body(heartbeat)
        addresses = [
            address
            for address in {
                address
                for addresses in self.routes.brokers.values()
                for broker_id, address in addresses.items()
                if broker_id == MASTER_ID or heartbeat.consumer_data_set
            }
            if only is None or address in only
        ]
        confirmed = await asyncio.gather(*(self._send_heartbeat(address, body, timeout_ms) for address in addresses))
        return frozenset(
            address for address, is_confirmed in zip(addresses, confirmed, strict=True) if not is_confirmed
        )

    async def _send_heartbeat(self, address: str, body: bytes, timeout_ms: float = REQUEST_TIMEOUT_MS) -> bool:
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=body)
        try:
            await self.remoting.invoke_ok(address, request, timeout_ms)
        except MQError as error:
            self.outages.failed(self._broker_title(address), f"heartbeat to {address}", error)
            return False
        if self.outages.any_failing:
            self.outages.succeeded(self._broker_title(address), f"heartbeat to {address}")
        return True

    def _broker_title(self, address: str) -> str:
        """Return the broker's name as outages use it; a slave's includes its id."""
        for name, addresses in self.routes.brokers.items():
            for broker_id, known in addresses.items():
                if known == address:
                    return name if broker_id == MASTER_ID else f"{name}, slave {broker_id}"
        return f"at {address}"

    async def _heartbeat_loop(self) -> None:
        loop = asyncio.get_running_loop()
        absent: frozenset[str] = frozenset()
        next_all = loop.time() + HEARTBEAT_INTERVAL_MS / 1000
        while True:
            wait_s = next_all - loop.time()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, ABSENCE_INTERVAL_MS / 1000) if absent else wait_s):
                    await self._heartbeat_due.wait()
            # Events often come together, and one heartbeat serves them all.
            await asyncio.sleep(REACTION_PAUSE_MS / 1000)
            if self._heartbeat_due.is_set() or loop.time() >= next_all:
                self._heartbeat_due.clear()
                next_all = loop.time() + HEARTBEAT_INTERVAL_MS / 1000
                absent = await self.send_heartbeats()
            else:
                # Only these: repeating all heartbeats every second would burden the remaining brokers when they are
                # busiest.
                absent = await self.send_heartbeats(only=absent)

    async def _probe_loop(self) -> None:
        # A heartbeat without groups changes nothing at the broker, and every broker responds to it.
        probe = encode_body(HeartbeatData(client_id=self.client_id))
        while True:
            await asyncio.sleep(PROBE_INTERVAL_MS / 1000)
            silent = self.remoting.silent_addresses(PROBE_AFTER_MS)
            await asyncio.gather(*(self._probe(address, probe) for address in silent))

    async def _probe(self, address: str, body: bytes) -> None:
        """Any response is a sign of life, even a name server's, which refuses heartbeats."""
        with suppress(MQError):  # a timeout closes the connection
            await self.remoting.invoke(
                address, RemotingCommand.request(RequestCode.HEART_BEAT, body=body), PROBE_TIMEOUT_MS
            )

    async def _route_loop(self) -> None:
        while True:
            await asyncio.sleep(ROUTE_INTERVAL_MS / 1000)
            await self.routes.refresh_all()

    async def _unregister(self, header: UnregisterClientRequestHeader) -> None:
        """Unregister from every broker. The requests are sent even if the caller is cancelled."""
        # Send to all brokers without awaiting anything. A broker without an open connection has noticed already.
        posted: dict[asyncio.Future[RemotingCommand], tuple[Connection, RemotingCommand]] = {}
        for address in {address for addresses in self.routes.brokers.values() for address in addresses.values()}:
            if (connection := self.remoting.open_connection(address)) is not None:
                request = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header)
                posted[connection.post(request)] = connection, request
        try:
            if posted:
                await asyncio.wait(posted, timeout=UNREGISTER_TIMEOUT_MS / 1000)
        finally:
            for response, (connection, request) in posted.items():
                connection.forget(request)
                if response.cancelled() or response.exception() or response.result().code != ResponseCode.SUCCESS:
                    logger.info("broker %s did not confirm that %s left", connection.peer, self.client_id)

    # Events.

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
            logger.warning("%s sent a transaction check that cannot be decoded: %s", connection.peer, error)
            return
        group = message.properties.get(properties.PGROUP, "")
        producer = self._producers.get(group)
        if isinstance(producer, TransactionChecker):
            producer.check_transaction(connection, header, message)
        else:
            logger.warning(
                "%s checks transaction %s of group %r, which has no TransactionProducer here",
                connection.peer, message.msg_id, group,
            )  # fmt: skip


def _new_client_id(name_server: str, instance_name: str | None = None) -> str:
    return f"{_own_address(name_server)}@{instance_name or f'{os.getpid()}#{time.time_ns()}'}"


def _own_address(name_server: str) -> str:
    """Return this machine's address on the route to a name server. Connecting a datagram socket sends nothing."""
    host = name_server.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = ipaddress.ip_address("192.0.2.1")  # reserved for documentation (RFC 5737): never local
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
