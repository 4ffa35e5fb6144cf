"""Registration of the broker and its topics with all name servers.

The broker registers at the start, every `registerNameServerPeriod`, and when a topic changes. Name servers are called
concurrently; a failed call is repeated by the next registration.

Corresponds to `BrokerOuterAPI` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from rucola.broker.config import BrokerConfig
from rucola.broker.mastership import Mastership
from rucola.broker.tables.topics import TopicConfigTable
from rucola.domain.role import MASTER_ID
from rucola.domain.route import RegisterBrokerBody
from rucola.domain.topic import PERM_READ, PERM_WRITE, TopicConfig, TopicConfigSerializeWrapper
from rucola.errors import BrokerError, RemoteProtocolError, RemotingError
from rucola.message.record import body_crc
from rucola.outages import Outages
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.route import (
    COMPRESS_ABOVE,
    BrokerRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    compression_steps,
    encode_registration,
)
from rucola.remoting.client import RemotingClient
from rucola.slices import in_slices

logger = logging.getLogger(__name__)

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
        self._outages = Outages(logger)
        self._has_logged_size = False
        self._is_outdated = False
        """Whether `schedule` was called during a registration, which may have sent older topics."""
        self._is_master_given = False
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
        config, mastership = self._config, self.mastership
        if mastership is not None and mastership.fenced_by:
            return
        body, is_compressed = await self._encoded()
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
        responses = await self._invoke_all(RequestCode.REGISTER_BROKER, header, body)
        if config.broker_id != MASTER_ID and not self._is_master_given:
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

    async def newest_master(self, epoch: int) -> tuple[int, str]:
        """Return the newest epoch of a master of this broker name, and its address (maybe its own), or (0, "")."""
        body = encode_body(self._topics.data_version)
        header = BrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self.address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
            master_epoch=epoch,
        )
        newest = (0, "")
        for response in await self._invoke_all(RequestCode.QUERY_DATA_VERSION, header, body):
            answer = response.decode_header(QueryDataVersionResponseHeader)
            newest = max(newest, (answer.master_epoch or 0, answer.master_addr or ""))
        return newest

    async def wait_master(self, epoch: int) -> None:
        """Wait until a name server knows the master of an epoch or a newer one, for SUCCESSOR_S at most.

        Clients then find it when the connection to this broker ends.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(SUCCESSOR_S if self._config.namesrv_addresses else 0):
                while (await self.newest_master(0))[0] < epoch:  # noqa: ASYNC110 - no name server calls back
                    await asyncio.sleep(SUCCESSOR_POLL_S)

    async def _encoded(self) -> tuple[bytes, bool]:
        """Return the body and whether it is compressed, as a frame above 16 MiB is refused."""
        body = RegisterBrokerBody(topic_config_serialize_wrapper=self._visible_topics())
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
        header = BrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self.address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
        )
        await self._invoke_all(RequestCode.UNREGISTER_BROKER, header)

    @property
    def address(self) -> str:
        return f"{self._config.broker_ip1}:{self._config.listen_port}"

    async def _register_until_current(self) -> None:
        while True:
            self._is_outdated = False
            await self.register()
            if not self._is_outdated:
                return

    async def _invoke_all(
        self, code: RequestCode, header: RegisterBrokerRequestHeader | BrokerRequestHeader, body: bytes = b""
    ) -> list[RemotingCommand]:
        async def invoke(address: str) -> RemotingCommand | None:
            try:
                command = RemotingCommand.request(code, header, body)
                response = await self._client.invoke(address, command, self._config.register_broker_timeout_mills)
                if response.code != ResponseCode.SUCCESS:
                    self._learn(response)
                    raise BrokerError(response.code, response.remark, address)
            except RemotingError as error:
                self._outages.failed(f"{code.name} at name server {address}", error)
                return None
            self._outages.succeeded(f"{code.name} at name server {address}")
            return response

        responses = await asyncio.gather(*map(invoke, self._config.namesrv_addresses))
        return [response for response in responses if response is not None]

    def _learn(self, refusal: RemotingCommand) -> None:
        epoch, address = (refusal.ext_fields.get(name, "") for name in ("masterEpoch", "masterAddr"))
        if self.mastership is not None and epoch.isdigit():
            self.mastership.fence(int(epoch), address)

    def _visible_topics(self) -> TopicConfigSerializeWrapper:
        wrapper = self._topics.wrapper()
        # The common case: no topic has to be copied.
        if self._config.broker_permission & READ_WRITE == READ_WRITE:
            return wrapper
        table: dict[str, TopicConfig] = {}
        for name, topic in wrapper.topic_config_table.items():
            members = {field: getattr(topic, field) for field in topic.__struct_fields__}
            members["perm"] = topic.perm & self._config.broker_permission
            table[name] = TopicConfig(**members)
        return TopicConfigSerializeWrapper(data_version=wrapper.data_version, topic_config_table=table)
