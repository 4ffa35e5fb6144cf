"""A ledger of sends, and what it promises: what was acknowledged is stored, once, in order, and polled so."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from rucola.client import Message, MessageQueue, Producer, PullConsumer, SendStatus
from rucola.client.producer.send_request import SendResult
from rucola.errors import MQError
from rucola.message.ids import parse_offset_msg_id
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rucola.remoting.client import RemotingClient

TOPIC = "T"
STORED = {
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
}
"""Answers to sends that were stored."""
Stored: TypeAlias = dict[int, list[tuple[int, bytes, int]]]
"""All messages of the topic: queue offset, digest of the body, and physical offset, by queue."""


@dataclass
class Acknowledged:
    """A send that was answered with SEND_OK."""

    number: int
    digest: bytes
    queue_id: int
    queue_offset: int
    broker: str
    """Address of the broker that stored it."""
    physical_offset: int
    begin_s: float
    end_s: float
    """Times of the event loop before the send, and of its answer."""


@dataclass
class SendLedger:
    """Sends one after the other, and what became of them. `name` is part of every body."""

    name: str = "one"
    acknowledged: list[Acknowledged] = field(default_factory=list)
    others: list[tuple[int, str]] = field(default_factory=list)
    """Numbers that were stored without the guarantee, or failed."""
    stored_s: float = 0.0
    """When the last send began that was stored, with the guarantee or without."""
    _count: int = 0

    @property
    def ended(self) -> int:
        """The number of sends with an outcome."""
        return len(self.acknowledged) + len(self.others)

    def _next(self) -> tuple[int, bytes]:
        number = self._count
        self._count += 1
        return number, f"{self.name} {number} ".encode() + bytes(number % 251 for _ in range(50 + number % 200))

    async def send(self, producer: Producer) -> SendResult | MQError:
        """Send the next message once; note the outcome."""
        number, body = self._next()
        begin_s = asyncio.get_running_loop().time()
        try:
            result = await producer.send(Message(TOPIC, body, keys=str(number)))
        except MQError as error:
            self.others.append((number, str(error)))
            return error
        self.stored_s = begin_s
        if result.status is SendStatus.SEND_OK:
            self._note(number, body, result.queue.queue_id, result.queue_offset, result.offset_msg_id, begin_s)
        else:
            self.others.append((number, result.status.name))
        return result

    async def send_to(self, client: RemotingClient, address: str) -> None:
        """Send the next message to a broker whether it is in the route or not; note the outcome."""
        number, body = self._next()
        header = SendMessageRequestHeaderV2(
            producer_group="p", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=1, flag=0, properties="",
        )  # fmt: skip
        begin_s = asyncio.get_running_loop().time()
        try:
            answer = await client.invoke(
                address, RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body), 5000
            )
        except MQError as error:
            self.others.append((number, str(error)))
            return
        if answer.code in STORED:
            self.stored_s = begin_s
        if answer.code == ResponseCode.SUCCESS:
            place = answer.decode_header(SendMessageResponseHeader)
            self._note(number, body, place.queue_id, place.queue_offset, place.msg_id, begin_s)
        else:
            self.others.append((number, str(answer.remark)))

    def _note(
        self, number: int, body: bytes, queue_id: int, queue_offset: int, offset_msg_id: str, begin_s: float
    ) -> None:
        broker, physical_offset = parse_offset_msg_id(offset_msg_id)
        digest, end_s = hashlib.sha256(body).digest(), asyncio.get_running_loop().time()
        self.acknowledged.append(
            Acknowledged(number, digest, queue_id, queue_offset, broker, physical_offset, begin_s, end_s)
        )

    async def until_ok(self, producer: Producer, timeout_s: float = 60) -> float:
        """Send until a message is acknowledged; return how long that took in seconds."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        async with asyncio.timeout(timeout_s):
            while not self.acknowledged or self.acknowledged[-1].begin_s < begin_s:
                await self.send(producer)
                await asyncio.sleep(0.01)
        return loop.time() - begin_s

    async def check(self, namesrv: str) -> None:
        """Read all queues, and compare them with what was acknowledged."""
        check_ledgers([self], await read_all(namesrv))


def lost(acknowledged: list[Acknowledged], stored: Stored) -> list[Acknowledged]:
    """The messages that are not where they were stored."""
    places = {(queue_id, *each) for queue_id, found in stored.items() for each in found}
    return [
        one for one in acknowledged if (one.queue_id, one.queue_offset, one.digest, one.physical_offset) not in places
    ]


def check_ledgers(ledgers: list[SendLedger], stored: Stored) -> None:
    """Compare what was acknowledged with what is stored, by queue."""
    acknowledged = [each for ledger in ledgers for each in ledger.acknowledged]
    for queue_id, messages in stored.items():
        offsets = [offset for offset, _, _ in messages]
        assert offsets == list(range(len(offsets))), f"queue {queue_id} has gaps or repeats"
        places = [place for _, _, place in messages]
        assert places == sorted(set(places)), f"queue {queue_id} is not in the order of the log"
    missing = lost(acknowledged, stored)
    assert not missing, f"{len(missing)} of {len(acknowledged)} acknowledged messages are lost: {missing[:5]}"
    check_history(acknowledged, stored)


