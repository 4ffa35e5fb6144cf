"""Registration of the broker and its topics with all name servers.

The broker registers at the start, every `registerNameServerPeriod`, and when a topic changes. Name servers are called
concurrently; a failed call is repeated by the next registration. A name server that still has the data version that it
was sent last (QUERY_DATA_VERSION) gets the topics that have changed since, or nothing; any other gets all of them. A
slave, whose topics do not count, sends none.

Corresponds to `BrokerOuterAPI` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from rucola.broker.config import BrokerConfig
from rucola.broker.mastership import Mastership
from rucola.broker.tables.topics import TopicConfigTable
from rucola.domain.role import MASTER_ID
from rucola.domain.route import RegisterBrokerBody, TopicRouteData
from rucola.domain.topic import PERM_READ, PERM_WRITE, DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rucola.errors import BrokerError, RemoteProtocolError, RemotingError
from rucola.message.record import body_crc
from rucola.outages import Outages
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.route import (
    COMPRESS_ABOVE,
    BrokerRequestHeader,
    GetRouteInfoRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    compression_steps,
    encode_registration,
)
from rucola.remoting.client import RemotingClient
from rucola.slices import in_slices

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Bodies: TypeAlias = dict[tuple[str, str], asyncio.Future[tuple[bytes, bool]]]
"""Encoded once for all name servers: by the version that one has, empty without any, and the version to send."""

READ_WRITE = PERM_READ | PERM_WRITE
SUCCESSOR_S = 3.0
"""How long a master that becomes slave waits for the registration of its successor."""
SUCCESSOR_POLL_S = 0.02


class Registration:
    """Keeps the broker registered. Registrations never overlap; calls of `schedule` during one are coalesced."""

    def __init__(self, config: BrokerConfig, topics: TopicConfigTable, client: RemotingClient) -> None:
        self._config = config
        self._topics = topics
        self._client = client
        self._task: asyncio.Task[None] | None = None
        self._registering = asyncio.Lock()
        self._outages = Outages(logger)
        self._has_logged_size = False
        self._is_outdated = False
        """Whether `schedule` was called during a registration, which may have sent older topics."""
        self._is_master_given = False
        self._registered: dict[str, DataVersion] = {}
        """The data version that each name server acknowledged last, of a master; without those that failed since."""
        self.master_address = ""
        """The master's address for clients, from the last response that had it; empty before."""
        self.master_ha_address = ""
        """The master's address for slaves, likewise."""
        self.mastership: Mastership | None = None
        """The mastership to announce, unless it is fenced; None on a slave."""

    def follow(self, master_address: str) -> None:
        """Use this master, even if the name servers do not have it yet."""
        self.master_address, self._is_master_given = master_address, True

    def schedule(self) -> None:
        # The running registration may already have encoded the topics, so it is repeated rather than joined.
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._register_until_current())
        else:
            self._is_outdated = True

    async def wait_registered(self) -> None:
        """Wait until every change up to now is registered. Failed calls count as finished."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def register(self) -> None:
        """Register once with every name server; a slave stores the addresses of its master."""
        if self.mastership is not None and self.mastership.fenced_by:
            return
        async with self._registering:
            bodies: _Bodies = {}
            responses = await self._at_all(lambda name_server: self._register_at(name_server, bodies))
        if self._config.broker_id != MASTER_ID and not self._is_master_given:
            for response in responses:
                try:
                    master = response.decode_header(RegisterBrokerResponseHeader)
                except RemoteProtocolError as error:
                    logger.warning("invalid response of a name server to REGISTER_BROKER: %s", error)
                    continue
                if master.master_addr:
                    self.master_address = master.master_addr
                    self.master_ha_address = master.ha_server_addr or ""
                    return

    async def _register_at(self, name_server: str, bodies: _Bodies) -> RemotingCommand | None:
        config, mastership = self._config, self.mastership
        is_master, known = config.broker_id == MASTER_ID, self._registered.pop(name_server, None)
        connection = self._client.open_connection(name_server)
        since = known if known is not None and await self._has(name_server, known) else None
        version = self._topics.data_version
        if since == version:
            self._registered[name_server] = version
            return None
        changes = self._topics.changes_since(since) if since is not None else None
        is_whole = changes is None
        key = "" if since is None or is_whole else since.token, version.token
        if (encoding := bodies.get(key)) is None:
            topics = (self._topics.by_name if changes is None else changes) if is_master else {}
            encoding = bodies[key] = asyncio.ensure_future(self._encode(version, self._visible(topics)))
        body, is_compressed = await encoding
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self.address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=f"{config.broker_ip2}:{config.ha_listen_port}",
            broker_id=config.broker_id,
            compressed="true" if is_compressed else "false",
            body_crc32=body_crc(body),
            master_epoch=None if mastership is None else mastership.epoch,
        )
        response = await self._invoke(name_server, RequestCode.REGISTER_BROKER, header, body)
        # A name server that has restarted since the query has nothing but these changes: it gets all topics next time.
        is_known = is_whole or self._client.open_connection(name_server) is connection
        if is_master and response is not None and is_known:
            self._registered[name_server] = version
        return response

    async def _has(self, name_server: str, version: DataVersion) -> bool:
        """Whether a name server has this registration, and no newer master; a response keeps the registration alive."""
        epoch = None if self.mastership is None else self.mastership.epoch
        response = await self._query(name_server, version, epoch)
        return response is not None and not response.changed and response.master_addr in (None, "", self.address)

    async def newest_master(self, epoch: int) -> tuple[int, str]:
        """Return the newest epoch of a master of this broker name, and its address (maybe its own), or (0, "")."""
        version = self._topics.data_version
        responses = await self._at_all(lambda name_server: self._query(name_server, version, epoch))
        return max(((found.master_epoch or 0, found.master_addr or "") for found in responses), default=(0, ""))

    async def _query(
        self, name_server: str, version: DataVersion, epoch: int | None
    ) -> QueryDataVersionResponseHeader | None:
        header = self._header(epoch)
        response = await self._invoke(name_server, RequestCode.QUERY_DATA_VERSION, header, encode_body(version))
        try:
            return None if response is None else response.decode_header(QueryDataVersionResponseHeader)
        except RemoteProtocolError as error:
            logger.warning("invalid response of name server %s to QUERY_DATA_VERSION: %s", name_server, error)
            return None

    def _header(self, epoch: int | None = None) -> BrokerRequestHeader:
        return BrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self.address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
            master_epoch=epoch,
        )

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic from the first name server that has one, or None."""
        command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
        for name_server in self._config.namesrv_addresses:
            try:
                response = await self._client.invoke_ok(
                    name_server, command, self._config.register_broker_timeout_mills
                )
                return decode_body(TopicRouteData, response.body)
            except BrokerError:  # it does not know the topic
                continue
            except RemotingError as error:
                self._outages.failed(f"route of a topic at name server {name_server}", error)
        return None

    async def wait_master(self, epoch: int) -> None:
        """Wait until a name server knows the master of an epoch or a newer one, for SUCCESSOR_S at most.

        Clients then find it when the connection to this broker ends.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(SUCCESSOR_S if self._config.namesrv_addresses else 0):
                while (await self.newest_master(0))[0] < epoch:  # noqa: ASYNC110 - no name server calls back
                    await asyncio.sleep(SUCCESSOR_POLL_S)

    async def _encode(self, version: DataVersion, topics: dict[str, TopicConfig]) -> tuple[bytes, bool]:
        """Return the body and whether it is compressed, as a frame above 16 MiB is refused."""
        wrapper = TopicConfigSerializeWrapper(data_version=version, topic_config_table=topics)
        body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)
        if not self._config.compressed_register:
            plain = encode_registration(body)
            if len(plain) <= COMPRESS_ABOVE:
                return plain, False
            if not self._has_logged_size:
                self._has_logged_size = True
                logger.warning(
                    "%d topics take %d bytes in a registration, which is compressed from now on; were all of them "
                    "created on purpose? (maxTopicNums, maxSubscriptionGroupNums)",
                    len(body.topic_config_serialize_wrapper.topic_config_table), len(plain),
                )  # fmt: skip
        return await in_slices(compression_steps(body)), True

    async def unregister(self) -> None:
        """Remove this broker from every name server, after the running registration has ended."""
        if self._task is not None:
            # A late REGISTER_BROKER would undo the removal.
            await asyncio.wait([self._task])
        header = self._header()
        await self._at_all(lambda name_server: self._invoke(name_server, RequestCode.UNREGISTER_BROKER, header))

    @property
    def address(self) -> str:
        return f"{self._config.broker_ip1}:{self._config.listen_port}"

    async def _register_until_current(self) -> None:
        while True:
            self._is_outdated = False
            await self.register()
            if not self._is_outdated:
                return

    async def _at_all(self, call: Callable[[str], Awaitable[T | None]]) -> list[T]:
        responses = await asyncio.gather(*map(call, self._config.namesrv_addresses))
        return [response for response in responses if response is not None]

    async def _invoke(
        self,
        name_server: str,
        code: RequestCode,
        header: RegisterBrokerRequestHeader | BrokerRequestHeader,
        body: bytes = b"",
    ) -> RemotingCommand | None:
        try:
            command = RemotingCommand.request(code, header, body)
            response = await self._client.invoke(name_server, command, self._config.register_broker_timeout_mills)
            if response.code != ResponseCode.SUCCESS:
                self._learn(response)
                raise BrokerError(response.code, response.remark, name_server)
        except RemotingError as error:
            self._outages.failed(f"{code.name} at name server {name_server}", error)
            return None
        self._outages.succeeded(f"{code.name} at name server {name_server}")
        return response

    def _learn(self, refusal: RemotingCommand) -> None:
        epoch, address = (refusal.ext_fields.get(name, "") for name in ("masterEpoch", "masterAddr"))
        if self.mastership is not None and epoch.isdigit():
            self.mastership.fence(int(epoch), address)

    def _visible(self, topics: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
        permission = self._config.broker_permission
        if permission & READ_WRITE == READ_WRITE:
            return dict(topics)
        return {name: replace(topic, perm=topic.perm & permission) for name, topic in topics.items()}
