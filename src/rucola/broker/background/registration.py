"""Registration: tells every name server which topics this broker has.

At the start, every `registerNameServerPeriod`, and at once when a topic comes or changes. Each name server is told on
its own; one that is down holds up nobody and is told again at the next turn. A slave hears so of its master. Answers to
`BrokerOuterAPI` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging

from rucola.broker.config import BrokerConfig
from rucola.broker.tables.topics import TopicConfigTable
from rucola.errors import RemoteProtocolError, RemotingError
from rucola.message.record import body_crc
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.route import (
    MASTER_ID,
    BrokerRequestHeader,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    encode_registration,
)
from rucola.protocol.topic import PERM_READ, PERM_WRITE, TopicConfig, TopicConfigSerializeWrapper
from rucola.remoting.client import RemotingClient

logger = logging.getLogger(__name__)

BOTH = PERM_READ | PERM_WRITE


class Registration:
    """Keeps the name servers informed. `schedule` may be called often; turns are made one after the other."""

    def __init__(self, config: BrokerConfig, topics: TopicConfigTable, client: RemotingClient) -> None:
        self._config = config
        self._topics = topics
        self._client = client
        self._turn: asyncio.Task[None] | None = None
        self._again = False
        self.master_address = ""
        """Where the master of this slave serves clients, as a name server said last; empty where none ever did."""
        self.master_ha_address = ""
        """Likewise, where it serves slaves."""

    def schedule(self) -> None:
        """A topic came or changed: register as soon as possible."""
        if self._turn is None or self._turn.done():
            self._turn = asyncio.ensure_future(self._take_turns())
        else:
            self._again = True

    async def wait_registered(self) -> None:
        """Wait until the name servers have been told of every change up to now."""
        if self._turn is not None:
            await asyncio.shield(self._turn)

    async def register(self) -> None:
        """Tell every name server once."""
        config = self._config
        body = encode_registration(RegisterBrokerBody(topic_config_serialize_wrapper=self._visible_topics()))
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=f"{config.broker_ip2}:{config.ha_listen_port}",
            broker_id=config.broker_id,
            compressed="false",
            body_crc32=body_crc(body),
        )
        answers = await self._tell_all(RequestCode.REGISTER_BROKER, header, body)
        if config.broker_id != MASTER_ID:
            for answer in answers:
                try:
                    master = answer.decode_header(RegisterBrokerResponseHeader)
                except RemoteProtocolError as error:
                    logger.warning("a name server's answer to REGISTER_BROKER: %s", error)
                    continue
                if master.master_addr:
                    self.master_address = master.master_addr
                    self.master_ha_address = master.ha_server_addr or ""
                    return

    async def unregister(self) -> None:
        """Tell every name server that this broker goes."""
        if self._turn is not None:
            await asyncio.wait([self._turn])
        header = BrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
        )
        await self._tell_all(RequestCode.UNREGISTER_BROKER, header)

    @property
    def _address(self) -> str:
        return f"{self._config.broker_ip1}:{self._config.listen_port}"

    async def _take_turns(self) -> None:
        while True:
            self._again = False
            await self.register()
            if not self._again:
                return

    async def _tell_all(
        self, code: RequestCode, header: RegisterBrokerRequestHeader | BrokerRequestHeader, body: bytes = b""
    ) -> list[RemotingCommand]:
        """Tell every name server; the answers of those that gave one."""

        async def tell(address: str) -> RemotingCommand | None:
            try:
                command = RemotingCommand.request(code, header, body)
                return await self._client.invoke_ok(address, command, self._config.register_broker_timeout_mills)
            except RemotingError as error:
                logger.warning("name server %s: %s failed: %s", address, code.name, error)
                return None

        answers = await asyncio.gather(*map(tell, self._config.namesrv_addresses))
        return [answer for answer in answers if answer is not None]

    def _visible_topics(self) -> TopicConfigSerializeWrapper:
        """The topics with the broker's own permission applied."""
        wrapper = self._topics.wrapper()
        if self._config.broker_permission & BOTH == BOTH:
            return wrapper
        table: dict[str, TopicConfig] = {}
        for name, topic in wrapper.topic_config_table.items():
            members = {field: getattr(topic, field) for field in topic.__struct_fields__}
            members["perm"] = topic.perm & self._config.broker_permission
            table[name] = TopicConfig(**members)
        return TopicConfigSerializeWrapper(data_version=wrapper.data_version, topic_config_table=table)
