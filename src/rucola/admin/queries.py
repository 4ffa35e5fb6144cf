"""SearchAdmin: finding messages, by key, by unique key, by address.

**Queries by key.** A broker's index knows only the 32-bit hash of `topic#key`, so an answer holds strangers whose keys
have that hash, and no more than the newest `maxMsgsNumBatch` records; nothing in it says whether there are more. Here
the real keys are compared, and a full answer is followed by the next question, until the index is exhausted or whoever
asks has enough:

    a Rucola broker     is asked for what lies before the oldest record of the answer, by its physical offset. Nothing
                        is lost or repeated, whatever comes in meanwhile.
    an Apache broker    is asked for what is as old as the oldest record or older. Times in the index are whole seconds:
                        an answer that is filled by one second and adds nothing new is stepped over, and then `crowded`
                        tells that messages of that second may be missing. Only a larger `maxMsgsNumBatch` finds them.

**Time windows** are of store times, both ends included, and exact. The index is asked for `CLOCK_SLACK_MS` more on both
sides, since its own times are whole seconds, and false where a broker's clock was set back.

**What is not found** may be there all the same: an index reaches as far as its files, and a broker may have none. A
Rucola broker says how far that is; one without an index counts as one that did not answer.

Answers to `MQAdminImpl.queryMessage` of Apache RocketMQ 4.9.8, which asks each broker once for 64 records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from rucola.admin.cluster import ClusterAdmin
from rucola.admin.requests import REQUEST_TIMEOUT_MS, addresses_of
from rucola.admin.topics import TopicAdmin
from rucola.errors import BrokerError, ConfigError, InvalidMessage, MQError, RemotingConnectError
from rucola.message import MessageExt
from rucola.message.ids import parse_offset_msg_id
from rucola.message.properties import KEY_SEPARATOR
from rucola.message.record import decode, decode_many
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.query import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)

PAGE = 64
"""The most records that a broker puts into one answer to QUERY_MESSAGE, unless its `maxMsgsNumBatch` is another."""

UNIQUE_KEY_PAGE = 32
"""The same for a unique key, whatever number was asked for (`defaultQueryMaxNum`)."""

MAX_LONG = 2**63 - 1

CLOCK_SLACK_MS = 24 * 60 * 60 * 1000
"""How far the times in an index may be off."""


@dataclass(slots=True)
class KeyQueryResult:
    """The messages that have a key, and how far the answer can be trusted.

    `is_cut` says that there may be more messages than these. `crowded` has, by the address of a broker that cannot page
    within one second, the seconds, in milliseconds, of which it may not have given all. `failures` names the brokers
    that gave no answer and why; the messages that they hold are missing. `searchable` has the store times of the first
    and the last message in the index of each broker that tells them; 0 where it is empty.
    """

    messages: list[MessageExt]
    is_cut: bool = False
    crowded: dict[str, list[int]] = field(default_factory=dict)
    failures: dict[str, MQError] = field(default_factory=dict)
    searchable: dict[str, tuple[int, int]] = field(default_factory=dict)


class KeyQuery:
    """A query by key under way: iterate for its messages, newest first, as far as wanted.

    `crowded`, `failures` and `searchable` are those of KeyQueryResult, for what was asked so far. An iteration raises
    the first failure when no broker answered.
    """

    def __init__(
        self, admin: SearchAdmin, topic: str, key: str, begin_ms: int, end_ms: int, *, unique: bool = False
    ) -> None:
        self.crowded: dict[str, list[int]] = {}
        self.failures: dict[str, MQError] = {}
        self.searchable: dict[str, tuple[int, int]] = {}
        self._admin = admin
        self._topic = topic
        self._key = key
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._unique = unique

    async def __aiter__(self) -> AsyncGenerator[MessageExt, None]:
        """Merge the brokers' messages by store time. Every broker is a page ahead of what was given out."""
        addresses = addresses_of((await self._admin.examine_topic_route(self._topic)).broker_datas)
        streams = [self._of_broker(address) for address in addresses]
        try:
            heads = list(await asyncio.gather(*(anext(stream, None) for stream in streams)))
            if self.failures and len(self.failures) == len(addresses):
                raise next(iter(self.failures.values()))
            while found := [(message, number) for number, message in enumerate(heads) if message is not None]:
                message, number = max(found, key=lambda pair: store_time(pair[0]))
                heads[number] = await anext(streams[number], None)
                yield message
        finally:
            for stream in streams:
                await stream.aclose()

    async def _of_broker(self, address: str) -> AsyncGenerator[MessageExt, None]:
        """What one broker has, latest first; where it fails, that is noted and the messages end."""
        try:
            async for message in self._pages(address):
                if self._has_key(message) and self._begin_ms <= message.store_timestamp <= self._end_ms:
                    yield message
        except MQError as error:
            self.failures[address] = error

    async def _pages(self, address: str) -> AsyncGenerator[MessageExt, None]:
        limit = await self._admin.page_limit(address, unique=self._unique)
        end_ms, before = min(self._end_ms + CLOCK_SLACK_MS, MAX_LONG), MAX_LONG
        seen: set[int] = set()
        while True:
            page, reach = await self._ask(address, limit, end_ms, before)
            fresh = {message.physical_offset: message for message in page if message.physical_offset not in seen}
            seen.update(fresh)
            for physical_offset in sorted(fresh, reverse=True):
                yield fresh[physical_offset]
            if len(page) < limit:
                return
            if reach is not None:
                before = min(message.physical_offset for message in page)
                continue
            end_ms = min(message.store_timestamp for message in page)
            if not fresh:
                self.crowded.setdefault(address, []).append(end_ms // 1000 * 1000)
                end_ms -= 1000

    async def _ask(
        self, address: str, limit: int, end_ms: int, before: int
    ) -> tuple[list[MessageExt], tuple[int, int] | None]:
        """The newest records whose keys have the hash, and how far the index reaches where the broker tells."""
        header = QueryMessageRequestHeader(
            topic=self._topic,
            key=self._key,
            max_num=limit,
            begin_timestamp=max(0, self._begin_ms - CLOCK_SLACK_MS),
            end_timestamp=end_ms,
            unique_key_query="true" if self._unique else "false",
            before_physical_offset=before,
        )
        answer = await self._admin.answer_of(address, RemotingCommand.request(RequestCode.QUERY_MESSAGE, header))
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            raise BrokerError(answer.code, answer.remark, address)
        reach = _reach(answer)
        if reach is not None:
            if reach[0] < 0:
                raise ConfigError(f"{address} keeps no index (messageIndexEnable=false), so it finds nothing by key")
            self.searchable[address] = reach
        return decode_many(answer.body) if answer.code == ResponseCode.SUCCESS else [], reach

    def _has_key(self, message: MessageExt) -> bool:
        if self._unique:
            return message.unique_key == self._key
        return message.topic == self._topic and self._key in (message.keys or "").split(KEY_SEPARATOR)

    async def take(self, max_count: int) -> KeyQueryResult:
        """The first `max_count` messages."""
        messages: list[MessageExt] = []
        is_cut = False
        async with aclosing(aiter(self)) as found:
            async for message in found:
                if len(messages) == max_count:
                    is_cut = True
                    break
                messages.append(message)
        messages.sort(key=store_time, reverse=True)
        return KeyQueryResult(messages, is_cut or bool(self.crowded), self.crowded, self.failures, self.searchable)


class SearchAdmin(ClusterAdmin, TopicAdmin):
    """Part of AdminClient."""

    def __init__(self, namesrv: str, *, timeout_ms: float = REQUEST_TIMEOUT_MS) -> None:
        super().__init__(namesrv, timeout_ms=timeout_ms)
        self._page_limits: dict[str, tuple[int, int]] = {}

    def key_query(self, topic: str, key: str, begin_ms: int = 0, end_ms: int = MAX_LONG) -> KeyQuery:
        """The messages of the topic with this key, stored within the times, newest first, to be iterated over."""
        return KeyQuery(self, topic, key, begin_ms, end_ms)

    async def query_message_by_key(
        self, topic: str, key: str, max_count: int = PAGE, begin_ms: int = 0, end_ms: int = MAX_LONG
    ) -> KeyQueryResult:
        """The newest `max_count` messages of the topic with this key, by store time, newest first."""
        return await self.key_query(topic, key, begin_ms, end_ms).take(max_count)

    async def query_message_by_unique_key(
        self, topic: str, unique_key: str, begin_ms: int = 0, end_ms: int = MAX_LONG
    ) -> KeyQueryResult:
        """The messages to which the producer gave this id, by store time, oldest first; the newest PAGE of them.

        More than one means that the producer sent again after it had no answer, or that the message was delayed,
        retried, re-driven or part of a transaction.
        """
        result = await KeyQuery(self, topic, unique_key, begin_ms, end_ms, unique=True).take(PAGE)
        result.messages.reverse()
        return result

    async def query_message_by_id(self, offset_msg_id: str) -> MessageExt:
        """The message at the address that an offsetMsgId names. InvalidMessage for what is no offsetMsgId.

        BrokerError where the broker has no message there, RemotingConnectError where no broker is: a producer's unique
        key looks the same, but names no broker.
        """
        address, physical_offset = parse_offset_msg_id(offset_msg_id)
        try:
            header = ViewMessageRequestHeader(offset=physical_offset)
            answer = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        except RemotingConnectError as error:
            raise RemotingConnectError(
                f"{error} (the broker that {offset_msg_id} names; is this a unique key instead of an offsetMsgId?)"
            ) from None
        return decode(answer.body)

    async def names_a_broker(self, msg_id: str) -> bool:
        """Whether an id is the offsetMsgId of a message at one of the cluster's brokers, which no index knows."""
        try:
            address, _ = parse_offset_msg_id(msg_id)
        except InvalidMessage:
            return False
        brokers = (await self.examine_cluster_info()).broker_addr_table.values()
        return any(address in data.broker_addrs.values() for data in brokers)

    # What a KeyQuery asks.

    async def answer_of(self, address: str, request: RemotingCommand) -> RemotingCommand:
        """The answer of one server, whatever its code."""
        return await self._remoting.invoke(address, request, self.timeout_ms)

    async def page_limit(self, address: str, *, unique: bool) -> int:
        """How many records the broker puts into one answer; Apache's defaults where it does not tell."""
        if address not in self._page_limits:
            try:
                config = await self.get_broker_config(address)
                limit = int(config.get("maxMsgsNumBatch", PAGE))
                self._page_limits[address] = limit, min(limit, int(config.get("defaultQueryMaxNum", UNIQUE_KEY_PAGE)))
            except (BrokerError, ValueError):
                self._page_limits[address] = PAGE, UNIQUE_KEY_PAGE
        return self._page_limits[address][unique]


def _reach(answer: RemotingCommand) -> tuple[int, int] | None:
    header = answer.decode_header(QueryMessageResponseHeader)
    if header.index_begin_timestamp is None or header.index_end_timestamp is None:
        return None
    return header.index_begin_timestamp, header.index_end_timestamp


def store_time(message: MessageExt) -> tuple[int, int]:
    """When a message was stored, and where, to sort by."""
    return message.store_timestamp, message.physical_offset
