"""A trial of an elected group: clients that send and poll all the time, faults, and the judgement after each of them.

Three kinds of producers send one message after the other, and note what was acknowledged: one that follows the routes,
and one for each broker that sends to it in any case, as a client on its side of a partition would. After a fault

- every acknowledged message is at its queue offset and physical offset, with its hash; with `may_lose`, one that is not
  is in the part of a log that was set aside (`diverged/`);
- queue offsets are without gap or repeat; a send that was acknowledged before another one began comes before it;
- no two brokers have acknowledged by turns, but for elections;
- the reader has seen every message once, in order, and nothing that is not in the log now.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from rucola.client import Producer
from rucola.remoting.client import RemotingClient
from rucola.store.directory_reader import StoreReader
from support.elected_group import ElectedGroup
from support.send_ledger import Polls, SendLedger, Stored, changes_of_master, check_ledgers, lost, read_all
from support.waiting import until

SETTLE_S = 120.0
SEND_PAUSE_S = 0.002
DIRECT_PAUSE_S = 0.02
"""Pause of the producers that send to one broker: most of them are refused."""
POLL_PAUSE_S = 0.05


class Trial:
    """One group under load. `producer` follows the routes, without retries."""

    def __init__(self, group: ElectedGroup, producer: Producer) -> None:
        self.group = group
        self.producer = producer
        self.ledger = SendLedger()
        self.direct = {number: SendLedger(f"direct-{number}") for number in group.ports}
        """What was sent to each broker, whatever its role."""
        self.polls = Polls()

    @property
    def ledgers(self) -> list[SendLedger]:
        return [self.ledger, *self.direct.values()]

    @classmethod
    @asynccontextmanager
    async def of(cls, group: ElectedGroup) -> AsyncIterator[Self]:
        """A trial of a group that has just been started. In the end all brokers are stopped, and compared."""
        await group.create_topic()
        await until(group.all_in_sync, SETTLE_S)
        async with Producer("p", group.namesrv, retry_times=0) as producer:
            trial = cls(group, producer)
            yield trial
            await group.stop()

    async def undergo(self, *faults: Callable[[], Awaitable[None]], may_lose: bool = False) -> None:
        """Let one fault after the other happen under load, and judge each."""
        for fault in faults:
            async with self.load():
                await fault()
            await self.judge(may_lose=may_lose)

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Send from before a fault until a message is acknowledged after it, by a group that is complete again."""
        await self.ledger.until_ok(self.producer, SETTLE_S)
        client = RemotingClient()
        async with asyncio.TaskGroup() as tasks:
            polling = self.polls.run(self.group.namesrv, POLL_PAUSE_S)
            load = [tasks.create_task(self._send()), tasks.create_task(polling)]
            for number, ledger in self.direct.items():
                load.append(tasks.create_task(self._send_to(client, number, ledger)))
            yield
            await until(self.group.all_in_sync, SETTLE_S)
            for task in load:
                task.cancel()
        await client.close()
        await self.ledger.until_ok(self.producer, SETTLE_S)

    async def _send(self) -> None:
        while True:
            await self.ledger.send(self.producer)
            await asyncio.sleep(SEND_PAUSE_S)

    async def _send_to(self, client: RemotingClient, number: int, ledger: SendLedger) -> None:
        while True:
            await ledger.send_to(client, self.group.direct_address(number))
            await asyncio.sleep(DIRECT_PAUSE_S)

    # What faults wait for.

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def another_leads(self, first: int) -> None:
        """Wait until another broker is master."""

        async def is_so() -> bool:
            return await self.group.master() != first

        await until(is_so, SETTLE_S)

    async def other(self, number: int) -> int:
        """The other one of two brokers."""
        (other,) = self.group.ports.keys() - {number}
        return other

    async def acknowledges(self, since_s: float) -> None:
        """Wait until a message is acknowledged that began after a time of the event loop."""
        await until(lambda: self.acknowledged_since(since_s) > 0, SETTLE_S)

    async def is_stored_by(self, number: int) -> None:
        """Wait until a broker stores a message that is sent from now on."""
        begin_s = self.now_s()
        await until(lambda: self.direct[number].stored_s > begin_s, SETTLE_S)

    async def in_sync_are(self, *numbers: int) -> None:
        """Wait until etcd has this in-sync set."""

        async def is_so() -> bool:
            state = (await self.group.view()).state
            return state is not None and state.in_sync.keys() == {*numbers}

        await until(is_so, SETTLE_S)

    def acknowledged_since(self, since_s: float) -> int:
        """How many of the last messages that were acknowledged began after a time of the event loop."""
        return sum(each.begin_s > since_s for ledger in self.ledgers for each in ledger.acknowledged[-100:])

    # The judgement.

    async def judge(self, *, may_lose: bool = False) -> None:
        """Compare ledgers and polls with all queues. What is lost was the end of a log, and is kept aside."""
        stored = await read_all(self.group.namesrv)
        state = (await self.group.view()).state
        assert state is not None
        acknowledged = [each for ledger in self.ledgers for each in ledger.acknowledged]
        assert changes_of_master(acknowledged) < state.epoch, "two masters have acknowledged at the same time"
        if may_lose and (gone := lost(acknowledged, stored)):
            assert {each.digest for each in gone} <= await asyncio.to_thread(self._kept_aside)
            digests = {each.digest for each in gone}
            for ledger in self.ledgers:
                ledger.acknowledged = [each for each in ledger.acknowledged if each.digest not in digests]
        check_ledgers(self.ledgers, stored)
        if may_lose:
            self.polls.forget()
        else:
            await self._poll_rest(stored)
            self.polls.check(await read_all(self.group.namesrv))

    async def _poll_rest(self, stored: Stored) -> None:
        """Poll until everything that is stored was polled."""
        polling = asyncio.create_task(self.polls.run(self.group.namesrv, POLL_PAUSE_S))
        await until(lambda: self.polls.have_all(stored), SETTLE_S)
        polling.cancel()
        await asyncio.wait([polling])

    def _kept_aside(self) -> set[bytes]:
        found = set()
        for number in self.group.brokers:
            for directory in sorted((self.group.directory(number) / "diverged").glob("*")):
                found |= digests_of(directory)
        return found


def digests_of(directory: Path) -> set[bytes]:
    """The hashes of all messages of a store directory."""
    with StoreReader(directory) as reader:
        return {hashlib.sha256(message.body).digest() for message in reader.walk()}
