"""Queries by key over the indexes of all brokers of a topic.

**Paging.** A broker's index has only the 32-bit hash of `topic#key`. A response contains messages whose other keys have
the same hash, at most the newest `maxMsgsNumBatch` records, and no sign whether there are more. A query compares the
keys, and requests the next page after each full one:

    Rucola broker     records before the physical offset of the oldest one received. Paging is exact.
    Apache broker     records as old as the oldest one received, or older: its index has only times, in whole seconds.
                      If one second fills a page, the query skips to the second before and reports the skipped one in
                      `incomplete_seconds`: only a larger `maxMsgsNumBatch` returns the missing messages.

**Time windows** refer to store times, are inclusive and exact. The index is queried for `CLOCK_SLACK_MS` more at both
ends: its times have whole seconds and are wrong after a broker's clock was set back.

**An empty result** does not prove that a message does not exist: an index covers only its own files. A Rucola broker
reports the range of its index; a broker without an index is reported as a failure.

Corresponds to `MQAdminImpl.queryMessage` of Apache RocketMQ 4.9.8, which requests 64 records from each broker, once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from rucola.admin.brokers import BrokerAdmin
from rucola.admin.requests import AdminRequests, addresses_of, gather_fail_fast
from rucola.admin.topics import TopicAdmin
from rucola.errors import BrokerError, ConfigError, MQError, RemoteProtocolError
from rucola.message import MessageExt
from rucola.message.properties import KEY_SEPARATOR
from rucola.message.record import decode_many
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.query import QueryMessageRequestHeader, QueryMessageResponseHeader

PAGE = 64
"""Default of a broker's `maxMsgsNumBatch`, the limit of records in one response to QUERY_MESSAGE."""

UNIQUE_KEY_PAGE = 32
"""Default of `defaultQueryMaxNum`, the limit for a query by unique key, for any requested number."""

MAX_LONG = 2**63 - 1

CLOCK_SLACK_MS = 24 * 60 * 60 * 1000


@dataclass(slots=True)
class KeyQueryResult:
    """The messages that have a key, and completeness, by broker address. Times are milliseconds since 1970."""

    messages: list[MessageExt]
    # Whether there may be more messages than these.
    is_cut: bool = False
    # The seconds with possibly missing messages, of brokers that cannot page within one second.
    incomplete_seconds: dict[str, list[int]] = field(default_factory=dict)
    # The error of each broker that did not respond; its messages are missing.
    failures: dict[str, MQError] = field(default_factory=dict)
    # Store times of the first and last message in the index of each broker that reports them; (0, 0) if it is empty.
    index_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)


