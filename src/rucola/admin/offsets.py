"""OffsetAdmin: commit, reset and clone the consumer offsets of a group.

Brokers reset a group together with its running members, and refuse groups without members (CONSUMER_NOT_ONLINE), whose
offsets are computed and committed here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from rucola import fastjson
from rucola.admin.cluster import ClusterAdmin
from rucola.admin.groups import CLIENT_WAIT_MS, GroupAdmin
from rucola.admin.requests import (
    AdminRequests,
    addresses_of,
    gather_fail_fast,
    gather_to_completion,
    masters_of,
    queue_of_item,
)
from rucola.admin.topics import TopicAdmin
from rucola.domain.group import LATEST
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError, ConfigError
from rucola.protocol.codes import LanguageCode, RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import GetConsumerStatusRequestHeader, decode_consumer_status
from rucola.protocol.group import CloneGroupOffsetRequestHeader, ResetOffsetRequestHeader, decode_offset_table
from rucola.protocol.offset import (
    OffsetResponseHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)


@dataclass(slots=True)
class ResetResult:
    """The consumer offsets of a group after a reset, of the reset queues."""

    offsets: dict[MessageQueue, int]
    # True if running members were notified, false if the offsets were committed for a group without members.
    online: bool


class CommittedOffset(NamedTuple):
    group: str
    topic: str
    queue_id: int
    offset: int


def parse_committed_offsets(document: Any) -> list[CommittedOffset]:
    """Parse the offsets of a GET_ALL_CONSUMER_OFFSET body or of config/consumerOffset.json."""
    found = []
    for name, offsets in ((document or {}).get("offsetTable") or {}).items():
        topic, _, group = name.partition("@")
        found += [CommittedOffset(group, topic, int(queue_id), int(offset)) for queue_id, offset in offsets.items()]
    return found


class OffsetAdmin:
    def __init__(self, requests: AdminRequests, cluster: ClusterAdmin, topics: TopicAdmin, groups: GroupAdmin) -> None:
        self._requests = requests
        self._cluster = cluster
        self._topics = topics
        self._groups = groups

    async def by_client(self, topic: str, group: str, client_id: str = "") -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets that members, or only `client_id`, hold, by client id."""
        header = GetConsumerStatusRequestHeader(topic=topic, group=group, client_addr=client_id)
        offsets_by_client: dict[str, dict[MessageQueue, int]] = {}
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        addresses = addresses_of((await self._topics.route(topic)).broker_datas)
        responses = await gather_fail_fast(
            self._requests.invoke(address, code, header, extra_ms=CLIENT_WAIT_MS) for address in addresses
        )
        for response in responses:
            for name, offsets in decode_consumer_status(response.body).items():
                offsets_by_client.setdefault(name, {}).update(offsets)
        return offsets_by_client

    async def commit(self, address: str, group: str, queue: MessageQueue, queue_offset: int) -> None:
        """Commit a consumer offset. Running members are not notified, and overwrite it later."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=queue_offset
        )
        await self._requests.invoke(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def all(self, address: str) -> list[CommittedOffset]:
        """Return the consumer offsets of all groups and queues of one broker."""
        response = await self._requests.invoke(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        return parse_committed_offsets(fastjson.loads(response.body))

    async def clone(self, source: str, destination: str, topic: str, *, offline: bool = False) -> None:
        """Copy a group's offsets on a topic to another group.

        `offline` copies even if no member of `source` subscribes. Without offsets, brokers do nothing and report
        success.
        """
        header = CloneGroupOffsetRequestHeader(
            src_group=source, dest_group=destination, topic=topic, offline=str(offline).lower()
        )
        route = await self._topics.route(topic)
        await gather_to_completion(
            self._requests.invoke(address, RequestCode.CLONE_GROUP_OFFSET, header)
            for address in masters_of(route.broker_datas).values()
        )

    async def reset_by_time(
        self, topic: str, group: str, timestamp_ms: int, *, force: bool = True, cpp: bool = False
    ) -> ResetResult:
        """Reset the group to a store time in ms since 1970, or to the end offsets with LATEST or a future time.

        Without `force`, no offset increases. `cpp` makes Apache's brokers use the encoding of C++ clients; Rucola's
        detect it. ConfigError if the group has no committed offsets on the topic.
        """
        # At a time after the last message brokers would find that message.
        if timestamp_ms >= time.time_ns() // 1_000_000:
            timestamp_ms = LATEST
        header = ResetOffsetRequestHeader(topic=topic, group=group, timestamp=timestamp_ms, is_force=str(force).lower())
        language = LanguageCode.CPP.name if cpp else None

        async def reset(name: str, address: str) -> ResetResult:
            request = RemotingCommand.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            # Apache's brokers choose the encoding for members by the language of this request.
            request.language = language or request.language
            try:
                response = await self._requests.invoke_command(address, request)
            except BrokerError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                return ResetResult(await self._reset_offline(address, name, header, force), online=False)
            return ResetResult(decode_offset_table(response.body), online=True)

        masters = masters_of((await self._topics.route(topic)).broker_datas)
        results = await gather_to_completion(reset(name, address) for name, address in masters.items())
        offsets = {queue: offset for result in results for queue, offset in result.offsets.items()}
        return ResetResult(offsets, online=all(result.online for result in results))

    async def reset(self, group: str, queue: MessageQueue, queue_offset: int) -> ResetResult:
        """Reset the group, including running members, to a queue offset of one queue.

        ConfigError if the offset is outside of the queue, or if a broker of RocketMQ 4, which can reset running members
        to a time only, has members. BrokerError if the group has no committed offset.
        """
        address = await self._cluster.master_address(queue.broker_name)
        begin, end = await self.ends(address, queue)
        if not begin <= queue_offset <= end:
            raise ConfigError(
                f"offset {queue_offset} is outside of {queue}, which has offsets {begin} to {end}", subject=queue
            )
        # RocketMQ 4 ignores `queue_id` and `offset`, and sees a reset to the end without force, which moves nothing.
        header = ResetOffsetRequestHeader(
            topic=queue.topic, group=group, timestamp=LATEST, queue_id=queue.queue_id, offset=queue_offset
        )
        try:
            response = await self._requests.invoke(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        except BrokerError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            await self.commit(address, group, queue, queue_offset)
            return ResetResult({queue: queue_offset}, online=False)
        # A broker of RocketMQ 4 responds with the offsets of all queues, unchanged.
        if decode_offset_table(response.body) != {queue: queue_offset}:
            raise ConfigError(
                f"broker {queue.broker_name} runs RocketMQ 4, which cannot reset running clients to an offset: stop "
                f"all clients of group {group}, repeat this command and start them again, or use resetOffsetByTime",
                subject=group,
            )
        return ResetResult({queue: queue_offset}, online=True)

    async def _reset_offline(
        self, address: str, broker_name: str, header: ResetOffsetRequestHeader, force: bool
    ) -> dict[MessageQueue, int]:
        targets = await self._targets(address, header.topic, header.group, header.timestamp, force)
        if not targets:
            raise ConfigError(f"group {header.group} has committed nothing on topic {header.topic} at {broker_name}")
        for queue, (_, offset) in targets.items():
            await self.commit(address, header.group, queue, offset)
        return {queue: offset for queue, (_, offset) in targets.items()}

    async def preview_by_time(
        self, topic: str, group: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Return the offsets before and after `reset_by_time`, by queue, and change nothing."""
        if timestamp_ms >= time.time_ns() // 1_000_000:
            timestamp_ms = LATEST
        masters = masters_of((await self._topics.route(topic)).broker_datas)
        answers = await gather_fail_fast(
            self._targets(address, topic, group, timestamp_ms, force) for address in masters.values()
        )
        return dict(sorted((item for one in answers for item in one.items()), key=queue_of_item))

    async def _targets(
        self, address: str, topic: str, group: str, timestamp_ms: int, force: bool
    ) -> dict[MessageQueue, tuple[int, int]]:
        """The offsets of one broker before and after a reset."""
        committed = (await self._groups.consume_stats_at(address, group, topic)).offset_table
        targets = {}
        for queue, wrapper in sorted(committed.items(), key=queue_of_item):
            if timestamp_ms == LATEST:
                _, offset = await self.ends(address, queue)
            else:
                offset = await self._offset_at(address, queue, timestamp_ms)
            targets[queue] = wrapper.consumer_offset, offset if force else min(offset, wrapper.consumer_offset)
        return targets

    async def _offset_at(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        response = await self._requests.invoke(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return max(0, response.decode_header(OffsetResponseHeader).offset)

    async def ends(self, address: str, queue: MessageQueue) -> tuple[int, int]:
        """Return the minimum and the maximum offset of a queue."""
        header = QueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        begin, end = [
            max(0, (await self._requests.invoke(address, code, header)).decode_header(OffsetResponseHeader).offset)
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        ]
        return begin, end