def check_history(acknowledged: list[Acknowledged], stored: Stored) -> None:
    """Check the order of a history, as Elle does for logs.

    A send that was acknowledged before another one began has the smaller offset in their queue, and in the log; no
    offset is given twice; no acknowledged body is stored twice, since each is sent once.
    """
    offsets = [(each.queue_id, each.queue_offset) for each in acknowledged]
    assert len(set(offsets)) == len(offsets), "an offset was given twice"
    # In the order of the begins, the greatest offset of those that had ended before.
    events = sorted(
        [(each.begin_s, 1, each) for each in acknowledged] + [(each.end_s, 0, each) for each in acknowledged],
        key=lambda event: event[:2],
    )
    last: dict[int, Acknowledged] = {}
    newest: Acknowledged | None = None
    for _, is_begin, each in events:
        before = last.get(each.queue_id)
        if is_begin:
            assert before is None or before.queue_offset < each.queue_offset, f"{each} began after {before}"
            assert newest is None or newest.physical_offset < each.physical_offset, f"{each} began after {newest}"
            continue
        if before is None or before.queue_offset < each.queue_offset:
            last[each.queue_id] = each
        if newest is None or newest.physical_offset < each.physical_offset:
            newest = each
    times = {digest: 0 for found in stored.values() for _, digest, _ in found}
    for found in stored.values():
        for _, digest, _ in found:
            times[digest] += 1
    twice = [each for each in acknowledged if times.get(each.digest, 0) > 1]
    assert not twice, f"stored twice, although acknowledged at the first attempt: {twice[:5]}"


def changes_of_master(acknowledged: list[Acknowledged]) -> int:
    """How often the broker that acknowledges has changed, at least: two that do so at once change all the time."""
    changes, last = -1, None
    for each in sorted(acknowledged, key=lambda each: each.end_s):
        if last is None or (each.broker != last.broker and each.begin_s > last.end_s):
            changes, last = changes + 1, each
    return max(changes, 0)


class Polls:
    """What a consumer has polled: it continues where its last pull ended."""

    def __init__(self) -> None:
        self._seen: dict[int, list[tuple[int, bytes]]] = {}

    @property
    def count(self) -> int:
        return sum(map(len, self._seen.values()))

    async def run(self, namesrv: str, pause_s: float) -> None:
        """Pull all queues, until cancelled. Brokers hold pulls that find nothing."""
        async with PullConsumer("soak-reader", namesrv) as consumer:
            queues: list[MessageQueue] = []
            while not queues:
                with suppress(MQError):
                    queues = await consumer.queues(TOPIC)
                await asyncio.sleep(pause_s)
            async with asyncio.TaskGroup() as pulls:
                for queue in queues:
                    pulls.create_task(self._pull(consumer, queue, pause_s))

    async def _pull(self, consumer: PullConsumer, queue: MessageQueue, pause_s: float) -> None:
        seen = self._seen.setdefault(queue.queue_id, [])
        while True:
            with suppress(MQError):
                result = await consumer.pull(queue, seen[-1][0] + 1 if seen else 0, suspend_ms=1000)
                seen += [(one.queue_offset, hashlib.sha256(one.body).digest()) for one in result.messages]
            await asyncio.sleep(pause_s)

    def have_all(self, stored: Stored) -> bool:
        return all(len(self._seen.get(queue_id, [])) >= len(found) for queue_id, found in stored.items())

    def check(self, stored: Stored) -> None:
        """Every message was polled once, in order, and none that is not in the log now.

        `stored` was read after the last poll.
        """
        for queue_id, seen in self._seen.items():
            offsets = [offset for offset, _ in seen]
            assert offsets == list(range(len(offsets))), f"polls of queue {queue_id} are not monotonic"
            now = {(offset, digest) for offset, digest, _ in stored[queue_id]}
            gone = [offset for offset, digest in seen if (offset, digest) not in now]
            assert not gone, f"queue {queue_id} of {len(now)} messages: not in the log now, but polled: {gone[:5]}"

    def forget(self) -> None:
        """Begin again, after a loss that the configuration allows."""
        self._seen.clear()


async def read_all(namesrv: str) -> Stored:
    """Read all queues."""
    stored: Stored = {}
    async with PullConsumer("check", namesrv) as consumer:
        for queue in await consumer.queues(TOPIC):
            found = stored[queue.queue_id] = []
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                for message in result.messages:
                    digest = hashlib.sha256(message.body).digest()
                    found.append((message.queue_offset, digest, message.physical_offset))
                offset = result.next_begin_offset
    return stored
