"""Members of a group that receive by POP amid failovers, some of which crash; and the ledger of what they got."""

from __future__ import annotations

import asyncio
import hashlib
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rucola.client import SimpleConsumer
from rucola.errors import BrokerError, MQError
from rucola.message import MessageExt
from rucola.protocol.codes import ResponseCode
from support.proxied_clients import ProxiedConsumer, Received
from support.send_ledger import TOPIC, Stored

INVISIBLE_MS = 15_000
IN_TIME_S = 10.0
"""What is acknowledged so soon is not delivered again, while a later acknowledgement may follow the redelivery."""
CRASH_EACH = 20
"""In one of so many receives the member crashes."""
CRASH_INVISIBLE_MS = 1000
PROXIED_CRASH_INVISIBLE_MS = 10_000
"""The shortest that a receive by gRPC may ask for."""
PAUSE_S = 0.1

Member: TypeAlias = SimpleConsumer | ProxiedConsumer


@dataclass
class PopLedger:
    group: str
    orderly: bool = False
    is_proxied: bool = False
    """Whether members receive by gRPC, through a proxy."""
    seed: int = 1
    received: int = 0
    acknowledged: dict[bytes, bool] = field(default_factory=dict)
    """The digests of bodies, and whether that was in time."""
    returned: list[tuple[int, int]] = field(default_factory=list)
    """Queue ids and offsets of messages that came after they were acknowledged in time."""
    overtaken: list[tuple[int, int]] = field(default_factory=list)
    """In order: messages for which no acknowledgement had been sent when a later one of their queue came."""
    _sent: set[tuple[int, int]] = field(default_factory=set)
    """Messages for which an acknowledgement was sent."""
    _prefix: Counter[int] = field(default_factory=Counter)
    """By queue: the offset below which all are in `_sent`."""

    async def run(self, address: str, members: int) -> None:
        """Consume until cancelled; `address` is that of the name server or the proxy."""
        chance = random.Random(self.seed)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(members):
                tasks.create_task(self._live(address, chance))

    def _member(self, address: str) -> Member:
        if self.is_proxied:
            return ProxiedConsumer(self.group, address)
        return SimpleConsumer(self.group, address, orderly=self.orderly)

    async def _live(self, address: str, chance: random.Random) -> None:
        while True:
            async with self._member(address) as consumer:
                crashes = False
                while not crashes:
                    crashes = chance.randrange(CRASH_EACH) == 0
                    await self._receive(consumer, crashes)

    async def _receive(self, consumer: Member, crashes: bool) -> None:
        attempt_id = uuid.uuid4().hex
        crash_ms = PROXIED_CRASH_INVISIBLE_MS if self.is_proxied else CRASH_INVISIBLE_MS
        invisible_ms = crash_ms if crashes else INVISIBLE_MS
        messages: Sequence[MessageExt | Received] | None = None
        while messages is None:
            begin_s = asyncio.get_running_loop().time()
            try:
                messages = await consumer.receive(TOPIC, invisible_ms=invisible_ms, wait_ms=1000, attempt_id=attempt_id)
            except MQError:
                await asyncio.sleep(PAUSE_S)
        self.received += len(messages)
        for message in messages:
            if self.acknowledged.get(_digest(message)):
                self.returned.append((message.queue_id, message.queue_offset))
        if self.orderly:
            self._check_order({(message.queue_id, message.queue_offset) for message in messages})
        if messages and not crashes:
            self._sent |= {(message.queue_id, message.queue_offset) for message in messages}
            await self._ack(consumer, messages, begin_s)

    def _check_order(self, places: set[tuple[int, int]]) -> None:
        for queue_id, last in places:
            while (queue_id, self._prefix[queue_id]) in self._sent:
                self._prefix[queue_id] += 1
            earlier = {(queue_id, offset) for offset in range(self._prefix[queue_id], last)}
            self.overtaken += earlier - self._sent - places

    async def _ack(self, consumer: Member, messages: Sequence[Any], begin_s: float) -> None:
        while True:
            try:
                await consumer.ack(messages)
                break
            except MQError as error:
                if isinstance(error, BrokerError) and error.code == ResponseCode.NO_MESSAGE:
                    if len(messages) > 1:  # which of them?
                        for message in messages:
                            await self._ack(consumer, [message], begin_s)
                    return
                await asyncio.sleep(PAUSE_S)
        is_in_time = asyncio.get_running_loop().time() - begin_s < IN_TIME_S
        for message in messages:
            digest = _digest(message)
            self.acknowledged[digest] = self.acknowledged.get(digest, False) or is_in_time

    def have_all(self, stored: Stored) -> bool:
        return all(digest in self.acknowledged for found in stored.values() for _, digest, _ in found)

    def check(self, stored: Stored) -> None:
        """Every message that is stored was acknowledged, none came again after that, and the order is kept."""
        assert self.have_all(stored)
        assert not self.returned, f"group {self.group}: delivered again after their acknowledgement: {self.returned}"
        assert not self.overtaken, f"group {self.group}: later ones came before {self.overtaken}"


def _digest(message: MessageExt | Received) -> bytes:
    return hashlib.sha256(message.body).digest()