class _KeyQuery:
    """A query by key, whose state is its result."""

    def __init__(
        self, indexes: MessageIndexes, topic: str, key: str, window: tuple[int, int], most: int, *, unique: bool
    ) -> None:
        self._indexes = indexes
        self._topic = topic
        self._key = key
        self._begin_ms, self._end_ms = window
        self._most = most
        self._unique = unique
        self._result = KeyQueryResult([])

    async def run(self) -> KeyQueryResult:
        """Return the newest messages, newest first. Raises the first failure if all failed and found nothing."""
        result = self._result
        addresses = await self._indexes.addresses(self._topic)
        await gather_fail_fast(map(self._query, addresses))
        if result.failures and len(result.failures) == len(addresses) and not result.messages:
            raise next(iter(result.failures.values()))
        result.messages.sort(key=store_position, reverse=True)
        result.is_cut = len(result.messages) > self._most or bool(result.incomplete_seconds)
        del result.messages[self._most :]
        return result

    async def _query(self, address: str) -> None:
        """Add one broker's newest messages, one more than wanted; record a failure and stop."""
        found = 0
        try:
            async with aclosing(self._records(address)) as records:
                async for message in records:
                    if self._has_key(message) and self._begin_ms <= message.store_timestamp <= self._end_ms:
                        self._result.messages.append(message)
                        found += 1
                        if found > self._most:
                            return
        except MQError as error:
            self._result.failures[address] = error

    async def _records(self, address: str) -> AsyncGenerator[MessageExt, None]:
        limit = await self._indexes.page_limit(address, unique=self._unique)
        end_ms, before = min(self._end_ms + CLOCK_SLACK_MS, MAX_LONG), MAX_LONG
        seen: set[int] = set()  # physical offsets; Apache's pages overlap
        while True:
            page, index_range = await self._request_page(address, limit, end_ms, before)
            fresh = {message.physical_offset: message for message in page if message.physical_offset not in seen}
            seen.update(fresh)
            for physical_offset in sorted(fresh, reverse=True):
                yield fresh[physical_offset]
            if len(page) < limit:
                return
            oldest_offset = min(message.physical_offset for message in page)
            oldest_ms = min(message.store_timestamp for message in page)
            # Apache's index has seconds, so a message may be up to one younger than requested.
            if oldest_ms >= end_ms + 1000 if index_range is None else oldest_offset >= before:
                raise RemoteProtocolError(f"{address} returned the same page of messages with key {self._key} again")
            if index_range is not None:  # a Rucola broker: continue before the oldest record
                before = oldest_offset
                continue
            end_ms = oldest_ms
            if not fresh:  # one second fills the whole page: skip it
                self._result.incomplete_seconds.setdefault(address, []).append(end_ms // 1000 * 1000)
                end_ms -= 1000

    async def _request_page(
        self, address: str, limit: int, end_ms: int, before: int
    ) -> tuple[list[MessageExt], tuple[int, int] | None]:
        """Return the newest records with the key's hash, and the index range if reported."""
        header = QueryMessageRequestHeader(
            topic=self._topic,
            key=self._key,
            max_num=limit,
            begin_timestamp=max(0, self._begin_ms - CLOCK_SLACK_MS),
            end_timestamp=end_ms,
            unique_key_query="true" if self._unique else "false",
            before_physical_offset=before,
        )
        response = await self._indexes.request(address, header)
        if response.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            raise BrokerError(response.code, response.remark, address)
        index_range = _index_range(response)
        if index_range is not None:
            if index_range[0] < 0:
                raise ConfigError(
                    f"{address} keeps no index (messageIndexEnable=false), so it finds nothing by key", subject=address
                )
            self._result.index_ranges[address] = index_range
        return decode_many(response.body) if response.code == ResponseCode.SUCCESS else [], index_range

    def _has_key(self, message: MessageExt) -> bool:
        if self._unique:
            return message.unique_key == self._key
        return message.topic == self._topic and self._key in (message.keys or "").split(KEY_SEPARATOR)


class MessageIndexes:
    """The message indexes of all brokers. Page limits are read from each broker's configuration once."""

    def __init__(self, requests: AdminRequests, topics: TopicAdmin, brokers: BrokerAdmin) -> None:
        self._requests = requests
        self._topics = topics
        self._brokers = brokers
        self._page_limits: dict[str, tuple[int, int]] = {}  # by address: for a key, for a unique key

    async def query(
        self, topic: str, key: str, most: int, begin_ms: int = 0, end_ms: int = MAX_LONG, *, unique: bool = False
    ) -> KeyQueryResult:
        """Return the newest `most` messages of a topic with a key or unique key, newest first."""
        return await _KeyQuery(self, topic, key, (begin_ms, end_ms), most, unique=unique).run()

    async def query_unique_key(
        self, topic: str, unique_key: str, begin_ms: int = 0, end_ms: int = MAX_LONG
    ) -> KeyQueryResult:
        """Return the newest PAGE messages with a unique key, oldest first."""
        result = await self.query(topic, unique_key, PAGE, begin_ms, end_ms, unique=True)
        result.messages.reverse()
        return result

    async def addresses(self, topic: str) -> list[str]:
        """Return the address of one broker for every broker name in the topic's route."""
        return addresses_of((await self._topics.route(topic)).broker_datas)

    async def request(self, address: str, header: QueryMessageRequestHeader) -> RemotingCommand:
        return await self._requests.invoke_unchecked(address, RequestCode.QUERY_MESSAGE, header)

    async def page_limit(self, address: str, *, unique: bool) -> int:
        """Return the broker's limit of records per response, or Apache's default if unknown."""
        if address not in self._page_limits:
            try:
                config = await self._brokers.config(address)
                limit = int(config.get("maxMsgsNumBatch", PAGE))
                unique_limit = min(limit, int(config.get("defaultQueryMaxNum", UNIQUE_KEY_PAGE)))
                self._page_limits[address] = max(1, limit), max(1, unique_limit)
            except (BrokerError, ValueError):
                self._page_limits[address] = PAGE, UNIQUE_KEY_PAGE
        return self._page_limits[address][unique]


def _index_range(response: RemotingCommand) -> tuple[int, int] | None:
    header = response.decode_header(QueryMessageResponseHeader)
    if header.index_begin_timestamp is None or header.index_end_timestamp is None:
        return None
    return header.index_begin_timestamp, header.index_end_timestamp


def store_position(message: MessageExt) -> tuple[int, int]:
    return message.store_timestamp, message.physical_offset
