"""Synchronize: gives a slave its master's tables, every 10 s.

    topics                         GET_ALL_TOPIC_CONFIG (21)               replaced where their data version differs
    consumer groups                GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)  replaced where their data version differs
    consumer offsets               GET_ALL_CONSUMER_OFFSET (43)            the master's come in place of those here
    offsets of delayed delivery    GET_ALL_DELAY_OFFSET (45)               written to config/delayOffset.json

The log brings the messages; without these tables nobody could read them here, or go on here as master. Each is asked
for on its own: one that fails holds up no other, and is asked for again at the next turn.

Answers to `SlaveSynchronize` of Apache RocketMQ 4.9.8. Deliberate difference: a message of a topic that is not known
here has the master asked at once, so that a master which dies soon after leaves no messages that nobody can read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from rucola import fastjson
from rucola.broker.background.registration import Registration
from rucola.broker.background.scheduler import in_thread
from rucola.broker.delivery.delay import parse_delay_offsets
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.offsets import ConsumerOffsetTable, parse_consumer_offsets
from rucola.broker.tables.topics import TopicConfigTable
from rucola.errors import MQError
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.topic import SubscriptionGroupWrapper, TopicConfigSerializeWrapper
from rucola.remoting.client import RemotingClient
from rucola.store import config_files

logger = logging.getLogger(__name__)

SYNC_INTERVAL_MS = 10_000


class SlaveSynchronize:
    """One turn at each `synchronize`, with the master that the name servers know of."""

    def __init__(
        self,
        registration: Registration,
        client: RemotingClient,
        topics: TopicConfigTable,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsetTable,
        delay_offset_path: Path,
    ) -> None:
        self._registration = registration
        self._client = client
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay_offset_path = delay_offset_path
        self._said: dict[RequestCode, str] = {}
        self._missed: set[str] = set()
        self._turn: asyncio.Task[None] | None = None

    def on_arrival(self, topic: str) -> None:
        """A message has come. Where its topic is not known the master is asked, once until the next turn."""
        if self._topics.get(topic) is None and topic not in self._missed:
            self._missed.add(topic)
            if self._turn is None or self._turn.done():
                self._turn = asyncio.create_task(self._ask())

    async def stop(self) -> None:
        """Ask for nothing more."""
        if self._turn is not None:
            self._turn.cancel()
            await asyncio.gather(self._turn, return_exceptions=True)

    async def synchronize(self) -> None:
        """Take over what the master has now."""
        self._missed.clear()
        await self._take_all()

    async def _ask(self) -> None:
        asked = 0
        while asked < len(self._missed):  # others may be missed meanwhile
            asked = len(self._missed)
            await self._take_all()

    async def _take_all(self) -> None:
        if self._registration.master_address:
            await self._take(RequestCode.GET_ALL_TOPIC_CONFIG, self._take_topics)
            await self._take(RequestCode.GET_ALL_CONSUMER_OFFSET, self._take_offsets)
            await self._take(RequestCode.GET_ALL_DELAY_OFFSET, self._take_delay_offsets)
            await self._take(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._take_groups)

    async def _take(self, code: RequestCode, take: Callable[[bytes], Awaitable[None]]) -> None:
        address = self._registration.master_address
        try:
            await take((await self._client.invoke_ok(address, RemotingCommand.request(code))).body)
        except (MQError, OSError) as error:
            text = f"{code.name} from the master at {address}: {error}"
            if self._said.get(code) != text:
                logger.warning("%s; what this slave has of it stays", text)
            self._said[code] = text
        else:
            self._said.pop(code, None)

    async def _take_topics(self, body: bytes) -> None:
        topics = decode_body(TopicConfigSerializeWrapper, body)
        if topics.data_version != self._topics.data_version:
            self._topics.replace(topics)
            logger.info("the master's topics are taken over, version %s", topics.data_version)

    async def _take_groups(self, body: bytes) -> None:
        groups = decode_body(SubscriptionGroupWrapper, body)
        if groups.data_version != self._groups.data_version:
            self._groups.replace(groups)
            logger.info("the master's groups are taken over, version %s", groups.data_version)

    async def _take_offsets(self, body: bytes) -> None:
        self._offsets.merge(parse_consumer_offsets("the master's answer", fastjson.loads(body)))

    async def _take_delay_offsets(self, body: bytes) -> None:
        offsets = parse_delay_offsets("the master's answer", fastjson.loads(body))
        await in_thread(config_files.write_config, self._delay_offset_path, {"offsetTable": offsets})
